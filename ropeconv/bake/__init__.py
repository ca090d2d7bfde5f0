"""Plans, which are made from a source, a recipe and a target, and their execution."""

from ..encode import FoldTarget, GgufTarget, Target
from .apply import Applied, apply
from .checkpoint import CheckpointPlan
from .gguf import GgufPlan
from .plan import Plan, PlannedFile
from .planner import make_plan

__all__ = [
    "Applied",
    "CheckpointPlan",
    "FoldTarget",
    "GgufPlan",
    "GgufTarget",
    "Plan",
    "PlannedFile",
    "Target",
    "apply",
    "make_plan",
]
