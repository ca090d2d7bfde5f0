"""Nanbeige 4.2 runs all its layers several times."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Flag, Flags, Layers, positive_int

NOT_IN_GGUF = ("enable_double_loop_split", "loop_share_kv", "enable_depth_attention")
"""Switches that neither conversion/nanbeige.py of llama.cpp nor mlx-lm reads."""
WEIGHTS = "loop_loss_weights"
"""A weight of the training's loss for each run of the layers but one."""


class Hooks(FamilyHooks):
    keys = {"num_loops": Layers, WEIGHTS: Flags, **dict.fromkeys(NOT_IN_GGUF, Flag)}

    def refusal(self, part: JsonObject) -> str:
        for key in NOT_IN_GGUF:
            if part.get(key):
                return (
                    f"config.json has {key} = true, which llama.cpp does not compute, so nothing"
                    " can be baked for it; give a model without it"
                )
        runs = self.runs(part, 0)
        weights = part.get(WEIGHTS)
        if weights and len(weights) + 1 != runs:
            return (
                f"config.json has num_loops = {runs} and {len(weights)} {WEIGHTS}, with which its"
                f" layers run {len(weights) + 1} times; correct num_loops, which llama.cpp reads"
            )
        return ""

    def runs(self, part: JsonObject, layer: int) -> int:
        return positive_int(part, ("num_loops",), 1) or 1
