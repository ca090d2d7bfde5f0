"""OpenELM lists the heads of queries and of keys of each layer."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Sizes


class Hooks(FamilyHooks):
    keys = {"num_query_heads": Sizes, "num_kv_heads": Sizes}

    def kv_heads_by_layer(self, part: JsonObject, heads: int) -> list[int] | None:
        listed = part.get("num_kv_heads")
        return listed if isinstance(listed, list) else None
