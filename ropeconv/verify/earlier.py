"""The output of a plan, from a run that was stopped after it had written it."""

from __future__ import annotations

import msgspec

from ..bake import Plan
from ..errors import BadSource
from ..receipts import Receipt, read_receipt
from ..validate.comparison import Comparison


def earlier_output(plan: Plan) -> Comparison | None:
    """The output that is where a plan is to be written, if its receipt is that of the plan; else None.

    plan: what is to be written. Its files are not compared: `verify_output` does that.
    """
    try:
        found = read_receipt(plan.out) if plan.out.exists() else None
    except BadSource:
        return None
    if found is None or made_from(found) != made_from(plan.receipt()):
        return None
    return Comparison.open(plan.out, plan.source.reference)


def made_from(receipt: Receipt) -> bytes:
    """What an output was made of and how, as JSON, without what was measured of it later. receipt: of it."""
    return msgspec.json.encode([receipt.source, receipt.recipe, receipt.target, receipt.schedule, receipt.encoding])
