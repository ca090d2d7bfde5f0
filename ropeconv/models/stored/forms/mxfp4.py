"""MXFP4: numbers of 4 bits (E2M1) with a scale for each 32 of a row, which is a power of two.

gpt-oss has its experts so, as `NAME_blocks` and `NAME_scales`. GGUF has that type too, and the
conversion keeps them (`mxfp4` in convert/to_gguf/write.py), so they are not found here.
compressed-tensors has `weight_packed` and `weight_scale` (mxfp4-pack-quantized), which become
floats.
"""

from collections.abc import Iterator

from ..form import StoredForm, StoredTensors, StoredWeight, register_first
from ..fp4 import fp4_weight


@register_first
class Mxfp4(StoredForm):
    """Layers of bytes with scales of one byte."""

    title = "MXFP4"
    methods = ("compressed-tensors", "mxfp4")
    unused = (".input_scale", ".input_global_scale", ".k_scale", ".v_scale")

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        for tensor in list(stored.remaining.values()):
            name = tensor.name.removesuffix("_packed")
            if tensor.dtype != "U8" or not tensor.name.endswith("weight_packed"):
                continue
            scale = stored.source.tensors.get(f"{name}_scale")
            if scale is not None and scale.dtype in ("U8", "F8_E8M0"):
                yield fp4_weight(name, tensor, scale)
