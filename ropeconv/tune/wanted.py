"""Wanted: what is searched for, as users write it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..rope.lengths import parse_tokens
from ..rope.methods.method import positive
from .candidate import FORMULAS


@dataclass(frozen=True)
class Wanted:
    """What is searched for, as users write it.

    context: to reach, such as "32k". start: the method to begin with; empty for the one that loses least.
    attention_factor: None to tune it too. windows, targets: how many windows are read, and tokens predicted on each
    side of the trained context. held_windows: read at the end, 0 for as many. inside, needles: weights of the loss
    inside the trained context, and of hidden numbers. steps: at most. regularise: weight of the squared distance of log
    divisors to the method to begin with. seed: of random choices.
    """

    context: str
    start: str = ""
    attention_factor: float | None = None
    windows: int = 16
    held_windows: int = 0
    targets: int = 256
    inside: float = 0.3
    needles: float = 0.0
    steps: int = 60
    regularise: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raises UsageError and RecipeError for values that cannot be taken."""
        parse_tokens(self.context)
        for name in ("windows", "targets", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}; give a positive number")
        for name in ("inside", "needles", "regularise", "held_windows"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give 0 or more")
        if self.attention_factor is not None and positive(self.attention_factor):
            raise UsageError(f"--attention-factor is {self.attention_factor}; give a positive number")
        if self.start and self.start not in FORMULAS:
            raise UsageError(f"--start {self.start} is no formula to begin with; choose {', '.join(FORMULAS)}")
        if self.windows < 2 or self.held_windows == 1:
            raise UsageError("errors need two windows at least; give a larger --windows or --held-windows")
