"""Engine, the interface to a model that runs, and Progress, the callbacks of a long run."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NoReturn

from ..rope.errors import RopeconvError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Output = Literal["hidden_states", "logits", "top_log_probs", "token_losses", "tokens"]
LogProbs = dict[int, float]
"""Natural log-probabilities of some next tokens by id, the likeliest among them."""


@dataclass(frozen=True)
class Progress:
    """Callbacks of a long run.

    note: sentences to the user. total: the number of tokens to read. advance: the tokens read since the last call.
    stopped: called between chunks; True ends the run early, with the tokens read so far.
    """

    note: Callable[[str], None] = lambda message: None
    total: Callable[[int], None] = lambda tokens: None
    advance: Callable[[int], None] = lambda tokens: None
    stopped: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class TokenLosses:
    """The losses of some tokens of a text.

    loss: minus the natural log-probability of each, float64 [tokens]. right: whether each was the likeliest, bool
    [tokens].
    """

    loss: NDArray[np.float64]
    right: NDArray[np.bool_]


class Engine(ABC):
    """A model that runs. A method whose output an engine does not give raises RopeconvError.

    gives: the supported outputs. lacks: why it does not give another one, and what to do. runtime: its name and
    version. unchecked: properties of the run that cannot be known from outside, as phrases for the report.
    """

    gives: ClassVar[frozenset[Output]]
    lacks: ClassVar[Mapping[Output, str]] = {}
    runtime: str
    unchecked: tuple[str, ...] = ()

    def hidden_states(
        self, ids: Sequence[int], positions: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> Tensor:
        """Final hidden states of some tokens, a float tensor [len(kept), hidden_size] on the host.

        ids: all tokens. positions: of every token, rising; gaps are allowed. kept: rising indices into `ids` of the
        tokens whose states are returned. progress: callbacks, of which advance and stopped are called.
        """
        self._cannot("hidden_states")

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None) -> Tensor:
        """Logits after some tokens, float32 [len(kept), vocabulary].

        ids: all tokens, from position 0 on. kept: rising indices into `ids`. progress: callbacks.
        """
        self._cannot("logits")

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Log-probabilities of the likeliest next tokens after some tokens, one dict per index in `kept`.

        ids: all tokens, from position 0 on. kept: rising indices into `ids`, without the last. progress: callbacks.
        """
        self._cannot("top_log_probs")

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        """The losses of some tokens of a text, each given those before it.

        ids: all tokens, from position 0 on. targets: rising indices into `ids`, from 1 on. progress: callbacks.
        """
        self._cannot("token_losses")

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens of greedy decoding after `ids`; fewer where the engine stops at an end of text."""
        self._cannot("tokens")

    def not_finite_in(self, ids: Sequence[int]) -> str:
        """The first module whose output is not finite when the model reads `ids`; empty where that is not known."""
        return ""

    def without(self, output: Output) -> str:
        """The sentence on an output that this engine does not give."""
        if output in self.lacks:
            return f"{self.runtime} {self.lacks[output]}"
        return f"{self.runtime} does not give {output}, only {', '.join(sorted(self.gives))}; run another way"

    def _cannot(self, output: Output) -> NoReturn:
        raise RopeconvError(self.without(output))
