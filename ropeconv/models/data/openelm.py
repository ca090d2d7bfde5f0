"""OpenELM lists the heads of queries and of keys of each layer."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Heads, positive_int

QUERY_HEADS = "num_query_heads"
KEY_HEADS = "num_kv_heads"


class Hooks(FamilyHooks):
    keys = {QUERY_HEADS: Heads, KEY_HEADS: Heads}

    def refusal(self, part: JsonObject) -> str:
        """Return why a config cannot be extended, for its lists of heads; empty where it can.

        num_query_heads and num_kv_heads have a number for each layer. configuration_openelm.py can
        derive them from other keys, but all published configs have them.
        """
        layers = positive_int(part, ("num_transformer_layers",), 12) or 0
        for key in (QUERY_HEADS, KEY_HEADS):
            heads_by_layer = part.get(key) or []
            if len(heads_by_layer) != layers:
                return (
                    f"config.json has num_transformer_layers = {layers} and"
                    f" {len(heads_by_layer)} entries in {key}; write one for each layer"
                )

        # grouped-query attention: each key head serves the same number of query heads
        for queries, keys in zip(part[QUERY_HEADS], part[KEY_HEADS], strict=True):
            if queries % keys:
                return (
                    f"config.json has a layer with {queries} heads in {QUERY_HEADS} and {keys} in"
                    f" {KEY_HEADS}, which does not divide them; correct one of them"
                )
        return ""

    def kv_heads_by_layer(self, part: JsonObject, heads: int) -> list[int] | None:
        listed: list[int] | None = part.get(KEY_HEADS)
        return listed
