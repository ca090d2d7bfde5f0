"""The tensors of a GGUF file from those of a checkpoint: names, shapes, types, and rows.

Read `out_tensors` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ...errors import BadSource, UnsupportedBake
from ...formats.gguf.header import (
    DEFAULT_ALIGNMENT,
    F16,
    F32,
    MXFP4,
    Q8_0,
    TYPES,
    TensorInfo,
    pad_size,
)
from ...formats.safetensors import Header, Tensor
from ...models.family import Gguf
from ...models.source import Source
from ...models.stored.form import FROM_FLOATS
from .conversions import ModelSizes, as_layer, convert, gguf_name, is_of_prediction_layer
from .demands import demands, general_name
from .pooling import EmbeddingProjection
from .rows import DTYPES, Rows, ShardWeights, StoredRows

if TYPE_CHECKING:
    from gguf import TensorNameMap

BUFFER_OR_VISION = re.compile(
    r"rotary_emb\.inv_freq$|attention\.(masked_)?bias$|^(model\.)?(vision_tower|multi_modal_projector|visual)\."
)
"""Names of buffers and of vision parts, which a GGUF file of a text model does not have."""
INPUT_EMBEDDINGS = (
    "embed_tokens.weight",
    "embed_in.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
)
"""Ends of the names of input embeddings."""
OUTPUT_WEIGHTS = ("lm_head.weight", "embed_out.weight")
"""Names of output weights."""


def out_tensors(
    headers: Iterable[tuple[ShardWeights, Header]], rules: Gguf, sizes: ModelSizes, type: int
) -> list[StoredRows]:
    """Return the tensors of the GGUF file that a checkpoint becomes, without their data.

    Args:
        headers: The files of the checkpoint with their headers.
        rules: How checkpoints of the family become GGUF.
        sizes: The sizes of the model.
        type: The ggml type of matrices in the GGUF file, such as F16.

    Returns:
        The tensors, each with its name, shape and type in GGUF and its places in the checkpoint.

    Raises:
        BadSource: For tensors of unknown names and shapes.
        UnsupportedBake: For dtypes that are not 16 or 32 bit floats.
    """
    # 1. the tensors of the checkpoint, with the experts of each layer as one tensor
    tensors = _stack_experts(_used_tensors(headers, rules, sizes), rules)

    # 2. the output weights: a few architectures of llama.cpp need them (rules.copy_output), and a
    # checkpoint with tied embeddings does not have them, so they are a copy of the embeddings
    has_output_weights = any(tensor.name in OUTPUT_WEIGHTS for tensor in tensors)
    if rules.copy_output and not has_output_weights:
        embeddings = [tensor for tensor in tensors if tensor.name.endswith(INPUT_EMBEDDINGS)]
        tensors += [replace(tensor, name="lm_head.weight") for tensor in embeddings]

    # 3. changes of tensors in this family (rules.convert), such as splitting kv_b_proj
    converted = convert(tensors, rules.convert, sizes)

    # 4. the names in GGUF, by gguf-py's maps for each architecture. For an architecture that
    # gguf-py does not know, `rules.like` lists known architectures with the same tensors.
    archs_with_names = rules.like or (rules.arch,)
    layers = sizes.layers + sizes.prediction  # usual layers, and layers for multi-token prediction
    name_maps = [gguf_names(arch, layers) for arch in archs_with_names]
    return [_named_and_typed(tensor, name_maps, rules, type) for tensor in converted]


def projection_tensors(
    source: Source, modules: Iterable[EmbeddingProjection], rules: Gguf, type: int
) -> list[StoredRows]:
    """Return the weights of projections behind the pooling of an embedding model.

    Args:
        source: The checkpoint.
        modules: The projections.
        rules: How the family becomes GGUF.
        type: ggml's number for matrices.

    Raises:
        BadSource: For other tensors than one matrix of the stated size.
    """
    names = [gguf_names(rules.arch, 1)]
    tensors = []
    for module in modules:
        header = source.header(module.file)
        weights = header.tensors.get("linear.weight")
        if weights is None or weights.shape != (module.outputs, module.inputs):
            raise BadSource(
                f"{module.file} has no linear.weight of {module.outputs} rows and"
                f" {module.inputs} columns, as its config.json says; download it again"
            )
        file = ShardWeights(source, module.file)
        rows = _stored_rows(file, header, weights, f"{module.name}.weight")
        tensors.append(_named_and_typed(rows, names, rules, type))
    return tensors


def infos(tensors: Iterable[StoredRows]) -> dict[str, TensorInfo]:
    """Return the entries of tensors in a header by name, with offsets without gaps."""
    entries = {}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = TensorInfo(
            name=tensor.name,
            shape=tensor.gguf_shape,
            type=tensor.type,
            offset=offset,
            size=tensor.size,
        )
        offset += pad_size(tensor.size, DEFAULT_ALIGNMENT)
    return entries


def plain_name(name: str) -> str:
    """Return the name of a tensor without the prefix of a multimodal model."""
    return name.replace("model.language_model.", "model.").removeprefix("language_model.")


def _used_tensors(
    headers: Iterable[tuple[ShardWeights, Header]], rules: Gguf, sizes: ModelSizes
) -> list[StoredRows]:
    """Return the tensors of a checkpoint that llama.cpp uses, before any conversion.

    Args:
        headers: The files of the checkpoint with their headers.
        rules: How checkpoints of the family become GGUF.
        sizes: The sizes of the model.
    """
    is_tied = rules.tied or sizes.config.get("tie_word_embeddings") is True
    names_to_skip = re.compile(rules.skip) if rules.skip else None
    tensors = []
    for file, header in headers:
        for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.start):
            # Without the prefix of a multimodal model. Qwen's layer for multi-token prediction gets
            # the next number: mtp.fc.weight becomes model.layers.48.eh_proj.weight.
            name = as_layer(plain_name(tensor.name), sizes.layers)

            # buffers, and tensors of a vision model
            if BUFFER_OR_VISION.search(name) is not None:
                continue
            # layers for multi-token prediction, unless llama.cpp computes them for this family
            is_prediction = is_of_prediction_layer(name, sizes.layers)
            if is_prediction and not rules.prediction:
                continue
            # further tensors that the family's table leaves out
            if names_to_skip is not None and names_to_skip.search(name) is not None:
                continue
            # output weights that are a second copy of the embeddings
            if is_tied and name in OUTPUT_WEIGHTS:
                continue
            # scales of MXFP4, which become one tensor with their blocks (`_stored_rows`)
            is_mxfp4_scale = name.endswith("_scales") and tensor.dtype == "U8"
            if is_mxfp4_scale:
                continue
            tensors.append(_stored_rows(file, header, tensor, name))
    return tensors


def _stored_rows(file: ShardWeights, header: Header, tensor: Tensor, name: str) -> StoredRows:
    """Return the place of a tensor's rows in a file of the checkpoint.

    Args:
        file: The file of the tensor.
        header: The header of the file.
        tensor: The entry of the tensor in the header.
        name: The name of the tensor, without the prefix of a multimodal model.

    Raises:
        UnsupportedBake: For a dtype that is not converted.
    """
    shape = tensor.shape
    dtype = tensor.dtype
    scales_start = 0  # for dtypes without scales

    # gpt-oss, MXFP4: a weight is two tensors of U8, NAME_blocks [..., rows, blocks, 16] and
    # NAME_scales [..., rows, blocks]. A block of 16 bytes has 32 numbers of 4 bits.
    name_of_scales = tensor.name.removesuffix("_blocks") + "_scales"
    scales = header.tensors.get(name_of_scales)
    is_blocks = dtype == "U8" and name.endswith("_blocks")
    if is_blocks and scales is not None and scales.dtype == "U8":
        dtype = "MXFP4"
        *outer_shape, blocks_of_row, _bytes_of_block = shape
        columns_of_block = TYPES[MXFP4].block
        shape = (*outer_shape, blocks_of_row * columns_of_block)
        scales_start = header.data_start + scales.start

    if dtype not in DTYPES:
        why = (
            "only F32, F16, BF16 and the quantised forms of docs/gguf.md are converted, and MXFP4"
            " whose blocks and scales are in one file"
        )
        raise UnsupportedBake(f"{tensor.name} in {tensor.dtype}", "GGUF", why, FROM_FLOATS)

    columns = shape[-1] if shape else 1
    row_count = prod(shape) // columns if columns else 0
    rows = Rows(
        file=file,
        dtype=dtype,
        start=header.data_start + tensor.start,
        rows=row_count,
        columns=columns,
        stride=columns,
        scales=scales_start,
    )
    return StoredRows(name, shape, (rows,))


def _stack_experts(tensors: Iterable[StoredRows], rules: Gguf) -> list[StoredRows]:
    """Join the matrices of numbered experts to stacks; other tensors are returned unchanged.

    A checkpoint has a matrix per expert, and GGUF has one tensor for all experts of a layer:
    mlp.experts.0.up_proj.weight, mlp.experts.1.up_proj.weight and so on, each [rows, columns],
    become mlp.experts.up_proj.weight, [experts, rows, columns].

    Args:
        tensors: The tensors of the checkpoint.
        rules: How the family becomes GGUF; `stacked` has the names of numbered tensors.
    """
    # "mlp.experts.{}" of the family becomes the regular expression mlp\.experts\.(\d+)(?=\.)
    patterns = []
    for with_place, without_number in rules.stacked.items():
        numbered = re.escape(with_place).replace(r"\{\}", r"(\d+)") + r"(?=\.)"
        patterns.append((re.compile(numbered), without_number))

    # by the name of the stack: its tensors, each with the number of its expert
    groups: dict[str, list[tuple[int, StoredRows]]] = {}
    for tensor in tensors:
        name, number = _name_and_number(tensor.name, patterns)
        groups.setdefault(name, []).append((number, tensor))
    return [_stack_group(name, group) for name, group in groups.items()]


def _name_and_number(name: str, patterns: list[tuple[re.Pattern[str], str]]) -> tuple[str, int]:
    """The name of the stack that a tensor belongs to and its number there; its own name and -1."""
    for numbered, without_number in patterns:
        match = numbered.search(name)
        if match:
            stack_name = name[: match.start()] + without_number + name[match.end() :]
            return stack_name, int(match[1])
    return name, -1


def _stack_group(name: str, group: list[tuple[int, StoredRows]]) -> StoredRows:
    """Join numbered tensors [rows, columns] to a stack [experts, rows, columns].

    Args:
        name: The name of the stack.
        group: The tensors with their numbers; a single one with -1, which is returned unchanged.
    """
    group = sorted(group, key=lambda item: item[0])
    number, first = group[0]
    is_numbered = number >= 0
    if not is_numbered:
        return first
    if any(tensor.shape != first.shape for _, tensor in group):
        raise BadSource(
            f"the numbered tensors of {name} differ in shape; download the checkpoint again"
        )
    parts = list[Rows]()
    for _, tensor in group:
        parts += tensor.parts
    return StoredRows(name, (len(group), *first.shape), tuple(parts))


@lru_cache(4)
def gguf_names(arch: str, layers: int) -> TensorNameMap:
    """Return gguf-py's map from names in checkpoints to those in GGUF. Raises BadSource."""
    import gguf

    for number, name in gguf.MODEL_ARCH_NAMES.items():
        if name == arch:
            return gguf.get_tensor_name_map(number, layers)
    raise BadSource(f"the installed gguf does not know {arch}; pip install -U gguf")


