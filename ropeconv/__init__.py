"""ropeconv: bake a RoPE context extension into a checkpoint, and prove that stock runtimes compute it.

import ropeconv

source = ropeconv.open_source("./Llama-2-7b-hf")
recipe = ropeconv.Recipe(ropeconv.METHODS["yarn"](16.0))
plan = ropeconv.make_plan(source, recipe)
for verdict in plan.choice.verdicts:
    print(verdict.title, verdict.word, verdict.because)
folder = ropeconv.apply(plan)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .bake import apply as apply
    from .bake import make_plan as make_plan
    from .bake.advice import advise as advise
    from .inspection import inspect_source as inspect_source
    from .rope.bound import bound as bound
    from .rope.bound import reach as reach
    from .rope.methods import REGISTRY as METHODS
    from .rope.recipe import Recipe as Recipe
    from .sources import open_source as open_source
    from .validate.checkpoint import validate as validate_logits

__all__ = [
    "METHODS",
    "Recipe",
    "advise",
    "apply",
    "bound",
    "inspect_source",
    "make_plan",
    "open_source",
    "reach",
    "validate_logits",
]

_WHERE = {
    "METHODS": ("rope.methods", "REGISTRY"),
    "Recipe": ("rope.recipe", "Recipe"),
    "advise": ("bake.advice", "advise"),
    "apply": ("bake", "apply"),
    "bound": ("rope.bound", "bound"),
    "inspect_source": ("inspection", "inspect_source"),
    "make_plan": ("bake", "make_plan"),
    "open_source": ("sources", "open_source"),
    "reach": ("rope.bound", "reach"),
    "validate_logits": ("validate.checkpoint", "validate"),
}


def __getattr__(name: str) -> Any:
    """Imports on first use, so that the command line starts without numpy."""
    if name not in _WHERE:
        raise AttributeError(f"module 'ropeconv' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(f".{module}", __name__), attribute)
