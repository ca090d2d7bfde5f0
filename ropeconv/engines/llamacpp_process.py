"""Process: the program that runs llama.cpp, while it is open; its failures become errors with a sentence."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, TypeVar

import msgspec

from ..environment import require, without_secrets
from ..rope.errors import RopeconvError

Override = tuple[Literal["int", "float", "bool", "str"], int | float | str]
"""Type and value of a metadata key that is given at loading."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: which model, and how it runs.

    path: of the file, of several shards the first. overrides: metadata keys that replace those of the file. threads: of
    the CPU. batch: tokens that are read at a time. cache: type of the cached keys and values. plain: without flash
    attention, and with the whole context in window layers, as the operations are written down. gpu: all layers on the
    GPU. vocabulary_only: no weights, for `Encode` and `Decode`.
    """

    path: str
    overrides: dict[str, Override] = {}
    threads: int = 2
    batch: int = 512
    cache: Literal["f32", "f16", "bf16"] = "f32"
    plain: bool = True
    gpu: bool = False
    vocabulary_only: bool = False


class LogitsJob(msgspec.Struct, frozen=True, tag="logits"):
    """Logits after some tokens, for a file. tokens: all. wanted: rising indices. out: .npy, float32."""

    tokens: list[int]
    wanted: list[int]
    out: str


class LossesJob(msgspec.Struct, frozen=True, tag="losses"):
    """Losses of some tokens, each given those before it. tokens: all. targets: rising indices, from 1 on."""

    tokens: list[int]
    targets: list[int]


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Greedy decoding. tokens: of the prompt. count: how many to generate."""

    tokens: list[int]
    count: int


class Encode(msgspec.Struct, frozen=True, tag="encode"):
    """The tokens of a text."""

    text: str


class Decode(msgspec.Struct, frozen=True, tag="decode"):
    """The text of tokens."""

    tokens: list[int]


Job = LogitsJob | LossesJob | Generate | Encode | Decode


class LoadedModel(msgspec.Struct, frozen=True, tag="loaded"):
    """The model is loaded.

    vocabulary: number of tokens. prefix: that the tokenizer puts before every text. offloads: whether this build of
    llama.cpp can use a GPU.
    """

    vocabulary: int
    prefix: tuple[int, ...]
    offloads: bool


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Some more tokens were read. count: how many."""

    count: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The file that was asked for is written."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Losses. loss: float64 in nats. right: one byte each, 1 where the token was the likeliest."""

    loss: bytes
    right: bytes


class TokensJob(msgspec.Struct, frozen=True, tag="tokens"):
    """Tokens that were generated, or of a text."""

    tokens: list[int]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """The text of tokens."""

    text: str


Answer = LoadedModel | Read | Done | Lost | TokensJob | Text


PATIENCE = 3600.0
"""Seconds without an answer, and without news of a batch that was read, after which llama.cpp is given up."""
WORDS = 1 << 20
"""Bytes of the end of stderr that are looked at."""

T = TypeVar("T", bound=msgspec.Struct)


class Process:
    """llama.cpp with one model in a process of its own, which ends when this is left, and with its caller.

    load: which model, and how it runs. loaded: what is known of it then. Raises RopeconvError with llama.cpp's own
    message where it does not run the file.
    """

    def __init__(self, load: Load) -> None:
        require("llama_cpp", "running a GGUF file")
        self.name = Path(load.path).name
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  a pipe would have to be read all the time
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ropeconv.engines.llamacpp_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=environment(),
        )
        assert self.process.stdout is not None
        self.lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=_hand_on, args=(self.process.stdout, self.lines), daemon=True).start()
        try:
            self._send(load)
            self.loaded = self._answer(LoadedModel)
        except BaseException:
            self.stop()
            raise

    def ask(self, job: Job, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        """The answer to a job.

        job: to do. kind: of the answer. advance: called with the tokens read since the last call. Raises RopeconvError
        with llama.cpp's own message where it fails, and where it is silent for too long; it is at its end then.
        """
        if self.process.returncode is not None:
            raise RopeconvError(f"llama.cpp has ended after a failure with {self.name}; load it again")
        try:
            self._send(job)
            return self._answer(kind, advance)
        except BaseException:
            self.stop()
            raise

    def _send(self, message: msgspec.Struct) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(message) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # its silence is the answer

    def _answer(self, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        while True:
            try:
                line = self.lines.get(timeout=PATIENCE)
            except queue.Empty:
                raise RopeconvError(
                    f"llama.cpp has read nothing of {self.name} for {PATIENCE:,.0f} seconds; give shorter sequences, or"
                    " run it on a faster machine"
                ) from None
            if not line:
                code = self.process.wait()
                self.stderr.seek(max(0, self.stderr.seek(0, 2) - WORDS))
                said = self.stderr.read().decode("utf-8", "replace")
                raise RopeconvError(f"llama.cpp cannot run {self.name}: {last_words(said, code)}")
            found: Answer = msgspec.json.decode(line, type=Answer)
            if isinstance(found, kind):
                return found
            if isinstance(found, Read):
                advance(found.count)

    def stop(self) -> None:
        """Ends the process. May be called again."""
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        for file in (self.process.stdin, self.stderr):
            if file is not None:
                try:
                    file.close()
                except BrokenPipeError:  # what it had not read yet
                    continue

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _hand_on(stdout: BinaryIO, lines: queue.Queue[bytes]) -> None:
    """Hands on the lines of the program, and an empty one at its end."""
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put(b"")


def environment() -> dict[str, str]:
    """Variables of a process that runs llama.cpp: without secrets, and without a debugger that it starts at its end."""
    return {**without_secrets(), "GGML_NO_BACKTRACE": "1"}


FOLDERS = re.compile(r"^/\S*/(?=\S+:\d+: )")
"""Where llama.cpp was compiled, before the name of one of its source files."""
TELLING = ("ASSERT", "error loading model", "missing", "wrong", "invalid", "unknown", "RuntimeError", "error")
"""What lines that name a failure contain, the surest first: keys of the file and warnings have such words too."""
NO_TOKEN = re.compile(r"error loading model vocabulary: .*::at")
PHI3 = " (the vocabulary lacks a token: llama.cpp needs <unk>, <s>, </s> and <|endoftext|> where general.name has phi3)"


def _clue(line: str) -> int:
    return next(rank for rank, word in enumerate(TELLING) if word in line)


def last_words(stderr: str, code: int) -> str:
    """The line of llama.cpp's stderr that names the failure, with the signal where one ended the process.

    code: the return code of the process.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = sorted((line for line in lines if any(word in line for word in TELLING)), key=_clue)
    ended = f" (ended by signal {-code})" if code < 0 else ""
    said = FOLDERS.sub("", (telling or lines or ["it said nothing"])[0])[:300]
    return said + (PHI3 if NO_TOKEN.search(said) else "") + ended
