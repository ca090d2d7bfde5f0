"""Server, the base class of protocols, and how requests are sent and failures reported."""

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
    """A model that a server runs.

    model: its name there. runtime: name and version of the server. length: tokens that it accepts, 0 where it is not
    reported. path: of its files on the machine of the server, empty where it is not reported. vocabulary: number of
    tokens, 0 where it is not reported.
    """

    model: str
    runtime: str
    length: int = 0
    path: str = ""
    vocabulary: int = 0


class Server(Engine):
    """A running server with one of its models, through one protocol.

    owner: `owned_by` in the server's list of models, by which the protocol is recognised. computes_in: the precision
    that limits it for weights in float32; empty where that is float32 too. served: the model. client: for requests.
    entry: of the model in that list.
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
        """The model of an entry of /v1/models. Raises RopeconvError where the server does not answer."""

    @abstractmethod
    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Log-probabilities of the likeliest next tokens, and of the actual one, one dict per index in `kept`.

        ids: all tokens. kept: rising indices into `ids`, without the last. progress: callbacks. Raises RopeconvError
        with the server's own message where it refuses, and where its answer has another shape.
        """

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Posts JSON to a path, and returns the JSON of the response. Raises RopeconvError as `answer` does."""
        return answer(lambda: self.client.post(path, json=body), str(self.client.base_url))

    def get(self, path: str) -> Any:
        """Gets the JSON at a path. Raises RopeconvError as `answer` does."""
        return answer(lambda: self.client.get(path), str(self.client.base_url))


def answer(request: Callable[[], httpx.Response], url: str) -> Any:
    """The JSON of the response to a request.

    request: sends it. url: of the server, for messages. Raises RopeconvError for no response, an error, and no JSON.
    """
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
    """The error for an answer that lacks a part of the protocol.

    owner: the server. what: the missing part.
    """
    return RopeconvError(f"the answer of {owner} has no {what}, so its version is not known here; validate another way")


def _words(response: httpx.Response) -> str:
    try:
        found: Any = response.json()
    except ValueError:
        return str(response.text)[:300]
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
