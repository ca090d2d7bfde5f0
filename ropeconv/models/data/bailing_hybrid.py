"""Ling 2.5 has the model type of Ling 3.0, and other layers between those with MLA."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks


class Hooks(FamilyHooks):
    def refusal(self, part: JsonObject) -> str:
        # vLLM: bailing_moe_linear.py for BailingMoeV2_5ForCausalLM, whose linear attention rotates
        # (mamba/linear/bailing_linear_attn.py:466), and bailing_moe_v3.py for Ling 3.0
        classes = part.get("architectures")
        if isinstance(classes, list) and "BailingMoeV2_5ForCausalLM" in classes:
            return (
                "this bailing_hybrid config is of Ling 2.5 (BailingMoeV2_5ForCausalLM), whose"
                " linear attention rotates too; the stock class has that of Ling 3.0, so nothing"
                " can be baked for it"
            )
        return ""
