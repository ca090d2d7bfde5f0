"""Names of transformers 4 that the code of a model imports, and that transformers 5 does not have.

Code in repositories of models was mostly written for transformers 4. Python does not import it
where a name is missing, though its attention does not use that name. `OlderNames.find` therefore
puts a stand-in into transformers for each missing name, and keeps the names for the report. Most
stand-ins fail when they are called, so that no result depends on them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, TypeVar

IMPORT_ERROR = re.compile(r"cannot import name '(\w+)' from '(transformers[\w.]*)'")
"""The message of Python about a missing name; it is followed by the path of the module."""
MOST_NAMES = 30
"""The most names that are replaced for one model; one that lacks more is given up."""
DECORATOR = re.compile(r"^add_|docstring")
"""Names of decorators, which only write documentation."""

NAME_OF_DEFAULT_FORMULA = "ROPE_INIT_FUNCTIONS['default']"
"""The unscaled formula, which transformers 4 has in the table of all formulas."""

Found = TypeVar("Found")


class OlderNames:
    """The names that were replaced for the code of one model."""

    def __init__(self) -> None:
        self.replaced: list[str] = []
        """The names, in the order in which its code imports them."""

        self._give_default_formula()

    def find(self, search: Callable[[], Found]) -> Found:
        """Import code that was written for transformers 4, with objects for the names it misses.

        An import stops at the first missing name, such as is_flash_attn_available, so it is
        repeated after each of them.

        Args:
            search: Imports the code of a model; what it returns, such as a class, is the result.

        Raises:
            Exception: The search fails for another reason.
        """
        while True:
            try:
                return search()
            except Exception as problem:
                missing = IMPORT_ERROR.search(str(problem))
                if missing is None or len(self.replaced) == MOST_NAMES:
                    raise
                name, module = missing.groups()
                setattr(importlib.import_module(module), name, stand_in(name))
                self.replaced.append(name)

    def describe(self) -> str:
        """Return a phrase on the names that were replaced, for the facts that were not found."""
        names = ", ".join(self.replaced)
        return f"the effect of names of transformers 4 that its code imports ({names})"

    def _give_default_formula(self) -> None:
        """Put the unscaled formula into transformers' table of formulas, ROPE_INIT_FUNCTIONS.

        Code for transformers 4 takes it from there, as `ROPE_INIT_FUNCTIONS["default"](config,
        device)`; transformers 5 has it in each class instead. When the code of the model calls it,
        its name is added to `self.replaced`, which the user reads.
        """
        import torch
        from transformers import modeling_rope_utils

        names_in_report = self.replaced

        def compute_default(
            config: Any, device: Any = None, *unused: Any, **unused_by_name: Any
        ) -> tuple[Any, float]:
            """Return inv_freq, [rotary_dim / 2], and the attention factor of unscaled RoPE, 1.

            inv_freq[i] = base ** (-2i / rotary_dim), as _compute_default_rope_parameters in
            modeling_rope_utils.py of transformers 4.57 computes it.

            Args:
                config: The config of a text model, of transformers.
                device: The device of the model, which is the CPU here.
                unused: Further arguments, such as the length of the sequence, which unscaled RoPE
                    does not need.
                unused_by_name: Likewise.
            """
            # the code of the model calls this function
            if NAME_OF_DEFAULT_FORMULA not in names_in_report:
                names_in_report.append(NAME_OF_DEFAULT_FORMULA)

            # transformers 5 moves the base and the share from the config into rope_parameters
            settings = getattr(config, "rope_parameters", None) or {}
            base = getattr(config, "rope_theta", None) or settings["rope_theta"]
            share = getattr(config, "partial_rotary_factor", None)
            if not share:
                share = settings.get("partial_rotary_factor") or 1.0
            head_dim = getattr(config, "head_dim", None)
            if not head_dim:
                head_dim = config.hidden_size // config.num_attention_heads

            rotary_dim = int(head_dim * share)
            exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
            return 1.0 / base**exponents, 1.0

        modeling_rope_utils.ROPE_INIT_FUNCTIONS.setdefault("default", compute_default)


def stand_in(name: str) -> Any:
    """Return an object for a name that code for transformers 4 imports and transformers 5 lacks.

    For is_flash_attn_available and its like, it is a function that returns False. For a decorator
    of documentation, one that changes nothing. For all else, a class that fails when it is used.
    """

    def say_no(*given: Any, **more: Any) -> bool:
        return False

    def return_function(function: Any) -> Any:
        return function

    def decorate(*given: Any, **more: Any) -> Any:
        return return_function

    def fail(self: Any, *given: Any, **more: Any) -> None:
        raise NotImplementedError(f"the installed transformers has no {name}")

    if name.startswith("is_"):
        return say_no
    if DECORATOR.search(name):  # it is called with arguments, and then with the function
        return decorate
    return type(name, (), {"__init__": fail})
