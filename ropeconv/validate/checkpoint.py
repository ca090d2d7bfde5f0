"""Logits of the stock load of a baked checkpoint against its source, scaled at run time from the recipe.

The two sides share no config: the baked one is loaded as anybody would load it, the reference is the source with
its rotary modules' buffers overwritten from the schedule. A control, the source left alone, has to disagree.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engines.transformers.backbone import keep_head, logits
from ..engines.transformers.config_method import load_by_config, parameters
from ..engines.transformers.distributed import check_heads, world
from ..engines.transformers.load import Place, fits, load_stock, load_widened, local_folder, place, stored_dtype
from ..errors import BadSource
from ..receipts.read import read_receipt
from ..sources import open_checkpoint
from .checks.trust import needs_trust
from .comparison import described, query_scales, rounded_weights, schedule_of
from .hidden_states import Case, Sides, read_again, read_source, states
from .rule.measures import Measures, in_blocks, measure, summarise
from .rule.result import BucketResult, Validation, judge, noise_floor, verdict
from .sampling.token_runs import Passage, passages
from .settings import Settings, Watch

Curve = tuple[tuple[int, float], ...]


def validate(
    baked: Path, against: str, settings: Settings | None = None, watch: Watch | None = None, **more: Any
) -> Validation:
    """Runs the comparison. more: single settings, by name.

    Raises BadSource when `baked` has no receipt, `against` is not what it was made from, or the length is beyond both.
    """
    import transformers

    settings, watch = replace(settings or Settings(), **more), watch or Watch()
    source, trust = open_checkpoint(against), needs_trust(baked, settings.trust_remote_code)
    receipt = read_receipt(baked)
    schedule, spec, unchanged = schedule_of(baked, source)
    if settings.length > schedule.context:
        raise BadSource(f"{baked} is made for {schedule.context} tokens, so --length {settings.length} is beyond it")
    if settings.third:
        parameters(schedule, spec)  # raises before anything long
    if world() > 1:
        check_heads(source.config())
    at = place(settings.device, settings.dtype, settings.device_map, stored_dtype(source.config()))
    folder = local_folder(source)
    model = load_stock(folder, at)
    runs = passages(settings, schedule, model.get_input_embeddings().weight.shape[0], folder)
    times = {"spread": 5 + settings.third + (at.dtype != "float32"), "whole": 2}
    work = sum(len(run.ids) * times[run.kind] for run in runs)
    watch.total(work)
    watch.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: control, reference, noise floor, baked.")
    case = Case(source, schedule, spec, query_scales(receipt, schedule), settings, watch)
    sides = read_source(model, case, rounded_weights(receipt, at.dtype), runs)
    head, wide = keep_head(model), at.dtype != "float32" and fits(source, 4)
    if wide:
        sides.again.append(read_again(load_widened(folder, at), case, runs))
    elif at.dtype != "float32":
        watch.note("There is no room for the source in float32, so the noise floor is without it.")
    stock = load_stock(baked, at, trust)
    _same_vocabulary(head, stock, baked)
    cut = [run.until(len(read)) for run, read in zip(runs, sides.reference, strict=True)]
    sides.baked = sides.run("baked", cut, lambda run: states(stock, run, settings.chunk, watch))
    cut = [run.until(len(read)) for run, read in zip(cut, sides.baked, strict=True)]
    partial = [len(run.kept) for run in cut] != [len(run.kept) for run in runs]
    results, curve = _judged(cut, sides, head, stock)
    agrees, sentence = verdict(results, unchanged)
    third = None
    if settings.third:
        stock = None
        third, agreed = _third(folder, at, case, cut, sides, head, results)
        agrees = agrees and agreed
        words = "agrees" if agreed else "does not agree"
        sentence += f" The source with the method in its config {words} with the reference (KL up to {third:.1e})."
    precision = _precision(cut, sides, head) if wide else 0.0
    if sides.formula:
        sentence += _apart(cut, sides, head)
    if partial:
        sentence += " It was stopped before its end."
    where = f"{at.device} x {world()}" if world() > 1 else at.device
    return Validation(
        transformers.__version__, where, schedule.digest, settings.spread, settings.seed, tuple(results), agrees,
        sentence, dtype=at.dtype, length=settings.length, chunk=settings.chunk, partial=partial, curve=curve,
        precision_kl=precision, third_kl=third, speed=sides.speed, **described(schedule, spec),
    )  # fmt: skip


def _judged(runs: list[Passage], sides: Sides, head: Any, stock: Any) -> tuple[list[BucketResult], Curve]:
    """Results per bucket, those of spread runs first; and the curve of the whole run."""
    results: list[BucketResult] = []
    curve: Curve = ()
    noise = 0.0  # does not fall with the position
    for number, run in enumerate(runs):
        wanted, targets = sides.reference[number], run.targets()
        found = _against(head, wanted, stock, sides.baked[number], targets)
        if run.kind == "spread":
            control = _against(head, wanted, head, sides.control[number], targets).kl.mean().item()
            floors = [
                _against(head, wanted, own or head, read[number], targets).kl.quantile(0.95).item()
                for own, read in sides.again
            ]
            noise = max(noise, noise_floor(*sides.parted(floors)))
            results.append(judge(run.buckets[0], summarise(found), control, noise))
            continue
        for like, (bucket, rows) in zip(list(results), run.parts(), strict=False):
            results.append(judge(bucket, summarise(found[rows]), like.control_kl, like.noise_kl, "whole"))
        curve = tuple((run.positions[k], kl) for k, kl in zip(run.kept, found.kl.tolist(), strict=False))
    return results, curve


def _against(head: Any, wanted: Any, other_head: Any, read: Any, targets: Any) -> Measures:
    count = min(len(wanted), len(read), len(targets))
    vocabulary = head.get_output_embeddings().weight.shape[0]

    def measured(rows: slice) -> Measures:
        return measure(logits(head, wanted[rows]), logits(other_head, read[rows]), targets[rows])

    return in_blocks(measured, count, vocabulary)


def _third(
    folder: Path, at: Place, case: Case, runs: list[Passage], sides: Sides, head: Any, results: list[BucketResult]
) -> tuple[float, bool]:
    """The KL of transformers' own method from the reference, and whether it is within what each bucket allows."""
    model = load_by_config(folder, at, case.schedule, case.spec)
    worst, agrees = 0.0, True
    for run, wanted, result in zip(runs, sides.reference, results, strict=False):
        if run.kind == "spread":
            found = _against(head, wanted, model, states(model, run, case.settings.chunk, case.watch), run.targets())
            kl = found.kl.quantile(0.95).item()
            worst, agrees = max(worst, kl), agrees and kl <= result.tolerance
    return worst, agrees


def _precision(runs: list[Passage], sides: Sides, head: Any) -> float:
    """The KL between float32 and the precision that was run in, at the end of the context."""
    wide, read = sides.again[-1]
    last = len(read) - 1
    return float(_against(wide, read[last], head, sides.reference[last], runs[last].targets()).kl.mean())


def _apart(runs: list[Passage], sides: Sides, head: Any) -> str:
    pairs = zip(runs, sides.formula, sides.reference, strict=False)
    found = max(_against(head, a, head, b, run.targets()).kl.mean().item() for run, a, b in pairs)
    return f" It agrees with the steps that were written; log-n itself is a KL of {found:.2e} away from them."


def _same_vocabulary(head: Any, stock: Any, baked: Path) -> None:
    one, other = (len(model.get_output_embeddings().weight) for model in (head, stock))
    if one != other:
        raise BadSource(f"{baked} has a vocabulary of {other} and its source one of {one}; name the source it is from")
