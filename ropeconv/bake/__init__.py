"""Plan, apply, receipt."""

from .apply import apply
from .plan import Inspection, Plan, inspect_source, make_plan

__all__ = ["Inspection", "Plan", "apply", "inspect_source", "make_plan"]
