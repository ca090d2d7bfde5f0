"""The number types of safetensors in numpy, and their conversion to 32-bit floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # dtype: what numpy reads; it has no bfloat16


def widened(stored: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """A new array of the same shape with the numbers as 32-bit floats.

    stored: as numpy reads them. dtype: "F64", "F32", "F16" or "BF16", as safetensors names it.
    """
    if dtype == "BF16":
        wide = stored.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return stored.astype(np.float32)
