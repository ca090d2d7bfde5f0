"""`ropeconv bound SOURCE --weights`: the effective length of every head, by the variances of its queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Any

from ..errors import BadSource, UsageError
from ..rope.bound import Reach
from ..rope.schedule import Schedule
from ..rope.spec import LayerKind, RopeSpec
from .model_args import ModelArgs
from .output import Output
from .reach_tables import effective

if TYPE_CHECKING:
    from ..rope.bound.variances import PairWeights
    from ..rope.bound.weighted import HeadReach

DIGITS = 6
LEFT_OUT: dict[LayerKind, str] = {"local": "layers with frequencies of their own", "none": "layers without RoPE"}


@dataclass(frozen=True)
class Measured:
    """The weights of a model's heads. spec: its RoPE. layers: which were measured. weights: of each of them."""

    spec: RopeSpec
    layers: tuple[int, ...]
    weights: tuple[PairWeights, ...]

    def left_out(self) -> dict[LayerKind, int]:
        """How many layers were not measured, by their kind."""
        return {kind: self.spec.count(kind) for kind in LEFT_OUT}

    def joined(self) -> PairWeights:
        """The weights of all heads of all layers, one after the other."""
        import numpy as np

        from ..rope.bound.variances import PairWeights

        rotated, unrotated = zip(*self.weights, strict=True)
        return PairWeights(np.concatenate(rotated), np.concatenate(unrotated))


def measure_weights(model: ModelArgs, output: Output) -> Measured:
    """Reads the projections of a SOURCE, one layer at a time, and gives the weights of its heads.

    model: of the command line. output: for the progress bar. Raises UsageError for a model given by numbers, BadSource
    for what has no safetensors weights, and what `attention_layers` and `measure` raise.
    """
    from ..inspection.inspect import ConfigInspection
    from ..inspection.projections import attention_layers
    from ..inspection.variances import bytes_to_read, measure
    from ..rope.bound.variances import pair_weights
    from ..sources import Source

    seen, spec = model.seen, model.spec
    if seen is None:
        raise UsageError("--weights needs a SOURCE, whose weights are read; give a folder or a Hub id")
    source = seen.source
    if not isinstance(seen, ConfigInspection) or not isinstance(source, Source):
        raise BadSource(f"{source.reference} is GGUF, and --weights reads safetensors; give the checkpoint it is from")
    if source.kind == "meta":
        raise BadSource(
            f"{source.reference} is in Meta's layout, and --weights reads safetensors; convert it by `apply`"
        )
    if not source.weights():
        raise BadSource(f"{source.reference} has no safetensors weights; give a checkpoint folder or a Hub id")
    layers = attention_layers(spec, seen.family, source.config(), source.tensors)
    if not layers:
        raise BadSource(f"no layer of {source.reference} rotates with a global view; leave --weights out")
    weights = []
    with output.progress("Reading", bytes_to_read(layers, spec.head_dim)) as advance:
        for _, queries, keys in measure(source, layers, seen.family, spec.head_dim, advance):
            weights.append(pair_weights(queries, keys, spec.rotary_dim, spec.layout))
    return Measured(spec, tuple(layer.layer for layer in layers), tuple(weights))


def show_weighted(measured: Measured, found: dict[str, tuple[Schedule, Reach]], output: Output) -> None:
    """Prints the effective lengths of all heads, as tables or as JSON.

    measured: the weights. found: each schedule by label, with its reach where all variances are equal. output: where
    to print.
    """
    from ..rope.bound.weighted import head_reach

    weights, reached = measured.joined(), {}
    with output.counting("Searching") as (total, advance):
        total(sum(at.length for _, at in found.values()))
        for label, (schedule, at) in found.items():
            own = weights.times(schedule.attention_factor)
            reached[label] = head_reach(schedule.inv_freq, own, at.length, advance)
    if output.as_json:
        output.data(_json(measured, found, reached))
        return
    for label, (_, at) in found.items():
        _table(label, measured, at, reached[label], output)
    counts = measured.left_out()
    left = [f"{count} {LEFT_OUT[kind]}" for kind, count in counts.items() if count]
    if left:
        output.say(f"Left out: {', '.join(left)}.")


def _table(label: str, measured: Measured, at: Reach, reached: HeadReach, output: Output) -> None:
    lengths, summary = reached.effective_lengths, _summary(reached)
    rows, begin = [], 0
    for layer, weights in zip(measured.layers, measured.weights, strict=True):
        own = lengths[begin : begin + len(weights.rotated)]
        begin += len(own)
        short = [length for length in own if length is not None]
        worst = f"{own.index(min(short))}" if short else ""
        rows.append((f"{layer}", f"{len(short)} of {len(own)}", worst, _length(min(short, default=None), reached)))
    columns = ("layer", "heads with a negative sum", "worst head", "its effective length")
    output.table(f"{label}: sum w_i cos(m theta_i) below {reached.length:,} tokens", columns, rows, right=columns)
    summary = _summary(reached)
    worst, half = (_length(summary[key], reached) for key in ("effective_length", "median_effective_length"))
    output.say(
        f"{label}: the effective length is {effective(at)} where all variances are equal. With this model's, "
        f"{reached.violating} of {len(lengths)} heads have a negative sum below {reached.length:,} tokens; "
        f"the effective length of the worst head is {worst}, the median of all heads {half}."
    )


def _length(length: int | None, reached: HeadReach) -> str:
    return f"above {reached.length - 1:,}" if length is None else f"{length:,}"


def _summary(reached: HeadReach) -> dict[str, Any]:
    lengths = [reached.length if length is None else length for length in reached.effective_lengths]

    def known(length: int) -> int | None:
        return None if length == reached.length else length

    return {
        "below": reached.length,
        "heads": len(lengths),
        "heads_with_violations": reached.violating,
        "effective_length": known(min(lengths)),
        "median_effective_length": known(median_low(lengths)),
    }


def _json(
    measured: Measured, found: dict[str, tuple[Schedule, Reach]], reached: dict[str, HeadReach]
) -> dict[str, Any]:
    schedules = {
        label: {"context": one.context}
        | at.to_dict()
        | {"weighted": _summary(reached[label]) | {"layers": _layers(measured, reached[label])}}
        for label, (one, at) in found.items()
    }
    head: dict[str, Any] = {"rotary_dim": measured.spec.rotary_dim, "head_dim": measured.spec.head_dim}
    pairs = [
        {"layer": layer, "pairs": _rounded(own.rotated.tolist()), "unrotated": _rounded(own.unrotated.tolist())}
        for layer, own in zip(measured.layers, measured.weights, strict=True)
    ]
    body = next(iter(schedules.values())) if len(schedules) == 1 else {"schedules": schedules}
    return head | body | {"left_out": measured.left_out(), "weights": pairs}


def _layers(measured: Measured, reached: HeadReach) -> list[dict[str, Any]]:
    lengths, counts = reached.effective_lengths, reached.count.tolist()
    found, begin = [], 0
    for layer, weights in zip(measured.layers, measured.weights, strict=True):
        own = slice(begin, begin + len(weights.rotated))
        begin = own.stop
        found.append({"layer": layer, "effective_lengths": lengths[own], "violations": counts[own]})
    return found


def _rounded(numbers: list[Any]) -> list[Any]:
    return [_rounded(one) if isinstance(one, list) else float(f"{one:.{DIGITS}g}") for one in numbers]
