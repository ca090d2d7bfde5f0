"""HRM-Text runs two stacks of layers in turns: H, and several times in each of its turns L."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Layers, positive_int


class Hooks(FamilyHooks):
    keys = {"H_cycles": Layers, "L_cycles": Layers}
    blocks = ("L", "H")

    def runs(self, part: JsonObject, layer: int) -> int:
        slow = positive_int(part, ("H_cycles",), 2) or 1
        fast = positive_int(part, ("L_cycles",), 3) or 1
        if layer % 2 == 0:
            return slow * fast
        return slow
