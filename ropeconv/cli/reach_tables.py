"""Tables of effective lengths, and of where B(m) is negative."""

from __future__ import annotations

from ..errors import counted
from ..rope.bound import Reach
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .output import Output


def show_reach(spec: RopeSpec, found: dict[str, tuple[Schedule, Reach]], output: Output) -> None:
    """Prints the reach of schedules, as a table or as JSON.

    spec: the RoPE of the model. found: each schedule with its reach, by label. output: where to.
    """
    head = {"rotary_dim": spec.rotary_dim, "head_dim": spec.head_dim}
    if output.as_json:
        rows = {label: {"context": one.context} | at.to_dict() for label, (one, at) in found.items()}
        output.data(head | next(iter(rows.values())) if len(rows) == 1 else head | {"schedules": rows})
        return
    table = [
        (label, effective(at), f"{at.count:,} in {counted(at.runs, 'run')} below {at.length:,}", _places(at))
        for label, (_, at) in found.items()
    ]
    columns = ("", "effective length", "distances with a negative sum", "where")
    output.table(f"{spec.rotary_dim} of {spec.head_dim} dimensions rotate", columns, table)


def effective(at: Reach) -> str:
    """The effective length of a schedule in words: a number of tokens, the length above which it is, or "any"."""
    if at.automatic:
        return "any"
    return f"above {at.searched - 1:,}" if at.effective_length is None else f"{at.effective_length:,}"


def _places(at: Reach) -> str:
    shown = [f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in at.places[:6]]
    return ", ".join(shown) + (", ..." if at.runs > 6 else "")
