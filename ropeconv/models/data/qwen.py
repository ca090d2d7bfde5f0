"""Qwen 1 may rotate a share of each head."""

from ...formats.jsontext import JsonObject
from ...rope.errors import shown
from ..family import FamilyHooks
from ..schema import Share

SHARE = "rotary_pct"


class Hooks(FamilyHooks):
    keys = {SHARE: Share}

    def refusal(self, part: JsonObject) -> str:
        share = part.get(SHARE, 1)
        if share is not None and share != 1:
            return (
                f"config.json has {SHARE} = {shown(share)}, but llama.cpp rotates whole heads of a"
                " Qwen 1, so nothing can be baked for it; give a model with 1, as all published"
                " ones have"
            )
        return ""
