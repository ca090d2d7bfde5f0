"""In Ling 3.0 VL the layers behind the last whole group have full attention."""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Layers
from ..schema import positive_int


class Hooks(FamilyHooks):
    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        size = positive_int(part, (layers.interval_key,), layers.interval) or layers.interval
        grouped = count // size * size
        names = []
        for layer in range(count):
            is_last = (layer + 1) % size == 0
            names.append("full_attention" if is_last or layer >= grouped else "linear_attention")
        return names
