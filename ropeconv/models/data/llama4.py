"""Llama 4 scales the queries of layers that do not rotate by position.

By 1 + beta ln(1 + floor((p + 1) / length)), with p the position.
"""

from ...formats.jsontext import JsonObject
from ...rope.schedule import QueryScaling
from ..family import FamilyHooks
from ..schema import Number, Switch, Tokens, first_present, positive_int

LENGTH = 8192


class Hooks(FamilyHooks):
    keys = {"attn_temperature_tuning": Switch, "attn_scale": Number, "floor_scale": Tokens}

    def nope_query_scaling(self, part: JsonObject) -> QueryScaling | None:
        if not part.get("attn_temperature_tuning", True):
            return None
        length = positive_int(part, ("floor_scale",), LENGTH) or LENGTH
        return QueryScaling(float(first_present(part, ("attn_scale",), 0.1)), length)
