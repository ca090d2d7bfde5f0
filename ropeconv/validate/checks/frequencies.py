"""Compares what the installed transformers computes from a baked config with the schedule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...errors import Disagreement
from ...rope.forms import Vector
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec

# ulp of float32 by which a runtime's own arithmetic may miss the exact schedule. Factor lists are searched so that
# it cannot miss by more; the closed forms are evaluated in float32 by every runtime, ramps and powers included.
ULP = {"buffers": 0, "factors": 2, "native": 64}
AMPLITUDE = 1e-6


@dataclass(frozen=True)
class FrequencyCheck:
    """The result: the version asked, and the largest deviations found."""

    transformers: str
    max_ulp: int
    attention_factor: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def compare(answer: dict[str, Any], schedule: Schedule, spec: RopeSpec, encoding: str) -> FrequencyCheck:
    """Checks a probe's answer.

    Raises Disagreement when a frequency or the amplitude is off, or the config did not load.
    """
    title = f"transformers {answer.get('transformers', '')}".strip()
    if "error" in answer:
        raise Disagreement(f"{title} does not load the baked config ({answer['error']})")
    short = schedule.inv_freq if schedule.short_inv_freq is None else schedule.short_inv_freq
    worst, amplitude = 0, 1.0
    for label, found in answer["modules"].items():
        wanted, wanted_short, factor = (schedule.inv_freq, short, schedule.attention_factor)
        if label == "local" and spec.local_form is not None:
            wanted = wanted_short = spec.local_form.inv_freq(spec.rotary_dim)
            factor = 1.0
        for vector, target in ((found["inv_freq"], wanted), (found["short"], wanted_short)):
            distance = ulp_distance(np.asarray(vector), target)
            worst = max(worst, distance)
            if distance > ULP[encoding]:
                raise Disagreement(
                    f"{title} computes other {label} frequencies than the schedule, by up to {distance} ulp of float32"
                )
        if abs(found["amplitude"] - factor) > AMPLITUDE * factor:
            raise Disagreement(
                f"{title} uses the attention factor {found['amplitude']:.7f} on {label} layers, not {factor:.7f}"
            )
        amplitude = found["amplitude"] if label == "global" else amplitude
    return FrequencyCheck(answer["transformers"], worst, amplitude)


def ulp_distance(found: Vector, wanted: Vector) -> int:
    """Largest distance of two positive vectors in steps of float32; 2^31 when their lengths differ."""
    if found.shape != wanted.shape:
        return 1 << 31
    left, right = (vector.astype(np.float32).view(np.int32).astype(np.int64) for vector in (found, wanted))
    return int(np.abs(left - right).max())
