"""What a server has to be able to say, and how it is spoken to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import RopeconvError
from ..engine import Engine, LogProbs, Progress

if TYPE_CHECKING:
    import httpx2 as httpx

TOP = 20  # likeliest tokens asked for at a position: what vLLM gives by default


@dataclass(frozen=True)
class Served:
    """A model that a server runs. runtime: its name and version. length: tokens it takes, 0 where it does not say.

    path: of its files as the server knows them, or empty. vocabulary: its number of tokens, 0 where it does not say.
    """

    model: str
    runtime: str
    length: int = 0
    path: str = ""
    vocabulary: int = 0


class Server(Engine):
    """A running server that speaks one protocol, and the model that it was asked for.

    owner: what `owned_by` says in the server's list of models. computes_in: the precision that limits it where the
    weights are in float32; empty where that is float32 too. served: the model.
    """

    gives = frozenset({"top_log_probs"})
    owner: ClassVar[str]
    computes_in: ClassVar[str] = ""

    def __init__(self, client: httpx.Client, entry: dict[str, Any]) -> None:
        self.client = client
        self.served = self.describe(entry)
        self.runtime = self.served.runtime

    @abstractmethod
    def describe(self, entry: dict[str, Any]) -> Served:
        """What an entry of /v1/models stands for."""

    @abstractmethod
    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Log-probabilities of the likeliest next tokens after each of the `kept` tokens of a text, by id.

        Raises RopeconvError with the server's own words where it refuses, or its answer is not understood.
        """

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Sends JSON, and yields the JSON that comes back."""
        return answer(lambda: self.client.post(path, json=body), str(self.client.base_url))

    def get(self, path: str) -> Any:
        """Yields the JSON at a path."""
        return answer(lambda: self.client.get(path), str(self.client.base_url))


def answer(request: Callable[[], httpx.Response], url: str) -> Any:
    """The JSON of a response. Raises RopeconvError where there is none."""
    import httpx2 as httpx

    try:
        response = request()
    except (httpx.HTTPError, OSError) as problem:
        why = str(problem) or type(problem).__name__
        raise RopeconvError(f"the server at {url} does not answer ({why}); start it, or correct --server") from None
    if response.status_code in (401, 403):
        raise RopeconvError(f"the server at {url} wants a key ({response.status_code}); set OPENAI_API_KEY")
    if response.is_error:
        raise RopeconvError(f"the server at {url} refuses ({response.status_code}): {_words(response)}")
    try:
        return response.json()
    except ValueError:
        raise RopeconvError(f"the server at {url} does not answer in JSON; give the base URL of its API") from None


def misread(owner: str, what: object) -> RopeconvError:
    """An answer of a shape that the protocol does not have."""
    return RopeconvError(f"the answer of {owner} has no {what}, so its version is not known here; validate another way")


def _words(response: httpx.Response) -> str:
    try:
        found: Any = response.json()
    except ValueError:
        return str(response.text)[:300]
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
