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

_LAZY = {
    "AppliedPlan": ("bake.apply", "AppliedPlan"),
    "Comparison": ("validate.comparison", "Comparison"),
    "Inspection": ("inspection.inspection", "Inspection"),
    "METHODS": ("rope.methods.method", "REGISTRY"),
    "Output": ("verbs", "Output"),
    "Plan": ("bake.plan", "Plan"),
    "Receipt": ("inspection.receipts.receipt", "Receipt"),
    "Recipe": ("rope.recipe", "Recipe"),
    "Result": ("evaluate.result", "Result"),
    "RopeSpec": ("rope.spec", "RopeSpec"),
    "Schedule": ("rope.schedule", "Schedule"),
    "Settings": ("validate.comparison", "Settings"),
    "Sizes": ("evaluate.evaluation", "Sizes"),
    "Target": ("convert.target", "Target"),
    "TuningResult": ("evaluate.tune.result", "TuningResult"),
    "SearchSettings": ("evaluate.tune.tuning", "SearchSettings"),
    "advise": ("bake.advice", "advise"),
    "apply": ("verbs", "apply"),
    "bound": ("rope.bound.answer", "bound"),
    "compare": ("verbs", "compare"),
    "evaluate": ("verbs", "evaluate"),
    "evaluate_model": ("evaluate.evaluation", "evaluate_model"),
    "inspect": ("verbs", "inspect"),
    "inspect_source": ("inspection.inspection", "inspect_source"),
    "make_plan": ("bake.apply", "make_plan"),
    "open_source": ("models.open", "open_source"),
    "patch": ("verbs", "patch"),
    "reach": ("rope.bound.reach", "reach"),
    "read_receipt": ("inspection.receipts.reader", "read_receipt"),
    "restore": ("verbs", "restore"),
    "restore_plan": ("bake.restore", "restore_plan"),
    "side_by_side": ("inspection.side_by_side", "side_by_side"),
    "tune_model": ("evaluate.tune.tuning", "tune_model"),
    "validate": ("verbs", "validate"),
    "validate_checkpoint": ("validate.checkpoint", "validate_checkpoint"),
    "validate_gguf": ("validate.gguf", "validate_gguf"),
    "validate_server": ("validate.server", "validate_server"),
}

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
    """Imports on first use, so that the command line starts without numpy."""
    if name not in _LAZY:
        raise AttributeError(f"module 'ropeconv' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """The module, whose verbs stay where the package of the same name (`ropeconv.validate`) is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
