"""`ropeconv bound SOURCE --weights`: the effective length of every head, by the variances of its queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError, counted
from ..rope.bound import Reach
from ..rope.schedule import Schedule
from ..rope.spec import LayerKind
from .model_args import ModelArgs
from .output import Output
from .reach_tables import effective

if TYPE_CHECKING:
    from ..inspection.head_bound import HeadLengths, HeadWeights

LEFT_OUT: dict[LayerKind, str] = {"local": "with frequencies of their own", "none": "without RoPE"}
Found = dict[str, tuple[Schedule, Reach]]


def measure_weights(model: ModelArgs, output: Output) -> HeadWeights:
    """Reads the projections of a SOURCE, with a progress bar.

    model: of the command line. output: for the bar. Raises UsageError for a model given by numbers, BadSource as
    `head_reading` and its `weights` do.
    """
    from ..inspection.head_bound import head_reading

    if model.seen is None:
        raise UsageError("--weights needs a SOURCE, whose weights are read; give a folder or a Hub id")
    reading = head_reading(model.seen)
    with output.progress("Reading", reading.size) as advance:
        return reading.weights(advance)


def show_weighted(weights: HeadWeights, found: Found, output: Output) -> None:
    """Searches the effective lengths of all heads and prints them, as tables or as JSON.

    weights: of the model. found: each schedule by label, with its reach where all variances are equal. output: where
    to print.
    """
    reached = {}
    with output.counting("Searching") as (total, advance):
        total(sum(weights.work(at.length) for _, at in found.values()))
        for label, (schedule, at) in found.items():
            reached[label] = weights.reach(schedule, at.length, advance)
    left = {kind: weights.spec.count(kind) for kind in LEFT_OUT}
    if output.as_json:
        output.data(_json(weights, found, reached) | {"left_out": left, "weights": weights.to_list()})
        return
    for label, (_, at) in found.items():
        _table(label, at, reached[label], output)
    if any(left.values()):
        kinds = " and ".join(f"{count} {LEFT_OUT[kind]}" for kind, count in left.items() if count)
        output.say(f"Layers left out: {kinds}.")


def _table(label: str, at: Reach, reached: HeadLengths, output: Output) -> None:
    rows = []
    for one in reached.layers:
        head, length = one.worst or ("", None)
        share = f"{one.violating} of {len(one.violations)}"
        rows.append((f"{one.layer}", share, f"{head}", _length(length, one.below), f"{one.below:,}"))
    columns = ("layer", "heads with a negative sum", "worst head", "its effective length", "of distances below")
    output.table(f"{label}: sum_i w_i cos(m theta_i), with weights per head", columns, rows, right=columns)
    longest = max(one.below for one in reached.layers)
    worst, half = (_length(length, longest) for length in (reached.worst, reached.median))
    violating = f"{reached.violating} of {counted(reached.heads, 'head')} {'has' if reached.violating == 1 else 'have'}"
    output.say(
        f"{label}: with equal variances the effective length is {effective(at)}. With this model's, "
        f"{violating} a negative sum; the effective length of the worst is "
        f"{worst}, the median {half}."
    )


def _length(length: int | None, below: int) -> str:
    return f"above {below - 1:,}" if length is None else f"{length:,}"


def _json(weights: HeadWeights, found: Found, reached: dict[str, HeadLengths]) -> dict[str, Any]:
    schedules = {
        label: {"context": one.context} | at.to_dict() | {"weighted": reached[label].to_dict()}
        for label, (one, at) in found.items()
    }
    body = next(iter(schedules.values())) if len(schedules) == 1 else {"schedules": schedules}
    return {"rotary_dim": weights.spec.rotary_dim, "head_dim": weights.spec.head_dim} | body
