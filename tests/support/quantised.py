"""Checkpoints in quantised forms, packed value by value as the documentation of each form says, and
the same weights in float32.
"""

import json
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from .llamacpp import checkpoint

Tensors = dict[str, torch.Tensor]
Pack = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
"""From the name of a layer and its weight [rows, columns]: what is stored, and the weight that it
stands for in float32.
"""
GROUP = 32
"""Numbers that share a scale."""
SIZES: dict[str, Any] = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 160}
"""Widths that a block of 128 does not divide."""


def write_both(
    family: str, pack: Pack, settings: dict[str, Any], folder: Path, shards: bool, **sizes: Any
) -> tuple[Path, Path]:
    """Write a quantised checkpoint, and one with the float32 weights that it stands for."""
    stored = checkpoint(family, folder / "model", **sizes)
    plain = checkpoint(family, folder / "plain" / "model", **sizes)
    tensors = safetensors.torch.load_file(stored / "model.safetensors")
    products: Tensors = {}
    written: Tensors = {}
    for name, weight in tensors.items():
        is_matrix = name.endswith("proj.weight") and weight.dim() == 2
        if not is_matrix:
            written[name] = weight.bfloat16()
            products[name] = written[name]
            continue
        packed, products[name] = pack(name.removesuffix(".weight"), weight.float())
        written |= {key: tensor.contiguous() for key, tensor in packed.items()}
    save(stored, written, shards)
    save(plain, products, False)
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] = settings
    (stored / "config.json").write_text(json.dumps(config))
    return stored, plain


