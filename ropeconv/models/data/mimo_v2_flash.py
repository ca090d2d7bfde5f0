"""MiMo V2 Flash has twice as many key heads in window layers, and values of another width."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Kind
from ..schema import Index, Size, positive_int


class Hooks(FamilyHooks):
    keys = {"sliding_window_size": Index, "v_head_dim": Size}

    def window_size(self, part: JsonObject, size: int | None) -> int | None:
        # this key counts the tokens before a token, without the token
        before = positive_int(part, ("sliding_window_size",), least=0)
        if before is None:
            return size
        return 1 + before

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        if kind == "local":
            return 2 * count
        return count

    def value_width(self, part: JsonObject, width: int) -> int:
        return positive_int(part, ("v_head_dim",), width) or width
