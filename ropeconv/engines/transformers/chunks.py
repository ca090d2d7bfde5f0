"""Attention of a chunk of tokens behind a key-value cache, without masks and without copies.

transformers gives SDPA such a mask for every chunk but the first, which excludes its flash kernels,
and appends to the cache by copying all of it. While `without_masks` is entered, the mask is a
`ChunkMask`, whose numbers are never made where it only reaches SDPA. `preallocate` gives the layers
of a cache their final size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_map
from transformers import masking_utils
from transformers.cache_utils import DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .memory import free_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MASK_FUNCTIONS = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
SDPA = "sdpa"
FUNCTIONS_OF_SHAPE = (torch.Tensor.dim, torch.Tensor.size)
"""Functions of torch that need the shape of a mask and not its numbers."""


class ChunkMask(Tensor):  # type: ignore[misc]
    """The causal mask of the last tokens of a sequence, bool [1, 1, rows, columns].

    It takes one byte of memory: SDPA computes with its shape. Every other function is given the
    numbers.
    """

    @staticmethod
    def of(rows: int, columns: int, device: torch.device | str) -> ChunkMask:
        """Return the mask of `rows` queries, the last of `columns` keys."""
        cell = torch.ones((), dtype=torch.bool, device=device).expand(1, 1, rows, columns)
        mask: ChunkMask = cell.as_subclass(ChunkMask)
        return mask

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Any = None,
    ) -> Any:
        """Run a function of torch that is given a `ChunkMask`; torch calls this in its place.

        The mask holds one byte, whatever its shape. There are three cases: attention computes with
        the shape; size(), dim() and attributes need nothing else; and every other function, such as
        an addition, is given a tensor with the numbers in place of the mask.
        """
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        # inside this block torch calls functions themselves, and not this method again
        with torch._C.DisableTorchFunctionSubclass():
            # torch reads an attribute, such as mask.shape or mask.device, by a function `__get__`
            reads_attribute = func.__name__ == "__get__"
            if reads_attribute or func in FUNCTIONS_OF_SHAPE:
                return func(*args, **kwargs)
            args, kwargs = tree_map(_with_numbers, (tuple(args), kwargs))
            return func(*args, **kwargs)


def _with_numbers(value: object) -> object:
    """Return a tensor with the numbers of a `ChunkMask`; return any other value unchanged.

    For a chunk of 2 tokens at the end of 4, the rows are 1 1 1 0 and 1 1 1 1.
    """
    if not isinstance(value, ChunkMask):
        return value
    rows, columns = value.shape[-2:]
    ones = torch.ones((1, 1, rows, columns), dtype=torch.bool, device=value.device)
    return ones.tril(columns - rows)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention of a chunk of queries, the last ones of a longer sequence of keys.

    Parameters are those of `torch.nn.functional.scaled_dot_product_attention` (SDPA): tensors are
    [batch, heads, tokens, width]. `attn_mask` is a `ChunkMask`. It is not read, since the numbers
    of queries and keys say the same. `is_causal` is not read either.

    On a GPU, SDPA computes a causal mask at the lower right of the scores. On a CPU it cannot
    without making the mask, so two results of flash attention are merged there.
    """
    is_on_cpu = query.device.type == "cpu"
    # the flash kernel of the CPU needs keys and values of one width, which MLA does not have
    has_equal_widths = key.shape[-1] == value.shape[-1]
    if not is_on_cpu or not has_equal_widths:
        # Of SDPA's kernels only flash attention accepts fewer heads of keys than of queries, and
        # it does not accept float32. So in float32, for another kernel, each head of keys is
        # repeated: with 32 heads of queries, 8 heads of keys become 32.
        if enable_gqa and query.dtype == torch.float32:
            queries_per_key = query.shape[1] // key.shape[1]
            key = key.repeat_interleave(queries_per_key, 1)
            value = value.repeat_interleave(queries_per_key, 1)
            enable_gqa = False
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=causal_lower_right(query.shape[2], key.shape[2]),
            dropout_p=dropout_p,
            scale=scale,
            enable_gqa=enable_gqa,
        )

    return _merged_attention(query, key, value, dropout_p, scale)


