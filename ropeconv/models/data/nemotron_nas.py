"""Nemotron NAS has a number of key heads for each layer: heads / n_heads_in_group of its block."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Object


class Hooks(FamilyHooks):
    keys = {"block_configs": list[Object]}

    def kv_heads_by_layer(self, part: JsonObject, heads: int) -> list[int] | None:
        blocks = part.get("block_configs")
        if blocks is None:
            return part.get("num_key_value_heads_per_layer")
        counts = []
        for block in blocks:
            group = block.get("attention", {}).get("n_heads_in_group")
            counts.append(heads // group if group else 0)
        return counts
