"""Factors per pair by evolution, as in LongRoPE (Ding et al. 2024) with the critical dimension of LongRoPE2 (2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...rope.laws import critical_dimension
from ..candidate import Candidate, Start
from .search import Search, Task, register

if TYPE_CHECKING:
    from numpy.typing import NDArray

POPULATION, PARENTS, MUTANTS, CROSSED = 16, 6, 6, 6
MUTATED = 0.3
"""Share of the genes that a mutation draws anew."""
LARGEST = 1.5
"""Largest divisor, times s."""
PATIENCE = 6
"""Generations without a better schedule, beyond its standard error, after which a search ends."""


@dataclass(frozen=True, eq=False)
class Genome:
    """What is inherited.

    critical: the pair from which on divisors are genes; those before it are lambda_c^(i/c), another base (NTK).
    divisors: float64 [pairs], never falling. attention_factor: multiplies cos and sin.
    """

    critical: int
    divisors: NDArray[np.float64]
    attention_factor: float

    def expressed(self) -> NDArray[np.float64]:
        """The divisors of all pairs, float64."""
        found, own = self.divisors.copy(), self.critical
        if own:
            found[:own] = found[own] ** (np.arange(own) / own)
        return np.asarray(np.maximum.accumulate(found), dtype=np.float64)


@register
class Evolution(Search):
    """Divisors never fall from pair to pair (LongRoPE, section 3.2), and the first population has PI, NTK and YaRN.

    Departures from the paper: the tokens at the beginning that keep their positions are left out, since no stock
    runtime computes that; divisors are drawn on a logarithmic scale; and a schedule that loses against the best one of
    its parents' generation is not read to its last window.
    """

    name = "evolution"
    summary = "divisors per pair by LongRoPE's evolutionary search"
    over = "factors"
    steps = 20

    def run(self, task: Task) -> Candidate:
        draw = np.random.default_rng(task.seed)
        ranked = self._first(task, draw)
        for _ in range(task.steps or self.steps):
            parents = [genome for _, genome in ranked[:PARENTS]]
            made = [_mutated(parents[int(draw.integers(len(parents)))], task, draw) for _ in range(MUTANTS)]
            made += [_crossed(parents, draw) for _ in range(CROSSED)]
            ranked = sorted([*ranked[:PARENTS], *self._scored(made, task)], key=lambda pair: pair[0])
            task.offer(_candidate(task.start, ranked[0][1]))
            if task.ended(PATIENCE):
                break
        return task.best

    def _first(self, task: Task, draw: np.random.Generator) -> list[tuple[float, Genome]]:
        """The first population with its losses, best first: the formulas, and mutations of the better ones."""
        seeds = [
            Genome(0, np.maximum.accumulate(task.start.divisors(one.schedule)), _attention(one, task))
            for one in task.formulas
        ]
        made = [_mutated(seeds[index % PARENTS], task, draw) for index in range(max(POPULATION - len(seeds), 0))]
        return sorted(self._scored([*seeds, *made], task), key=lambda pair: pair[0])

    def _scored(self, genomes: list[Genome], task: Task) -> list[tuple[float, Genome]]:
        best, gain = task.best.schedule, task.gain(task.best).mean
        return [(task.scorer.race(_candidate(task.start, one).schedule, best).mean + gain, one) for one in genomes]


def _attention(one: Candidate, task: Task) -> float:
    return one.schedule.attention_factor if task.attention_factor is None else task.attention_factor


def _candidate(start: Start, genome: Genome) -> Candidate:
    return start.factors(genome.expressed(), genome.attention_factor, "tuned factors")


def _mutated(parent: Genome, task: Task, draw: np.random.Generator) -> Genome:
    """Draws genes anew, each between its neighbours, and moves the critical pair and the attention factor a little."""
    spec, pairs = task.start.spec, len(parent.divisors)
    theory = critical_dimension(spec.rope_theta, spec.original_context, spec.rotary_dim) // 2
    critical = parent.critical
    if draw.random() < MUTATED:
        around = critical if critical and draw.random() < 0.5 else theory
        critical = int(np.clip(around + draw.integers(-3, 4), 0, pairs - 1))
    divisors = parent.expressed()
    for index in np.flatnonzero(draw.random(pairs) < MUTATED):
        if index >= critical:
            low = divisors[index - 1] if index else 1.0
            high = divisors[index + 1] if index + 1 < pairs else LARGEST * task.start.factor
            divisors[index] = np.exp(draw.uniform(np.log(low), np.log(max(low, high))))
    if draw.random() < MUTATED:  # all the slow pairs together, which single genes between neighbours hardly move
        slow = slice(max(critical, int(draw.integers(pairs))), None)
        divisors[slow] = np.clip(divisors[slow] * np.exp(draw.normal(0, 0.15)), 1.0, LARGEST * task.start.factor)
    attention = parent.attention_factor
    if task.attention_factor is None and draw.random() < MUTATED:
        attention *= float(np.exp(draw.normal(0, 0.03)))
    return Genome(critical, np.maximum.accumulate(divisors), attention)


def _crossed(parents: list[Genome], draw: np.random.Generator) -> Genome:
    """The faster pairs of one parent, and the slower ones of another."""
    one, other = (parents[int(index)] for index in draw.choice(len(parents), 2, replace=False))
    cut = int(draw.integers(1, max(len(one.divisors), 2)))
    divisors = np.concatenate([one.expressed()[:cut], other.expressed()[cut:]])
    return Genome(one.critical, np.maximum.accumulate(divisors), other.attention_factor)
