"""GgufExport: a checkpoint converted to GGUF that is not written yet. Read `export` first."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import BadSource, UnsupportedBake, UsageError
from ...formats import jsontext
from ...formats.files import read_bytes, read_text, scratch
from ...formats.gguf.header import (
    BF16,
    F16,
    F32,
    Q8_0,
    TYPES,
    GgufHeader,
    GgufValue,
    boolean,
    string,
    u32,
)
from ...formats.safetensors import INDEX, Tensor
from ...models.config import text_part
from ...models.family import Family, Gguf
from ...models.source import RECEIPT, Source
from ...options import TargetOptions
from ...rope.forms import Plain, divisors
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.archs import arch_table
from ...runtimes.llamacpp.purpose import masks_otherwise
from ...runtimes.llamacpp.read_header import FREQS
from ..gguf_encoding import GgufModel
from .conversions import as_layer, count_layers, is_of_prediction_layer, numbers_by_layer
from .demands import check_demands, check_layers
from .hparams import gguf_rules, hparams, sizes_of
from .pooling import EmbeddingProjection, pooling_keys, projections
from .quantise import FTYPES, Quantisation
from .recut import Recut, find_composed, find_recut
from .rows import DTYPES, ShardWeights, StoredRows
from .tensors import INPUT_EMBEDDINGS, infos, out_tensors, plain_name, projection_tensors
from .tokenizer import composes_characters, tokenizer_keys, values_of
from .write import output_blocks

if TYPE_CHECKING:
    from gguf import Metadata

MOST_TOKENS = 1 << 22
"""The most rows of embeddings that are converted."""
OUTTYPES = {"f32": F32, "f16": F16, "bf16": BF16, "q8_0": Q8_0}
SMALL_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    "vocab.json",
    "merges.txt",
)
TEMPLATES = "additional_chat_templates/"
"""The folder with chat templates beside the usual one, such as that for tools."""


@dataclass(frozen=True)
class GgufExport:
    """A checkpoint converted to GGUF, before it is written."""

    model: GgufModel
    """Header and tensors with the unscaled RoPE."""

    tensors: list[StoredRows]
    """The tensors, with the rows of the checkpoint that they consist of."""

    description: Metadata
    """gguf-py's Metadata."""

    outtype: str
    """The type of the weights as in file names."""

    unlabelled: GgufHeader
    """The header without the label of a method in its names."""

    quantisation: Quantisation | None = None
    """How llama.cpp quantises the file afterwards; None where it does not."""

    without_prediction: bool = False
    """Whether layers that predict further tokens are left out."""

    composes: bool = False
    """Whether tokenizer.json composes characters (NFC), which llama.cpp does not do."""

    composed: Recut | None = None
    """A text that becomes other tokens for that reason; None without `tokenizers`, too."""

    projections: tuple[EmbeddingProjection, ...] = ()
    """Projections behind the pooling of an embedding model that are part of the file."""

    recut: Recut | None = None
    """A text that llama.cpp cuts into other words than tokenizer.json; None without one."""

    @property
    def elements(self) -> int:
        """The numbers of all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the small files of a checkpoint that it is made from."""
        return (*SMALL_FILES, INDEX, RECEIPT, *(projection.file for projection in self.projections))

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a converted tensor, in pieces."""
        yield from output_blocks(self._tensor_by_name[name])

    @cached_property
    def _tensor_by_name(self) -> dict[str, StoredRows]:
        """The tensors by name: `blocks` is asked for each of thousands."""
        return {tensor.name: tensor for tensor in self.tensors}


def refuse_without_weights(source: Source) -> None:
    """Raise BadSource for a checkpoint without weights."""
    if not source.weights():
        raise BadSource(
            f"{source.reference} has no safetensors weights, which GGUF output needs; give a whole"
            " folder"
        )


def export(
    source: Source,
    family: Family,
    spec: RopeSpec,
    label: str,
    options: TargetOptions,
    quantisation: Quantisation | None,
) -> GgufExport:
    """Convert a checkpoint with an unscaled RoPE to GGUF, without writing it.

    Args:
        source: The checkpoint.
        family: The family of the checkpoint.
        spec: Its unscaled RoPE.
        label: The label of the method, for names.
        options: The options of the output.
        quantisation: How llama.cpp quantises it afterwards; None where it does not.

    Raises:
        BadSource: For a checkpoint that cannot be converted.
        UnsupportedBake: For a checkpoint that llama.cpp does not compute.
        UsageError: For an unknown outtype.
    """
    refuse_without_weights(source)

    # llama.cpp quantises in a second step, so the type here is the one that it starts from
    kind = base_type(options.outtype, source, quantisation)

    # sizes of the model; some have layers that predict further tokens, which llama.cpp computes for
    # some architectures only
    vocabulary = _vocabulary(source.tensors)  # config.json may be smaller than padded embeddings
    rules = gguf_rules(family)
    sizes = sizes_of(source.config(), family, spec)
    names = [as_layer(plain_name(name), sizes.layers) for name in source.tensors]
    left_out = False
    if rules.prediction:
        sizes = replace(sizes, prediction=count_layers(names, sizes.layers))
    else:
        left_out = any(is_of_prediction_layer(name, sizes.layers) for name in names)
    values = hparams(sizes, family, spec, vocabulary)

    # tensors, and keys whose numbers are in tensors of the checkpoint
    headers = [(ShardWeights(source, name), header) for name, header in source.headers.items()]
    tensors = list(out_tensors(headers, rules, sizes, kind))
    vectors = {}
    if family.still_pairs:
        still = _still_pairs(spec)
        tensors.insert(0, still)
        vectors[FREQS] = np.frombuffer(still.data, "<f4").astype(np.float64)
    values |= numbers_by_layer(headers, rules, sizes.layers)
    values |= _mask_keys(source, family, rules, spec)
    values |= pooling_keys(source, rules.arch)
    modules: tuple[EmbeddingProjection, ...] = ()
    if rules.projection:
        modules = projections(source)
        tensors = [*projection_tensors(source, modules, rules, kind), *tensors]
        for module in modules:
            values |= module.keys(rules.arch)

    # descriptions, with the label of the method and without it, and the tokenizer
    type_name = TYPES[kind].name
    counts = weight_counts({tensor.name: tensor.elements for tensor in tensors}, values)
    repository = None
    if source.kind == "hub" or source.commit:
        repository = source.reference.partition("@")[0]
    with scratch() as folder:
        _copy_small(source, folder)
        described = describe(folder, source.name, repository, label, *counts)
        bare = describe(folder, source.name, repository, "", *counts)
        general = metadata_keys(described, type_name, options.quantized_by)
        bare_general = metadata_keys(bare, type_name, options.quantized_by)
        tokens = tokenizer_keys(folder, vocabulary, rules, options.pre or "")
        for key, flag in rules.tokenizer.items():
            tokens.setdefault(f"tokenizer.ggml.{key}", boolean(flag))
        composes = composes_characters(folder, tokens)
        composed = find_composed(folder, tokens)
        recut = find_recut(folder, tokens, rules.pre)

    # the header: the architecture is the first key, as gguf-py writes it (GGUFWriter.__init__)
    arch = {"general.architecture": values.pop("general.architecture")}
    header = GgufHeader(
        version=3,
        values={**arch, **general, **values, **tokens},
        tensors=infos(tensors),
        alignment=32,
        data_start=0,
        size=0,
    )
    unlabelled = replace(header, values={**arch, **bare_general, **values, **tokens})
    check_demands(header, rules.arch)
    check_layers(header, sizes, family, spec)

    return GgufExport(
        model=GgufModel(header, header.tensors, vectors),
        tensors=tensors,
        description=described,
        outtype=quantisation.outtype.upper() if quantisation else type_name,
        unlabelled=unlabelled,
        quantisation=quantisation,
        without_prediction=left_out,
        composes=composes,
        composed=composed,
        projections=modules,
        recut=recut,
    )


def _mask_keys(source: Source, family: Family, rules: Gguf, spec: RopeSpec) -> dict[str, GgufValue]:
    """Return the metadata key of a decoder without a causal mask; empty for all other models.

    Args:
        source: The checkpoint.
        family: The family of the checkpoint.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the checkpoint.

    Raises:
        UnsupportedBake: Where llama.cpp computes another mask than the checkpoint's class.
    """
    part = text_part(source.config(), family)
    switches_mask_off = part.get("is_causal") is False  # a decoder without this key has a mask
    is_encoder = rules.arch in arch_table().encoders  # never has a causal mask
    if is_encoder or not switches_mask_off:
        return {}
    # without the causal mask, llama.cpp and transformers differ in layers with a sliding window
    if masks_otherwise(part, rules.arch, spec):
        raise UnsupportedBake(
            "is_causal = false",
            f"GGUF as {rules.arch}",
            "llama.cpp does not hide later tokens from layers with a window",
            "keep safetensors",
        )
    # as llama.cpp's converter does for every model (conversion/base.py, set_gguf_parameters)
    return {f"{rules.arch}.attention.causal": boolean(False)}


def _still_pairs(spec: RopeSpec) -> StoredRows:
    """rope_freqs with 1e30 for pairs that do not rotate, as llama.cpp's converter writes it."""
    plain = Plain(spec.rope_theta).inv_freq(spec.rotary_dim)
    vector = divisors(plain, spec.form.inv_freq(spec.rotary_dim))
    return StoredRows(FREQS, (spec.rotary_dim // 2,), (), data=vector.astype("<f4").tobytes())


def weight_counts(
    elements: Mapping[str, int], values: Mapping[str, GgufValue]
) -> tuple[int, int, int]:
    """Count the weights of a model, also for a single expert of a mixture of experts.

    Args:
        elements: The number of weights in each tensor, by the tensor's name in GGUF.
        values: The metadata keys.

    Returns:
        The weights of the model, the weights of one expert in all layers, and the number of
        experts.
    """
    # GGUF stacks the experts of a layer in one tensor, such as blk.0.ffn_up_exps.weight
    total = sum(elements.values())
    in_experts = sum(count for name, count in elements.items() if "_exps." in name)
    if not in_experts:
        return total, 0, 0

    # the number of experts of a layer, such as qwen3moe.expert_count = 128
    expert_count = 0
    for key, value in values.items():
        if key.endswith(".expert_count"):
            expert_count = int(value.decode())
            break
    of_one_expert = in_experts // max(1, expert_count)
    return total, of_one_expert, expert_count


def _small_files(source: Source) -> list[str]:
    """The names of the small files of a checkpoint that it is made from."""
    names = []
    for file in source.files():
        is_template = file.name.startswith(TEMPLATES) and file.name.endswith(".jinja")
        if file.name in SMALL_FILES or is_template:
            names.append(file.name)
    return names


def _copy_small(source: Source, folder: Path) -> None:
    """Copy the files that gguf-py reads: tokenizer, chat templates, configs and model card."""
    for name in _small_files(source):
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        if source.is_generated(name):
            source.copy(name, target)
        else:
            target.write_bytes(read_bytes(source.path(name), name))


def base_type(outtype: str | None, source: Source, quantisation: Quantisation | None) -> int:
    """Return ggml's number of the type of most weights in the file.

    By default, and before llama.cpp quantises them, it is the type of most tensors of the source.
    """
    if outtype is None or outtype == "auto" or quantisation is not None:
        return DTYPES.get(source.usual_dtype, BF16)
    if outtype not in OUTTYPES:
        known = ", ".join((*OUTTYPES, *FTYPES))
        raise UsageError(f"--outtype {outtype} is not known; choose auto, {known}")
    return OUTTYPES[outtype]


def _vocabulary(tensors: Mapping[str, Tensor]) -> int:
    """The number of tokens, from the rows of the embeddings."""
    name = next((name for name in tensors if name.endswith(INPUT_EMBEDDINGS)), None)
    if name is None:
        raise BadSource("the checkpoint has no token embeddings; download it again")
    rows = next(iter(tensors[name].shape), 0)
    if not 0 < rows <= MOST_TOKENS:
        raise BadSource(f"{name} has {rows:,} rows, and at most {MOST_TOKENS:,} are converted")
    return rows


MOST_CARD = 100_000
"""The most bytes of front matter: YAML is read at some 100 kB per second."""
END_OF_FRONT_MATTER = re.compile(rb"\n---\r?(\n|$)")
YAML_ANCHOR = re.compile(rb"[\s\[,:-]&\w")
GENERATION = "generation_config.json"
SAMPLING: dict[str, tuple[tuple[str, ...], type]] = {
    "sampling_sequence": (("sequence",), str),
    "sampling_top_k": (("top_k",), int),
    "sampling_top_p": (("top_p",), float),
    "sampling_min_p": (("min_p",), float),
    "sampling_xtc_probability": (("xtc_probability",), float),
    "sampling_xtc_threshold": (("xtc_threshold",), float),
    "sampling_temp": (("temperature",), float),
    "sampling_penalty_last_n": (("penalty_last_n",), int),
    "sampling_penalty_repeat": (("penalty_repeat", "repetition_penalty"), float),
    "sampling_mirostat": (("mirostat",), int),
    "sampling_mirostat_tau": (("mirostat_tau",), float),
    "sampling_mirostat_eta": (("mirostat_eta",), float),
}
"""Fields of gguf-py's Metadata, the keys of generation_config.json, and their types."""
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}


def describe(
    folder: Path,
    name: str,
    repository: str | None,
    label: str,
    total: int,
    expert: int = 0,
    experts: int = 0,
) -> Metadata:
    """Return gguf-py's Metadata of a model (the general.* keys), from its card and its name.

    Qwen/Qwen3-8B gives the name "Qwen3 8B" and the size "8B". With a label, such as "yarn4", it
    describes an extended model: "Qwen3 8B yarn4", whose base model is Qwen3-8B.

    Args:
        folder: The folder with the model card.
        name: The name of the model.
        repository: owner/name on the Hub, None for others.
        label: The label of the method; empty for the source itself, whose base models stay.
        total: The number of weights of the model.
        expert: The number of weights of one expert in all layers.
        experts: The number of experts.
    """
    import gguf

    metadata = _guess_metadata(folder, Path(repository or name), total)
    metadata.name = metadata.name or name
    if not metadata.size_label:  # 8B, or 8x7B for a model with experts
        weights_of_no_expert = total - expert * experts
        metadata.size_label = gguf.size_label(total, weights_of_no_expert, expert, experts)

    metadata.basename = metadata.basename or metadata.name
    _set_sampling(metadata, folder)
    if label:
        _describe_extended(metadata, repository, label)
    return metadata


def _guess_metadata(folder: Path, origin: Path, total: int) -> Metadata:
    """Return the Metadata that gguf-py guesses from a model card and from the name of the model.

    Args:
        folder: The folder with the model card.
        origin: owner/name on the Hub, or only the name.
        total: The number of weights of the model.
    """
    import gguf

    for logger in ("gguf", "metadata"):  # gguf-py logs on stderr how it reads a card
        logging.getLogger(logger).setLevel(logging.CRITICAL)

    # gguf-py may fail on a card, or on writing what it has guessed from one, which is tried here.
    # Then it guesses from the name alone.
    guess = gguf.Metadata.apply_metadata_heuristic
    try:
        card = {}
        if _is_harmless(folder / "README.md"):
            card = gguf.Metadata.load_model_card(folder)
        metadata = guess(gguf.Metadata(), card, {}, origin, total)
        values_of(metadata.set_gguf_meta_model)
        return metadata
    except Exception:  # from gguf-py, for cards of unexpected types
        return guess(gguf.Metadata(), {}, {}, origin, total)


def _describe_extended(metadata: Metadata, repository: str | None, label: str) -> None:
    """Change gguf-py's Metadata of a source, so that it describes a fine-tune of the source.

    Args:
        metadata: The Metadata, which is changed.
        repository: owner/name of the source on the Hub, None for others.
        label: The label of the method, which becomes the name of the fine-tune.
    """
    base = {"name": metadata.name}
    if repository:
        owner, short = repository.split("/", 1)
        base = {
            "name": short,
            "organization": owner,
            "repo_url": f"https://huggingface.co/{repository}",
        }
    metadata.base_models = [base]
    if metadata.finetune:
        metadata.finetune = f"{metadata.finetune}-{label}"
    else:
        metadata.finetune = label
    metadata.name = f"{metadata.name} {label}"


def _set_sampling(metadata: Metadata, folder: Path) -> None:
    """Put the settings of generation_config.json into a Metadata, as llama.cpp's converter does.

    llama.cpp samples by `general.sampling.*` where its user names no settings.

    Args:
        metadata: gguf-py's Metadata, which is changed.
        folder: The folder with generation_config.json, or without one.
    """
    path = folder / GENERATION
    if not path.is_file():
        return
    settings = jsontext.parse(read_text(path, GENERATION), GENERATION)
    # such as {"sampling_temp": (("temperature",), float)}; the first key that is there counts
    for name, (keys, kind) in SAMPLING.items():
        value = None
        for key in keys:
            if key in settings:
                value = settings[key]
                break
        if kind is float and type(value) is int:  # a temperature of 1
            value = float(value)
        # values of another type are left out; `isinstance` would take true for the number 1
        if type(value) is kind:
            setattr(metadata, name, value)


def _is_harmless(card: Path) -> bool:
    """Whether the front matter of a card is short and without anchors, which can multiply it."""
    if not card.is_file():
        return False
    with card.open("rb") as file:
        text = file.read(MOST_CARD + 1)
    end = END_OF_FRONT_MATTER.search(text, 3)
    if end is None or end.start() > MOST_CARD:
        return False
    return YAML_ANCHOR.search(text, 0, end.start()) is None


def metadata_keys(
    metadata: Metadata, outtype: str, quantized_by: str | None = None
) -> dict[str, GgufValue]:
    """Return the metadata keys of a GGUF file on the model as a whole, such as general.name.

    Args:
        metadata: The name, author, licence and so on, as gguf-py has read them. The object's
            `quantized_by` is overwritten.
        outtype: The type of most weights, such as "F16".
        quantized_by: The person who quantised the model; None for a file without that key.
    """
    metadata.quantized_by = quantized_by
    # gguf-py writes keys into a file writer; `values_of` collects them instead
    keys_of_gguf_py = values_of(metadata.set_gguf_meta_model)
    return {
        "general.type": string("model"),
        **keys_of_gguf_py,
        "general.file_type": u32(FILE_TYPES[outtype]),
        "general.quantization_version": u32(2),  # GGML_QNT_VERSION in ggml.h
    }


def file_name(metadata: Metadata, outtype: str) -> str:
    """Return the file name by GGUF's convention: name, size, fine-tune, version and type.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention
    """
    import gguf

    name = gguf.naming_convention(
        metadata.name,
        metadata.basename,
        metadata.finetune,
        metadata.version,
        metadata.size_label,
        outtype,
    )
    return f"{name}.gguf"
