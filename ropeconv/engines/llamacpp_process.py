"""Process: the program that runs llama.cpp, while it is open; its failures become errors with a sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from ..environment import require, without_secrets
from ..rope.errors import RopeconvError
from .process import ProgramProcess

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

T = TypeVar("T", bound=msgspec.Struct)


class Process(ProgramProcess):
    """llama.cpp with one model in a process of its own, from when it is entered.

    load: which model, and how it runs. loaded: what is known of it then. Raises RopeconvError with llama.cpp's own
    message where it does not run the file.
    """

    loaded: LoadedModel

    def __init__(self, load: Load) -> None:
        super().__init__([sys.executable, "-P", "-m", "ropeconv.engines.llamacpp_program"], environment())
        self.load, self.name = load, Path(load.path).name

    def start(self) -> None:
        """Starts llama.cpp and loads the model."""
        require("llama_cpp", "running a GGUF file")
        super().start()
        self.loaded = self._answer(self.load, LoadedModel)

    def ask(self, job: Job, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        """The answer to a job.

        job: to do. kind: of the answer. advance: called with the tokens read since the last call. Raises RopeconvError
        with llama.cpp's own message where it fails, and where it is silent for too long; it is at its end then.
        """
        if self.process.returncode is not None:
            raise RopeconvError(f"llama.cpp has ended after a failure with {self.name}; load it again")
        return self._answer(job, kind, advance)

    def _answer(self, question: Load | Job, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        try:
            self.send(msgspec.json.encode(question))
            while True:
                line = self.receive(PATIENCE)
                if not line:
                    code, stderr = self.end()
                    raise RopeconvError(f"llama.cpp cannot run {self.name}: {last_words(stderr, code)}")
                answer: Answer = msgspec.json.decode(line, type=Answer)
                if isinstance(answer, kind):
                    return answer
                if isinstance(answer, Read):
                    advance(answer.count)
        except TimeoutError:
            self.stop()
            raise RopeconvError(
                f"llama.cpp has read nothing of {self.name} for {PATIENCE:,.0f} seconds; give shorter sequences, or "
                "run it on a faster machine"
            ) from None
        except BaseException:
            self.stop()
            raise


def environment() -> dict[str, str]:
    """Variables of a process that runs llama.cpp: without secrets, and without a debugger that it starts at its end."""
    return {**without_secrets(), "GGML_NO_BACKTRACE": "1"}


FOLDERS = re.compile(r"^/\S*/(?=\S+:\d+: )")
"""Where llama.cpp was compiled, before the name of one of its source files."""
TELLING = ("ASSERT", "error loading model", "missing", "wrong", "invalid", "unknown", "RuntimeError", "error")
"""What lines that name a failure contain, the surest first: keys of the file and warnings have such words too."""
NO_TOKEN = re.compile(r"error loading model vocabulary: .*::at")
PHI3 = " (the vocabulary lacks a token: llama.cpp needs <unk>, <s>, </s> and <|endoftext|> where general.name has phi3)"


def last_words(stderr: str, code: int) -> str:
    """The line of llama.cpp's stderr that names the failure, with the signal where one ended the process.

    code: the return code of the process.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for word in TELLING for line in lines if word in line]
    ended = f" (ended by signal {-code})" if code < 0 else ""
    words = FOLDERS.sub("", (telling or lines or ["it said nothing"])[0])[:300]
    return words + (PHI3 if NO_TOKEN.search(words) else "") + ended
