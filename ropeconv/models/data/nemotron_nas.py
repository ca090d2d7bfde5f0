"""Nemotron NAS describes each layer, and DeciLM lists the key heads of each."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Layers
from ..schema import Heads, Objects, first_present, positive_int

BLOCK_CONFIGS = "block_configs"
LISTED_KEY_HEADS = "num_key_value_heads_per_layer"
HEADS_IN_GROUP = "attention.n_heads_in_group"
"""How many heads of queries share one of keys; null in a layer without attention."""
SWITCHES_WITHOUT_ATTENTION = ("attention.no_op", "attention.replace_with_linear")


class Hooks(FamilyHooks):
    keys = {BLOCK_CONFIGS: Objects, LISTED_KEY_HEADS: Heads}
    types_key = ""  # no config lists the types

    def refusal(self, part: JsonObject) -> str:
        """Return why a config cannot be extended, for its settings of single layers; else "".

        Such as "config.json has num_hidden_layers = 32 and 30 entries in block_configs; ...". The
        settings are block_configs, with an entry such as {"attention.n_heads_in_group": 8} for each
        layer, or the list num_key_value_heads_per_layer.
        """
        layers = positive_int(part, ("num_hidden_layers",), 32) or 0
        heads = positive_int(part, ("num_attention_heads",), 32) or 0
        # a list must have an entry for each layer
        for key in (BLOCK_CONFIGS, LISTED_KEY_HEADS):
            described = part.get(key)
            if described is not None and len(described) != layers:
                return (
                    f"config.json has num_hidden_layers = {layers} and {len(described)} entries in"
                    f" {key}; write one for each layer"
                )

        for number, block in enumerate(part.get(BLOCK_CONFIGS) or []):
            place = f"{BLOCK_CONFIGS}[{number}]"
            # how many query heads share a key head; a layer without attention has null
            heads_in_group = positive_int(block, (HEADS_IN_GROUP,))
            if heads_in_group is None:
                continue
            if heads % heads_in_group:
                return (
                    f"config.json has {HEADS_IN_GROUP} = {heads_in_group} in {place}, which does"
                    f" not divide its {heads} heads; correct one of them"
                )
            for switch in SWITCHES_WITHOUT_ATTENTION:
                if first_present(block, (switch,)):
                    return (
                        f"config.json has {switch} beside {HEADS_IN_GROUP} = {heads_in_group} in"
                        f" {place}; write null for the latter in a layer without attention"
                    )
            # src/models/deci.cpp of llama.cpp has no window
            if first_present(block, ("attention.window_length",)) is not None:
                return (
                    f"config.json has a window_length in {place}, which llama.cpp does not read,"
                    " so nothing can be baked for it; write null to let the layer see all tokens"
                )
        return ""

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        names = []
        for heads in self.kv_heads_by_layer(part, 1) or [1] * count:
            names.append("attention" if heads else "no_attention")
        return names

    def kv_heads_by_layer(self, part: JsonObject, heads: int) -> list[int] | None:
        if part.get(BLOCK_CONFIGS) is None:
            listed: list[int] | None = part.get(LISTED_KEY_HEADS)
            return listed
        counts = []
        for block in part[BLOCK_CONFIGS]:
            heads_in_group = positive_int(block, (HEADS_IN_GROUP,))
            counts.append(max(heads // heads_in_group, 1) if heads_in_group else 0)
        return counts
