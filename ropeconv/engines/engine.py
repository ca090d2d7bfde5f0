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
    """Callbacks of a long run."""

    note: Callable[[str], None] = lambda message: None
    """Called with sentences to the user."""

    total: Callable[[int], None] = lambda tokens: None
    """Called with the number of tokens to read."""

    advance: Callable[[int], None] = lambda tokens: None
    """Called with the tokens read since the last call."""

    stopped: Callable[[], bool] = lambda: False
    """Called between chunks; True ends the run early, with the tokens read so far."""


@dataclass(frozen=True)
class TokenLosses:
    """The losses of some tokens of a text."""

    loss: NDArray[np.float64]
    """Minus the natural log-probability of each token, float64 [tokens]."""

    right: NDArray[np.bool_]
    """Whether each token was the likeliest, bool [tokens]."""


class Engine(ABC):
    """A model that runs."""

    runtime: str
    """Its name and version."""

    def lacks(self, output: Output) -> str:
        """Return why the engine does not give an output, and what to do; empty where it does."""
        return ""

    @abstractmethod
    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        """Return the losses of some tokens of a text, each given those before it.

        Args:
            ids: All tokens, from position 0 on.
            targets: Rising indices into `ids`, from 1 on.
            progress: Callbacks, which are called while tokens are read.

        Raises:
            RopeconvError: The engine does not give losses.
        """

    @abstractmethod
    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """Return the next `count` tokens of greedy decoding after `ids`.

        They are fewer where the engine stops at an end of text.
        """

    def not_finite_in(self, ids: Sequence[int]) -> str:
        """Return the first module whose output is not finite when the model reads `ids`.

        It is empty where that is not known.
        """
        return ""


def prefix_of(with_special: Sequence[int], plain: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens before a text.

    Args:
        with_special: The tokens of the text as a model reads it.
        plain: Its tokens without special ones.
    """
    for before in range(len(with_special) - len(plain) + 1):
        if list(with_special[before : before + len(plain)]) == list(plain):
            return tuple(with_special[:before])
    return ()
