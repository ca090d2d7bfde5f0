"""Spark X2.5 has a RoPE for each type of layers."""

from ...formats.jsontext import JsonObject
from ...rope.errors import shown
from ..family import FamilyHooks
from ..schema import LAYER_TYPES


class Hooks(FamilyHooks):
    def refusal(self, part: JsonObject) -> str:
        ropes = part.get("rope_parameters") or {}
        types = part.get("layer_types") or LAYER_TYPES
        for name in types:
            if not isinstance(name, str) or not isinstance(ropes.get(name), dict):
                return (
                    f"config.json has layers of the type {shown(name)} and no RoPE for them in"
                    " rope_parameters, without which its class stops; write one there"
                )
        return ""