def save(folder: Path, tensors: Tensors, shards: bool) -> None:
    """Save tensors in one file, or in two, where scales are not in the file of their weights."""
    if not shards:
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    (folder / "model.safetensors").unlink()
    places = {}
    parts: list[Tensors] = [{}, {}]
    for name, tensor in tensors.items():
        number = int("scale" in name)
        parts[number][name] = tensor
        places[name] = f"model-0000{number + 1}-of-00002.safetensors"
    for number, part in enumerate(parts, 1):
        file = folder / f"model-0000{number}-of-00002.safetensors"
        safetensors.torch.save_file(part or {"unused": torch.zeros(1)}, file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def words(numbers: Iterable[int], bits: int) -> torch.Tensor:
    """Words of 32 bits with numbers one after the other, the lowest bits first."""
    whole = 0
    count = 0
    for number in numbers:
        assert 0 <= number < 1 << bits
        whole |= number << count * bits
        count += 1
    size = -(-count * bits // 32)
    return torch.from_numpy(np.frombuffer(whole.to_bytes(4 * size, "little"), "<i4").copy())


def by_groups(
    weight: torch.Tensor, bits: int, symmetric: bool, group: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise a weight in groups of columns, where weight = scale (number - zero point).

    Args:
        weight: The weight, [rows, columns].
        bits: Bits of a number.
        symmetric: Whether the zero point is the middle.
        group: The group of each column, [columns].

    Returns:
        Whole numbers from 0 on, [rows, columns]; and zero points and scales, [rows, groups].
    """
    most = (1 << bits) - 1
    zeros = []
    scales = []
    for number in range(int(group.max()) + 1):
        columns = weight[:, group == number]
        low = columns.amin(1)
        high = columns.amax(1)
        if symmetric:
            high = columns.abs().amax(1)
            low = -high
        scale = ((high - low) / most).half().float()
        zero = (-low / scale).round().clamp(1, most)
        if symmetric:
            zero = torch.full_like(zero, 1 << (bits - 1))
        zeros.append(zero)
        scales.append(scale)
    zero = torch.stack(zeros, 1)
    scale = torch.stack(scales, 1)
    numbers = (weight / scale[:, group]).round() + zero[:, group]
    return numbers.clamp(0, most).int(), zero.int(), scale


def groups_of_columns(columns: int, size: int, shuffled: bool) -> torch.Tensor:
    """The group of each column: 0, ..., 0, 1, ..., 1, ..., or these in a random order."""
    group = torch.arange(columns) // size
    if shuffled:
        group = group[torch.randperm(columns, generator=torch.Generator().manual_seed(1))]
    return group


def gptq(bits: int, symmetric: bool, less: int, ordered: bool = False) -> Pack:
    """Layers in GPTQ, as QuantLinear.pack of AutoGPTQ writes them.

    Args:
        bits: Bits of a number.
        symmetric: Whether the zero point is the middle.
        less: The number to subtract from zero points: 1 in version 1.
        ordered: Whether the groups of columns are in another order (desc_act).
    """

    def pack(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        group = groups_of_columns(weight.shape[1], GROUP, ordered)
        numbers, zero, scale = by_groups(weight, bits, symmetric, group)
        # numbers are packed along the inputs, and zero points along the outputs
        packed_numbers = [words(row.tolist(), bits) for row in numbers]
        packed_zeros = [words((column - less).tolist(), bits) for column in zero.T]
        tensors = {
            f"{layer}.qweight": torch.stack(packed_numbers, 1),
            f"{layer}.qzeros": torch.stack(packed_zeros),
            f"{layer}.scales": scale.T.half(),
            f"{layer}.g_idx": group.int(),
        }
        return tensors, scale[:, group] * (numbers - zero[:, group]).float()

    return pack


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The outputs of a word from the lowest bits on, by AutoAWQ's packing_utils.py."""


def awq(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A layer in AWQ, version gemm."""
    outputs, inputs = weight.shape
    group = torch.arange(inputs) // GROUP
    numbers, zero, scale = by_groups(weight, 4, False, group)

    def pack(matrix: torch.Tensor) -> torch.Tensor:
        rows = []
        for row in matrix.T.tolist():
            in_order = []
            for start in range(0, outputs, 8):
                in_order += [row[start + place] for place in AWQ_ORDER]
            rows.append(words(in_order, 4))
        return torch.stack(rows)

    tensors = {
        f"{layer}.qweight": pack(numbers),
        f"{layer}.qzeros": pack(zero),
        f"{layer}.scales": scale.T.half(),
    }
    return tensors, scale[:, group] * (numbers - zero[:, group]).float()


def packed(bits: int, symmetric: bool, ordered: bool = False, by_rows: bool = False) -> Pack:
    """Layers in pack-quantized of compressed-tensors.

    Args:
        bits: Bits of a number.
        symmetric: Whether there are no zero points.
        ordered: Whether the groups of columns are in another order.
        by_rows: Whether a row has one scale.
    """

    def pack(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        group = groups_of_columns(columns, columns if by_rows else GROUP, ordered)
        numbers, zero, scale = by_groups(weight, bits, symmetric, group)
        tensors = {
            f"{layer}.weight_packed": torch.stack([words(row.tolist(), bits) for row in numbers]),
            f"{layer}.weight_scale": scale.half(),
            f"{layer}.weight_shape": torch.tensor([rows, columns]),
        }
        if not symmetric:
            by_column = [words(column.tolist(), bits) for column in zero.T]
            tensors[f"{layer}.weight_zero_point"] = torch.stack(by_column, 1)
        if ordered:
            tensors[f"{layer}.weight_g_idx"] = group.int()
        return tensors, scale[:, group] * (numbers - zero[:, group]).float()

    return pack


def whole_numbers(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A layer in int-quantized of compressed-tensors, with zero points."""
    group = torch.zeros(weight.shape[1], dtype=torch.long)
    numbers, zero, scale = by_groups(weight, 8, False, group)
    tensors = {
        f"{layer}.weight": (numbers - 128).to(torch.int8),
        f"{layer}.weight_scale": scale.bfloat16(),
        f"{layer}.weight_zero_point": (zero - 128).to(torch.int8),
    }
    return tensors, scale.bfloat16().float() * (numbers - zero).float()


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def fp4_codes(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of the nearest numbers of 4 bits, two to a byte with the first one lowest, and
    these numbers.
    """
    positive = torch.tensor(E2M1)
    index = ((weight / scale).abs()[..., None] - positive).abs().argmin(-1)
    negative = weight < 0
    numbers = torch.where(negative, -positive[index], positive[index])
    codes = index + 8 * negative
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), numbers


def nvfp4(divides: bool) -> Pack:
    """Layers in NVFP4.

    Args:
        divides: As compressed-tensors stores them, else as ModelOpt does.
    """

    def pack(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        # a number is a code up to 6, times the scale of its block of 16 in FP8 (up to 448), times
        # one scale of the whole weight
        rows = len(weight)
        whole_scale = weight.abs().max() / (6 * 448)
        largest = weight.abs().reshape(rows, -1, 16).amax(2)
        stored_scale = (largest / 6 / whole_scale).clamp(min=2**-6).to(torch.float8_e4m3fn)
        if divides:
            factor = 1 / whole_scale
            scale = stored_scale.float() / factor
        else:
            factor = whole_scale
            scale = stored_scale.float() * factor
        each = scale.repeat_interleave(16, 1)
        codes, numbers = fp4_codes(weight, each)
        tensors = {f"{layer}.weight_scale": stored_scale}
        if divides:
            tensors[f"{layer}.weight_packed"] = codes
            tensors[f"{layer}.weight_global_scale"] = factor.reshape(1)
            tensors[f"{layer}.input_global_scale"] = torch.ones(1)
        else:
            tensors[f"{layer}.weight"] = codes
            tensors[f"{layer}.weight_scale_2"] = factor
            tensors[f"{layer}.input_scale"] = torch.tensor(0.25)
        return tensors, numbers * each

    return pack


def mxfp4(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A layer in mxfp4-pack-quantized of compressed-tensors."""
    largest = weight.abs().reshape(len(weight), -1, 32).amax(2)
    exponent = torch.floor(torch.log2(largest / 6)).int() + 1
    each = (2.0**exponent).repeat_interleave(32, 1)
    codes, numbers = fp4_codes(weight, each)
    tensors = {
        f"{layer}.weight_packed": codes,
        f"{layer}.weight_scale": (exponent + 127).to(torch.uint8),
    }
    return tensors, numbers * each


NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Dettmers et al. 2023, appendix E, in float32."""
FP4 = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
"""The positive codes of FP4 in bitsandbytes, over the largest one."""


def four_bits(kind: str, nested: bool) -> Pack:
    """Layers in 4 bits of bitsandbytes.

    Args:
        kind: "nf4" or "fp4".
        nested: Whether the largest numbers of blocks are quantised too.
    """
    values = NF4 if kind == "nf4" else (*FP4, *(-value for value in FP4))

    def pack(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        # blocks of 64 numbers, each over the largest one of its block
        code = torch.tensor(values)
        blocks = weight.flatten().reshape(-1, 64)
        largest = blocks.abs().amax(1)
        name = f"{layer}.weight"
        state: dict[str, Any] = {
            "quant_type": kind,
            "blocksize": 64,
            "dtype": "bfloat16",
            "shape": list(weight.shape),
        }
        tensors: Tensors = {f"{name}.absmax": largest, f"{name}.quant_map": code}
        if nested:
            tensors[f"{name}.absmax"], further, largest = nest(largest, state)
            tensors |= {f"{name}.{key}": tensor for key, tensor in further.items()}
        relative = blocks / largest[:, None]
        index = (relative[..., None] - code).abs().argmin(-1)  # of the nearest value
        codes = index.flatten()
        tensors[name] = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None]
        text = json.dumps(state).encode()
        tensors[f"{name}.quant_state.bitsandbytes__{kind}"] = torch.tensor(
            struct.unpack(f"{len(text)}B", text), dtype=torch.uint8
        )
        return tensors, (code[index] * largest[:, None]).reshape(weight.shape)

    return pack


def nest(
    largest: torch.Tensor, state: dict[str, Any]
) -> tuple[torch.Tensor, Tensors, torch.Tensor]:
    """Quantise the largest numbers of blocks, in groups of 256, as bitsandbytes does (double quant).

    Args:
        largest: The largest number of each block.
        state: The settings of the weight in JSON, to which those of the groups are added.

    Returns:
        The code of each largest number; the tensors that are stored beside it; and the number that
        each code stands for.
    """
    offset = float(largest.mean())
    code = torch.linspace(-1, 1, 256)
    codes = []
    largest_of_groups = []
    values = []
    for group in (largest - offset).split(256):
        largest_of_group = group.abs().max()
        index = (group[:, None] / largest_of_group - code).abs().argmin(1)
        codes.append(index)
        largest_of_groups.append(largest_of_group)
        values.append(code[index] * largest_of_group + torch.tensor(offset))
    state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    further = {"nested_absmax": torch.stack(largest_of_groups), "nested_quant_map": code}
    return torch.cat(codes).to(torch.uint8), further, torch.cat(values)


def eight_bits(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A layer in 8 bits of bitsandbytes."""
    largest = weight.abs().amax(1)
    numbers = (weight * (127 / largest[:, None])).round().to(torch.int8)
    tensors = {
        f"{layer}.weight": numbers,
        f"{layer}.SCB": largest,
        f"{layer}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, numbers.float() * largest[:, None] * 7.874015718698502e-3


def ternary(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A layer of BitNet."""
    scale = 1 / weight.abs().mean()
    numbers = (weight * scale).round().clamp(-1, 1) + 0.0  # +0 for -0, which two bits do not hold
    quarter = len(weight) // 4
    stored = torch.zeros(quarter, weight.shape[1], dtype=torch.uint8)
    for row, codes in enumerate((numbers + 1).to(torch.uint8)):
        stored[row % quarter] |= codes << 2 * (row // quarter)
    tensors = {f"{layer}.weight": stored, f"{layer}.weight_scale": scale.reshape(1)}
    return tensors, numbers / scale


def of_groups(bits: int, **weights: Any) -> dict[str, Any]:
    """The settings of compressed-tensors for whole numbers."""
    stated = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": stated}},
    }


CASES: dict[str, tuple[str, Pack, dict[str, Any]]] = {
    "GPTQ, 4 bits": ("gptq", gptq(4, True, 1), {"quant_method": "gptq", "bits": 4}),
    "GPTQ, 4 bits, order of activations": (
        "gptq",
        gptq(4, False, 1, ordered=True),
        {"quant_method": "gptq", "bits": 4, "desc_act": True, "checkpoint_format": "gptq"},
    ),
    "GPTQ, 2 bits": ("gptq", gptq(2, False, 1), {"quant_method": "gptq", "bits": 2}),
    "GPTQ, 3 bits": ("gptq", gptq(3, False, 1), {"quant_method": "gptq", "bits": 3}),
    "GPTQ, 8 bits, version 2": (
        "gptq",
        gptq(8, False, 0),
        {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"},
    ),
    "AWQ": ("awq", awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "packed, 4 bits": ("packed", packed(4, True), of_groups(4)),
    "packed, 4 bits, zero points": ("packed", packed(4, False), of_groups(4, symmetric=False)),
    "packed, 4 bits, order of activations": (
        "packed",
        packed(4, False, ordered=True),
        of_groups(4, symmetric=False, actorder="group"),
    ),
    "packed, 8 bits by rows": (
        "packed",
        packed(8, True, by_rows=True),
        of_groups(8, strategy="channel", group_size=None),
    ),
    "packed, 3 bits": ("packed", packed(3, False), of_groups(3, symmetric=False)),
    "INT8": (
        "int8",
        whole_numbers,
        {"quant_method": "compressed-tensors", "format": "int-quantized"},
    ),
    "NVFP4 of compressed-tensors": (
        "nvfp4",
        nvfp4(divides=True),
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    ),
    "NVFP4 of ModelOpt": (
        "nvfp4",
        nvfp4(divides=False),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
    "MXFP4 of compressed-tensors": (
        "mxfp4",
        mxfp4,
        {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    ),
    "NF4": ("bitsandbytes4", four_bits("nf4", False), {"quant_method": "bitsandbytes"}),
    "NF4, nested": ("bitsandbytes4", four_bits("nf4", True), {"quant_method": "bitsandbytes"}),
    "FP4": ("bitsandbytes4", four_bits("fp4", False), {"quant_method": "bitsandbytes"}),
    "LLM.int8()": ("bitsandbytes8", eight_bits, {"quant_method": "bitsandbytes"}),
    "BitNet": ("bitnet", ternary, {"quant_method": "bitnet"}),
}
"""By name: the module of the form, how it packs a layer, and the settings in config.json."""
