"""DeepSeek V4 states by a list of ratios which layers compress their keys."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Layers
from ..schema import Flags


class Hooks(FamilyHooks):
    keys = {"compress_ratios": Flags}
    no_attention_factor = (
        "it rotates values as well as keys, and any attention factor would scale them"
    )

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        ratios = part.get("compress_ratios")
        if not isinstance(ratios, list):
            return None
        return [layers.last if ratio else layers.rest for ratio in ratios[:count]]
