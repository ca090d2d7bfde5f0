"""Run a model of any size without its weights: large tensors count as zeros.

`large_on_meta` builds such a model, and `without_weights` makes it run. A product with a weight
that is not there is a tensor of zeros of the right shape. All other code of the model runs on
small tensors of the CPU, so rotary modules compute what they compute in the whole model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from torch.nn import Module

NORM_NAME = re.compile(r"norm|^ln", re.IGNORECASE)
"""Names of the classes of norms."""
LARGE = 1 << 16
"""Numbers of a tensor from which on it is not allocated."""
CREATORS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
MOST_ZEROS = 1 << 26
"""Numbers of a product of zeros; a model that makes more of them is not run."""


class Absent(torch.Tensor):  # type: ignore[misc]
    """A tensor of which only the shape is known, and whose numbers count as zeros."""

    shape_only: torch.Tensor

    @staticmethod
    def __new__(cls, shape_only: torch.Tensor) -> Absent:
        made: Absent = torch.Tensor._make_wrapper_subclass(
            cls,
            shape_only.shape,
            strides=shape_only.stride(),
            dtype=shape_only.dtype,
            device="cpu",
        )
        made.shape_only = shape_only
        return made

    def __repr__(self) -> str:
        return f"Absent{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute the shape of a result, whose numbers are zeros."""
        given = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "equal", "is_nonzero"):
            return 0
        if func._schema.is_mutable:  # of a buffer or a result, whose numbers do not matter
            return args[0]

        real = []

        def to_meta(value: Any) -> Any:
            if isinstance(value, Absent):
                return value.shape_only
            if isinstance(value, torch.Tensor):
                real.append(value)
                return value.to("meta")
            return value

        if given.get("device") is not None:
            given["device"] = torch.device("meta")
        inputs = tree_map(to_meta, args)
        if name == "_grouped_mm":  # its shape function takes bfloat16 only (torch 2.13)
            inputs = [inputs[0].bfloat16(), inputs[1].bfloat16(), *inputs[2:]]
            given["out_dtype"] = None
        result = func(*inputs, **tree_map(to_meta, given))
        # a choice among weights, such as those of an expert, is a weight
        is_choice = name in ("index", "index_select", "gather") and isinstance(args[0], Absent)
        is_weight = is_choice or not real

        def to_result(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if is_weight:
                return Absent(value)
            if value.numel() > MOST_ZEROS:
                raise MemoryError(f"{name} would make {value.numel():,} numbers")
            dtype = real[0].dtype if name == "_grouped_mm" else value.dtype
            return torch.zeros(value.shape, dtype=dtype, device="cpu")

        return tree_map(to_result, result)


class _LargeOnMeta(TorchFunctionMode):  # type: ignore[misc]
    """Makes large tensors without memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in CREATORS and _count(args, given) >= LARGE:
            given["device"] = "meta"
        return func(*args, **given)


def _count(args: Sequence[Any], given: Mapping[str, Any]) -> int:
    """The numbers of a tensor that such arguments make."""
    size = given.get("size", args)
    if isinstance(size, Sequence) and size and isinstance(size[0], (tuple, list)):
        size = size[0]
    if isinstance(size, int):
        return size
    return math.prod(item for item in size if isinstance(item, int))


@contextmanager
def large_on_meta() -> Iterator[None]:
    """Make the large tensors that are created inside without memory."""
    with torch.device("cpu"), _LargeOnMeta():
        yield


def without_weights(model: Module) -> None:
    """Replace the large tensors of a model, which `large_on_meta` made, and set the small ones.

    Biases become 0, and the scales of norms and all other parameters of one dimension 1.
    """
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if parameter.device.type == "meta":
                shape_only = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                module._parameters[name] = torch.nn.Parameter(
                    Absent(shape_only), requires_grad=False
                )
                continue
            parameter.requires_grad_(False)
            # norms of each head have weights of two dimensions (Cohere)
            has_scales = parameter.dim() == 1 or NORM_NAME.search(type(module).__name__) is not None
            is_scale = has_scales and "bias" not in name
            parameter.fill_(1.0 if is_scale else 0.0)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.device.type == "meta":
                module._buffers[name] = Absent(torch.empty_like(buffer))
