"""Frequencies found by measurement on the user's own text, for one model: `ropeconv tune`.

A search proposes schedules, `Scorer` reads windows of text with each, and held-out windows decide whether the one that
was found is better than the best formula.
"""

from .opening import tune_model as tune_model
from .result import Tuned as Tuned
from .wanted import Wanted as Wanted
