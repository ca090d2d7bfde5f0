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
FUNCTIONS_THAT_READ_SHAPE = (torch.Tensor.dim, torch.Tensor.size)
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
        """Run a function of torch that has a `ChunkMask` among its arguments.

        torch calls this method in place of the function. The mask stores one byte, whatever its
        shape, so most functions get a tensor with all its numbers instead.
        """
        kwargs = kwargs or {}
        # attention: the shape says how many queries and keys there are, which is all it needs
        if func is scaled_dot_product_attention:
            return _attention(*args, **kwargs)

        # inside this block torch calls functions themselves, and not this method again
        with torch._C.DisableTorchFunctionSubclass():
            # size() and dim(), and attributes such as mask.shape or mask.device, which torch reads
            # by a function `__get__`: they need no numbers
            reads_attribute = func.__name__ == "__get__"
            if reads_attribute or func in FUNCTIONS_THAT_READ_SHAPE:
                return func(*args, **kwargs)

            # every other function, such as an addition
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
    """Replace attention masks by small placeholders inside this block, to save memory.

    A mask of 4,096 queries and a million keys would take 4 GB. A `ChunkMask` takes one byte, and
    attention needs only its shape. A model that cannot attend with it keeps its masks.
    """
    if not needs_no_masks(model):
        yield
        return

    # In each forward pass transformers looks up two functions by the name "sdpa": one makes the
    # mask, the other computes attention. `_local_mapping` has the entries that somebody has set,
    # before the entries of transformers itself.
    mask_functions_before = dict(MASK_FUNCTIONS._local_mapping)
    attention_functions_before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    MASK_FUNCTIONS[SDPA] = _with_chunk_masks(MASK_FUNCTIONS[SDPA])
    ALL_ATTENTION_FUNCTIONS[SDPA] = _accepting_chunk_masks(ALL_ATTENTION_FUNCTIONS[SDPA])
    try:
        yield
    finally:
        MASK_FUNCTIONS._local_mapping = mask_functions_before
        ALL_ATTENTION_FUNCTIONS._local_mapping = attention_functions_before


def needs_no_masks(model: PreTrainedModel) -> bool:
    """Return whether layers that see the whole context attend by SDPA, in transformers 5."""
    is_version_5 = "q_offset" in inspect.signature(masking_utils.sdpa_mask).parameters
    return is_version_5 and model.config.get_text_config()._attn_implementation == SDPA


def _with_chunk_masks(make_mask: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Return a function that makes a `ChunkMask` where it can, and other masks by `make_mask`.

    A `ChunkMask` is the causal mask of a chunk: of several tokens behind others in the cache.

    Args:
        make_mask: The function of transformers that makes a mask, such as `sdpa_mask`.
    """

    def make_chunk_mask(*args: Any, **kwargs: Any) -> Tensor | None:
        """Make a mask for `q_length` queries and `kv_length` keys."""
        if _is_chunk(kwargs) and _is_causal(kwargs):
            device = kwargs.get("device", "cpu")
            return ChunkMask.of(kwargs["q_length"], kwargs["kv_length"], device)
        return make_mask(*args, **kwargs)

    return make_chunk_mask


def _is_chunk(kwargs: Mapping[str, Any]) -> bool:
    """Return whether queries are two or more last tokens of a sequence, and not all its tokens.

    Args:
        kwargs: The arguments of transformers' function for masks, such as {"q_length": 512,
            "q_offset": 1024, "kv_length": 1536, "kv_offset": 0}: the number of queries and of
            keys, and the positions at which both begin.
    """
    queries = kwargs.get("q_length", 1)
    keys = kwargs.get("kv_length", 0)
    end_of_queries = int(kwargs.get("q_offset", 0)) + queries
    end_of_keys = kwargs.get("kv_offset", 0) + keys

    has_several_queries = queries > 1
    has_earlier_keys = keys > queries
    end_together = bool(end_of_queries == end_of_keys)
    return has_several_queries and has_earlier_keys and end_together


def _is_causal(kwargs: Mapping[str, Any]) -> bool:
    """Return whether a mask hides only later tokens from each token.

    A mask can also hide padding, or tokens outside of a sliding window.

    Args:
        kwargs: The arguments of transformers' function for masks.
    """
    # transformers sets this to False where the mask is not causal: the tokens of an image, for
    # example, see each other
    may_be_causal = kwargs.get("allow_is_causal_skip", True)
    if not may_be_causal:
        return False
    window = kwargs.get("local_size")
    if window is not None and kwargs["kv_length"] >= window:
        return False
    is_text = kwargs.get("attention_mask")  # True for each token that is not padding
    return is_text is None or bool(is_text.all())


def _accepting_chunk_masks(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes attention like `attend`, and faster for a `ChunkMask`.

    A `ChunkMask` is a causal mask that has a shape and no stored numbers.

    Args:
        attend: The function of transformers for attention, such as `sdpa_attention_forward`. It is
            called for every other mask.
    """

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Compute attention in place of transformers' `sdpa_attention_forward`.

        Args:
            module: The attention of a model.
            query: [batch, heads, queries, width].
            key: [batch, heads of keys, keys, width].
            value: The values, in the shape of the keys.
            attention_mask: A mask of transformers, or a `ChunkMask`.
            kwargs: Other arguments, such as `scaling`, the factor on the logits.

        Returns:
            The output, [batch, queries, heads, width], and None in place of the probabilities.
        """
        # arguments that change the scores of queries and keys, which only transformers knows
        changes_scores = False
        for name in ("position_bias", "softcap", "cache"):
            if kwargs.get(name) is not None:
                changes_scores = True
        if changes_scores or not isinstance(attention_mask, ChunkMask):
            result: tuple[Tensor, None] = attend(
                module, query, key, value, attention_mask, **kwargs
            )
            return result

        # SDPA is called directly: transformers would repeat each head of keys for its queries
        # before, which copies the whole cache. `ChunkMask.__torch_function__` runs in its place.
        query_heads = query.shape[1]
        key_heads = key.shape[1]
        has_grouped_queries = key_heads != query_heads
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            scale=kwargs.get("scaling"),
            enable_gqa=has_grouped_queries,
        )
        return output.transpose(1, 2).contiguous(), None

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
