"""Which modules of a model are norms, and of which kind.

The kind is found by an experiment: the norm runs on random numbers with random weights, and its
result is compared with the formula of each kind that a family file knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from .weightless import NORM_NAME

if TYPE_CHECKING:
    from torch.nn import Module

NormKind = Literal["rms", "rms-plus-one", "layer-norm", "layer-norm-plus-one"]
"""The formula of a norm of numbers x with weights w.

"rms": w * x / rms(x). "layer-norm": the same of x - mean(x), without a bias. "-plus-one": with
1 + w in place of w, as Gemma has it.
"""


def is_norm(module: Module) -> bool:
    """Whether a module is a norm: its class says so, or it has one weight for each dimension."""
    if NORM_NAME.search(type(module).__name__):
        return True
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() == 1


def find_norm_kind(module: Module) -> NormKind | None:
    """Return the kind of a norm, found by running it; None for another one.

    The kinds are "rms" (RMSNorm), "layer-norm", and both with 1 + weight in place of the weight:
    "rms-plus-one" (Gemma) and "layer-norm-plus-one".
    """
    weight = getattr(module, "weight", None)
    # a weight of two dimensions has a row for each head (Cohere)
    if not isinstance(weight, torch.Tensor) or weight.dim() not in (1, 2):
        return None

    # a mean that is not 0, a root mean square that is not 1, and weights that are not 1, so that no
    # two kinds give the same result
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(3, *weight.shape, generator=generator, dtype=torch.float32) * 3 + 1
    scales = torch.rand(*weight.shape, generator=generator, dtype=torch.float32) + 0.5

    before = weight.detach().clone()
    weight.copy_(scales)
    try:
        result = module(inputs).double()
    except Exception:  # it takes something else than numbers of this shape
        return None
    finally:
        weight.copy_(before)

    numbers = inputs.double()
    rms = numbers / numbers.pow(2).mean(-1, keepdim=True).sqrt()
    centred = numbers - numbers.mean(-1, keepdim=True)
    standardized = centred / centred.pow(2).mean(-1, keepdim=True).sqrt()
    expected: dict[NormKind, torch.Tensor] = {
        "rms": rms * scales,
        "rms-plus-one": rms * (1 + scales),
        "layer-norm": standardized * scales,
        "layer-norm-plus-one": standardized * (1 + scales),
    }
    for kind, numbers_of_kind in expected.items():
        if torch.allclose(result, numbers_of_kind, rtol=1e-3, atol=1e-3):
            return kind
    return None
