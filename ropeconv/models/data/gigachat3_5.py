"""GigaChat 3.5 numbers its layers with full attention; all are so without linear attention."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Layers


class Hooks(FamilyHooks):
    def refusal(self, part: JsonObject) -> str:
        if part.get("rope_interleave", True) is False:
            return (
                "this gigachat3_5 config has rope_interleave = false, with which halves of a head"
                " rotate; ropeconv describes the published layout, in which neighbours do"
            )
        return ""

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        if "linear_attention_type" in part and part["linear_attention_type"] is None:
            return [layers.last] * count
        numbers = part.get(layers.indices)
        if numbers is None and isinstance(part.get("layer_types"), list):
            return None  # the list counts where no numbers are given
        chosen = numbers if isinstance(numbers, list) else []
        return [layers.last if layer in chosen else layers.rest for layer in range(count)]
