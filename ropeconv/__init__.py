"""ropeconv: bake a RoPE context extension into a checkpoint, and prove that runtimes compute it.

import ropeconv

# writes the checkpoint, and checks what it wrote
done = ropeconv.apply("./Llama-2-7b-hf", yarn=16, runtime=["transformers", "vllm"])
print(done)
print(ropeconv.validate(done).sentence)
"""

import sys


def _forget_working_folder() -> None:
    """Find no modules in the working folder, where `python -m ropeconv` looks first: it may be a
    checkpoint with a numpy.py of its own.
    """
    # Python imports this package before it replaces "-m" by the name of its file
    if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv or sys.flags.safe_path:
        return
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    is_clone = sys.path[0] + "/ropeconv" == __path__[0]  # all of ropeconv is from that folder
    if module.partition(".")[0] == "ropeconv" and not is_clone:
        del sys.path[0]


_forget_working_folder()

# isort: split
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ropeconv.features.bound.bound import bound as bound
    from ropeconv.features.compare.comparing import compare as compare
    from ropeconv.features.compare.side_by_side import side_by_side as side_by_side
    from ropeconv.features.derivation.derivation import derive_family as derive_family
    from ropeconv.features.evaluation.evaluation import Sizes as Sizes
    from ropeconv.features.evaluation.evaluation import evaluate_model as evaluate_model
    from ropeconv.features.evaluation.measuring import evaluate as evaluate
    from ropeconv.features.evaluation.measuring import tune as tune
    from ropeconv.features.evaluation.result import Result as Result
    from ropeconv.features.evaluation.tune.result import TuningResult as TuningResult
    from ropeconv.features.evaluation.tune.tuning import SearchSettings as SearchSettings
    from ropeconv.features.evaluation.tune.tuning import tune_model as tune_model
    from ropeconv.features.identify.identifying import identify as identify
    from ropeconv.features.imatrix.collecting import imatrix as imatrix
    from ropeconv.features.profiles.writing import profiles as profiles
    from ropeconv.features.run.running import run as run
    from ropeconv.features.servers.validation import validate_server as validate_server
    from ropeconv.features.training.configs import train_config as train_config
    from ropeconv.features.vectors.vectors import vectors as vectors

    from .bake.apply import make_plan as make_plan
    from .bake.output import Output as Output
    from .bake.plan import Plan as Plan
    from .bake.restore import restore_plan as restore_plan
    from .convert.target import Target as Target
    from .errors import BadSource as BadSource
    from .errors import DamagedPackage as DamagedPackage
    from .errors import Disagreement as Disagreement
    from .errors import Interruption as Interruption
    from .errors import NotFinite as NotFinite
    from .errors import UnknownModelType as UnknownModelType
    from .errors import UnsupportedBake as UnsupportedBake
    from .errors import UsageError as UsageError
    from .inspection.inspection import Inspection as Inspection
    from .inspection.inspection import inspect_source as inspect_source
    from .inspection.receipts.receipt import Receipt as Receipt
    from .inspection.receipts.storage import read_receipt as read_receipt
    from .models.open import open_source as open_source
    from .reporting import Reporter as Reporter
    from .rope.bound.reach import reach as reach
    from .rope.errors import ImpossibleSize as ImpossibleSize
    from .rope.errors import RecipeError as RecipeError
    from .rope.errors import RopeconvError as RopeconvError
    from .rope.features import Feature as Feature
    from .rope.methods.method import Method
    from .rope.recipe import Recipe as Recipe
    from .rope.schedule import Schedule as Schedule
    from .rope.spec import RopeSpec as RopeSpec
    from .validate.checkpoint import validate_checkpoint as validate_checkpoint
    from .validate.comparison import Comparison as Comparison
    from .validate.comparison import Settings as Settings
    from .validate.gguf import validate_gguf as validate_gguf
    from .verbs.apply import apply as apply
    from .verbs.apply import patch as patch
    from .verbs.apply import plan as plan
    from .verbs.inspecting import advise as advise
    from .verbs.inspecting import inspect as inspect
    from .verbs.plotting import plot as plot
    from .verbs.probing import probe as probe
    from .verbs.publishing import push as push
    from .verbs.restoring import restore as restore
    from .verbs.validation import validate as validate

    METHODS: Mapping[str, Callable[..., Method]]

_MODULES = {
    "bake.apply": "make_plan",
    "bake.output": "Output",
    "bake.plan": "Plan",
    "bake.restore": "restore_plan",
    "convert.target": "Target",
    "errors": (
        "BadSource DamagedPackage Disagreement Interruption NotFinite UnknownModelType"
        " UnsupportedBake UsageError"
    ),
    "inspection.inspection": "Inspection inspect_source",
    "inspection.receipts.storage": "read_receipt",
    "inspection.receipts.receipt": "Receipt",
    "models.open": "open_source",
    "reporting": "Reporter",
    "rope.bound.reach": "reach",
    "rope.errors": "ImpossibleSize RecipeError RopeconvError",
    "rope.features": "Feature",
    "rope.methods.method": "METHODS",
    "rope.recipe": "Recipe",
    "rope.schedule": "Schedule",
    "rope.spec": "RopeSpec",
    "validate.checkpoint": "validate_checkpoint",
    "validate.comparison": "Comparison Settings",
    "validate.gguf": "validate_gguf",
    "verbs.apply": "apply patch plan",
    "verbs.inspecting": "advise inspect",
    "verbs.plotting": "plot",
    "verbs.probing": "probe",
    "verbs.publishing": "push",
    "verbs.restoring": "restore",
    "verbs.validation": "validate",
}
"""The names of the API by their modules, which are imported on first use; features add theirs."""
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that the command line starts without numpy.

    Python calls this for a name that the package does not have yet, such as `ropeconv.apply`.
    """
    if name == "__all__":  # for `from ropeconv import *`
        return __dir__()

    # the module of the name: one of the core (`_LAZY`), or of a feature, a plugin of the package
    module = ""
    if name in _LAZY:
        module = f"{__name__}.{_LAZY[name]}"
    elif not name.startswith("_"):  # Python asks for many names such as `__path__`
        module = _functions_of_features().get(name, "")
    if not module:
        raise AttributeError(f"module 'ropeconv' has no attribute {name!r}")

    if name == "METHODS":  # public name of the methods by name, which their module calls REGISTRY
        return import_module(module).REGISTRY
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*_LAZY, *_functions_of_features(), "__version__"])


def _functions_of_features() -> dict[str, str]:
    """Return the names that features add to the API, with their modules."""
    from .rope.features import load_features

    functions: dict[str, str] = {}
    for feature in load_features().values():
        functions |= feature.functions
    return functions


class _Package(ModuleType):
    """The module, whose verbs are not replaced by imported packages of the same name
    (`ropeconv.validate`).
    """

    def __setattr__(self, name: str, value: object) -> None:
        # the import of ropeconv/validate sets the attribute `validate` to that package
        is_own_package = name in _LAZY and isinstance(value, ModuleType)
        if not is_own_package:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
