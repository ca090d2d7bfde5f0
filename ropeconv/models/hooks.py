"""What some families do as no field of their description says: HOOKS, by the name of the family."""

from __future__ import annotations

from collections.abc import Collection

from ..formats.jsontext import JsonObject
from ..rope.schedule import QueryScaling
from .family import FamilyHooks, Kind, Layers
from .layers import at_intervals
from .schema import Flags, Index, Names, Number, Size, Switch, Tokens, first_present, positive_int
from .schema import Layers as Count

LLAMA4_LENGTH = 8192


class CommandMoe(FamilyHooks):
    """Command A MoE has an interval of its own for its first layers, without experts; at 1 all of them rotate."""

    keys = {"first_k_dense_replace": Index, "prefix_dense_sliding_window_pattern": Count}

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        interval = positive_int(part, (layers.interval_key,), layers.interval)
        if not interval:
            return None
        dense = min(self._dense(part), count)
        return at_intervals(layers, dense, self._interval(part)) + at_intervals(layers, count - dense, interval)

    def layer_kinds(self, part: JsonObject, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        if self._interval(part) != 1:
            return kinds
        types = part.get("mlp_layer_types")
        dense = [index < self._dense(part) for index in range(len(kinds))]
        if isinstance(types, list):
            dense = [name == "dense" for name in types]
        return tuple("global" if is_dense else kind for kind, is_dense in zip(kinds, dense, strict=False))

    def _dense(self, part: JsonObject) -> int:
        return positive_int(part, ("first_k_dense_replace",), 0, least=0) or 0

    def _interval(self, part: JsonObject) -> int:
        return positive_int(part, ("prefix_dense_sliding_window_pattern",), 1) or 1


class DeepSeekV4(FamilyHooks):
    """DeepSeek V4 states by a list of ratios which layers compress their keys."""

    keys = {"compress_ratios": Flags}
    no_attention_factor = "it rotates values as well as keys, and any attention factor would scale them"

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        ratios = part.get("compress_ratios")
        if not isinstance(ratios, list):
            return None
        return [layers.last if ratio else layers.rest for ratio in ratios[:count]]


class Falcon(FamilyHooks):
    """Falcon has one head of keys in its first architecture, and a second norm per layer in some GGUF files."""

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        one = part.get("multi_query", True) is True and not part.get("new_decoder_architecture", False)
        return 1 if one else count

    def gguf_variant(self, tensors: Collection[str]) -> tuple[tuple[str, ...], JsonObject]:
        if not any(".attn_norm_2." in name for name in tensors):
            return (), {}
        return ("transformer.h.{layer}.ln_attn", "transformer.h.{layer}.ln_mlp"), {"num_ln_in_parallel_attn": 2}


class HrmText(FamilyHooks):
    """HRM-Text runs two stacks of layers in turns: H, and several times in each of its turns L."""

    keys = {"H_cycles": Count, "L_cycles": Count}
    blocks = ("L", "H")

    def runs(self, part: JsonObject, layer: int) -> int:
        slow = positive_int(part, ("H_cycles",), 2) or 1
        fast = positive_int(part, ("L_cycles",), 3) or 1
        return slow * fast if layer % 2 == 0 else slow


class Llama4(FamilyHooks):
    """Llama 4 scales the queries of layers that do not rotate by 1 + beta ln(1 + floor((p + 1) / length))."""

    keys = {"attn_temperature_tuning": Switch, "attn_scale": Number, "floor_scale": Tokens}

    def nope_query_scaling(self, part: JsonObject) -> QueryScaling | None:
        if not part.get("attn_temperature_tuning", True):
            return None
        length = positive_int(part, ("floor_scale",), LLAMA4_LENGTH) or LLAMA4_LENGTH
        return QueryScaling(float(first_present(part, ("attn_scale",), 0.1)), length)


class MimoV2Flash(FamilyHooks):
    """MiMo V2 Flash has twice as many heads of keys in window layers, and values of another width than keys."""

    keys = {"sliding_window_size": Index, "v_head_dim": Size}

    def window_size(self, part: JsonObject, size: int | None) -> int | None:
        before = positive_int(part, ("sliding_window_size",), least=0)  # counts the tokens before one alone
        return size if before is None else 1 + before

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        return 2 * count if kind == "local" else count

    def value_width(self, part: JsonObject, width: int) -> int:
        return positive_int(part, ("v_head_dim",), width) or width


class Zamba2(FamilyHooks):
    """Zamba 2 attends over the hidden states beside the embeddings, so that its heads are twice as wide as usual."""

    keys = {"layers_block_type": Names}
    types_key = "layers_block_type"

    def head_dim(self, hidden: int, heads: int) -> int:
        return 2 * hidden // heads


HOOKS: dict[str, FamilyHooks] = {
    "cohere2_moe": CommandMoe(),
    "deepseek_v4": DeepSeekV4(),
    "falcon": Falcon(),
    "hrm_text": HrmText(),
    "llama4": Llama4(),
    "mimo_v2_flash": MimoV2Flash(),
    "zamba2": Zamba2(),
}
