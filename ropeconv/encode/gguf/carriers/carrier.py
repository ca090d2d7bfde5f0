"""The registry of carriers, and edits that several carriers share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ....errors import UnsupportedBake
from ....formats.gguf import Added, Change, Edit, u32
from ....formats.gguf.interleave import interleave as interleaved
from ....runtimes.llamacpp import arch_of_header
from ..gguf_model import GgufModel

Build = Callable[[GgufModel], Edit]
CARRIERS: dict[tuple[str, str], Build] = {}

MASK = "the file becomes the GGUF architecture {to}: people see that name, and a later llama.cpp may treat it otherwise"


@dataclass(frozen=True)
class Carried:
    """The edit that writes a model as another architecture, with its RoPE unchanged. notes: sentences for the user."""

    edit: Edit
    notes: tuple[str, ...]


def carrier(source: str, to: str) -> Callable[[Build], Build]:
    """Decorator: registers the function whose edit turns the architecture `source` into `to`."""

    def register(build: Build) -> Build:
        CARRIERS[source, to] = build
        return build

    return register


def carry(model: GgufModel, to: str) -> Carried:
    """The edit that turns a model into the architecture `to`. Raises UnsupportedBake where no carrier does that."""
    arch = arch_of_header(model)
    build = CARRIERS.get((arch.name, to))
    if build is None:
        known = ", ".join(f"--carrier {name}" for name in arch.carriers)
        raise UnsupportedBake(
            "this schedule",
            f"{arch.name} as {to or 'another architecture'}",
            "no such carrier is known",
            f"take {known}" if known else "theta, linear and yarn fit into its keys",
        )
    return Carried(build(model), (MASK.format(to=to),))


def query_heads(model: GgufModel) -> int:
    """Number of query heads in each layer. Raises UnsupportedBake where layers have different numbers of heads."""
    prefix = model.get("general.architecture")
    heads = model.get(f"{prefix}.attention.head_count")
    kv = model.get(f"{prefix}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv, int):
        raise UnsupportedBake("this schedule", "a carrier", "its layers have different heads", "choose another method")
    return heads


def interleave(model: GgufModel) -> dict[str, Change]:
    """The changes that reorder rows of queries and keys from pairs (i, i + d/2) to (2i, 2i + 1), by tensor.

    Weights and biases of any quantisation: blocks are within rows, so that whole rows move and nothing is requantised.
    Raises UnsupportedBake for fused projections, and for layers with different numbers of heads.
    """
    query_heads(model)
    head_dim = model.reading().spec.head_dim
    changes = {}
    for name, info in model.tensors.items():
        if ".attn_qkv." in name:
            raise UnsupportedBake("this schedule", "a carrier", "its projections are fused", "choose another method")
        if re.search(r"\.attn_[qk]\.(weight|bias)$", name):
            changes[name] = interleaved(info, head_dim)
    return changes


def own_output(model: GgufModel) -> tuple[Added, ...]:
    """A copy of the embeddings as output weights, for carriers that do not tie them; empty where the model has some."""
    if "output.weight" in model.tensors:
        return ()
    info = model.tensors["token_embd.weight"]
    return (Added("output.weight", info.shape, info.type, lambda: model.chunks(info.name)),)


def whole_rotation(model: GgufModel, arch: str) -> Edit:
    """The edit that sets rope.dimension_count of the architecture `arch` to the model's rotary_dim."""
    return Edit({f"{arch}.rope.dimension_count": u32(model.reading().spec.rotary_dim)})
