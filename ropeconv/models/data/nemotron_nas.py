"""Nemotron NAS describes each layer, and DeciLM lists the key heads of each."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Layers
from ..schema import Heads, Objects, first_present, positive_int

BLOCKS = "block_configs"
LISTED = "num_key_value_heads_per_layer"
GROUP = "attention.n_heads_in_group"
"""How many heads of queries share one of keys; null in a layer without attention."""
WITHOUT_ATTENTION = ("attention.no_op", "attention.replace_with_linear")


class Hooks(FamilyHooks):
    keys = {BLOCKS: Objects, LISTED: Heads}
    types_key = ""  # no config lists the types

    def refusal(self, part: JsonObject) -> str:
        """Return what is wrong with the settings of single layers; empty where nothing is.

        Such as "config.json has num_hidden_layers = 32 and 30 entries in block_configs; ...".
        """
        layers = positive_int(part, ("num_hidden_layers",), 32) or 0
        heads = positive_int(part, ("num_attention_heads",), 32) or 0
        # a list must have an entry for each layer
        for key in (BLOCKS, LISTED):
            described = part.get(key)
            if described is not None and len(described) != layers:
                return (
                    f"config.json has num_hidden_layers = {layers} and {len(described)} entries in"
                    f" {key}; write one for each layer"
                )

        # the entry of a layer, such as {"attention.n_heads_in_group": 8}
        for number, block in enumerate(part.get(BLOCKS) or []):
            place = f"{BLOCKS}[{number}]"
            group = positive_int(block, (GROUP,))
            if group is None:
                continue
            if heads % group:
                return (
                    f"config.json has {GROUP} = {group} in {place}, which does not divide its"
                    f" {heads} heads; correct one of them"
                )
            for switch in WITHOUT_ATTENTION:
                if first_present(block, (switch,)):
                    return (
                        f"config.json has {switch} beside {GROUP} = {group} in {place}; write null"
                        " for the latter in a layer without attention"
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
        if part.get(BLOCKS) is None:
            listed: list[int] | None = part.get(LISTED)
            return listed
        counts = []
        for block in part[BLOCKS]:
            group = positive_int(block, (GROUP,))
            counts.append(max(heads // group, 1) if group else 0)
        return counts
