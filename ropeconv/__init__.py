"""ropeconv: bake a RoPE context extension into a checkpoint, and prove that stock runtimes compute it.

import ropeconv

source = ropeconv.open_source("./Llama-2-7b-hf")
recipe = ropeconv.Recipe(ropeconv.METHODS["yarn"](16.0))
plan = ropeconv.make_plan(source, recipe, ropeconv.Target(runtimes=("transformers", "vllm")))
for verdict in plan.result.verdicts:
    print(verdict.display_name, verdict.status, verdict.reason)
done = ropeconv.apply(plan)  # writes, and checks what it wrote
comparison = ropeconv.Comparison.open(done.path, "./Llama-2-7b-hf")
print(ropeconv.validate_checkpoint(comparison).sentence)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    BadSource,
    DamagedPackage,
    Disagreement,
    ImpossibleSize,
    Interrupted,
    NotFinite,
    RecipeError,
    RopeconvError,
    UnknownModelType,
    UnsupportedBake,
    UsageError,
)
from .version import __version__

if TYPE_CHECKING:
    from .bake import Applied as Applied
    from .bake import FoldTarget as FoldTarget
    from .bake import GgufTarget as GgufTarget
    from .bake import Plan as Plan
    from .bake import Target as Target
    from .bake import make_plan as make_plan
    from .bake.advice import advise as advise
    from .bake.apply import apply as apply
    from .bake.patch import patch as patch
    from .bake.restore import restore as restore
    from .bake.restore import restore_plan as restore_plan
    from .evaluate.opening import Sizes as Sizes
    from .evaluate.opening import evaluate_model as evaluate_model
    from .evaluate.result import Result as Result
    from .inspection import Inspection as Inspection
    from .inspection import inspect_source as inspect_source
    from .inspection.side_by_side import side_by_side as side_by_side
    from .receipts import Receipt as Receipt
    from .receipts import read_receipt as read_receipt
    from .rope.bound import bound as bound
    from .rope.bound import reach as reach
    from .rope.methods import REGISTRY as METHODS
    from .rope.recipe import Recipe as Recipe
    from .rope.schedule import Schedule as Schedule
    from .rope.spec import RopeSpec as RopeSpec
    from .sources import open_source as open_source
    from .tune import Tuned as Tuned
    from .tune import Wanted as Wanted
    from .tune import tune_model as tune_model
    from .validate.checkpoint import validate_checkpoint as validate_checkpoint
    from .validate.comparison import Comparison as Comparison
    from .validate.gguf import validate_gguf as validate_gguf
    from .validate.server import validate_server as validate_server
    from .validate.settings import Settings as Settings

_LAZY = {
    "METHODS": ("rope.methods", "REGISTRY"),
    "Applied": ("bake", "Applied"),
    "Comparison": ("validate.comparison", "Comparison"),
    "FoldTarget": ("bake", "FoldTarget"),
    "GgufTarget": ("bake", "GgufTarget"),
    "Inspection": ("inspection", "Inspection"),
    "Plan": ("bake", "Plan"),
    "Receipt": ("receipts", "Receipt"),
    "Recipe": ("rope.recipe", "Recipe"),
    "Result": ("evaluate.result", "Result"),
    "RopeSpec": ("rope.spec", "RopeSpec"),
    "Schedule": ("rope.schedule", "Schedule"),
    "Settings": ("validate.settings", "Settings"),
    "Sizes": ("evaluate.opening", "Sizes"),
    "Target": ("bake", "Target"),
    "Tuned": ("tune", "Tuned"),
    "Wanted": ("tune", "Wanted"),
    "advise": ("bake.advice", "advise"),
    "apply": ("bake", "apply"),
    "bound": ("rope.bound", "bound"),
    "evaluate_model": ("evaluate.opening", "evaluate_model"),
    "inspect_source": ("inspection", "inspect_source"),
    "make_plan": ("bake", "make_plan"),
    "open_source": ("sources", "open_source"),
    "patch": ("bake.patch", "patch"),
    "reach": ("rope.bound", "reach"),
    "read_receipt": ("receipts", "read_receipt"),
    "side_by_side": ("inspection.side_by_side", "side_by_side"),
    "restore": ("bake.restore", "restore"),
    "restore_plan": ("bake.restore", "restore_plan"),
    "tune_model": ("tune", "tune_model"),
    "validate_checkpoint": ("validate.checkpoint", "validate_checkpoint"),
    "validate_gguf": ("validate.gguf", "validate_gguf"),
    "validate_server": ("validate.server", "validate_server"),
}

__all__ = [
    "METHODS",
    "Applied",
    "BadSource",
    "Comparison",
    "DamagedPackage",
    "Disagreement",
    "FoldTarget",
    "GgufTarget",
    "ImpossibleSize",
    "Inspection",
    "Interrupted",
    "NotFinite",
    "Plan",
    "Receipt",
    "Recipe",
    "RecipeError",
    "Result",
    "RopeSpec",
    "RopeconvError",
    "Schedule",
    "Settings",
    "Sizes",
    "Target",
    "Tuned",
    "UnknownModelType",
    "UnsupportedBake",
    "UsageError",
    "Wanted",
    "__version__",
    "advise",
    "apply",
    "bound",
    "evaluate_model",
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
