"""vt: variables that hold the same value by assignment (variable tracking of RULER, https://arxiv.org/abs/2404.06654)."""

from __future__ import annotations

import string

import numpy as np

from .haystack import Haystack, Prompt, different_numbers, spread
from .measure import register
from .retrieval import Retrieval

HOPS = 4
CHAINS = 2


@register
class VariableTracking(Retrieval):
    """X1 = 12345 stands at the depth, and X2 = X1 to X5 = X4 at even distances behind it; a second chain is a decoy.

    All variables of the first chain are asked for, in the order of their assignments.
    """

    name = "vt"
    summary = "all variables that hold a value through four assignments, by depth of the first"

    def prompt(self, haystack: Haystack, depth: float, length: int, draw: np.random.Generator) -> Prompt:
        names = _names(CHAINS * (HOPS + 1), draw)
        values = different_numbers(CHAINS, 5, draw)
        facts: list[tuple[float, str]] = []
        for chain, value in enumerate(values):
            own = names[chain * (HOPS + 1) :][: HOPS + 1]
            texts = [
                f"\nVAR {name} = {before}\n"
                for name, before in zip(own, [value, *(f"VAR {name}" for name in own)], strict=False)
            ]
            facts += spread(texts, depth if chain == 0 else float(draw.random()))
        task = "Track the variables that are assigned in the following text.\n"
        question = f"\nWhich variables hold the value {values[0]}? List all, in the order of their assignments."
        lead = f" The variables that hold the value {values[0]} are"
        ordered = sorted(facts, key=lambda fact: fact[0])  # stable, so that a chain keeps its order
        return Prompt(task, question, lead, tuple(names[: HOPS + 1]), tuple(ordered))


def _names(count: int, draw: np.random.Generator) -> list[str]:
    """Different names of three capital letters."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(draw.choice(list(string.ascii_uppercase), 3))] = None
    return list(found)
