"""Falcon has one head of keys in its first architecture, and a second norm per layer in some GGUF
files.
"""

from collections.abc import Collection

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Kind


class Hooks(FamilyHooks):
    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        multi_query = part.get("multi_query", True) is True and not part.get(
            "new_decoder_architecture", False
        )
        return 1 if multi_query else count

    def gguf_variant(self, tensors: Collection[str]) -> tuple[tuple[str, ...], JsonObject]:
        if not any(".attn_norm_2." in name for name in tensors):
            return (), {}
        return ("transformer.h.{layer}.ln_attn", "transformer.h.{layer}.ln_mlp"), {
            "num_ln_in_parallel_attn": 2
        }
