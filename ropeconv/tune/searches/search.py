"""Search, the interface of what looks for a better schedule, and REGISTRY."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ...engines import Progress
from ...errors import UsageError
from ...rope.spec import RopeSpec
from ..candidate import Candidate, Start
from ..scorer import Difference, Scorer

S = TypeVar("S", bound="type[Search]")


@dataclass
class Task:
    """What a search works on.

    start: the model and the context. model: of transformers, loaded. source: its RoPE as it is. scorer: reads windows.
    formulas: that it may begin with, the one to begin with first. over: "factors", or the name of a method. steps: at
    most; 0 for the default of the search. attention_factor: where it is not to be searched for. regularise: weight of
    the squared distance of log divisors to the first formula. seed: of random choices. progress: callbacks; advance
    counts steps. trace: loss on the windows after each step, minus that of the first formula, in nats per token. best:
    candidate so far. improved: the step in which it became better by more than its standard error.
    """

    start: Start
    model: Any
    source: RopeSpec
    scorer: Scorer
    formulas: Sequence[Candidate]
    over: str
    steps: int = 0
    attention_factor: float | None = None
    regularise: float = 0.0
    seed: int = 0
    progress: Progress = field(default_factory=Progress)
    trace: list[float] = field(default_factory=list)
    best: Candidate = field(init=False)
    improved: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.best = self.first

    @property
    def first(self) -> Candidate:
        """The formula that a search begins with."""
        return self.formulas[0]

    def gain(self, candidate: Candidate, count: int | None = None) -> Difference:
        """How a candidate compares with the first formula on `count` windows of the search, by default on all."""
        first = self.scorer.values(self.first.schedule, count)
        return Difference(self.scorer.values(candidate.schedule, count) - first)

    def offer(self, found: Candidate) -> Difference:
        """Takes a candidate as the best one where it loses less on all windows, and returns how the two compare."""
        raced = self.scorer.race(found.schedule, self.best.schedule)
        if raced.mean < 0:
            self.best = found
            if -raced.mean > raced.error:
                self.improved = len(self.trace)
                gain = self.gain(found)
                said = f"Step {len(self.trace) + 1}: {gain.mean:+.4f} ± {gain.error:.4f} nat per token on these windows"
                self.progress.note(f"{said}, against {self.first.name}.")
        return raced

    def ended(self, patience: int) -> bool:
        """Notes the end of a step, and returns whether it is the last one.

        patience: steps without a better candidate, beyond its standard error, after which a search ends.
        """
        self.trace.append(self.gain(self.best).mean)
        self.progress.advance(1)
        return self.progress.stopped() or len(self.trace) > self.improved + patience


class Search(ABC):
    """A way to look for schedules.

    name: on the command line. summary: a phrase for help and docs. over: what it can search, "factors" or "parameters".
    steps: by default.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    over: ClassVar[str]
    steps: ClassVar[int]

    @abstractmethod
    def run(self, task: Task) -> Candidate:
        """The best candidate that was found; it may be a formula. Ends early where progress says so."""


REGISTRY: dict[str, Search] = {}


def register(cls: S) -> S:
    """Class decorator: adds a search to REGISTRY under its name."""
    REGISTRY[cls.name] = cls()
    return cls


def choose(over: str, by: str, methods: Sequence[str]) -> Search:
    """The search for what is asked for.

    over: "factors", or a method. by: its name; empty for the first that fits. methods: that have parameters to tune.
    Raises UsageError where the two do not go together.
    """
    if over != "factors" and over not in methods:
        raise UsageError(f"--over {over} is not known; choose factors, {', '.join(methods)}")
    kind = "factors" if over == "factors" else "parameters"
    fitting = [name for name, search in REGISTRY.items() if search.over == kind]
    if by and by not in fitting:
        raise UsageError(f"--by {by} does not search {over}; choose {' or '.join(fitting)}")
    return REGISTRY[by or fitting[0]]
