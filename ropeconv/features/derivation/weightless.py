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
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from torch.nn import Module

NORM_NAME = re.compile(r"norm|^ln", re.IGNORECASE)
"""Names of the classes of norms."""
LEAST_LARGE_TENSOR = 1 << 16
"""Numbers of a tensor from which on it is not allocated."""
OPERATORS_THAT_RETURN_A_NUMBER = ("_local_scalar_dense", "equal", "is_nonzero")
"""Operators of torch that return a number or a truth value of Python: 0, or False, for zeros."""
OPERATORS_THAT_CHOOSE_ROWS = ("index", "index_select", "gather")
"""Operators that choose among the rows of a tensor."""
PRODUCT_OF_EXPERTS = "_grouped_mm"
"""The operator that multiplies the tokens of each expert by its weights."""
FUNCTIONS_THAT_MAKE_TENSORS = (
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.rand,
    torch.randn,
)
"""Functions of torch that make a tensor, of which a large one gets no memory."""
MOST_ZEROS = 1 << 26
"""Numbers of a product of zeros; a model that makes more of them is not run."""


class Absent(torch.Tensor):  # type: ignore[misc]
    """A weight that is not there: only its shape is known, and its numbers count as zeros."""

    shape_only: torch.Tensor
    """A tensor of this shape on the device "meta", which has no memory."""

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
        """Return the result of an operator of torch on weights that have no numbers (`Absent`).

        torch calls this in place of the operator.
        """
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        # item(), for example: a number
        if name in OPERATORS_THAT_RETURN_A_NUMBER:
            return 0

        # add_ and other operators that change their first argument: there are no numbers to change
        changes_its_argument = func._schema.is_mutable
        if changes_its_argument:
            return args[0]

        # on the device "meta" torch computes only the shape of the result
        result = _run_on_meta(func, args, kwargs)

        # a transposed weight, or the weight of one expert: the result is a weight without numbers
        real_inputs = [value for value in tree_leaves((args, kwargs)) if _is_real_tensor(value)]
        chooses_rows_of_weight = name in OPERATORS_THAT_CHOOSE_ROWS and isinstance(args[0], Absent)
        if chooses_rows_of_weight or not real_inputs:
            return tree_map(_to_absent, result)

        # a projection of real hidden states: the result is zeros, with which the model continues
        def to_zeros(value: Any) -> Any:
            """Return a tensor of zeros for a tensor of "meta"; return anything else unchanged."""
            if not isinstance(value, torch.Tensor):
                return value
            if value.numel() > MOST_ZEROS:
                raise MemoryError(f"{name} would make {value.numel():,} numbers")
            # `_run_on_meta` computes the grouped product of experts in bfloat16 only
            dtype = value.dtype
            if name == PRODUCT_OF_EXPERTS:
                dtype = real_inputs[0].dtype
            return torch.zeros(value.shape, dtype=dtype, device="cpu")

        return tree_map(to_zeros, result)


def _run_on_meta(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operator on the device "meta": tensors with shapes and no numbers.

    Args:
        func: The operator of torch, such as aten.mm.
        args: Its arguments by position, in which tensors are absent or real.
        kwargs: Its arguments by name.
    """
    meta_args = tree_map(_to_meta, args)
    meta_kwargs = {name: tree_map(_to_meta, value) for name, value in kwargs.items()}
    if meta_kwargs.get("device") is not None:
        meta_kwargs["device"] = torch.device("meta")

    # On the device "meta", torch 2.13 refuses a product of experts that is not in bfloat16, and one
    # with another dtype of the result. Only its shape is needed here.
    if func.overloadpacket.__name__ == PRODUCT_OF_EXPERTS:
        tokens, weights, *others = meta_args
        meta_args = [tokens.bfloat16(), weights.bfloat16(), *others]
        meta_kwargs["out_dtype"] = None
    return func(*meta_args, **meta_kwargs)


def _is_real_tensor(value: Any) -> bool:
    """Whether a value is a tensor with numbers."""
    return isinstance(value, torch.Tensor) and not isinstance(value, Absent)


def _to_meta(value: Any) -> Any:
    """Return a tensor without its numbers; any other value is returned unchanged."""
    if isinstance(value, Absent):
        return value.shape_only
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return value


def _to_absent(value: Any) -> Any:
    """Return a tensor of the device "meta" as an absent weight; any other value unchanged."""
    return Absent(value) if isinstance(value, torch.Tensor) else value


class _LargeOnMeta(TorchFunctionMode):  # type: ignore[misc]
    """Makes large tensors without memory, inside `with`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the result of a torch function; torch calls this in place of the function."""
        kwargs = dict(kwargs or {})
        if func in FUNCTIONS_THAT_MAKE_TENSORS and _count(args, kwargs) >= LEAST_LARGE_TENSOR:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _count(args: Sequence[Any], given: Mapping[str, Any]) -> int:
    """Return the numbers of a tensor that such arguments make."""
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
    """Make a model of `large_on_meta` run, so that only its norms and RoPE change numbers.

    A large tensor becomes `Absent`. Small tensors may be uninitialized: biases become 0, and the
    scales of norms and all other parameters of one dimension 1.

    Args:
        model: The model, which is changed in place.
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
            # a norm has scales of one dimension, or of two for a scale in each head (Cohere)
            is_of_norm = NORM_NAME.search(type(module).__name__) is not None
            is_bias = "bias" in name
            is_scale = (is_of_norm or parameter.dim() == 1) and not is_bias
            parameter.fill_(1.0 if is_scale else 0.0)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.device.type == "meta":
                module._buffers[name] = Absent(torch.empty_like(buffer))
