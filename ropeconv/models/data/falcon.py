"""Falcon has one key head in its first architecture, and a second norm in some GGUF files."""

from collections.abc import Collection

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Kind


class Hooks(FamilyHooks):
    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        is_new = part.get("new_decoder_architecture", False)
        if part.get("multi_query", True) is True and not is_new:
            return 1
        return count

    def gguf_variant(self, tensors: Collection[str]) -> tuple[tuple[str, ...], JsonObject]:
        if not any(".attn_norm_2." in name for name in tensors):
            return (), {}
        names = ("transformer.h.{layer}.ln_attn", "transformer.h.{layer}.ln_mlp")
        return names, {"num_ln_in_parallel_attn": 2}
