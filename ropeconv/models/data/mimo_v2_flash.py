"""MiMo V2 Flash has twice as many heads of keys in window layers, and values of another width than
keys.
"""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Kind
from ..schema import Index, Size, positive_int


class Hooks(FamilyHooks):
    keys = {"sliding_window_size": Index, "v_head_dim": Size}

    def window_size(self, part: JsonObject, size: int | None) -> int | None:
        before = positive_int(
            part, ("sliding_window_size",), least=0
        )  # counts the tokens before one alone
        return size if before is None else 1 + before

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        return 2 * count if kind == "local" else count

    def value_width(self, part: JsonObject, width: int) -> int:
        return positive_int(part, ("v_head_dim",), width) or width
