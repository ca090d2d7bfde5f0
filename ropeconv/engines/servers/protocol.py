"""Server, the base class of protocols, and requests within limits of time and size.

A server computes a long prompt for minutes before the first byte of its answer, so the head of an
answer may take long. The rest is ready then and has to come without delay. No request takes longer
than both limits together.
"""

from __future__ import annotations

import queue
import threading
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from ...formats.jsontext import JsonObject
from ...rope.errors import RopeconvError
from ...rope.lengths import MOST_TOKENS
from ..engine import Engine, LogProbs, Progress, TokenLosses

if TYPE_CHECKING:
    import httpx2 as httpx

CONNECT = 10.0
REST, RATE = 60.0, 1e6
"""Seconds for the rest of an answer, with one more for each `RATE` bytes that it may have."""
BLOCK = 1 << 16


@dataclass(frozen=True)
class Limits:
    """The limits of an answer. seconds: until its head. size: of its body, in bytes."""

    seconds: float
    size: int


SHORT = Limits(30.0, 1 << 20)
"""For questions about the server itself."""
PROMPT_SECONDS = 3600.0


def for_prompt(entries: int) -> Limits:
    """Limits for an answer with that many log-probabilities."""
    return Limits(PROMPT_SECONDS, (1 << 20) + 256 * entries)


Response = tuple[int, str, bytes]
"""The answer of a server: the status of HTTP, where a redirection leads (or empty), and the
body.
"""


def _read(
    client: httpx.Client,
    path: str,
    body: object,
    limits: Limits,
    reports: queue.Queue[Response | Exception],
) -> None:
    """Read a response, and report it or the exception."""
    import httpx2 as httpx

    method = "GET" if body is None else "POST"
    within = httpx.Timeout(limits.seconds, connect=CONNECT)
    plain = {"Accept-Encoding": "identity"}  # a few bytes can be gigabytes otherwise
    try:
        with client.stream(method, path, json=body, headers=plain, timeout=within) as response:
            content = bytearray()
            for part in response.iter_raw(BLOCK):
                content += part
                if len(content) > limits.size:
                    raise RopeconvError(
                        f"the answer of the server at {client.base_url} to {path} is longer than"
                        f" the allowed {limits.size:,} bytes; correct --server"
                    )
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise httpx.DecodingError(
                    "it compresses its answers though the request excludes that"
                )
            location = response.headers.get("Location", "") if response.is_redirect else ""
            reports.put((response.status_code, location, bytes(content)))
    except Exception as problem:
        reports.put(problem)


T = TypeVar("T")
TOP = 20  # likeliest tokens requested at a position, which is the default limit of vLLM
WORDS = 1 << 12  # bytes of an error that are read
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Name = Annotated[str, msgspec.Meta(max_length=1000)]


class TokenList(msgspec.Struct, frozen=True):
    """The answer to /tokenize."""

    tokens: list[Count]


class ModelMeta(msgspec.Struct, frozen=True):
    """A model of llama-server: tokens of its vocabulary and of its context."""

    n_vocab: Count = 0
    n_ctx: Count = 0


