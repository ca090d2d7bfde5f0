"""INT8 of compressed-tensors: whole numbers of eight bits times scales, as W8A8 has them."""

from collections.abc import Iterator

from ..form import StoredForm, StoredTensors, StoredWeight, register
from ..scaled import block_size, scaled_weight


@register
class Int8(StoredForm):
    """w = (q - z) * s with `weight`, `weight_scale` and, where it is not symmetric,
    `weight_zero_point`; formats int-quantized and naive-quantized.
    """

    title = "INT8"
    methods = ("compressed-tensors",)
    unused = (".input_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale")

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        size = block_size(stored.settings)
        for tensor in stored.remaining.values():
            if tensor.dtype != "I8" or not tensor.name.endswith(".weight"):
                continue
            scale = stored.tensor(f"{tensor.name}_scale", tensor.name)
            zeros = f"{tensor.name}_zero_point"
            if zeros not in stored.source.tensors:
                zeros = ""
            yield scaled_weight(tensor, scale, size, zeros)
