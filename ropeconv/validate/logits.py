"""Logits of the stock load of a baked checkpoint against its source, scaled at run time from the recipe.

The two sides share no config: the baked one is loaded as anybody would load it, the reference is the source with
its rotary modules' buffers overwritten from the schedule. A control, the source left alone, has to disagree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import BadSource
from ..rope.log_n import Staircase
from ..rope.schedule import Schedule
from ..sources import Source, open_checkpoint
from ..sources.receipt import read_receipt
from .compare import Measures, in_blocks, summarise
from .hidden import hidden_states, keep_head, logits
from .loading import load_stock, local_folder, place, stored_dtype
from .positions import Bucket, buckets, spread
from .reference import nudged, patch, patched_at, round_weights, scale_queries
from .result import BucketResult, Validation, judge, verdict
from .schedule import described, query_module, query_scales, schedule_of
from .tokens import of_text, synthetic
from .trust import needs_trust

KEPT = 512  # positions of a bucket whose logits are compared
PARTS = 3  # chunks of a spread run, for the noise floor


@dataclass(frozen=True)
class Settings:
    """How to compare.

    device, dtype, device_map: where and in which precision; "auto" takes what is there, and on an accelerator the
    checkpoint's own. tokens: of each spread run. length: of a run over every position, 0 for none. chunk: tokens that
    the backbone sees at a time. text: a file to read instead of synthetic tokens.
    """

    device: str = "auto"
    dtype: str = "auto"
    device_map: str = ""
    tokens: int = 512
    length: int = 0
    chunk: int = 4096
    seed: int = 0
    text: Path | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Watch:
    """What the caller wants to hear. stopped: whether to end the run in progress and judge what is there."""

    note: Callable[[str], None] = lambda message: None
    total: Callable[[int], None] = lambda tokens: None
    advance: Callable[[int], None] = lambda tokens: None
    stopped: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Passage:
    """One run: its tokens, their positions, which are compared, and to which bucket each of those belongs."""

    kind: Literal["spread", "whole"]
    ids: list[int]
    positions: list[int]
    kept: list[int]
    buckets: list[Bucket]

    def until(self, count: int) -> Passage:
        """The passage up to its first `count` compared positions."""
        if count >= len(self.kept):
            return self
        kept, buckets, first = self.kept[:count], [], 0
        for bucket in self.buckets:
            inside = bucket.positions[: max(0, count - first)]
            first += len(bucket.positions)
            if inside:
                buckets.append(replace(bucket, positions=inside, counted=slice(0, len(inside))))
        stop = kept[-1] + 1 if kept else 0
        return replace(self, ids=self.ids[:stop], positions=self.positions[:stop], kept=kept, buckets=buckets)

    def targets(self) -> Any:
        """The token after each compared one, -1 after the last."""
        import torch

        return torch.tensor([self.ids[k + 1] if k + 1 < len(self.ids) else -1 for k in self.kept])

    def parts(self) -> Iterator[tuple[Bucket, slice]]:
        """Each bucket with its rows among the compared positions."""
        first = 0
        for bucket in self.buckets:
            yield bucket, slice(first, first := first + bucket.counted.stop - bucket.counted.start)


@dataclass
class Sides:
    """Hidden states of the source, per passage; all but the reference for spread runs only.

    again: the reference in ways that make no difference but rounding: other chunks, frequencies two steps of float32
    away, and weights rounded where a fold has rounded them.
    """

    control: list[Any] = field(default_factory=list)
    reference: list[Any] = field(default_factory=list)
    again: list[list[Any]] = field(default_factory=list)
    formula: list[Any] = field(default_factory=list)


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
    passages = _passages(settings, schedule, model.get_input_embeddings().weight.shape[0], folder)
    samples = [passage for passage in passages if passage.kind == "spread"]
    work = sum(len(p.ids) * (5 if p.kind == "spread" else 2) for p in passages)
    watch.total(work)
    watch.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: control, reference, noise floor, baked.")
    scale, queries = query_scales(receipt, schedule), query_module(source)
    sides = Sides()

    def of_source(passage: Passage, chunk: int = 0, wanted: Schedule = schedule) -> Any:
        def prepare(last: int) -> None:
            patch(model, patched_at(wanted, last), spec)

        return _states(model, passage, chunk or settings.chunk, prepare, watch)

    sides.control = [_states(model, passage, settings.chunk, lambda last: None, watch) for passage in samples]
    if isinstance(scale, Staircase):
        assert schedule.log_n is not None
        undo = scale_queries(model, schedule.log_n, queries)
        sides.formula = [of_source(passage) for passage in samples]
        undo()
    if scale is not None:
        scale_queries(model, scale, queries)
    speed: dict[str, float] = {}
    sides.reference = _timed(speed, "reference", passages, of_source)
    if schedule.short_inv_freq is None:  # else the list in force changes with the chunk, which is no noise
        sides.again.append([of_source(passage, -(-len(passage.ids) // PARTS)) for passage in samples])
    sides.again.append([of_source(passage, wanted=nudged(schedule)) for passage in samples])
    folded = receipt.get("fold") or {}
    if folded.get("expected_kl"):
        round_weights(model, _stored(source, folded["tensors"]))
        sides.again.append([of_source(passage) for passage in samples])
    head = keep_head(model)
    stock = load_stock(baked, at, trust)
    _same_vocabulary(head, stock, baked)
    cut = [passage.until(len(states)) for passage, states in zip(passages, sides.reference, strict=True)]
    mine = _timed(speed, "baked", cut, lambda p: _states(stock, p, settings.chunk, lambda last: None, watch))
    cut = [passage.until(len(states)) for passage, states in zip(cut, mine, strict=True)]
    partial = [len(passage.kept) for passage in cut] != [len(passage.kept) for passage in passages]
    results, curve = _judged(cut, sides, mine, head, stock)
    agrees, sentence = verdict(results, unchanged)
    if sides.formula:
        sentence += _apart(samples, sides, head)
    if partial:
        sentence += " It was stopped before its end."
    return Validation(
        transformers.__version__, at.device, schedule.digest, settings.tokens, settings.seed, tuple(results), agrees,
        sentence, dtype=at.dtype, length=settings.length, chunk=settings.chunk, partial=partial, curve=curve,
        speed=speed, **described(schedule, spec),
    )  # fmt: skip


def _stored(source: Source, names: list[str]) -> dict[str, str]:
    """The stored type of some tensors, as safetensors names it."""
    found = (tensor for header in source.headers.values() for tensor in header.tensors.values())
    return {tensor.name: tensor.dtype for tensor in found if tensor.name in set(names)}


def _passages(settings: Settings, schedule: Schedule, vocabulary: int, folder: Path) -> list[Passage]:
    """Spread runs over every doubling, and one over every position if that is asked for."""
    runs = buckets(schedule.original_context, schedule.context, settings.tokens)
    longest = max(settings.length, *(len(run.positions) for run in runs))
    text = None if settings.text is None else of_text(settings.text, folder, longest)
    found = []
    for number, run in enumerate(runs):
        count = len(run.positions)
        ids = text[:count] if text else synthetic(count, vocabulary, settings.seed + number)
        kept = list(range(run.counted.start, run.counted.stop))
        found.append(Passage("spread", ids, run.positions, kept, [run]))
    if settings.length:
        whole = spread(schedule.original_context, settings.length, KEPT)
        ids = text[: settings.length] if text else synthetic(settings.length, vocabulary, settings.seed)
        kept = [position for bucket in whole for position in bucket.positions]
        found.append(Passage("whole", ids, list(range(settings.length)), kept, whole))
    return found


def _states(model: Any, passage: Passage, chunk: int, prepare: Callable[[int], None], watch: Watch) -> Any:
    stopped = watch.stopped if passage.kind == "whole" else lambda: False
    return hidden_states(
        model, passage.ids, passage.positions, passage.kept, chunk, prepare, watch.advance, stopped
    )  # fmt: skip


def _timed(speed: dict[str, float], name: str, passages: list[Passage], run: Callable[[Passage], Any]) -> list[Any]:
    """Runs every passage, and notes the tokens per second of the one over every position."""
    found = []
    for passage in passages:
        begin = time.perf_counter()
        found.append(run(passage))
        if passage.kind == "whole" and len(found[-1]) == len(passage.kept):
            speed[name] = round(len(passage.ids) / (time.perf_counter() - begin), 1)
    return found


def _judged(
    passages: list[Passage], sides: Sides, mine: list[Any], head: Any, stock: Any
) -> tuple[list[BucketResult], tuple[tuple[int, float], ...]]:
    """Results per bucket, those of spread runs first; and the curve of the whole run."""
    results: list[BucketResult] = []
    curve: list[tuple[int, float]] = []
    for number, passage in enumerate(passages):
        wanted, targets = sides.reference[number], passage.targets()
        found = _against(head, wanted, stock, mine[number], targets)
        if passage.kind == "spread":
            ((bucket, _),) = passage.parts()
            control = _against(head, wanted, head, sides.control[number], targets).kl.mean().item()
            noise = max(
                _against(head, wanted, head, states[number], targets).kl.quantile(0.95).item() for states in sides.again
            )
            results.append(judge(bucket, summarise(found), control, noise))
            continue
        known = [result for result in results if result.run == "spread"]
        for like, (bucket, rows) in zip(known, passage.parts(), strict=False):
            results.append(judge(bucket, summarise(found[rows]), like.control_kl, like.noise_kl, "whole"))
        curve = [(passage.positions[k], kl) for k, kl in zip(passage.kept, found.kl.tolist(), strict=False)]
    return results, tuple(curve)


def _against(head: Any, wanted: Any, other_head: Any, states: Any, targets: Any) -> Measures:
    count = min(len(wanted), len(states), len(targets))
    vocabulary = head.get_output_embeddings().weight.shape[0]
    return in_blocks(
        lambda rows: logits(head, wanted[rows]),
        lambda rows: logits(other_head, states[rows]),
        count,
        vocabulary,
        targets,
    )


def _apart(samples: list[Passage], sides: Sides, head: Any) -> str:
    pairs = zip(samples, sides.formula, sides.reference, strict=False)
    found = max(_against(head, a, head, b, p.targets()).kl.mean().item() for p, a, b in pairs)
    return f" It agrees with the steps that were written; log-n itself is a KL of {found:.2e} away from them."


def _same_vocabulary(head: Any, stock: Any, baked: Path) -> None:
    one, other = (len(model.get_output_embeddings().weight) for model in (head, stock))
    if one != other:
        raise BadSource(f"{baked} has a vocabulary of {other} and its source one of {one}; name the source it is from")