class ModelEntry(msgspec.Struct, frozen=True):
    """A model in /v1/models.

    id: its name. owned_by: tells the protocol. max_model_len: tokens that it accepts. root: path of
    its files. meta: of llama-server only. None where a server does not report it.
    """

    id: Name
    owned_by: Name = ""
    max_model_len: Count | None = None
    root: Name | None = None
    meta: ModelMeta | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The answer to /v1/models."""

    data: list[ModelEntry] | None = None


def prefix_of(with_special: Sequence[int], plain: Sequence[int]) -> tuple[int, ...]:
    """The tokens before a text. with_special: its tokens as a model reads it. plain: without
    special tokens.
    """
    count = len(with_special) - len(plain)
    before = next(
        (k for k in range(count + 1) if list(with_special[k : k + len(plain)]) == list(plain)), 0
    )
    return tuple(with_special[:before])


class Server(Engine):
    """A running server with one of its models, through one protocol.

    owner: `owned_by` in the server's list of models, which tells the protocol. text_key: of the
    text in the answer to /detokenize. detokenize: more fields of that request. piece: positions
    whose losses are requested at a time. computes_in: the precision that limits it for weights in
    float32; empty for float32. unchecked: properties of the run that cannot be known from outside,
    as phrases for the report. entry: of the model in that list. model: its name there. length:
    tokens that it accepts, path: of its files on the machine of the server, vocabulary: number of
    tokens; 0 or empty where they are not reported.
    """

    owner: ClassVar[str]
    text_key: ClassVar[str]
    detokenize: ClassVar[JsonObject] = {}
    piece: ClassVar[int] = MOST_TOKENS
    computes_in: ClassVar[str] = ""
    unchecked: ClassVar[tuple[str, ...]] = (
        "which precision and attention kernel it runs",
        "tokens other than the likeliest ones",
    )

    def __init__(self, client: httpx.Client, entry: ModelEntry) -> None:
        self.client = client
        self.model = entry.id
        self.vocabulary = 0
        self.length = entry.max_model_len or 0
        self.path = entry.root or ""
        self.describe(entry)

    @abstractmethod
    def describe(self, entry: ModelEntry) -> None:
        """Set the runtime, and what /v1/models does not report. Raises RopeconvError without an
        answer.
        """

    def log_probs(self, ids: Sequence[int], kept: Sequence[int], top: int) -> list[LogProbs]:
        """Log-probabilities of the `top` likeliest next tokens, and of the actual one, for each
        index in `kept`.

        kept: rising indices into `ids`, without the last. Raises RopeconvError with the server's
        message where it refuses, and where its answer has another shape.
        """
        raise NotImplementedError(self.owner)

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Log-probabilities of the likeliest next tokens, and of the actual one, a dict per index
        in `kept`.

        ids: all tokens, from position 0 on. kept: rising indices into `ids`, without the last.
        progress: callbacks.
        """
        rows = self.log_probs(ids, kept, TOP)
        (progress or Progress()).advance(len(ids))
        return rows

    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        """As in `Engine`, in requests for a piece each, whose prefix the server has cached."""
        import numpy as np

        if reason := self.lacks("token_losses"):
            raise RopeconvError(reason)
        self.refuse_longer(targets[-1] + 2)
        rows = list[LogProbs]()
        start = 0
        while start < len(targets):
            stop = bisect_left(targets, targets[start] + self.piece)
            part = targets[start:stop]
            rows += self.log_probs(ids[: part[-1] + 1], [target - 1 for target in part], 1)
            start = stop
        for target, row in zip(targets, rows, strict=True):
            if ids[target] not in row:
                raise self.misread(f"log-probability of token {target}")
        actual = np.array(
            [row[ids[target]] for target, row in zip(targets, rows, strict=True)], float
        )
        (progress or Progress()).advance(len(ids))
        return TokenLosses(-actual, actual == [max(row.values()) for row in rows])

    def misread(self, what: str) -> RopeconvError:
        """The error for an answer that lacks a part of the protocol. what: the missing part."""
        return RopeconvError(
            f"the answer of {self.runtime} has no {what}, so this version is not supported; run the"
            " model another way"
        )

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that it puts before every text."""
        return prefix_of(self.encode("a", special=True), self.encode("a"))

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text. special: with those that the server adds to every text."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": special}
        return self.ask("/tokenize", TokenList, body, for_prompt(len(text))).tokens

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        body = {"model": self.model, "tokens": list(ids), **self.detokenize}
        text = self.ask("/detokenize", dict[str, Any], body, for_prompt(len(ids))).get(
            self.text_key
        )
        if not isinstance(text, str):
            raise self.misread(self.text_key)
        return text

    def refuse_longer(self, tokens: int) -> None:
        """Raises RopeconvError for more tokens, generated ones included, than the server
        accepts.
        """
        if self.length and tokens > self.length:
            raise RopeconvError(
                f"{self.model} on the server at {self.client.base_url} accepts {self.length:,}"
                f" tokens, and {tokens:,} are needed; start it with a longer context (vLLM"
                " --max-model-len, SGLang --context-length, llama-server -c), or give shorter"
                " --lengths"
            )

    def ask(
        self, path: str, kind: type[T], body: JsonObject | None = None, limits: Limits = SHORT
    ) -> T:
        """As the function `ask`."""
        return ask(self.client, path, kind, body, limits)


def ask(
    client: httpx.Client, path: str, kind: type[T], body: object = None, limits: Limits = SHORT
) -> T:
    """The decoded answer to a request, which posts the body as JSON where there is one.

    Raises RopeconvError where no answer comes within the limits, for an error, and for an answer of
    another kind.
    """
    reports: queue.Queue[Response | Exception] = queue.Queue()
    arguments = (client, path, body, limits, reports)
    threading.Thread(
        target=_read, args=arguments, daemon=True
    ).start()  # httpx limits the single read, not the whole
    url = str(client.base_url)
    seconds = limits.seconds + CONNECT + REST + limits.size / RATE
    try:
        response = reports.get(timeout=seconds)
    except queue.Empty:
        raise RopeconvError(
            f"the server at {url} does not answer {path} within {seconds:,.0f} seconds; restart it,"
            " or lower --length"
        ) from None
    if isinstance(response, RopeconvError):
        raise response
    if isinstance(response, Exception):
        why = str(response) or type(response).__name__
        raise RopeconvError(
            f"the server at {url} does not answer ({why[:300]}); start it, or correct --server"
        )
    status, location, content = response
    if status in (401, 403):
        raise RopeconvError(f"the server at {url} wants a key ({status}); set OPENAI_API_KEY")
    if location:
        raise RopeconvError(
            f"the server at {url} redirects {path} to {location[:300]}; give the URL of the API"
        )
    if status != 200:
        raise RopeconvError(f"the server at {url} refuses ({status}): {_words(content)}")
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as problem:
        raise RopeconvError(
            f"the answer of the server at {url} to {path} has another format than ropeconv knows"
            f" ({problem}); run the model another way"
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise RopeconvError(
            f"the server at {url} does not answer in JSON; give the base URL of its API"
        ) from None


def _words(body: bytes) -> str:
    """The message in an error."""
    text = body[:WORDS].decode("utf-8", "replace")
    try:
        content: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text[:300]
    error = content.get("error", content) if isinstance(content, dict) else content
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
