"""EmbeddingGemma: a Gemma 3 that reads in both directions, another architecture of llama.cpp."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks


class Hooks(FamilyHooks):
    def gguf_kind(self, part: JsonObject) -> str:
        reads_both = part.get("use_bidirectional_attention") in (True, "all")
        return "embedding" if reads_both else ""