def _merged_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, scale: float | None
) -> Tensor:
    """Return the attention of a chunk on a CPU, merged from two calls of flash attention.

    The first call is over the keys before the chunk, which every query sees, and the second over
    the keys of the chunk, with a causal mask. Softmax over all keys is the mean of both results,
    weighted by their sums of exponentials. The kernel returns the logarithms a and b of these sums,
    so the weight of the first result is e^a / (e^a + e^b) = sigmoid(a - b).

    Args:
        query: The queries of the chunk, [batch, heads, tokens, width].
        key: All keys, those of the chunk last.
        value: All values.
        dropout_p: The share of probabilities that are dropped, 0 for none.
        scale: The factor on the logits; None for 1 / sqrt(width).
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    cached = key.shape[2] - query.shape[2]  # the number of keys before the chunk
    before, log_before = flash(
        query, key[:, :, :cached], value[:, :, :cached], dropout_p, False, scale=scale
    )
    within, log_within = flash(
        query, key[:, :, cached:], value[:, :, cached:], dropout_p, True, scale=scale
    )
    weight = torch.sigmoid(log_before - log_within)[..., None]
    return torch.lerp(within.float(), before.float(), weight).to(query.dtype)


@contextmanager
def without_masks(model: PreTrainedModel) -> Iterator[None]:
    """Let a model attend without masks of numbers inside this block, where it can.

    A mask of 4,096 queries and a million keys would take 4 GB. So two functions of transformers
    are replaced: the one that makes a mask gives a `ChunkMask` of one byte, and the one that
    attends computes with the shape of that.
    """
    if not needs_no_masks(model):
        yield
        return
    # transformers finds both functions by the name "sdpa" in these registries at each pass. An
    # entry that is set goes into `_local_mapping`, and hides the one that transformers has.
    masks_before = dict(MASK_FUNCTIONS._local_mapping)
    functions_before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    MASK_FUNCTIONS[SDPA] = _mask_function(MASK_FUNCTIONS[SDPA])
    ALL_ATTENTION_FUNCTIONS[SDPA] = _attention_function(ALL_ATTENTION_FUNCTIONS[SDPA])
    try:
        yield
    finally:
        MASK_FUNCTIONS._local_mapping = masks_before
        ALL_ATTENTION_FUNCTIONS._local_mapping = functions_before


def needs_no_masks(model: PreTrainedModel) -> bool:
    """Return whether layers that see the whole context attend by SDPA, in transformers 5."""
    is_version_5 = "q_offset" in inspect.signature(masking_utils.sdpa_mask).parameters
    return is_version_5 and model.config.get_text_config()._attn_implementation == SDPA


def _mask_function(stock: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Return a function that makes masks, and returns a `ChunkMask` for the causal mask of a chunk.

    Args:
        stock: The function of transformers, which makes all other masks.
    """

    def mask(*args: Any, **given: Any) -> Tensor | None:
        if _is_chunk(given) and _is_causal(given):
            device = given.get("device", "cpu")
            return ChunkMask.of(given["q_length"], given["kv_length"], device)
        return stock(*args, **given)

    return mask


def _is_chunk(given: Mapping[str, Any]) -> bool:
    """Whether a mask is for several last tokens of a sequence, behind others in the cache.

    Args:
        given: The arguments of transformers' function for masks, such as {"q_length": 512,
            "q_offset": 1024, "kv_length": 1536, "kv_offset": 0}: the number of queries and of
            keys, and the positions at which both begin.
    """
    queries = given.get("q_length", 1)
    keys = given.get("kv_length", 0)
    are_several_behind_others = 1 < queries < keys
    end_of_queries = int(given.get("q_offset", 0)) + queries
    end_of_keys = given.get("kv_offset", 0) + keys
    return are_several_behind_others and bool(end_of_queries == end_of_keys)


def _is_causal(given: Mapping[str, Any]) -> bool:
    """Whether a mask hides only later tokens from each token.

    A mask can also hide padding, or tokens outside of a sliding window.

    Args:
        given: The arguments of transformers' function for masks.
    """
    # transformers sets this to False for a mask that is not causal, such as that of the tokens of
    # an image, which see each other
    may_be_causal = given.get("allow_is_causal_skip", True)
    if not may_be_causal:
        return False
    window = given.get("local_size")
    if window is not None and given["kv_length"] >= window:
        return False
    is_text = given.get("attention_mask")  # True for each token that is not padding
    return is_text is None or bool(is_text.all())


