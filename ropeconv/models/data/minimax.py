"""MiniMax Text 01 and M1 are published with a number for each layer: 1 for one with attention."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Layers
from ..schema import Flags


class Hooks(FamilyHooks):
    keys = {"attn_type_list": Flags}

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        attends = part.get("attn_type_list")
        if not isinstance(attends, list) or len(attends) < count:
            return None
        return ["full_attention" if flag else "linear_attention" for flag in attends[:count]]
