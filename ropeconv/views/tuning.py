"""Shows what `ropeconv tune` found."""

from __future__ import annotations

from pathlib import Path

from ..evaluate.result import decided
from ..tune.result import Measured, Tuned
from .evaluation import MARK
from .sheet import Sheet


def show_tuned(found: Tuned, out: Path | None, sheet: Sheet) -> None:
    """Shows the held-out losses of all rows, the verdict, and the next command. out: where the recipe was written."""
    with_needles = any(row.needle for row in found.rows)
    columns = ["", "beyond", "inside", *["needle"] * with_needles, "total", "minus best formula"]
    body = [
        (
            row.name,
            f"{row.beyond.value:.4f}",
            f"{row.inside.value:.4f}",
            *([f"{row.needle.value:.4f}"] if row.needle else []),
            f"{row.total.value:.4f}",
            _difference(row.total),
        )
        for row in found.rows
    ]
    sheet.table(f"{found.source}, held-out losses at {found.context:,} tokens", tuple(columns), body, right=columns[1:])
    parts = f"beyond + {found.price:g} inside" + f" + {found.needles:g} needle" * with_needles
    sheet.say(
        f"Nats per token beyond and inside the trained context of {found.trained:,} tokens; total is {parts}. {MARK}: "
        "beyond three standard errors."
    )
    sheet.say(
        f"{found.steps:,} steps on {found.windows} windows, where the total fell by "
        f"{-found.searched:.4f}; {found.held_windows} windows are held out."
    )
    for note in found.notes:
        sheet.say(note)
    sheet.say(found.sentence)
    if out is not None:
        sheet.say(f"Next: ropeconv apply {found.source} --recipe {out}")


def _difference(one: Measured) -> str:
    if one.difference is None:
        return "-"
    if one.error is None:
        return f"{one.difference:+.4f}"
    return f"{one.difference:+.4f} ± {one.error:.4f}{MARK if decided(one.difference, one.error) else ' '}"
