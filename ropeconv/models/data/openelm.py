"""OpenELM lists the heads of queries and of keys of each layer."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Heads, positive_int

QUERIES = "num_query_heads"
KEYS = "num_kv_heads"


class Hooks(FamilyHooks):
    keys = {QUERIES: Heads, KEYS: Heads}

    def refusal(self, part: JsonObject) -> str:
        layers = positive_int(part, ("num_transformer_layers",), 12) or 0
        for key in (QUERIES, KEYS):
            # its class can derive them, but publishes them (configuration_openelm.py)
            listed = part.get(key) or []
            if len(listed) != layers:
                return (
                    f"config.json has num_transformer_layers = {layers} and {len(listed)} entries"
                    f" in {key}; write one for each layer"
                )
        for queries, keys in zip(part[QUERIES], part[KEYS], strict=True):
            if queries % keys:
                return (
                    f"config.json has a layer with {queries} heads in {QUERIES} and {keys} in"
                    f" {KEYS}, which does not divide them; correct one of them"
                )
        return ""

    def kv_heads_by_layer(self, part: JsonObject, heads: int) -> list[int] | None:
        listed: list[int] | None = part.get(KEYS)
        return listed
