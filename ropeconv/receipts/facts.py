"""What a receipt says of the method, for display."""

from __future__ import annotations

from ..rope.methods import REGISTRY
from .receipt import Receipt
from .recipe import described_settings


def facts_of(receipt: Receipt) -> dict[str, str]:
    """What the receipt says of the method, for display."""
    method, before, schedule = REGISTRY.get(receipt.method), receipt.before, receipt.schedule
    found = {"Method": f"{receipt.method}: {method.summary} ({method.paper})" if method else receipt.method}
    found["Settings"] = described_settings(receipt.recipe)
    found["Frequencies"] = f"{before.rope}, then {before.after}"
    found["Context"] = f"{before.context:,} tokens, then {schedule.context:,}"
    found["Attention factor"] = f"{before.attention_factor:.6g}, then {schedule.attention_factor:.6g}"
    return {name: value for name, value in (found | {"Encoding": receipt.encoding}).items() if value}
