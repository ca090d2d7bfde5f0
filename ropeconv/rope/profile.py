"""Numbers about what a schedule changes for a trained model: unseen angles, changed frequencies, effective length."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from .bound.reach import FARTHEST, MOST_COUNTED, Reach, reach
from .forms import base_inv_freq, divisors
from .lazy import np
from .schedule import Schedule
from .spec import RopeSpec


@dataclass(frozen=True)
class Profile:
    """Numbers about a schedule at its context, compared with the unscaled model at its trained length L.

    Distances are those that the layers see, where all have a window or chunk.

    reach: where B(m) is negative. critical_dimension: number of dimensions whose pairs complete a period within L, and
    so have seen every angle. outside: number of the other dimensions whose largest angle, context x inv_freq_i, is
    above the trained one, L x theta_i. largest_change: the largest of theta_i / inv_freq_i and its inverse over all
    pairs that rotate. largest_change_at: the index of that pair, None where none rotates. fast_change: the largest
    change among the pairs that complete a period, which distinguish neighbouring tokens. not_rotating: number of pairs
    whose frequency is 0, which count in none of the changes.
    """

    reach: Reach
    critical_dimension: int
    outside: int
    largest_change: float
    largest_change_at: int | None
    fast_change: float
    not_rotating: int

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON-ready data, those of `reach` among them; keys stay within a schema."""
        own = asdict(self)
        del own["reach"]
        return self.reach.to_dict() | own


def profile(schedule: Schedule, spec: RopeSpec) -> Profile:
    """The profile of a schedule. spec: the model that the schedule was made from.

    Violations are counted up to 2^24 tokens for heads of 256 dimensions, more for smaller heads and fewer for larger.
    """
    trained = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    complete = spec.visible(schedule.original_context) * trained >= math.tau
    seen, seen_before = spec.visible(schedule.context), spec.visible(schedule.original_context)
    beyond = seen * schedule.inv_freq > seen_before * trained * (1 + 1e-9)
    rotates = schedule.inv_freq > 0
    ratio = np.where(rotates, divisors(trained, schedule.inv_freq), 1.0)
    change = np.maximum(ratio, 1 / ratio)
    looked_at = min(seen, FARTHEST, MOST_COUNTED // len(schedule.inv_freq))
    return Profile(
        reach=reach(schedule.inv_freq, spec.unrotated, looked_at),
        critical_dimension=2 * int(complete.sum()),
        outside=2 * int((beyond & ~complete).sum()),
        largest_change=float(change.max()),
        largest_change_at=int(np.where(rotates, change, 0.0).argmax()) if rotates.any() else None,
        fast_change=float(change[complete].max(initial=1.0)),
        not_rotating=int((~rotates).sum()),
    )
