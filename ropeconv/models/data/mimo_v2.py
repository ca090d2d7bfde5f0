"""MiMo V2.5 lists its layers in hybrid_layer_pattern, with 1 where a layer has a window."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Kind, Layers
from ..schema import Flags, Size, positive_int


class Hooks(FamilyHooks):
    keys = {
        "hybrid_layer_pattern": Flags,
        "swa_num_key_value_heads": Size,
        "v_head_dim": Size,
    }

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        pattern = part.get("hybrid_layer_pattern")
        if not pattern:
            return None
        return ["sliding_attention" if flag else "full_attention" for flag in pattern[:count]]

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        if kind == "local":
            return positive_int(part, ("swa_num_key_value_heads",), count) or count
        return count

    def value_width(self, part: JsonObject, width: int) -> int:
        return positive_int(part, ("v_head_dim",), width) or width
