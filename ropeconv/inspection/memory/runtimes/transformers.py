"""transformers: the whole prompt passes through each layer at once."""

from __future__ import annotations

from ....formats.gguf.header import TensorType
from ....models.config import CachedLayers
from ..machine import GIB, Machine
from ..runtime import SYSTEM, RuntimeMemory, count_cached_numbers, in_bytes, register
from ..shape import ModelShape

CUDA_CONTEXT_BYTES = GIB // 2
"""Memory of a GPU that CUDA and its libraries hold beside the tensors: an assumption."""
FLOAT32_BYTES = 4


@register(order=1)
class TransformersMemory(RuntimeMemory):
    """`model.generate(...)` with the usual dtype, cache and attention.

    The cache has K and V of every token, and of layers with a window those of `window - 1` tokens
    (DynamicSlidingWindowLayer). The prompt is not divided: at the peak, a layer has the residual
    and three more hidden states, and the three tensors of a gated MLP, each for all tokens. Layers
    with a window let go of older keys only when the first token is added, since the cache has views
    of them until then. generate() computes only the logits of the last token (logits_to_keep).

    Classes without `scaled_dot_product_attention` keep the scores of a layer, which grow with the
    square of the length; so does multi-head latent attention on a CPU, where torch has no kernel
    for values that are narrower than keys.
    """

    name = "transformers"
    display_name = "transformers"
    format = "folder"
    source = (
        "transformers 5.23: cache_utils.py, masking_utils.py, integrations/sdpa_attention.py,"
        " integrations/moe.py (grouped_mm_experts_forward)"
    )
    measured = True

    def cache(self, shape: ModelShape, tokens: int, dtype: TensorType, machine: Machine) -> int:
        def cached_tokens(group: CachedLayers) -> int:
            return _tokens_in_cache(group, tokens)

        return in_bytes(count_cached_numbers(shape.layers, cached_tokens), dtype)

    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        """Return the most bytes that activations take at once, when a layer runs on the prompt.

        Args:
            shape: The sizes of the model, such as its hidden size and its layers.
            tokens: The number of tokens of the prompt.
            machine: The machine: on a CPU, attention takes other memory than on a GPU.
        """
        # Tensors for each token of the prompt. There are four hidden states at once: embeddings,
        # input of the layer, residual, and result of the norm.
        bytes_of_number = self.width(shape)
        hidden_states = bytes_of_number * 4 * shape.hidden
        cos_and_sin = bytes_of_number * 2 * _cos_sin_pairs(shape) * shape.head_dim
        masks = _mask_bytes(shape, tokens, bytes_of_number)

        # a layer has either its attention or its MLP in memory
        vectors, scores = _attention_bytes(shape, tokens, bytes_of_number, machine.on_cpu)
        mlp = bytes_of_number * _mlp_numbers(shape)
        layer = max(mlp, vectors + scores)
        bytes_of_token = hidden_states + cos_and_sin + masks + layer

        # Keys and values outside the sliding windows. They are not part of the cache, but they stay
        # in memory until the first new token (DynamicSlidingWindowLayer in cache_utils.py).
        def tokens_outside_window(group: CachedLayers) -> int:
            return tokens - _tokens_in_cache(group, tokens)

        numbers_outside_windows = count_cached_numbers(shape.layers, tokens_outside_window)
        return tokens * bytes_of_token + numbers_outside_windows * bytes_of_number

    def usable(self, machine: Machine) -> int:
        if machine.kind == "ram":
            return max(0, machine.bytes - SYSTEM)
        return max(0, machine.bytes - CUDA_CONTEXT_BYTES)


def _tokens_in_cache(group: CachedLayers, tokens: int) -> int:
    """Return the number of tokens whose keys and values a layer caches."""
    # the cache of a sliding window does not have the newest token
    if group.window is None:
        return tokens
    return min(tokens, group.window - 1)


def _cos_sin_pairs(shape: ModelShape) -> int:
    """Return how many tables of cosines and sines there are: one for each kind of layer."""
    return 2 if shape.window and shape.sees_everything and not shape.sinks else 1


def _mask_bytes(shape: ModelShape, tokens: int, width: int) -> int:
    """Return the bytes of attention masks for each token.

    scaled_dot_product_attention needs a mask only where a window is shorter than the prompt, with a
    byte for each pair of tokens. Eager attention adds a mask for each kind of layer.
    """
    if shape.eager:
        kinds = {group.window is None for group in shape.layers}
        return len(kinds) * width * tokens
    is_cut = shape.window is not None and shape.window < tokens
    return tokens if is_cut else 0


def _attention_bytes(shape: ModelShape, tokens: int, width: int, on_cpu: bool) -> tuple[int, int]:
    """Return the bytes that attention takes for each token, as (vectors, scores).

    Vectors are the queries, keys and values. Scores are 0 for a fused kernel, which does not keep
    them.

    Args:
        shape: The model.
        tokens: The length of the sequence: each token has a score for each token.
        width: The bytes of a number.
        on_cpu: Whether the model runs on a CPU.
    """
    # multi-head latent attention (modeling_deepseek_v3.py)
    if shape.latent is not None:
        latent = shape.latent
        head_dim = latent.nope + latent.rope  # dimensions that do not rotate, and that rotate
        queries = 2 * head_dim  # before and after the rotation
        keys = head_dim
        result_of_kv_b_proj = latent.nope + latent.value
        output = latent.value
        vectors = width * shape.heads * (queries + keys + result_of_kv_b_proj + output)
        if not on_cpu:
            return vectors, 0

        # On a CPU, _scaled_dot_product_attention_math copies queries, keys and values to float32.
        # It has two copies of the scores, a byte for each score (is it -inf?), and a mask.
        vectors += 3 * FLOAT32_BYTES * shape.heads * head_dim
        bytes_of_score = 2 * FLOAT32_BYTES + 1
        mask = FLOAT32_BYTES * tokens
        return vectors, shape.heads * tokens * bytes_of_score + mask

    # ordinary attention: queries before and after the rotation, the output, which is as wide, and
    # two copies of keys and values in addition to the cache
    queries_and_output = 3 * shape.queries
    keys_and_values = 2 * (shape.keys + shape.values)
    vectors = width * (queries_and_output + keys_and_values)
    if not shape.eager:
        return vectors, 0

    # classes without a fused kernel (eager_attention_forward): the scores, and the softmax in
    # float32 and in the type of the model; with learned sinks (gpt-oss), there is no float32 copy
    bytes_of_score = 2 * width + FLOAT32_BYTES
    if shape.sinks:
        bytes_of_score = 3 * width
    return vectors, shape.heads * tokens * bytes_of_score


def _mlp_numbers(shape: ModelShape) -> int:
    """Return the numbers of an MLP or of the experts for each token."""
    tensors = {"gated": 3, "fused": 4, "plain": 2}[shape.mlp_kind]
    dense = tensors * shape.mlp
    # the inputs of the experts, and their outputs, weighted outputs, and those in the first order
    experts = shape.experts * max(4 * shape.hidden, shape.hidden + 4 * shape.expert_width)
    return max(dense, experts)
