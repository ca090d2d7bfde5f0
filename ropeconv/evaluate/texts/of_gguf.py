"""The tokenizer of a GGUF file, as llama.cpp has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...engines.llamacpp.messages import Decode, Encode, Load, Text, Tokens
from ...engines.llamacpp.process import Process
from .documents import Tokenizer


class GgufTokenizer(Tokenizer):
    """The tokenizer in a GGUF file, in a process that has its vocabulary alone. process: that process."""

    def __init__(self, process: Process) -> None:
        self.process, self.prefix = process, process.loaded.prefix

    def encode(self, text: str) -> list[int]:
        return self.process.ask(Encode(text), Tokens).tokens

    def decode(self, ids: Sequence[int]) -> str:
        return self.process.ask(Decode(list(ids)), Text).text


@contextmanager
def gguf_tokenizer(path: Path) -> Iterator[GgufTokenizer]:
    """The tokenizer of a file, while it is entered. Raises RopeconvError where llama.cpp does not read it."""
    with Process(Load(path=str(path), vocabulary_only=True)) as process:
        yield GgufTokenizer(process)
