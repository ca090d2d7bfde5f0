"""ropeconv: bake a RoPE context extension into a checkpoint, and prove that stock runtimes compute it.

import ropeconv

done = ropeconv.apply("./Llama-2-7b-hf", yarn=16, runtime=["transformers", "vllm"])  # writes, and checks what it wrote
print(done)
print(ropeconv.validate(done).sentence)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import (
    BadSource,
    DamagedPackage,
    Disagreement,
    Interrupted,
    NotFinite,
    UnknownModelType,
    UnsupportedBake,
    UsageError,
)
from .rope.errors import ImpossibleSize, RecipeError, RopeconvError
from .version import __version__

if TYPE_CHECKING:
    from .bake.advice import advise
    from .bake.apply import AppliedPlan, make_plan
    from .bake.plan import Plan
    from .bake.restore import restore_plan
    from .convert.target import Target
    from .evaluate.evaluation import Sizes, evaluate_model
    from .evaluate.result import Result
    from .evaluate.tune.result import TuningResult
    from .evaluate.tune.tuning import SearchSettings, tune_model
    from .inspection.inspection import Inspection, inspect_source
    from .inspection.receipts.reader import read_receipt
    from .inspection.receipts.receipt import Receipt
    from .inspection.side_by_side import side_by_side
    from .models.open import open_source
    from .rope.bound.answer import bound
    from .rope.bound.reach import reach
    from .rope.methods.method import REGISTRY as METHODS
    from .rope.recipe import Recipe
    from .rope.schedule import Schedule
    from .rope.spec import RopeSpec
    from .validate.checkpoint import validate_checkpoint
    from .validate.comparison import Comparison, Settings
    from .validate.gguf import validate_gguf
    from .validate.server import validate_server
    from .verbs import Output, apply, compare, evaluate, inspect, patch, restore, validate

_MODULES = {
    "bake.advice": "advise",
    "bake.apply": "AppliedPlan make_plan",
    "bake.plan": "Plan",
    "bake.restore": "restore_plan",
    "convert.target": "Target",
    "evaluate.evaluation": "Sizes evaluate_model",
    "evaluate.result": "Result",
    "evaluate.tune.result": "TuningResult",
    "evaluate.tune.tuning": "SearchSettings tune_model",
    "inspection.inspection": "Inspection inspect_source",
    "inspection.receipts.reader": "read_receipt",
    "inspection.receipts.receipt": "Receipt",
    "inspection.side_by_side": "side_by_side",
    "models.open": "open_source",
    "rope.bound.answer": "bound",
    "rope.bound.reach": "reach",
    "rope.methods.method": "METHODS",
    "rope.recipe": "Recipe",
    "rope.schedule": "Schedule",
    "rope.spec": "RopeSpec",
    "validate.checkpoint": "validate_checkpoint",
    "validate.comparison": "Comparison Settings",
    "validate.gguf": "validate_gguf",
    "validate.server": "validate_server",
    "verbs": "Output apply compare evaluate inspect patch restore validate",
}
"""The names of the API by their modules, which are imported on first use."""
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "METHODS",
    "AppliedPlan",
    "BadSource",
    "Comparison",
    "DamagedPackage",
    "Disagreement",
    "ImpossibleSize",
    "Inspection",
    "Interrupted",
    "NotFinite",
    "Output",
    "Plan",
    "Receipt",
    "Recipe",
    "RecipeError",
    "Result",
    "RopeSpec",
    "RopeconvError",
    "Schedule",
    "SearchSettings",
    "Settings",
    "Sizes",
    "Target",
    "TuningResult",
    "UnknownModelType",
    "UnsupportedBake",
    "UsageError",
    "__version__",
    "advise",
    "apply",
    "bound",
    "compare",
    "evaluate",
    "evaluate_model",
    "inspect",
    "inspect_source",
    "make_plan",
    "open_source",
    "patch",
    "reach",
    "read_receipt",
    "restore",
    "restore_plan",
    "side_by_side",
    "tune_model",
    "validate",
    "validate_checkpoint",
    "validate_gguf",
    "validate_server",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that the command line starts without numpy."""
    if name not in _LAZY:
        raise AttributeError(f"module 'ropeconv' has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), "REGISTRY" if name == "METHODS" else name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """The module, whose verbs are not replaced by imported packages of the same name (`ropeconv.validate`)."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
