"""ScaledMethod, the base class of the methods whose value is a scale factor, or the length that it reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..lengths import Factor, factor_over, format_tokens, length_of
from ..spec import RopeSpec
from .method import Method, Value, factor_or_length, param


@dataclass(frozen=True)
class ScaledMethod(Method):
    """A method with a scale factor s: a number, or a length with its suffix ("128k"), of which s is length / trained.

    A length stays a length in recipes, so that a recipe reaches it for a model of another trained length too.
    """

    value = Value.FACTOR

    factor: Factor = param(factor_or_length, "scale factor s, or the length to reach, such as 128k")  # noqa: RUF009

    def scale(self, spec: RopeSpec) -> float:
        """The scale factor s over the trained context of `spec`. Raises RecipeError for a length within it."""
        return factor_over(self.factor, spec.original_context, self.flag())

    @property
    def length(self) -> int | None:
        """The context in tokens where the factor is written as one; else None."""
        return length_of(self.factor)

    def factor_over(self, context: int, what: str = "trained") -> float | None:
        """The scale factor s. context, what, errors: as in `Method.factor_over`."""
        return factor_over(self.factor, context, self.flag(), what)

    def longer(self, context: int, original: int) -> str:
        """The flags with which this method reaches a context: `--yarn 512k`. Both: as in `Method.longer`."""
        return f"{self.flag()} {format_tokens(context)}"

    def relative(self, declared: int, original: int) -> Method:
        """The method with its factor over the declared context. declared, original: as in `Method.relative`."""
        return self.with_factor(factor_over(self.factor, declared, self.flag(), "declared"))

    def with_factor(self, factor: float, **settings: Any) -> Method:
        """The method with another factor, and other settings by name."""
        return replace(self, factor=factor, **settings)
