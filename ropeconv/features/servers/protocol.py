"""Server, the base class of protocols, and requests within limits of time and size.

`ask` sends a request; a protocol fills in what `Server` leaves open.

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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from ropeconv.engines.engine import Engine, LogProbs, Progress, TokenLosses, prefix_of
from ropeconv.errors import BadSource
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.receipts.receipt import Receipt
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.lengths import MOST_TOKENS

if TYPE_CHECKING:
    import httpx2 as httpx

SECONDS_TO_CONNECT = 10.0
"""Seconds to connect."""
SECONDS_FOR_REST = 60.0
"""Seconds for the rest of an answer, besides those for the bytes that it may have."""
BYTES_PER_SECOND = 1e6
"""How fast an answer must come, at least."""
BYTES_PER_READ = 1 << 16
"""Bytes of an answer that are read at a time."""


@dataclass(frozen=True)
class Limits:
    """The limits of an answer."""

    seconds: float
    """Seconds until its head."""

    size: int
    """Bytes of its body."""


SHORT = Limits(30.0, 1 << 20)
"""For questions about the server itself."""
PROMPT_SECONDS = 3600.0


def for_prompt(entries: int) -> Limits:
    """Return the limits for an answer with that many log-probabilities."""
    return Limits(PROMPT_SECONDS, (1 << 20) + 256 * entries)


Response = tuple[int, str, bytes]
"""The answer of a server: status of HTTP, where a redirection leads (or empty), and body."""


def _read(
    client: httpx.Client,
    path: str,
    body: object,
    limits: Limits,
    reports: queue.Queue[Response | Exception],
) -> None:
    """Send a request, and put its response into the queue `reports`, or the exception.

    Args:
        client: The client, with the URL of the server.
        path: The path of the request.
        body: The data that is posted as JSON; None for a GET request.
        limits: The limits of the answer.
        reports: The queue that the thread which asks waits for.
    """
    import httpx2 as httpx  # httpx2 has the names and the interface of httpx

    method = "GET" if body is None else "POST"
    timeout = httpx.Timeout(limits.seconds, connect=SECONDS_TO_CONNECT)
    # no compression: a few bytes could be gigabytes
    headers = {"Accept-Encoding": "identity"}
    try:
        with client.stream(method, path, json=body, headers=headers, timeout=timeout) as response:
            # read in parts, so that a wrong server cannot fill the memory
            content = bytearray()
            for part in response.iter_raw(BYTES_PER_READ):
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

            # a redirect is reported and not followed, since the key in the headers is for this
            # server
            location = ""
            if response.is_redirect:
                location = response.headers.get("Location", "")
            answer: Response = (response.status_code, location, bytes(content))
            reports.put(answer)
    except Exception as problem:  # raised again by `ask`, in the thread that asks
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
    """A model in /v1/models; None for what a server does not report."""

    id: Name
    """Its name."""

    owned_by: Name = ""
    """The name of the server, which tells the protocol."""

    max_model_len: Count | None = None
    """The tokens that it accepts."""

    root: Name | None = None
    """The path of its files."""

    meta: ModelMeta | None = None
    """The part that only llama-server reports."""


class ModelList(msgspec.Struct, frozen=True):
    """The answer to /v1/models."""

    data: list[ModelEntry] | None = None


class Server(Engine):
    """A running server with one of its models, through one protocol."""

    owner: ClassVar[str]
    """`owned_by` in the server's list of models, which tells the protocol."""

    text_key: ClassVar[str]
    """The key of the text in the answer to /detokenize."""

    detokenize: ClassVar[JsonObject] = {}
    """More fields of the request to /detokenize."""

    reads_text: ClassVar[bool] = False
    """Whether it reads text and not tokens (`completions.py`)."""

    piece: ClassVar[int] = MOST_TOKENS
    """Positions whose losses are requested at a time."""

    computes_in: str = ""
    """The precision that limits it for weights in float32; empty for float32."""

    unchecked: ClassVar[tuple[str, ...]] = (
        "which precision and attention kernel it runs",
        "tokens other than the likeliest ones",
    )
    """Properties of the run that cannot be known from outside, as phrases for the report."""

    model: str
    """The name of the model in the server's list."""

    vocabulary: int
    """The number of tokens; 0 where it is not reported."""

    length: int
    """The tokens that the model accepts; 0 where they are not reported."""

    path: str
    """The path of its files on the machine of the server; empty where it is not reported."""

    def __init__(self, client: httpx.Client, entry: ModelEntry) -> None:
        self.client = client
        self.model = entry.id
        self.vocabulary = 0
        self.length = entry.max_model_len or 0
        self.path = entry.root or ""
        self.describe(entry)

    @abstractmethod
    def describe(self, entry: ModelEntry) -> None:
        """Set the runtime, and what /v1/models does not report.

        Raises:
            RopeconvError: The server does not answer.
        """

    def runs(self, output: Path, receipt: Receipt) -> bool | None:
        """Return whether the server loaded an output; a copy of the output counts as the output.

        Args:
            output: The output.
            receipt: Its receipt.

        Returns:
            None where that cannot be seen: the server does not say what it loaded, or that is on
            another machine.
        """
        if not self.path:
            return None
        loaded = Path(self.path)
        if not loaded.exists():
            return None
        if loaded.resolve() == output.resolve():
            return True

        # a copy has the receipt of the output
        try:
            other = read_receipt(loaded)
        except BadSource:
            return False
        if other.recipe != receipt.recipe or other.schedule != receipt.schedule:
            return False
        return other.source == receipt.source

    def log_probs(self, ids: Sequence[int], kept: Sequence[int], top: int) -> list[LogProbs]:
        """Return log-probabilities of the likeliest next tokens, and of the actual one.

        Args:
            ids: All tokens, from position 0 on.
            kept: Rising indices into `ids`, without the last.
            top: How many of the likeliest tokens.

        Returns:
            Log-probabilities by token, one dict per index in `kept`.

        Raises:
            RopeconvError: The server refuses, or its answer has another shape.
        """
        raise NotImplementedError(self.owner)

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Return log-probabilities of the likeliest next tokens, and of the actual one.

        Args:
            ids: All tokens, from position 0 on.
            kept: Rising indices into `ids`, without the last.
            progress: Callbacks, which are called while tokens are read.

        Returns:
            Log-probabilities by token, one dict per index in `kept`.
        """
        rows = self.log_probs(ids, kept, TOP)
        if progress is not None:
            progress.advance(len(ids))
        return rows

    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        """Return the losses of some tokens of a text, each given those before it, as `Engine` does.

        The text is sent in several requests: each has the text up to the end of a piece, and asks
        for the tokens of that piece. The server has cached the part before it.

        Args:
            ids: All tokens of the text.
            targets: Rising indices into `ids`, from 1 on, of the tokens that are predicted.
            progress: Callbacks, which are called while tokens are read.

        Raises:
            RopeconvError: The server gives no log-probabilities, or accepts fewer tokens.
        """
        import numpy as np

        reason = self.lacks("token_losses")
        if reason:
            raise RopeconvError(reason)
        # the longest request ends with the last target, and the server generates one token after it
        prompt_tokens = targets[-1] + 1
        self.refuse_longer(prompt_tokens + 1)

        # An answer has numbers for every token of its piece, so that one answer for a long text
        # would be too large. The token at position p is predicted at p - 1.
        log_probs = list[LogProbs]()
        start = 0
        while start < len(targets):
            piece_end = targets[start] + self.piece
            stop = bisect_left(targets, piece_end)
            piece_targets = targets[start:stop]
            predicted_at = [target - 1 for target in piece_targets]
            text = ids[: piece_targets[-1] + 1]  # up to the last target of the piece
            log_probs += self.log_probs(text, predicted_at, top=1)
            start = stop

        actual = np.empty(len(targets))
        likeliest = np.empty(len(targets))
        for index, (target, row) in enumerate(zip(targets, log_probs, strict=True)):
            token = ids[target]
            if token not in row:  # a row has the likeliest token and the one of the text
                raise self.missing_from_answer(f"log-probability of token {target}")
            actual[index] = row[token]
            likeliest[index] = max(row.values())
        if progress is not None:
            progress.advance(len(ids))
        return TokenLosses(-actual, actual == likeliest)

    def missing_from_answer(self, what: str) -> RopeconvError:
        """Return the error for an answer that lacks a part of the protocol, which `what` names."""
        return RopeconvError(
            f"the answer of {self.runtime} has no {what}, so this version is not supported; run the"
            " model another way"
        )

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that it puts before every text."""
        return prefix_of(self.encode("a", special=True), self.encode("a"))

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Return the tokens of a text, with `special` those that the server adds to every text."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": special}
        return self.ask("/tokenize", TokenList, body, for_prompt(len(text))).tokens

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        body = {"model": self.model, "tokens": list(ids), **self.detokenize}
        answer = self.ask("/detokenize", dict[str, Any], body, for_prompt(len(ids)))
        text = answer.get(self.text_key)
        if not isinstance(text, str):
            raise self.missing_from_answer(self.text_key)
        return text

    def refuse_longer(self, tokens: int) -> None:
        """Refuse a sequence that is longer than the server accepts.

        Args:
            tokens: Its length, generated tokens included.

        Raises:
            RopeconvError: It is longer.
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
        """Return the decoded answer to a request, as the function `ask` does."""
        return ask(self.client, path, kind, body, limits)


def ask(
    client: httpx.Client, path: str, kind: type[T], body: object = None, limits: Limits = SHORT
) -> T:
    """Send a request to a server, and return its decoded answer.

    Args:
        client: The client, with the URL of the server.
        path: The path of the request.
        kind: The type of the answer.
        body: The data that is posted as JSON; None for a GET request.
        limits: The limits of the answer.

    Raises:
        RopeconvError: No answer comes within the limits, it is an error, or of another type.
    """
    # In a thread: httpx limits the time of each read and not that of the whole answer, so a server
    # that sends a byte now and then would never end.
    reports: queue.Queue[Response | Exception] = queue.Queue()
    arguments = (client, path, body, limits, reports)
    threading.Thread(target=_read, args=arguments, daemon=True).start()

    # the time until the answer begins, and for the rest of it, which grows with its size
    url = str(client.base_url)
    seconds = (
        limits.seconds + SECONDS_TO_CONNECT + SECONDS_FOR_REST + limits.size / BYTES_PER_SECOND
    )
    try:
        response = reports.get(timeout=seconds)
    except queue.Empty:
        raise RopeconvError(
            f"the server at {url} does not answer {path} within {seconds:,.0f} seconds; restart it,"
            " or lower --length"
        ) from None
    # the thread has reported an exception: there was no answer, or it was too long
    if isinstance(response, RopeconvError):
        raise response
    if isinstance(response, Exception):
        why = str(response) or type(response).__name__
        raise RopeconvError(
            f"the server at {url} does not answer ({why[:300]}); start it, or correct --server"
        )

    # an answer that is not the one that was asked for
    status, location, content = response
    if status in (401, 403):
        raise RopeconvError(f"the server at {url} wants a key ({status}); set OPENAI_API_KEY")
    if location:
        raise RopeconvError(
            f"the server at {url} redirects {path} to {location[:300]}; give the URL of the API"
        )
    if status != 200:
        raise RopeconvError(f"the server at {url} refuses ({status}): {_message(content)}")

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


def _message(body: bytes) -> str:
    """Return the message in the body of an error.

    Servers nest it: {"error": {"message": ...}}, {"error": ...} or {"message": ...}. A body in
    another format is the message.
    """
    try:
        content: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body[:WORDS].decode("utf-8", "replace")[:300]

    error = content
    if isinstance(content, dict) and "error" in content:
        error = content["error"]
    message = error
    if isinstance(error, dict) and "message" in error:
        message = error["message"]
    return str(message)[:300]
