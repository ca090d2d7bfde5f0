"""Whether a converted model has the keys and tensors that llama.cpp's loader of its architecture wants.

`demands.json` is written by `scripts/gguf_demands.py` from llama.cpp's source, commit 0c1e570.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from ..errors import BadSource, UnsupportedBake
from ..formats.gguf import Header
from .expression import value_of

SIZES = {
    "n_embd": "embedding_length", "n_vocab": "vocab_size", "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv", "n_embd_head_k": "attention.key_length",
    "n_embd_head_v": "attention.value_length", "n_ff": "feed_forward_length",
    "n_ff_exp": "expert_feed_forward_length", "n_expert": "expert_count", "n_rot": "rope.dimension_count",
}  # fmt: skip
"""The key of each size in llama.cpp's source."""


class Demands(msgspec.Struct, frozen=True):
    """What the loader of an architecture wants.

    keys: that have no default, without the name of the architecture. required, optional: tensors with their shapes,
    dimensions as expressions of SIZES or "?". Names with {} are of every layer; optional ones may have several shapes.
    """

    keys: tuple[str, ...]
    required: dict[str, str]
    optional: dict[str, tuple[str, ...]]


@cache
def demands() -> dict[str, Demands]:
    """The demands of all architectures by name."""
    data = (files("ropeconv.export") / "demands.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Demands])


def check_demands(header: Header, arch: str) -> None:
    """Compares keys, names of tensors and their shapes with what llama.cpp loads.

    header: of the converted model. arch: its architecture. Raises BadSource for what is absent or has another shape,
    UnsupportedBake for tensors that llama.cpp computes without.
    """
    wanted = demands()[arch]
    for key in wanted.keys:
        if f"{arch}.{key}" not in header.values:
            raise BadSource(f"config.json says nothing of {key}, without which llama.cpp loads no {arch}; add it")
    layers = header.values[f"{arch}.block_count"].decode() - header.get(f"{arch}.nextn_predict_layers", 0)
    for name in wanted.required:
        for one in (name.format(layer) for layer in range(layers if "{}" in name else 1)):
            if one not in header.tensors:
                raise BadSource(
                    f"the checkpoint has nothing for {one}, without which llama.cpp loads no {arch}; "
                    "download it again, or keep safetensors where its config switches that off"
                )
    sizes = _sizes(header, arch)
    for name, tensor in header.tensors.items():
        general = _general(name)
        shapes = (wanted.required[general],) if general in wanted.required else wanted.optional.get(general)
        if shapes is None:
            raise UnsupportedBake(
                name, f"GGUF as {arch}", "llama.cpp computes without such weights", "keep safetensors"
            )
        if not any(_fits(tensor.shape, shape, sizes) for shape in shapes):
            raise BadSource(
                f"{name} has the shape {list(tensor.shape)}, and llama.cpp's {arch} wants {shapes[0]} by the sizes in "
                "config.json; the config is of another checkpoint or of a variant that llama.cpp does not know"
            )


def _sizes(header: Header, arch: str) -> dict[str, Any]:
    """The sizes that the header states as single numbers, under their names in llama.cpp's source."""
    found = {}
    for name, key in SIZES.items():
        value = header.values.get(f"{arch}.{key}")
        number = value.decode() if value is not None else None
        found[name] = number if isinstance(number, int) else None
    if found["n_expert"] is None:
        found["n_expert"] = 0
    if f"{arch}.attention.key_length_swa" in header.values:  # heads of layers with a window have another width
        found["n_embd_head_k"] = found["n_embd_head_v"] = None
    for letter in "kv":
        width, heads = found[f"n_embd_head_{letter}"], found["n_head_kv"]
        found[f"n_embd_{letter}_gqa"] = width * heads if width and heads else None
    return found | {"n_embd_gqa": found["n_embd_v_gqa"]}


def _general(name: str) -> str:
    """The name of a tensor with {} for the number of its layer."""
    start, _, rest = name.partition(".")
    number, _, end = rest.partition(".")
    return f"{start}.{{}}.{end}" if start == "blk" and number.isdigit() else name


def _fits(shape: tuple[int, ...], wanted: str, sizes: dict[str, Any]) -> bool:
    """Whether a shape is as wanted, where sizes that are not known fit all and trailing dimensions of one are left."""
    expected = [None if text == "?" else value_of(sizes, text) for text in wanted.split(", ")]
    found = list(shape) + [1] * (len(expected) - len(shape))
    expected += [1] * (len(found) - len(expected))
    return all(want is None or want == have for have, want in zip(found, expected, strict=True))
