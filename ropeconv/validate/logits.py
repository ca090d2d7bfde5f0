"""Logits of the stock load of a baked checkpoint against its source, scaled at run time from the recipe.

The two sides share no config: the baked one is loaded as anybody would load it, the reference is the source with
its rotary modules' buffers overwritten from the schedule. A control, the source left alone, has to disagree.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..sources import open_checkpoint
from ..sources.receipt import read_receipt
from .compare import Measures, in_blocks, measure, summarise
from .hidden import keep_head, logits
from .loading import load_stock, load_widened, local_folder, place, stored_dtype
from .passages import Passage, passages
from .result import BucketResult, Validation, judge, verdict
from .schedule import described, query_scales, schedule_of
from .settings import Settings, Watch
from .sides import Sides, read_reference, read_source, states
from .trust import needs_trust

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
    at = place(settings.device, settings.dtype, settings.device_map, stored_dtype(source.config()))
    folder = local_folder(source)
    model = load_stock(folder, at)
    runs = passages(settings, schedule, model.get_input_embeddings().weight.shape[0], folder)
    work = sum(len(run.ids) * (5 if run.kind == "spread" else 2) for run in runs)
    watch.total(work)
    watch.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: control, reference, noise floor, baked.")
    fold, scale = receipt.get("fold") or {}, query_scales(receipt, schedule)
    folded = fold["tensors"] if fold.get("expected_kl") else []
    sides = read_source(model, source, schedule, spec, scale, folded, runs, settings, watch)
    head = keep_head(model)
    stock = load_stock(baked, at, trust)
    _same_vocabulary(head, stock, baked)
    cut = [run.until(len(read)) for run, read in zip(runs, sides.reference, strict=True)]
    sides.baked = sides.run("baked", cut, lambda run: states(stock, run, settings.chunk, watch))
    cut = [run.until(len(read)) for run, read in zip(cut, sides.baked, strict=True)]
    partial = [len(run.kept) for run in cut] != [len(run.kept) for run in runs]
    results, curve = _judged(cut, sides, head, stock)
    agrees, sentence = verdict(results, unchanged)
    precision = 0.0
    if at.dtype != "float32":
        del stock  # makes room
        last = sum(run.kind == "spread" for run in cut) - 1
        wide = load_widened(folder, at)
        read = read_reference(wide, source, schedule, spec, scale, cut[last], settings, watch)
        precision = _against(wide, read, head, sides.reference[last], cut[last].targets()).kl.mean().item()
    if sides.formula:
        sentence += _apart(cut, sides, head)
    if partial:
        sentence += " It was stopped before its end."
    return Validation(
        transformers.__version__, at.device, schedule.digest, settings.spread, settings.seed, tuple(results), agrees,
        sentence, dtype=at.dtype, length=settings.length, chunk=settings.chunk, partial=partial, curve=curve,
        precision_kl=precision, speed=sides.speed, **described(schedule, spec),
    )  # fmt: skip


def _judged(runs: list[Passage], sides: Sides, head: Any, stock: Any) -> tuple[list[BucketResult], Curve]:
    """Results per bucket, those of spread runs first; and the curve of the whole run."""
    results: list[BucketResult] = []
    curve: Curve = ()
    for number, run in enumerate(runs):
        wanted, targets = sides.reference[number], run.targets()
        found = _against(head, wanted, stock, sides.baked[number], targets)
        if run.kind == "spread":
            control = _against(head, wanted, head, sides.control[number], targets).kl.mean().item()
            again = (_against(head, wanted, head, read[number], targets) for read in sides.again)
            noise = max(measures.kl.quantile(0.95).item() for measures in again)
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


def _apart(runs: list[Passage], sides: Sides, head: Any) -> str:
    pairs = zip(runs, sides.formula, sides.reference, strict=False)
    found = max(_against(head, a, head, b, run.targets()).kl.mean().item() for run, a, b in pairs)
    return f" It agrees with the steps that were written; log-n itself is a KL of {found:.2e} away from them."


def _same_vocabulary(head: Any, stock: Any, baked: Path) -> None:
    one, other = (len(model.get_output_embeddings().weight) for model in (head, stock))
    if one != other:
        raise BadSource(f"{baked} has a vocabulary of {other} and its source one of {one}; name the source it is from")
