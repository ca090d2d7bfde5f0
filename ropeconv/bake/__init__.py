"""Plan, apply, receipt."""

from .execute import apply
from .plan import Plan, make_plan

__all__ = ["Plan", "apply", "make_plan"]
