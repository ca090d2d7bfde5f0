"""transformers: the whole prompt passes through each layer at once."""

from __future__ import annotations

from ....formats.gguf.header import TensorType
from ....models.config import CachedLayers
from ..machine import GIB, Machine
from ..runtime import SYSTEM, RuntimeMemory, in_bytes, numbers, register
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
        def kept(group: CachedLayers) -> int:
            return _kept_tokens(group, tokens)

        return in_bytes(numbers(shape.layers, kept), dtype)

    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        """Return the most bytes that activations take at once, while a layer runs on the prompt.

        These are the hidden states, cosines and sines, masks, and the tensors of one layer, each
        for every token of the prompt, and keys and values that windows no longer need.

        Args:
            shape: The sizes of the model, such as its hidden size and its layers.
            tokens: The tokens of the prompt.
            machine: Where it runs: attention takes other memory on a CPU.
        """
        # The bytes for each token. Four hidden states are kept at once: embeddings, input of the
        # layer, residual, and result of the norm.
        bytes_of_number = self.width(shape)
        hidden_states = bytes_of_number * 4 * shape.hidden
        cos_and_sin = bytes_of_number * 2 * _cos_sin_pairs(shape) * shape.head_dim
        masks = _mask_bytes(shape, tokens, bytes_of_number)

        # a layer has either its attention or its MLP in memory
        vectors, scores = _attention_bytes(shape, tokens, bytes_of_number, machine.on_cpu)
        mlp = bytes_of_number * _mlp_numbers(shape)
        layer = max(mlp, vectors + scores)
        bytes_of_token = hidden_states + cos_and_sin + masks + layer

        # The bytes for the whole prompt. A layer with a window drops the keys and values of older
        # tokens only when the first token is added after the prompt, so they count here too.
        # `numbers` adds up the keys and values of all layers, for so many tokens in each.
        def tokens_outside_window(group: CachedLayers) -> int:
            return tokens - _kept_tokens(group, tokens)

        older_keys_and_values = bytes_of_number * numbers(shape.layers, tokens_outside_window)
        return tokens * bytes_of_token + older_keys_and_values

    def usable(self, machine: Machine) -> int:
        if machine.kind == "ram":
            return max(0, machine.bytes - SYSTEM)
        return max(0, machine.bytes - CUDA_CONTEXT_BYTES)


def _kept_tokens(group: CachedLayers, tokens: int) -> int:
    """Return the tokens that a layer keeps; the newest token is not in the cache of a window."""
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
    """Return the bytes that attention takes for each token, as (its vectors, its scores).

    Vectors are queries, keys and values. Scores are there where attention runs as plain matrix
    products, and not in a fused kernel.

    Args:
        shape: The model.
        tokens: The length of the sequence, over which the scores of a token go.
        width: The bytes of a number.
        on_cpu: Whether it runs on a CPU.
    """
    if shape.latent is not None:
        # Queries, keys and values of every head are computed from the latent vector. A head of
        # queries or keys has `head` dimensions: those that rotate (rope) and the others (nope).
        latent = shape.latent
        head = latent.nope + latent.rope
        # modeling_deepseek_v3.py has queries before and after the rotation, and keys (3); the
        # result of kv_b_proj, which is unrotated keys and values; and the result of attention
        numbers_of_head = 3 * head + (latent.nope + latent.value) + latent.value
        vectors = width * shape.heads * numbers_of_head
        if not on_cpu:
            return vectors, 0

        # On a CPU, _scaled_dot_product_attention_math computes in float32: queries, keys and
        # values; two copies of the scores, with a byte for each that says whether it is -inf; and
        # the mask of a token.
        vectors += 3 * FLOAT32_BYTES * shape.heads * head
        bytes_of_score = 2 * FLOAT32_BYTES + 1
        mask = FLOAT32_BYTES * tokens
        return vectors, shape.heads * tokens * bytes_of_score + mask

    # queries before and after the rotation, and the result of attention, which is as wide (3); keys
    # and values, each twice beside those in the cache
    vectors = width * (3 * shape.queries + 2 * (shape.keys + shape.values))
    # most classes have a kernel that does not keep the scores
    if not shape.eager:
        return vectors, 0

    # the others (eager_attention_forward) keep the scores, and their softmax in float32 and in the
    # type of the model; those with a learned sink (gpt-oss) have no float32 copy
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
