"""NVFP4: numbers of 4 bits (E2M1), a scale in FP8 for each 16 of a row, and one for the tensor.

ModelOpt has `weight`, `weight_scale` and `weight_scale_2`, which are multiplied. compressed-tensors
has `weight_packed`, `weight_scale` and `weight_global_scale`, by which scales are divided.
"""

from collections.abc import Iterator

from ..form import StoredForm, StoredTensors, StoredWeight, register_first
from ..fp4 import fp4_weight


@register_first
class Nvfp4(StoredForm):
    """Layers of bytes with scales in F8_E4M3."""

    title = "NVFP4"
    methods = ("compressed-tensors", "modelopt")
    unused = (
        ".input_scale",
        ".input_global_scale",
        ".k_scale",
        ".v_scale",
    )

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        """Yield each weight in NVFP4 with its scales, from the tensors that no form has taken.

        ModelOpt and compressed-tensors name these tensors differently (see the module). MXFP4 has
        scales of another dtype.
        """
        tensors = stored.source.tensors
        for tensor in list(stored.remaining.values()):
            name = tensor.name.removesuffix("_packed")
            is_packed = tensor.dtype == "U8" and name.endswith("weight")
            scale = tensors.get(f"{name}_scale")
            if not is_packed or scale is None or scale.dtype != "F8_E4M3":
                continue

            is_of_compressed_tensors = tensor.name == f"{name}_packed"
            if is_of_compressed_tensors:
                divisor = tensors.get(f"{name}_global_scale")
                yield fp4_weight(name, tensor, scale, divisor, divides=True)
            else:
                factor = tensors.get(f"{name}_scale_2")
                yield fp4_weight(name, tensor, scale, factor)
