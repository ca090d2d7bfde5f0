"""PLaMo 1 states how many heads of queries share one of keys."""

import math

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Kind
from ..schema import Size, positive_int


class Hooks(FamilyHooks):
    keys = {"n_shared_head": Size}

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        # num_key_value_heads of its published config is wrong (conversion/plamo.py of llama.cpp)
        heads = positive_int(part, ("num_attention_heads",), 32) or 32
        shared = positive_int(part, ("n_shared_head",), 8) or 8
        return math.ceil(heads / shared)
