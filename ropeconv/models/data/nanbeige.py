"""Nanbeige 4.2 runs all its layers several times."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks
from ..schema import Layers, positive_int


class Hooks(FamilyHooks):
    keys = {"num_loops": Layers}

    def runs(self, part: JsonObject, layer: int) -> int:
        return positive_int(part, ("num_loops",), 1) or 1
