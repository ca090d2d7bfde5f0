"""The bound on the base: the smallest base for a length, and the effective length of a given schedule."""

from .answer import Bound, bound, smallest_base, wide_base
from .reach import (
    Reach,
    effective_length,
    first_violation,
    is_worse,
    reach,
    source_reach,
    violations,
    worse_than_source,
)

__all__ = [
    "Bound",
    "Reach",
    "bound",
    "effective_length",
    "first_violation",
    "is_worse",
    "reach",
    "smallest_base",
    "source_reach",
    "violations",
    "wide_base",
    "worse_than_source",
]
