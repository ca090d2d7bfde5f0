"""The bound on the base: the smallest one for a length, and how far a given schedule reaches."""

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
