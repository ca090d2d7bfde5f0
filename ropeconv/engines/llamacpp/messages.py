"""What is asked of the program that runs llama.cpp, and what it answers: one line of JSON each."""

from __future__ import annotations

from typing import Literal

import msgspec

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


class Logits(msgspec.Struct, frozen=True, tag="logits"):
    """Logits after some tokens, for a file. tokens: all. wanted: rising indices. out: .npy, float32."""

    tokens: list[int]
    wanted: list[int]
    out: str


class Losses(msgspec.Struct, frozen=True, tag="losses"):
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


Job = Logits | Losses | Generate | Encode | Decode


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
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


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """Tokens that were generated, or of a text."""

    tokens: list[int]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """The text of tokens."""

    text: str


Answer = Loaded | Read | Done | Lost | Tokens | Text
