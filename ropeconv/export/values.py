"""What happens to the numbers of tensors where GGUF stores something else than the checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

VALUES: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "plus_one": lambda values: values + np.float32(1),
    "minus_exp": lambda values: -np.exp(values),
}
BACK: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "plus_one": lambda values: values - np.float32(1),
    "minus_exp": lambda values: np.log(-values),
}
"""The way back of each, from GGUF to a checkpoint."""
ROUNDED = {"minus_exp": 2.0**-22}
"""The relative difference between libraries in functions that not all of them round to the nearest number."""
