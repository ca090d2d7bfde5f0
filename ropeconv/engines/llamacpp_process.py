"""The process that runs llama.cpp, and its questions and answers."""

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
"""Type and value of a metadata key that replaces that of the file."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: the model, and how it runs.

    path: of the file, or of the first of several shards. overrides: metadata keys that replace those of the file.
    threads: of the CPU. batch: tokens read at a time. cache: type of the cached keys and values. plain: without flash
    attention, and with the whole context in window layers. gpu: all layers on the GPU. vocabulary_only: no weights, for
    `Encode` and `Decode`. repack: copies of weights in a layout that is faster, where llama.cpp has one.
    """

    path: str
    overrides: dict[str, Override] = {}
    threads: int = 2
    batch: int = 512
    cache: Literal["f32", "f16", "bf16"] = "f32"
    plain: bool = True
    gpu: bool = False
    vocabulary_only: bool = False
    repack: bool = True


class LogitsJob(msgspec.Struct, frozen=True, tag="logits"):
    """Logits after some tokens, into a file. tokens: all. wanted: rising indices. out: .npy, float32."""

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
    """A loaded model.

    vocabulary: number of tokens. prefix: tokens before every text. offloads: whether this build of llama.cpp can use a
    GPU.
    """

    vocabulary: int
    prefix: tuple[int, ...]
    offloads: bool


class Read(msgspec.Struct, frozen=True, tag="read"):
    """More tokens were read. count: how many."""

    count: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The file is written."""


class LossesAnswer(msgspec.Struct, frozen=True, tag="lost"):
    """Losses. loss: float64 in nats. right: one byte each, 1 where the token was the likeliest."""

    loss: bytes
    right: bytes


class TokensJob(msgspec.Struct, frozen=True, tag="tokens"):
    """Tokens that were generated, or of a text."""

    tokens: list[int]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """The text of tokens."""

    text: str


Answer = LoadedModel | Read | Done | LossesAnswer | TokensJob | Text
PATIENCE = 3600.0
"""Seconds without an answer and without another batch read after which llama.cpp is given up."""
COMMAND = [sys.executable, "-P", "-m", "ropeconv.engines.llamacpp_program"]
T = TypeVar("T", bound=msgspec.Struct)


class LlamaCppError(RopeconvError):
    """llama.cpp cannot run a file. words: why, as it says it; empty where it did not answer in time."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words


class Process(ProgramProcess):
    """llama.cpp with one model in a process, from when it is entered.

    load: the model. patience: as PATIENCE. Raises LlamaCppError where llama.cpp cannot run the file.
    """

    loaded: LoadedModel

    def __init__(self, load: Load, patience: float = PATIENCE) -> None:
        # without a debugger at its end
        super().__init__(COMMAND, {**without_secrets(), "GGML_NO_BACKTRACE": "1"})
        self.load, self.name, self.patience = load, Path(load.path).name, patience

    def start(self) -> None:
        """Start llama.cpp and load the model."""
        require("llama_cpp", "running a GGUF file")
        super().start()
        self.loaded = self._answer(self.load, LoadedModel)

    def ask(self, job: Job, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        """The answer to a job. advance: called with the tokens read since the last call.

        Raises LlamaCppError, and ends the process, where llama.cpp fails or does not answer in time.
        """
        if self.process.returncode is not None:
            raise RopeconvError(f"llama.cpp has ended after a failure with {self.name}; load it again")
        return self._answer(job, kind, advance)

    def _answer(self, question: Load | Job, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        try:
            self.send(msgspec.json.encode(question))
            while True:
                line = self.receive(self.patience)
                if not line:
                    code, stderr = self.end()
                    words = last_words(stderr, code)
                    raise LlamaCppError(f"llama.cpp cannot run {self.name}: {words}", words)
                answer: Answer = msgspec.json.decode(line, type=Answer)
                if isinstance(answer, kind):
                    return answer
                if isinstance(answer, Read):
                    advance(answer.count)
        except TimeoutError:
            self.stop()
            raise LlamaCppError(
                f"llama.cpp did not read a batch of {self.name} within {self.patience:,.0f} seconds; give shorter "
                "sequences, or use a faster machine"
            ) from None
        except BaseException:
            self.stop()
            raise


FOLDERS = re.compile(r"^/\S*/(?=\S+:\d+: )")
"""The folder in which llama.cpp was compiled, before the name of a source file."""
TELLING = ("ASSERT", "error loading model", "missing", "wrong", "invalid", "unknown", "RuntimeError", "error")
"""Words in the lines that name a failure, the surest first; keys of the file and warnings have some of them too."""
NO_TOKEN = re.compile(r"error loading model vocabulary: .*::at")
PHI3 = " (the vocabulary lacks a token: llama.cpp needs <unk>, <s>, </s> and <|endoftext|> where general.name has phi3)"


def last_words(stderr: str, code: int) -> str:
    """The line of stderr that names the failure, with the signal that ended the process. code: its return code."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for word in TELLING for line in lines if word in line]
    ended = f" (ended by signal {-code})" if code < 0 else ""
    words = FOLDERS.sub("", (telling or lines or ["it said nothing"])[0])[:300]
    return words + (PHI3 if NO_TOKEN.search(words) else "") + ended
