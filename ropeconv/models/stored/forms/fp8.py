"""FP8: weights of eight bits times scales.

DeepSeek V3, MiniMax M2 and Kimi K2 are published so: each weight is a number of eight bits times a
scale that a block of 128 x 128 of them shares, w[i, j] = q[i, j] * s[i // 128, j // 128]. Others
have a scale for each row or for each tensor.
"""

from collections.abc import Iterator

from ....errors import BadSource
from ....formats.safetensors import Tensor
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
        return any(tensor.dtype in EIGHT_BITS for tensor in stored.remaining.values())

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        """Yield each weight in FP8 with its scales, from the tensors that no other form has taken.

        Such as model.layers.0.mlp.up_proj.weight with model.layers.0.mlp.up_proj.weight_scale_inv.

        Raises:
            BadSource: A weight has no scales.
        """
        size = block_size(stored.settings)
        for tensor in stored.remaining.values():
            is_fp8 = tensor.dtype in EIGHT_BITS
            # scales of activations and of the key-value cache, which no weight needs, may be FP8
            is_other_scale = tensor.name.endswith(self.unused)
            if not is_fp8 or is_other_scale:
                continue

            scale = _find_scale(stored, tensor.name)
            if scale is None:
                raise BadSource(
                    f"{tensor.name} has numbers of 8 bits ({tensor.dtype}) without a scale;"
                    " download the checkpoint again, or dequantise it with its own tools"
                )
            yield scaled_weight(tensor, scale, size)


def _find_scale(stored: StoredTensors, weight: str) -> Tensor | None:
    """Return the scales of a weight, WEIGHT_scale_inv or WEIGHT_scale; None without any.

    DeepSeek V3 has the first name, and compressed-tensors the second.
    """
    for end in SCALES:
        scale = stored.source.tensors.get(f"{weight}{end}")
        if scale is not None:
            return scale
    return None
