"""GgufExport: a checkpoint converted to a GGUF model that is not written yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import BadSource, UsageError
from ...formats.files import read_bytes, scratch
from ...formats.gguf.header import GgufHeader
from ...formats.gguf.values import BF16, F16, F32, Q8_0, TYPES
from ...models.family import Family
from ...models.source import Source
from ...options import TargetOptions
from ...rope.forms import Plain, divisors
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.read_header import FREQS
from ..gguf_encoding import GgufModel
from .conversions import as_layer, count_layers, predicts, scalars
from .demands import check_demands, check_layers
from .hparams import gguf_rules, hparams, sizes_of
from .metadata import Parameters, describe, metadata_keys
from .rows import DTYPES, OutTensor, ShardWeights
from .tensors import EMBEDDINGS, infos, out_tensors, plain_name
from .tokenizer import composes_characters, tokenizer_keys
from .write import FTYPES

if TYPE_CHECKING:
    from gguf import Metadata

    from ...formats.safetensors import Header as StHeader

MOST_TOKENS = 1 << 22
OUTTYPES = {"f32": F32, "f16": F16, "bf16": BF16, "q8_0": Q8_0}
SMALL = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", "README.md", "vocab.json",
    "merges.txt",
)  # fmt: skip


@dataclass(frozen=True)
class GgufExport:
    """A checkpoint converted to GGUF, before it is written.

    model: header and tensors with the unscaled RoPE. tensors: with the rows of the checkpoint that they consist of.
    description: gguf-py's Metadata. outtype: the type of the weights as in file names. unlabelled: the header without
    the label of a method in its names. quantised: the type to which llama.cpp quantises the file afterwards.
    without_prediction: layers that predict further tokens are left out. composes: tokenizer.json composes characters
    (NFC), which llama.cpp does not do.
    """

    model: GgufModel
    tensors: list[OutTensor]
    description: Metadata
    outtype: str
    unlabelled: GgufHeader
    quantised: str = ""
    without_prediction: bool = False
    composes: bool = False


def export(source: Source, family: Family, spec: RopeSpec, label: str, options: TargetOptions) -> GgufExport:
    """Convert a checkpoint with an unscaled RoPE to GGUF, without writing it. label: of the method, for names.

    Raises BadSource and UnsupportedBake for a checkpoint that cannot be converted, UsageError for an unknown outtype.
    """
    outtype = options.outtype or "auto"
    if not source.weights():
        raise BadSource(f"{source.reference} has no safetensors weights, which GGUF output needs; give a whole folder")
    headers = [(ShardWeights(source, name), header) for name, header in source.headers.items()]
    stored = [tensor for _, header in headers for tensor in header.tensors.values()]
    quantised = outtype if outtype in FTYPES else ""
    kind = _kind("auto" if quantised else outtype, [tensor.dtype for tensor in stored])
    vocabulary = _vocabulary(headers)
    rules, sizes = gguf_rules(family), sizes_of(source.config(), family, spec)
    names = [as_layer(plain_name(name), sizes.layers) for _, header in headers for name in header.tensors]
    left_out = not rules.prediction and any(predicts(name, sizes.layers) for name in names)
    if rules.prediction:
        sizes = replace(sizes, prediction=count_layers(names, sizes.layers))
    values = hparams(sizes, family, spec, vocabulary)
    tensors = [*_rope_freqs(spec, family), *out_tensors(headers, rules, sizes, kind)]
    values |= scalars(headers, rules, sizes.layers)
    name = TYPES[kind].name
    with scratch() as folder:
        _copy_small(source, folder)
        elements = sum(tensor.elements for tensor in tensors)
        experts = sum(tensor.elements for tensor in tensors if "_exps." in tensor.name)
        count = next((int(value.decode()) for key, value in values.items() if key.endswith(".expert_count")), 0)
        size = Parameters(elements, experts // (count or 1), count if experts else 0)
        repository = source.reference.partition("@")[0] if source.kind == "hub" or source.commit else None
        described, unlabelled_description = (
            describe(folder, source.name, repository, text, size) for text in (label, "")
        )
        general = metadata_keys(described, name, options.quantized_by)
        bare = metadata_keys(unlabelled_description, name, options.quantized_by)
        tokens = tokenizer_keys(folder, vocabulary, rules.pre, options.pre or "")
        composed = composes_characters(folder, tokens)
    arch = values.pop("general.architecture")
    header, unlabelled = (
        GgufHeader(3, {"general.architecture": arch, **names, **values, **tokens}, infos(tensors), 32, 0, 0)
        for names in (general, bare)
    )
    check_demands(header, rules.arch)
    check_layers(header, sizes, family, spec)
    vectors = {tensor.name: np.frombuffer(tensor.data, "<f4").astype(np.float64) for tensor in tensors if tensor.data}
    model = GgufModel(header, header.tensors, vectors)
    return GgufExport(model, tensors, described, quantised.upper() or name, unlabelled, quantised, left_out, composed)


def _copy_small(source: Source, folder: Path) -> None:
    """Copy the files that gguf-py reads into an empty folder."""
    present = {file.name for file in source.files()}
    for file in SMALL:
        if file in present and source.is_generated(file):
            source.copy(file, folder / file)
        elif file in present:
            (folder / file).write_bytes(read_bytes(source.path(file), file))


def _rope_freqs(spec: RopeSpec, family: Family) -> list[OutTensor]:
    """The divisors of the pairs of a family without any scaling, 1e30 for pairs that do not rotate."""
    if not family.still_pairs:
        return []
    plain = Plain(spec.rope_theta).inv_freq(spec.rotary_dim)
    data = divisors(plain, spec.form.inv_freq(spec.rotary_dim)).astype("<f4").tobytes()
    return [OutTensor(FREQS, (spec.rotary_dim // 2,), F32, (), data=data)]


def _kind(outtype: str, dtypes: list[str]) -> int:
    if outtype == "auto":
        return DTYPES.get(max(set(dtypes), key=dtypes.count), BF16)
    if outtype not in OUTTYPES:
        known = ", ".join((*OUTTYPES, *FTYPES))
        raise UsageError(f"--outtype {outtype} is not known; choose auto, {known}")
    return OUTTYPES[outtype]


def _vocabulary(headers: list[tuple[ShardWeights, StHeader]]) -> int:
    for _, header in headers:
        for name, tensor in header.tensors.items():
            if name.endswith(EMBEDDINGS):
                rows = tensor.shape[0] if tensor.shape else 0
                if not 0 < rows <= MOST_TOKENS:
                    raise BadSource(f"{name} has {rows:,} rows, and at most {MOST_TOKENS:,} are converted")
                return rows
    raise BadSource("the checkpoint has no token embeddings; download it again")
