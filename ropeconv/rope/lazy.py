"""numpy as `np`, imported at the first use of an attribute: `ropeconv --help` lists methods and computes nothing.

Vector: float64 of one dimension, only in annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Vector", "np"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
else:
    Vector = object  # the alias itself would import numpy

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            return getattr(numpy, name)

    np = _Numpy()
