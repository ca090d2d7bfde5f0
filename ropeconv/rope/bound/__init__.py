"""The bound on the base: the smallest one for a length, and how far a given schedule reaches."""

from .answer import Bound, bound, smallest_base, wide_base
from .reach import Reach, first_violation, reach, violations
from .shortfall import shortfall

__all__ = [
    "Bound",
    "Reach",
    "bound",
    "first_violation",
    "reach",
    "shortfall",
    "smallest_base",
    "violations",
    "wide_base",
]
