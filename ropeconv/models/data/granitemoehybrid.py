"""Granite 4 has models without any state-space layer, which llama.cpp knows as older ones."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks

ATTENTION = {"attention", "full_attention"}


class Hooks(FamilyHooks):
    def gguf_kind(self, part: JsonObject) -> str:
        # llama.cpp's granitehybrid stops without a state-space layer
        if not set(part.get("layer_types") or ()) <= ATTENTION or not part.get("layer_types"):
            return ""
        return "experts" if part.get("num_local_experts") else "dense"