def _named_and_typed(
    tensor: StoredRows, maps: Sequence[TensorNameMap], rules: Gguf, type: int
) -> StoredRows:
    """Return a tensor with the name and the type that it has in GGUF.

    model.layers.0.self_attn.q_proj.weight becomes blk.0.attn_q.weight, in the type of matrices.

    Args:
        tensor: The tensor after all conversions, with a name as in a checkpoint.
        maps: gguf-py's maps from names in checkpoints to names in GGUF; the first map counts.
        rules: How checkpoints of the family become GGUF.
        type: ggml's number of the type of matrices, which the user chose.
    """
    # the name, from the first map that has it
    suffixes = (".weight", ".bias", ".scale")
    target = gguf_name(tensor.name)
    for names in maps:
        found = names.get_name(key=tensor.name, try_suffixes=suffixes)
        if found:
            target = found
            break
    if target is None:
        raise BadSource(
            f"{tensor.name} has no name in GGUF's {rules.arch}; is it a checkpoint of another"
            " architecture?"
        )

    return replace(tensor, name=target, type=_type_in_gguf(tensor, target, rules, type))


def _type_in_gguf(tensor: StoredRows, name: str, rules: Gguf, type_of_matrices: int) -> int:
    """Return the ggml type of a tensor in GGUF, as llama.cpp's converter chooses it.

    Vectors, norms, routers and tensors that are not weights always get F32.

    Args:
        tensor: The tensor after all conversions.
        name: The name of the tensor in GGUF.
        rules: How checkpoints of the family become GGUF.
        type_of_matrices: The type that the user chose.
    """
    if tensor.parts[0].dtype == "MXFP4":
        return MXFP4
    is_vector = len(tensor.shape) <= 1
    is_norm = name.endswith("_norm.weight")
    is_weight = name.endswith(".weight")
    always_f32 = general_name(name) in demands()[rules.arch].float32  # such as routers
    if is_vector or is_norm or always_f32 or not is_weight:
        return F32

    # a row of Q8_0 must be whole blocks of 32; where it is not, the converter falls back to F16
    # (convert_hf_to_gguf.py)
    has_whole_blocks = tensor.shape[-1] % TYPES[Q8_0].block == 0
    if type_of_matrices == Q8_0 and not has_whole_blocks:
        return F16
    return type_of_matrices
