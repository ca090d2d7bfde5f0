"""Nanbeige 4.2 runs all its layers several times."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Flag, Flags, Layers, positive_int

SWITCHES_LLAMA_CPP_IGNORES = (
    "enable_double_loop_split",
    "loop_share_kv",
    "enable_depth_attention",
)
"""Switches that neither conversion/nanbeige.py of llama.cpp nor mlx-lm reads."""
LOSS_WEIGHTS = "loop_loss_weights"
"""A weight of the training's loss for each run of the layers but one."""


class Hooks(FamilyHooks):
    keys = {
        "num_loops": Layers,
        LOSS_WEIGHTS: Flags,
        **dict.fromkeys(SWITCHES_LLAMA_CPP_IGNORES, Flag),
    }

    def refusal(self, part: JsonObject) -> str:
        """Return why a config cannot be extended, or "" if it can."""
        # switches that change what the model computes, and that llama.cpp ignores
        for key in SWITCHES_LLAMA_CPP_IGNORES:
            if part.get(key):
                return (
                    f"config.json has {key} = true, which llama.cpp does not compute, so nothing"
                    " can be baked for it; give a model without it"
                )

        # The model runs all its layers num_loops times. The list loop_loss_weights has a weight for
        # each run without the last, so both keys must agree.
        num_loops = self.runs(part, layer=0)  # the same for every layer
        loss_weights = part.get(LOSS_WEIGHTS)
        if not loss_weights:
            return ""
        runs_in_training = len(loss_weights) + 1
        if runs_in_training != num_loops:
            return (
                f"config.json has num_loops = {num_loops} and {len(loss_weights)} {LOSS_WEIGHTS},"
                f" with which its layers run {runs_in_training} times; correct num_loops, which"
                " llama.cpp reads"
            )
        return ""

    def runs(self, part: JsonObject, layer: int) -> int:
        return positive_int(part, ("num_loops",), 1) or 1
