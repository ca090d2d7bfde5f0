"""Logits of the stock load of a baked checkpoint against its source, scaled at run time from the recipe.

The two sides share no config: the baked one is loaded as anybody would load it, the reference is the source with
its rotary modules' buffers overwritten from the schedule. A control, the source left alone, has to disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..families.config import detect
from ..rope.log_n import EXACT, LogN, Staircase
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..sources import Source, open_checkpoint
from ..sources.inspection import inspect_config
from ..sources.receipt import read_receipt
from .compare import compare_logits
from .positions import Bucket, buckets
from .reference import patch, patched_at, scale_queries
from .result import Validation, judge, verdict
from .trust import needs_trust


def validate(
    baked: Path, against: str, device: str = "auto", tokens: int = 512, seed: int = 0,
    trust_remote_code: bool = False, note: Callable[[str], None] = lambda message: None,
) -> Validation:  # fmt: skip
    """Runs the comparison in float32.

    trust_remote_code: run the code that `baked` brings even where ropeconv has not written it. Raises BadSource when
    `baked` has no receipt or `against` is not what it was made from.
    """
    import torch
    import transformers

    where = "cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu"
    source, trust = open_checkpoint(against), needs_trust(baked, trust_remote_code)
    schedule, spec, unchanged = _schedule(baked, source)
    expected = float((read_receipt(baked).get("fold") or {}).get("expected_kl", 0.0))
    runs = buckets(schedule.original_context, schedule.context, tokens)
    model = load_stock(local_folder(source), where)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(vocabulary, (1, len(run.positions)), generator=generator) for run in runs]
    note(f"Running {len(runs)} buckets of {tokens} tokens on {where}: control, reference, baked.")
    control = [_logits(model, i, run, where) for i, run in zip(ids, runs, strict=True)]
    scale, formula = query_scales(read_receipt(baked), schedule), None
    queries = query_module(source)
    if isinstance(scale, Staircase):
        assert schedule.log_n is not None
        undo = scale_queries(model, schedule.log_n, queries)
        formula = list(_reference(model, schedule, spec, ids, runs, where))
        undo()
    if scale is not None:
        scale_queries(model, scale, queries)
    wanted = list(_reference(model, schedule, spec, ids, runs, where))
    del model
    stock = load_stock(baked, where, trust)
    results = []
    for run, i, reference, unscaled in zip(runs, ids, wanted, control, strict=True):
        figures = compare_logits(reference[run.counted], _logits(stock, i, run, where)[run.counted])
        base = compare_logits(reference[run.counted], unscaled[run.counted])
        results.append(judge(run, figures, base, expected))
    agrees, sentence = verdict(results, unchanged)
    if formula is not None:
        apart = max(
            compare_logits(a[r.counted], b[r.counted]).kl_mean for a, b, r in zip(formula, wanted, runs, strict=True)
        )
        sentence += f" It agrees with the steps that were written; log-n itself is a KL of {apart:.2e} away from them."
    return Validation(transformers.__version__, where, schedule.digest, tokens, seed, tuple(results), agrees, sentence)


def _schedule(baked: Path, source: Source) -> tuple[Schedule, RopeSpec, bool]:
    """The schedule, made again from the recipe and the source; it has to be the one in the receipt."""
    receipt = read_receipt(baked)
    recipe = Recipe.from_dict(receipt["recipe"])
    seen = inspect_config(source).spec
    spec = seen if isinstance(recipe.method, AsIs) or not seen.scaled else seen.unscaled()
    schedule = recipe.schedule(spec)
    if schedule.digest != receipt["schedule"]["digest"]:
        raise BadSource(
            f"{source.reference} is not what {baked} was made from: the recipe gives another schedule; name its source"
        )
    schedule = replace(schedule, context=int(receipt["schedule"]["context"]))
    return schedule, seen, schedule.digest == seen.current().digest


def query_scales(receipt: dict[str, Any], schedule: Schedule) -> LogN | Staircase | None:
    """By what queries are scaled: log-n, or the steps that were written where they are more than noise away from it."""
    steps = dict(receipt.get("steps") or {})
    if steps.pop("deviation", 0.0) > EXACT:
        return Staircase(**steps)
    return schedule.log_n


def query_module(source: Source) -> str:
    """Name of the last module before the rotation that yields queries."""
    weights = detect(source.config()).weights
    return weights.q_norm or weights.q


def local_folder(source: Source) -> Path:
    """A folder with all files of a source. Raises BadSource for other layouts."""
    if source.kind == "hub":
        for file in source.carried()[0]:
            path = source.path(file.name)
        return Path(path).parent
    if source.kind != "folder":
        raise BadSource(
            f"{source.reference} is not in the HF layout; bake it with --as-is first and validate against that"
        )
    return Path(source.reference)


def load_stock(folder: Path, where: str, trust: bool = False) -> Any:
    """A checkpoint as the installed transformers loads it, in float32. trust: with the code that it brings."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    # dtype at loading, never a cast: .to(bfloat16) would cast inv_freq as well
    key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    given: dict[str, Any] = {key: torch.float32, "trust_remote_code": trust}
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **given)
    return model.to(where).eval()


def _reference(
    model: Any, schedule: Schedule, spec: RopeSpec, ids: list[Any], runs: list[Bucket], where: str
) -> Iterator[Any]:
    for i, run in zip(ids, runs, strict=True):
        patch(model, patched_at(schedule, run.positions[-1]), spec)
        yield _logits(model, i, run, where)


def _logits(model: Any, ids: Any, run: Bucket, where: str) -> Any:
    import torch

    positions = torch.tensor([run.positions], device=where)
    # without a mask, transformers takes a gap in the positions for the beginning of another sequence
    mask = torch.ones_like(positions)
    with torch.no_grad():
        out = model(input_ids=ids.to(where), position_ids=positions, attention_mask=mask, use_cache=False)
    return out.logits[0].float().cpu()
