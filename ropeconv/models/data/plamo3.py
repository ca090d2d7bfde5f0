"""PLaMo 3 may have YaRN in keys of its own."""

from ...formats.jsontext import JsonObject
from ...rope.errors import shown
from ..family import FamilyHooks
from ..schema import Factor, Size

FACTOR_KEY = "rope_scaling_factor"


class Hooks(FamilyHooks):
    keys = {FACTOR_KEY: Factor, "sliding_window": Size}

    def refusal(self, part: JsonObject) -> str:
        """Return why a config of PLaMo 3 is refused, and what to do; empty where it is not.

        Args:
            part: The text part of config.json.
        """
        factor = part.get(FACTOR_KEY)  # rope_scaling_factor; 1 means that nothing is scaled
        if factor is not None and factor != 1:
            return (
                f"config.json has {FACTOR_KEY} = {shown(factor)}, a YaRN in keys of the model's own"
                " code; convert it with llama.cpp's convert_hf_to_gguf.py, which reads them, and"
                " give the GGUF file"
            )
        window_size = part.get("window_size")
        sliding_window = part.get("sliding_window")
        are_both_stated = window_size is not None and sliding_window is not None
        if are_both_stated and window_size != sliding_window:
            return (
                f"config.json has window_size = {window_size} and sliding_window ="
                f" {sliding_window}, of which readers take one or the other; remove the one that"
                " the model was not trained with"
            )
        return ""
