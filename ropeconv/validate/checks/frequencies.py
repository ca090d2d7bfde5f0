"""Compares the frequencies that the installed transformers computes from a config with a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...encode import all_encodings
from ...errors import Disagreement
from ...receipts.receipt import CheckRecord
from ...rope.forms import Vector
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec

ATTENTION_FACTOR_TOLERANCE = 1e-6


def compare(answer: dict[str, Any], schedule: Schedule, spec: RopeSpec, encoding: str) -> CheckRecord:
    """Compares a probe's answer with a schedule.

    answer: from `Probe.ask`. schedule: of the config, without factors that are folded into weights. spec: the RoPE of
    the source, for layers that a method does not change. encoding: name of the encoding of the config, whose `max_ulp`
    is allowed.

    Raises Disagreement where a frequency or the attention factor differs, or the config did not load.
    """
    title = f"transformers {answer.get('transformers', '')}".strip()
    if "error" in answer:
        raise Disagreement(f"{title} does not load the baked config ({answer['error']})")
    short = schedule.inv_freq if schedule.short_inv_freq is None else schedule.short_inv_freq
    worst, attention_factor, allowed = 0, 1.0, all_encodings()[encoding].max_ulp
    for label, found in answer["modules"].items():
        wanted, wanted_short, factor = (schedule.inv_freq, short, schedule.attention_factor)
        local = spec.local_inv_freq
        if label == "local" and "local" not in spec.layers:
            continue
        if label == "local" and local is not None:
            wanted, wanted_short, factor = local, local, 1.0
        for vector, target in ((found["inv_freq"], wanted), (found["short"], wanted_short)):
            distance = ulp_distance(np.asarray(vector), target)
            worst = max(worst, distance)
            if distance > allowed:
                raise Disagreement(
                    f"{title} computes other {label} frequencies than the schedule, by up to {distance} ulp of float32"
                )
        if abs(found["attention_factor"] - factor) > ATTENTION_FACTOR_TOLERANCE * factor:
            raise Disagreement(
                f"{title} uses the attention factor {found['attention_factor']:.7f} on {label} layers, not {factor:.7f}"
            )
        attention_factor = found["attention_factor"] if label == "global" else attention_factor
    return CheckRecord(answer["transformers"], worst, attention_factor, answer.get("read_as", ""))


def ulp_distance(found: Vector, wanted: Vector) -> int:
    """Largest distance of two vectors without negative numbers in ulp of float32; 2^31 where their lengths differ."""
    if found.shape != wanted.shape:
        return 1 << 31
    left, right = (vector.astype(np.float32).view(np.int32).astype(np.int64) for vector in (found, wanted))
    return int(np.abs(left - right).max())
