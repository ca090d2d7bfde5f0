"""The tensors of a GGUF file from those of a checkpoint: names, shapes, types, and the order of their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BadSource, UnsupportedBake
from ..families.family import Gguf
from ..formats.gguf.header import TensorInfo, padded
from ..formats.gguf.types import BF16, F16, F32, Q8_0, TYPES
from ..formats.safetensors import Header

DTYPES = {"F32": F32, "F16": F16, "BF16": BF16}
UNUSED = re.compile(
    r"rotary_emb\.inv_freq$|attention\.(masked_)?bias$|^(model\.)?(vision_tower|multi_modal_projector)\."
)


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a tensor in a safetensors file.

    start: where they begin in the file, in bytes. rows: their number. columns: elements per row.
    """

    path: Path
    dtype: str
    start: int
    rows: int
    columns: int


@dataclass(frozen=True)
class OutTensor:
    """One tensor of the output.

    shape: as GGUF has it, fastest dimension first. type: ggml's number. parts: the rows of the checkpoint that it
    consists of, in order. interleave: rows per head whose pairs are reordered from (i, i + d/2) to (2i, 2i + 1), 0 for
    none. plus: added to every element.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    parts: tuple[Rows, ...]
    interleave: int = 0
    plus: float = 0.0

    @property
    def size(self) -> int:
        """Size in the output, in bytes."""
        kind = TYPES[self.type]
        return sum(part.rows * part.columns for part in self.parts) // kind.block * kind.size


def out_tensors(
    headers: Iterable[tuple[Path, Header]], rules: Gguf, heads: int, head_dim: int, layers: int, type: int
) -> list[OutTensor]:
    """The tensors of a GGUF file, in the order of the checkpoint's files.

    headers: of the checkpoint's files, with their paths. rules: of the family for GGUF. heads, head_dim, layers: sizes
    of the model. type: ggml's number of the type of matrices. Raises BadSource for tensors of unknown names,
    UnsupportedBake for dtypes that are not 16 or 32 bit floats.
    """
    names = gguf_names(rules.arch, layers)
    grouped: dict[str, list[tuple[int, Rows, tuple[int, ...]]]] = {}
    for path, header in headers:
        for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.start):
            name = _plain_name(tensor.name)
            if UNUSED.search(name) or (rules.tied and name == "lm_head.weight"):
                continue
            if tensor.dtype not in DTYPES:
                raise UnsupportedBake(
                    f"{tensor.name} in {tensor.dtype}",
                    "GGUF",
                    "only F32, F16 and BF16 are converted",
                    "dequantise it first",
                )
            columns = tensor.shape[-1] if tensor.shape else 1
            count = (tensor.stop - tensor.start) // (TYPES[DTYPES[tensor.dtype]].size * columns) if columns else 0
            rows = Rows(path, tensor.dtype, header.data_start + tensor.start, count, columns)
            number, whole = merged(name, rules)
            grouped.setdefault(whole, []).append((number, rows, tensor.shape))
    return [_out(name, found, names, rules, heads, head_dim, type) for name, found in grouped.items()]


def infos(tensors: Iterable[OutTensor], alignment: int = 32) -> dict[str, TensorInfo]:
    """The entries of tensors in a header by name, with offsets that leave no gaps. alignment: in bytes."""
    found, offset = {}, 0
    for tensor in tensors:
        found[tensor.name] = TensorInfo(tensor.name, tensor.shape, tensor.type, offset, tensor.size)
        offset += padded(tensor.size, alignment)
    return found


def _plain_name(name: str) -> str:
    """The name of a tensor without the prefix of a multimodal model."""
    return name.replace("model.language_model.", "model.").removeprefix("language_model.")


def merged(name: str, rules: Gguf) -> tuple[int, str]:
    """The number of a tensor within a stack and the name of the stacked tensor; 0 and its own name for others."""
    for pattern, whole in rules.stacked.items():
        match = re.search(re.escape(pattern).replace(r"\{\}", r"(\d+)") + r"(?=\.)", name)
        if match:
            return int(match[1]), name[: match.start()] + whole + name[match.end() :]
    return 0, name


def gguf_names(arch: str, layers: int) -> Any:
    """gguf-py's map from names in checkpoints to those in GGUF. layers: of the model. Raises BadSource."""
    import gguf

    number = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), None)
    if number is None:
        raise BadSource(f"the installed gguf does not know {arch}; pip install -U gguf")
    return gguf.get_tensor_name_map(number, layers)


def _out(
    name: str,
    found: list[tuple[int, Rows, tuple[int, ...]]],
    names: Any,
    rules: Gguf,
    heads: int,
    head_dim: int,
    type: int,
) -> OutTensor:
    target = names.get_name(key=name, try_suffixes=(".weight", ".bias"))
    if target is None:
        raise BadSource(f"{name} has no name in GGUF's {rules.arch}; is it a checkpoint of another architecture?")
    found = sorted(found, key=lambda item: item[0])
    shape = found[0][2]
    if any(other != shape for _, _, other in found):
        raise BadSource(f"the numbered tensors of {name} differ in shape; download the checkpoint again")
    if len(found) > 1 or any(f".{whole}." in name for whole in rules.stacked.values()):
        shape = (len(found), *shape)
    parts = tuple(rows for _, rows, _ in found)
    vector = len(shape) <= 1
    attention = re.search(r"self_attn\.(q|k)_proj\.(weight|bias)$", name)
    interleave = head_dim if rules.interleave and attention else 0
    if vector and interleave:  # a bias: one number per row
        parts = tuple(replace(part, rows=part.columns, columns=1) for part in parts)
    if rules.qkv and "query_key_value" in name:
        parts = tuple(_by_projection(parts[0], heads, head_dim, vector))
    return OutTensor(
        target,
        tuple(reversed(shape)) or (1,),
        _type_of(target, shape, type),
        parts,
        interleave,
        1.0 if rules.norm_plus_one and name.endswith("norm.weight") else 0.0,
    )


def _by_projection(part: Rows, heads: int, head_dim: int, vector: bool) -> Iterator[Rows]:
    """The rows of all queries, then keys, then values, of a projection that has the three for each head."""
    if vector:
        part = replace(part, rows=part.columns, columns=1)
    size = TYPES[DTYPES[part.dtype]].size * part.columns
    for which in range(3):
        for head in range(heads):
            yield replace(part, start=part.start + (head * 3 + which) * head_dim * size, rows=head_dim)


def _type_of(name: str, shape: tuple[int, ...], type: int) -> int:
    """ggml's type of a tensor, as llama.cpp's converter chooses it.

    F32 for vectors, norms and routers; F16 in place of Q8_0 for rows that are no whole number of blocks; else `type`.
    """
    if len(shape) <= 1 or name.endswith(("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")):
        return F32
    if not name.endswith(".weight"):
        return F32
    return F16 if type == Q8_0 and shape[-1] % TYPES[Q8_0].block else type
