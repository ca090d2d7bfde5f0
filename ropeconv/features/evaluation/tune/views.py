"""The table and the sentences of a search."""

from pathlib import Path

from ropeconv.rope.errors import command_line, counted
from ropeconv.views.sheet import Sheet

from ..result import SIGNIFICANT
from ..views import SIGNIFICANCE
from .result import TuningResult


def show_tuned(result: TuningResult, out: Path | None, sheet: Sheet) -> None:
    """Show the held-out losses of all rows, the verdict, and the next command.

    Args:
        result: The result of the search.
        out: The written recipe, if there is one.
        sheet: The sheet that shows them.
    """
    (table,) = result.shown_tables()  # a row for each candidate
    columns = table.columns
    n = max(row.total.clusters for row in result.rows)  # the number of independent texts or windows
    title = f"{result.source}, held-out losses at {result.context:,} tokens; n = {n}"
    sheet.table(title, columns, table.rows, right=columns[1:])

    # the total loss of a row is a weighted sum: "beyond + 0.3 inside"
    weight_of_inside = result.price  # --inside of `ropeconv tune`
    parts = f"beyond + {weight_of_inside:g} inside"
    if "needle" in columns:
        parts += f" + {result.needles:g} needle"
    sheet.say(
        f"Losses in nats per token, beyond and inside the trained context of {result.trained:,}"
        f" tokens; total: {parts}; {SIGNIFICANT}: {SIGNIFICANCE}."
    )
    lowered_by = -result.searched  # `searched`: the total after the search minus the total before
    steps = counted(result.steps, "step")
    windows = counted(result.windows, "window")
    sheet.say(
        f"The search took {steps} on {windows} and lowered their"
        f" total by {lowered_by:z.4f}; the table is of {result.held_windows} held-out windows."
    )
    for note in result.notes:
        sheet.say(note)
    sheet.say(result.sentence)
    if out is not None:
        options = result.apply_options  # such as --replace
        command = command_line("apply", result.source, "--recipe", out, *options)
        sheet.copyable(f"Next: {command}")
