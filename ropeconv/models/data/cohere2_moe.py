"""Command A MoE has another interval for its first layers, which have no experts.

An interval of 1 lets all of these layers rotate.
"""

from ...formats.jsontext import JsonObject
from ..family import FamilyHooks, Kind, Layers
from ..layers import at_intervals
from ..schema import Index, positive_int
from ..schema import Layers as Count


class Hooks(FamilyHooks):
    keys = {"first_k_dense_replace": Index, "prefix_dense_sliding_window_pattern": Count}

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        interval = positive_int(part, (layers.interval_key,), layers.interval)
        if not interval:
            return None
        dense = min(self._dense(part), count)
        first = at_intervals(layers, dense, self._interval(part))
        return first + at_intervals(layers, count - dense, interval)

    def layer_kinds(self, part: JsonObject, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        if self._interval(part) != 1:
            return kinds

        types = part.get("mlp_layer_types")
        if isinstance(types, list):
            is_dense = [name == "dense" for name in types]
        else:
            is_dense = [layer < self._dense(part) for layer in range(len(kinds))]
        own: list[Kind] = []
        for kind, dense in zip(kinds, is_dense, strict=False):
            own.append("global" if dense else kind)
        return tuple(own)

    def _dense(self, part: JsonObject) -> int:
        """Return how many of the first layers have no experts."""
        return positive_int(part, ("first_k_dense_replace",), 0, least=0) or 0

    def _interval(self, part: JsonObject) -> int:
        """Return the interval of the layers without experts."""
        return positive_int(part, ("prefix_dense_sliding_window_pattern",), 1) or 1
