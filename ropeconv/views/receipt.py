"""Shows a receipt: how an output was made, who reads it right, and what was measured."""

from __future__ import annotations

from ..hub.evaluations import shown
from ..receipts.commands import commands
from ..receipts.facts import facts_of
from ..receipts.receipt import Receipt
from ..runtimes.grouping import grouped
from .legends import statuses
from .sheet import Sheet


def show_receipt(receipt: Receipt, sheet: Sheet) -> None:
    """Shows a receipt, but for the validations in it."""
    source = receipt.first
    facts = {"Source": source.reference or source.name} | facts_of(receipt)
    if receipt.check:
        read_as = f", as {receipt.check.read_as}," if receipt.check.read_as else ""
        facts["Checked"] = (
            f"transformers {receipt.check.transformers}{read_as} computes it within {receipt.check.max_ulp} ulp of "
            "float32"
        )
    sheet.table("How it was made", ("", ""), list(facts.items()))
    for command in commands(receipt):
        sheet.copyable(command)
    lines = grouped(receipt.runtimes, receipt.source.family)
    if lines:
        sheet.table("Who reads it right", ("status", "runtimes"), lines)
        sheet.say(statuses(lines))
    show_evaluations(receipt, sheet)
    if not (receipt.validation or receipt.servers):
        sheet.say("It was not validated: `ropeconv validate` does it.")
    if not receipt.evaluations:
        sheet.say("It was not evaluated: `ropeconv eval` does it.")


def show_evaluations(receipt: Receipt, sheet: Sheet) -> None:
    """Shows the evaluations in a receipt, a table each."""
    for record in receipt.evaluations:
        found = shown(record)
        columns = ("", *(f"{length:,}" for length in found.lengths))
        rows = [(name, *(cell.replace("**", "") for cell in cells)) for name, cells in found.lines]
        sheet.table(f"Evaluated on {record.described_texts}", columns, rows, right=columns[1:])
