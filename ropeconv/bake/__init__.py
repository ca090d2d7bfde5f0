"""From a source and a recipe to a plan, and from a plan to files."""

from .checkpoint import CheckpointPlan
from .execute import apply
from .gguf import GgufPlan
from .plan import Plan, Step
from .planner import make_plan

__all__ = ["CheckpointPlan", "GgufPlan", "Plan", "Step", "apply", "make_plan"]