def _attention_function(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that transformers calls for attention, and that knows `ChunkMask`.

    For a `ChunkMask` it calls SDPA at once. The function of transformers would repeat each head of
    keys for its queries before SDPA, which is a copy of the whole cache.

    Args:
        stock: The function of transformers, which is called for every other mask.
    """

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **given: Any,
    ) -> tuple[Tensor, None]:
        """Compute attention in place of transformers' `sdpa_attention_forward`.

        Args:
            module: The attention of a model.
            query: [batch, heads, queries, width].
            key: [batch, heads of keys, keys, width].
            value: The values, in the shape of the keys.
            attention_mask: A mask of transformers, or a `ChunkMask`.
            given: Other arguments, such as `scaling`, the factor on the logits.

        Returns:
            The output, [batch, queries, heads, width], and None in place of the probabilities.
        """
        # Only transformers' own function, `stock`, knows arguments that change the scores. It may
        # compute with the mask, as in mask + position_bias: `ChunkMask` then makes its numbers.
        changes_scores = False
        for name in ("position_bias", "softcap", "cache"):
            if given.get(name) is not None:
                changes_scores = True
        if changes_scores or not isinstance(attention_mask, ChunkMask):
            result: tuple[Tensor, None] = stock(module, query, key, value, attention_mask, **given)
            return result

        # with grouped queries there are fewer heads of keys than of queries
        query_heads = query.shape[1]
        key_heads = key.shape[1]
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            scale=given.get("scaling"),
            enable_gqa=key_heads != query_heads,
        )
        return out.transpose(1, 2).contiguous(), None

    return attention


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of a cache with space for a whole sequence.

    `keys` and `values` are views of what is filled.
    """

    def __init__(self, layer: DynamicLayer, length: int, on_host: bool = False) -> None:
        """Allocate the space, and copy the keys and values up to now.

        Args:
            layer: The layer with these keys and values.
            length: The length of the sequence in tokens.
            on_host: Whether to keep them in the memory of the machine. Each forward pass then
                copies those of one layer to its device.
        """
        super().__init__()
        # this layer replaces the other one, so it takes over all attributes. `_write` sets `keys`
        # and `values` to views of the new space
        self.__dict__.update(vars(layer))
        self._space: list[Tensor] = []  # for keys and for values
        for states in (layer.keys, layer.values):
            shape = (*states.shape[:-2], length, states.shape[-1])
            device = "cpu" if on_host else states.device
            self._space.append(torch.empty(shape, dtype=states.dtype, device=device))
        self._write(0, layer.keys, layer.values)

    def _write(self, start: int, new_keys: Tensor, new_values: Tensor) -> None:
        """Write the keys and values of some tokens, and let `keys` and `values` end with them.

        Args:
            start: The number of the first of these tokens.
            new_keys: [batch, heads, tokens, width].
            new_values: [batch, heads, tokens, width].
        """
        stop = start + new_keys.shape[-2]
        key_space, value_space = self._space
        key_space[..., start:stop, :] = new_keys
        value_space[..., start:stop, :] = new_values
        self.keys = key_space[..., :stop, :]
        self.values = value_space[..., :stop, :]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **given: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values behind the others, and return all on the device of the new ones."""
        self._write(self.keys.shape[-2], key_states, value_states)
        return self.keys.to(key_states.device), self.values.to(key_states.device)


def preallocate(cache: object, length: int) -> None:
    """Replace the growing layers of a key-value cache by layers of the final size.

    A growing layer would be copied with each chunk. Others, such as those of a sliding window, stay
    unchanged. A cache that is larger than the free memory of its GPU is kept in the memory of the
    machine.

    Args:
        cache: The cache after the first chunk, whose list `layers` is changed; None for a model
            without a cache.
        length: The length of the sequence in tokens.
    """
    layers = getattr(cache, "layers", [])
    growing: dict[int, DynamicLayer] = {}
    for index, layer in enumerate(layers):
        # subclasses such as those with a window do not grow
        if type(layer) is DynamicLayer and layer.is_initialized:
            growing[index] = layer

    # each GPU has the keys and values of the layers that it computes
    sizes = _sizes_on_devices(growing.values(), length)
    too_small = set()
    for device, size in sizes.items():
        if device.type != "cpu" and size > free_bytes(str(device)):
            too_small.add(device)

    for index, layer in growing.items():
        on_host = layer.keys.device in too_small
        layers[index] = PreallocatedLayer(layer, length, on_host)


def _sizes_on_devices(layers: Iterable[DynamicLayer], length: int) -> dict[torch.device, int]:
    """Return the bytes of the keys and values of layers on each device, for a sequence of `length`.

    Args:
        layers: Layers of a cache that have read some tokens.
        length: The length of the whole sequence in tokens.
    """
    sizes: dict[torch.device, int] = {}
    for layer in layers:
        device = layer.keys.device
        for states in (layer.keys, layer.values):
            tokens = states.shape[-2]  # [batch, heads, tokens, width]
            bytes_per_token = states.nbytes // tokens
            sizes[device] = sizes.get(device, 0) + bytes_per_token * length
    return sizes
