"""PLaMo 3 may have YaRN in keys of its own."""

from ...formats.jsontext import JsonObject
from ...rope.errors import shown
from ..family import FamilyHooks
from ..schema import Factor, Size

FACTOR = "rope_scaling_factor"
WINDOWS = ("window_size", "sliding_window")


class Hooks(FamilyHooks):
    keys = {FACTOR: Factor, "sliding_window": Size}

    def refusal(self, part: JsonObject) -> str:
        factor = part.get(FACTOR)
        if factor is not None and factor != 1:
            return (
                f"config.json has {FACTOR} = {shown(factor)}, a YaRN in keys of the model's own"
                " code; convert it with llama.cpp's convert_hf_to_gguf.py, which reads them, and"
                " give the GGUF file"
            )
        windows = [part[key] for key in WINDOWS if part.get(key) is not None]
        if len(set(windows)) > 1:
            first, second = windows
            return (
                f"config.json has window_size = {first} and sliding_window = {second}, of which"
                " readers take one or the other; remove the one that the model was not trained"
                " with"
            )
        return ""
