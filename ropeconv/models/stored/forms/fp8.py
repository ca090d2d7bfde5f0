"""FP8: weights of eight bits times scales.

DeepSeek V3, MiniMax M2 and Kimi K2 are published so: each weight is a number of eight bits times a
scale that a block of 128 x 128 of them shares, w[i, j] = q[i, j] * s[i // 128, j // 128]. Others
have a scale for each row or for each tensor.
"""

from collections.abc import Iterator

from ....errors import BadSource
from ..form import StoredForm, StoredTensors, StoredWeight, register
from ..numbers import EIGHT_BITS
from ..scaled import SCALES, block_size, scaled_weight


@register
class Fp8(StoredForm):
    """Weights in F8_E4M3 or F8_E5M2, which are known by their dtype."""

    title = "FP8"
    methods = ("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "quark", "mxfp8")
    unused = (
        ".input_scale",
        ".activation_scale",
        "_activation_scale",
        ".output_scale",
        ".k_scale",
        ".v_scale",
    )

    def applies(self, stored: StoredTensors) -> bool:
        return any(tensor.dtype in EIGHT_BITS for tensor in stored.left.values())

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        """Yield the tensors of eight bits, each with the tensor of its scales."""
        size = block_size(stored.settings)
        for tensor in stored.left.values():
            is_weight = tensor.dtype in EIGHT_BITS and not tensor.name.endswith(self.unused)
            if not is_weight:
                continue

            # the scales of NAME are NAME_scale_inv or the like, as one of several quantisers wrote
            scale = None
            for end in SCALES:
                scale = scale or stored.source.tensors.get(tensor.name + end)
            if scale is None:
                raise BadSource(
                    f"{tensor.name} has numbers of 8 bits ({tensor.dtype}) without a scale;"
                    " download the checkpoint again, or dequantise it with its own tools"
                )
            yield scaled_weight(tensor, scale, size)
