"""Engine, the interface to a model that runs, and Progress, the callbacks of a long run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Output = Literal["token_losses", "tokens"]
LogProbs = dict[int, float]
"""Natural log-probabilities of some next tokens by id, the likeliest among them."""


@dataclass(frozen=True)
class Progress:
    """Callbacks of a long run.

    note: sentences to the user. total: the number of tokens to read. advance: the tokens read since
    the last call. stopped: called between chunks; True ends the run early, with the tokens read so
    far.
    """

    note: Callable[[str], None] = lambda message: None
    total: Callable[[int], None] = lambda tokens: None
    advance: Callable[[int], None] = lambda tokens: None
    stopped: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class TokenLosses:
    """The losses of some tokens of a text.

    loss: minus the natural log-probability of each, float64 [tokens]. right: whether each was the
    likeliest, bool [tokens].
    """

    loss: NDArray[np.float64]
    right: NDArray[np.bool_]


class Engine(ABC):
    """A model that runs. runtime: its name and version."""

    runtime: str

    def lacks(self, output: Output) -> str:
        """Why the engine does not give an output, and what to do; empty where it gives it."""
        return ""

    @abstractmethod
    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        """The losses of some tokens of a text, each given those before it.

        ids: all tokens, from position 0 on. targets: rising indices into `ids`, from 1 on.
        progress: callbacks. Raises RopeconvError where the engine lacks them.
        """

    @abstractmethod
    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens of greedy decoding after `ids`; fewer where the engine stops at
        an end of text.
        """

    def not_finite_in(self, ids: Sequence[int]) -> str:
        """The first module whose output is not finite when the model reads `ids`; empty where that
        is not known.
        """
        return ""
