"""Names of transformers 4 that the code of a model imports, and that transformers 5 does not have.

Code in repositories of models was mostly written for transformers 4. Without a name that was
removed it is not even imported, though its attention does not use that name. `OlderNames.find` puts
something in its place and says so. Such functions and classes fail when they are called.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, TypeVar

MISSING = re.compile(r"cannot import name '(\w+)' from '(transformers[\w.]*)'")
MOST = 30
"""Names that are replaced in one model."""
DECORATOR = re.compile(r"^add_|docstring")
"""Names of decorators, which only write documentation."""

FORMULA = "ROPE_INIT_FUNCTIONS['default']"
"""The unscaled formula, which transformers 4 has in the table of all formulas."""

Found = TypeVar("Found")


class OlderNames:
    """The names that were replaced for the code of one model.

    Attributes:
        replaced: The names, in the order in which its code imports them.
    """

    def __init__(self) -> None:
        self.replaced: list[str] = []
        self._give_default_formula()

    def find(self, search: Callable[[], Found]) -> Found:
        """Return what a search gives, with names in place that its imports miss.

        Args:
            search: Imports the code of a model.

        Raises:
            Exception: The search failed for another reason.
        """
        while True:
            try:
                return search()
            except Exception as problem:
                match = MISSING.search(str(problem))
                if match is None or len(self.replaced) == MOST:
                    raise
                name, module = match.groups()
                setattr(importlib.import_module(module), name, stand_in(name))
                self.replaced.append(name)

    def describe(self) -> str:
        """Return what was replaced, as a fact that could not be found."""
        names = ", ".join(self.replaced)
        return f"the effect of names of transformers 4 that its code imports ({names})"

    def _give_default_formula(self) -> None:
        """Give the table of formulas the unscaled one, which transformers 5 has in each class."""
        import torch
        from transformers import modeling_rope_utils

        def plain(config: Any, device: Any = None, *_: Any, **given: Any) -> tuple[Any, float]:
            # transformers 4.57, modeling_rope_utils.py, _compute_default_rope_parameters
            if FORMULA not in self.replaced:
                self.replaced.append(FORMULA)
            settings = getattr(config, "rope_parameters", None) or {}
            base = getattr(config, "rope_theta", None) or settings["rope_theta"]
            share = getattr(config, "partial_rotary_factor", None)
            # transformers 5 moves it from the config into these settings
            share = share or settings.get("partial_rotary_factor") or 1.0
            width = getattr(config, "head_dim", None)
            width = width or config.hidden_size // config.num_attention_heads
            rotary_dim = int(width * share)
            exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
            return 1.0 / base**exponents, 1.0

        modeling_rope_utils.ROPE_INIT_FUNCTIONS.setdefault("default", plain)


def stand_in(name: str) -> Any:
    """Return what stands for a name: false for a question, and else what fails when it is used."""
    if name.startswith("is_"):
        return lambda *given, **more: False
    if DECORATOR.search(name):
        return lambda *given, **more: lambda function: function

    def fail(self: Any, *given: Any, **more: Any) -> None:
        raise NotImplementedError(f"the installed transformers has no {name}")

    return type(name, (), {"__init__": fail})
