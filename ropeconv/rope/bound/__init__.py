"""The bound on the base: the smallest base for a length, and the effective length of a given schedule."""

from .answer import Bound, bound, smallest_base, wide_base
from .reach import Reach, first_violation, reach, violations
from .shortfall import effective_length, shortfall

__all__ = [
    "Bound",
    "Reach",
    "bound",
    "effective_length",
    "first_violation",
    "reach",
    "shortfall",
    "smallest_base",
    "violations",
    "wide_base",
]
