"""Engine: one interface to every way of running a model."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from ..errors import RopeconvError

Output = Literal["hidden_states", "logits", "top_log_probs", "tokens"]
LogProbs = dict[int, float]
"""Log-probabilities of some next tokens by id, the likeliest among them."""


@dataclass(frozen=True)
class Progress:
    """What a caller wants to hear of a long run.

    note: called with sentences. total, advance: with the tokens to read, and with those read. stopped: asked between
    chunks whether to end the run and use what is there.
    """

    note: Callable[[str], None] = lambda message: None
    total: Callable[[int], None] = lambda tokens: None
    advance: Callable[[int], None] = lambda tokens: None
    stopped: Callable[[], bool] = lambda: False


class Engine(ABC):
    """A model that runs somewhere. What an engine does not give is a RopeconvError that names what it gives.

    gives: what it can be asked for. runtime: its name and version. unchecked: what cannot be seen of it.
    """

    gives: ClassVar[frozenset[Output]]
    runtime: str
    unchecked: tuple[str, ...] = ()

    def hidden_states(
        self, ids: Sequence[int], positions: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> Any:
        """Final hidden states of the tokens `kept` (rising indices into `ids`), float [len(kept), width], on the host.

        positions: of every token, rising; gaps are allowed.
        """
        self._cannot("hidden_states")

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None) -> Any:
        """Logits after each of the tokens `kept`, float32 [len(kept), vocabulary]; the text begins at position 0."""
        self._cannot("logits")

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Log-probabilities of the likeliest tokens after each of the tokens `kept`; the text begins at position 0."""
        self._cannot("top_log_probs")

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that greedy decoding puts after a text; fewer where the model ends it."""
        self._cannot("tokens")

    def _cannot(self, output: Output) -> NoReturn:
        raise RopeconvError(f"{self.runtime} gives no {output}, only {', '.join(sorted(self.gives))}; run another way")
