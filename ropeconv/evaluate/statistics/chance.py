"""How often a difference looks large by chance."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from ..result import ERRORS


@cache
def beyond(freedom: float, errors: float = ERRORS) -> float:
    """The probability of a difference of more than `errors` standard errors to either side where there is none.

    freedom: degrees of freedom, one less than the units that the error is from; math.inf for a normal distribution.
    Student's t: an error from eight windows is itself uncertain, and three of them are passed in 1 of 50 cases.
    """
    if math.isinf(freedom):
        return math.erfc(errors / math.sqrt(2))
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi * freedom) / 2
    at = np.linspace(0, errors, 3001)
    density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(at**2 / freedom))
    return float(1 - (density[:-1] + density[1:]).sum() * at[1])
