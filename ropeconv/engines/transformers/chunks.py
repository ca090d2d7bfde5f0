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

MASKS = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
SDPA = "sdpa"
METADATA = (torch.Tensor.dim, torch.Tensor.size)
"""Functions that need the shape of a mask and not its numbers."""


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

        The mask holds one byte, whatever its shape. Attention needs only the shape, and
        every other function that needs the numbers is given a tensor that holds them.
        """
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        # inside this block torch calls functions themselves, and not this method again
        with torch._C.DisableTorchFunctionSubclass():
            # reading an attribute, such as mask.shape or mask.device, arrives as its `__get__`
            needs_no_numbers = func in METADATA or func.__name__ == "__get__"
            if needs_no_numbers:
                return func(*args, **kwargs)
            args, kwargs = tree_map(_numbers, (tuple(args), kwargs))
            return func(*args, **kwargs)


def _numbers(value: object) -> object:
    """A `ChunkMask` as a tensor of its numbers; other values stay.

    For 2 queries, the last of 4 keys, the rows are 1 1 1 0 and 1 1 1 1.
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

    Parameters are those of SDPA: tensors are [batch, heads, tokens, width]. `attn_mask` is a
    `ChunkMask`, whose shape is that of the queries and keys, so that it is not needed. On a GPU,
    SDPA has a mask of this form. On a CPU it has not: there the keys before the chunk, which every
    query sees, and those of the chunk, which are causal, are computed one after the other by flash
    attention.
    """
    is_on_cpu = query.device.type == "cpu"
    has_equal_widths = key.shape[-1] == value.shape[-1]  # as the flash kernel needs; not in MLA
    if not is_on_cpu or not has_equal_widths:
        # Only the flash kernel accepts fewer heads of keys than of queries, and it does not accept
        # float32. So each head of keys is repeated for its queries: 8 heads for 32 become 32.
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
    """Return the attention of a chunk on a CPU, from that to the keys before it and to its own.

    Softmax over all keys is the mean of the results for both parts of the keys, weighted by their
    sums of exponentials. The kernel returns the logarithms a and b of these sums, so the weight of
    the first part is e^a / (e^a + e^b) = sigmoid(a - b).

    Args:
        query: The queries of the chunk, [batch, heads, tokens, width].
        key: All keys, those of the chunk last.
        value: All values.
        dropout_p: As in SDPA.
        scale: As in SDPA.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    cached = key.shape[2] - query.shape[2]  # keys before the chunk
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

    The functions of transformers that make masks, and that attend with them, are replaced by ones
    that know `ChunkMask`: a mask of 4,096 queries and a million keys would take 4 GB.
    """
    if not needs_no_masks(model):
        yield
        return
    # transformers finds both functions by the name "sdpa" in these registries at each pass
    masks_before = dict(MASKS._local_mapping)
    functions_before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    MASKS[SDPA] = _mask_function(MASKS[SDPA])
    ALL_ATTENTION_FUNCTIONS[SDPA] = _attention_function(ALL_ATTENTION_FUNCTIONS[SDPA])
    try:
        yield
    finally:
        MASKS._local_mapping = masks_before
        ALL_ATTENTION_FUNCTIONS._local_mapping = functions_before


def needs_no_masks(model: PreTrainedModel) -> bool:
    """Return whether layers that see the whole context attend by SDPA, in transformers 5."""
    is_version_5 = "q_offset" in inspect.signature(masking_utils.sdpa_mask).parameters
    return is_version_5 and model.config.get_text_config()._attn_implementation == SDPA


def _mask_function(stock: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Return the stock function of transformers for masks, with a `ChunkMask` for a causal one."""

    def mask(*args: Any, **given: Any) -> Tensor | None:
        if _is_chunk(given) and _is_causal(given):
            device = given.get("device", "cpu")
            return ChunkMask.of(given["q_length"], given["kv_length"], device)
        return stock(*args, **given)

    return mask


def _is_chunk(given: Mapping[str, Any]) -> bool:
    """Whether a mask is for several last tokens of a sequence, behind others in the cache.

    Args:
        given: The arguments of transformers' function for masks. A mask has a row for each query
            and a column for each key, and offsets say at which position they begin.
    """
    rows = given.get("q_length", 1)
    columns = given.get("kv_length", 0)
    are_several_behind_others = 1 < rows < columns
    end_of_queries = int(given.get("q_offset", 0)) + rows
    end_of_keys = given.get("kv_offset", 0) + columns
    return are_several_behind_others and bool(end_of_queries == end_of_keys)


def _is_causal(given: Mapping[str, Any]) -> bool:
    """Whether a mask hides only later tokens: no padding, and none that a window leaves out.

    Args:
        given: The arguments of transformers' function for masks.
    """
    # a pattern that is not causal, such as that of the tokens of an image
    if not given.get("allow_is_causal_skip", True):
        return False
    window = given.get("local_size")
    if window is not None and given["kv_length"] >= window:
        return False
    padding = given.get("attention_mask")  # True for each token that is not padding
    return padding is None or bool(padding.all())


def _attention_function(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of attention for transformers, which calls SDPA at once for a `ChunkMask`.

    `stock`, that of transformers, gets every other mask. With a `ChunkMask` it would copy each head
    of keys for each of its queries before SDPA.
    """

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **given: Any,
    ) -> tuple[Tensor, None]:
        """Stand for transformers' `sdpa_attention_forward`; return [batch, rows, heads, width]."""
        # arguments that change scores are for the stock function; when that reads the mask, torch
        # gives it the numbers
        changes_scores = False
        for name in ("position_bias", "softcap", "cache"):
            if given.get(name) is not None:
                changes_scores = True
        if not isinstance(attention_mask, ChunkMask) or changes_scores:
            result: tuple[Tensor, None] = stock(module, query, key, value, attention_mask, **given)
            return result

        # tensors are [batch, heads, tokens, width]; several queries may share a head of keys
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
        self.__dict__.update(vars(layer))  # this layer replaces it, with all that it knows
        self._space = []
        for states in (layer.keys, layer.values):
            shape = (*states.shape[:-2], length, states.shape[-1])
            device = "cpu" if on_host else states.device
            self._space.append(torch.empty(shape, dtype=states.dtype, device=device))
        self._write(0, layer.keys, layer.values)

    def _write(self, start: int, *states: Tensor) -> None:
        """Write keys and values from a token on, and let `keys` and `values` end with them.

        Args:
            start: The number of the first token.
            *states: Its keys and values and those of the next tokens, [batch, heads, tokens,
                width].
        """
        tokens = states[0].shape[-2]
        stop = start + tokens
        for space, part in zip(self._space, states, strict=True):
            space[..., start:stop, :] = part
        all_keys, all_values = self._space
        self.keys = all_keys[..., :stop, :]
        self.values = all_values[..., :stop, :]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **given: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values behind the others, and return all on the device of the new ones."""
        self._write(self.keys.shape[-2], key_states, value_states)
        return self.keys.to(key_states.device), self.values.to(key_states.device)


def preallocate(cache: object, length: int) -> None:
    """Replace, in a key-value cache, the layers that grow by such of the final size.

    A growing layer would be copied with each chunk. Others, such as those of a sliding window, stay
    unchanged. A cache that is larger than the free memory of its GPU is kept in the memory of the
    machine.

    Args:
        cache: The cache after the first chunk, whose list `layers` is changed; None for none.
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
