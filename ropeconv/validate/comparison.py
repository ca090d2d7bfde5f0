"""What a baked checkpoint has to compute, made again from its receipt and its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..families.config import detect
from ..inspection import inspect_source
from ..receipts.read import read_receipt
from ..rope.log_n import EXACT, LogN, Staircase
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..sources import GgufSource, Source


def schedule_of(baked: Path, source: Source | GgufSource) -> tuple[Schedule, RopeSpec, bool]:
    """The schedule, made again from the recipe and the source; it has to be the one in the receipt."""
    receipt = read_receipt(baked)
    recipe = Recipe.from_dict(receipt["recipe"])
    seen = inspect_source(source).spec
    spec = seen if isinstance(recipe.method, AsIs) or not seen.scaled else seen.unscaled()
    schedule = recipe.schedule(spec)
    said = receipt["schedule"]
    said = said if isinstance(said, dict) else {"digest": said, "context": schedule.context}
    if schedule.digest != said["digest"]:
        raise BadSource(
            f"{source.reference} is not what {baked} was made from: the recipe gives another schedule; name its source"
        )
    schedule = replace(schedule, context=int(said["context"]))
    return schedule, seen, schedule.digest == seen.current().digest


def described(schedule: Schedule, before: RopeSpec) -> dict[str, Any]:
    """What a report says of a schedule: its frequencies beside those before, and the lengths."""
    frequencies = {"before": before.current().inv_freq.tolist(), "after": schedule.inv_freq.tolist()}
    lengths = {"trained": schedule.original_context, "new": schedule.context}
    return {"frequencies": frequencies, "lengths": lengths, "unrotated": before.unrotated}


def query_scales(receipt: dict[str, Any], schedule: Schedule) -> LogN | Staircase | None:
    """By what queries are scaled: log-n, or the steps that were written where they are more than noise away from it."""
    steps = dict(receipt.get("steps") or {})
    if steps.pop("deviation", 0.0) > EXACT:
        return Staircase(**steps)
    return schedule.log_n


def rounded_weights(receipt: dict[str, Any], dtype: str) -> list[str]:
    """Names of the weights that a fold has rounded, as they are stored or as they are computed with in `dtype`."""
    fold = receipt.get("fold")
    return list(fold["tensors"]) if fold and (fold["expected_kl"] or dtype != "float32") else []


def query_module(source: Source) -> str:
    """Name of the last module before the rotation that yields queries."""
    weights = detect(source.config()).weights
    return weights.q_norm or weights.q
