"""StockExport: a checkpoint as llama.cpp's own converter converts it. Read `stock_export` first.

The converter gets the checkpoint with its unscaled RoPE, and writes only the header for a plan.
`StockExport.write_data` runs it again, for the whole file. The process remembers both results, so
that a plan that is made again for a check does not run the converter.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TypeVar

from ...errors import BadSource, UnsupportedBake
from ...formats.disk import Advance, copy_part
from ...formats.files import scratch
from ...formats.gguf.edit import Edit, RewrittenHeader
from ...formats.gguf.file import GgufFile
from ...formats.gguf.header import TYPES, GgufHeader, GgufValue, f32, u32
from ...formats.jsontext import JsonObject
from ...models.config import kv_heads, text_part
from ...models.family import Family
from ...models.schema import positive_int
from ...models.source import Source
from ...options import TargetOptions
from ...rope.errors import counted
from ...rope.forms import Vector
from ...rope.schedule import QueryScaling
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.archs import find_arch
from ...runtimes.llamacpp.read_header import rope_tensors
from ...runtimes.verdict import difference
from ..config_edit import RopeSetting, bake_config
from ..gguf_encoding import GgufModel
from .conversions import ModelSizes, as_layer, is_of_prediction_layer
from .demands import check_layers
from .export import (
    GgufExport,
    base_type,
    describe,
    metadata_keys,
    refuse_without_weights,
    weight_counts,
)
from .pooling import has_projection
from .quantise import Quantisation
from .recut import find_composed, find_recut
from .stock import StockConverter, given_files, prepare_folder
from .stock_program import MOST_BYTES_OF_SMALL_TENSOR
from .tensors import plain_name
from .tokenizer import composes_characters

T = TypeVar("T")
HASHED_BYTES = 1 << 22
"""Bytes that are hashed at a time."""


@dataclass(frozen=True)
class Conversion:
    """A conversion by llama.cpp's own converter."""

    converter: StockConverter
    source: Source

    config: JsonObject
    """The config.json that the converter gets."""

    weights_type: str
    """The type of the weights, as the converter names it."""

    pre: str
    """The value of tokenizer.ggml.pre; empty for the one that the converter finds."""

    has_prediction_layers: bool
    """Whether the checkpoint has layers that predict further tokens."""

    def prepare(self, folder: Path, *, whole: bool) -> Path:
        """Return the folder that the converter gets, made in an empty one.

        Args:
            folder: The empty folder.
            whole: Whether weights on the Hub are downloaded; a header needs only a part of them.

        Raises:
            BadSource: The weights cannot be given to it.
        """
        names = given_files(self.source)
        return prepare_folder(self.source, self.config, folder, names, whole=whole)

    def run(self, model: Path, target: Path, header_only: bool = False) -> None:
        """Run llama.cpp's converter to make a GGUF file of the checkpoint.

        Args:
            model: The folder that `prepare` has made, with the config and the weights.
            target: The GGUF file.
            header_only: Whether only the header and small tensors are written.

        Raises:
            RopeconvError: Where the converter fails.
        """
        self.converter.convert(
            model,
            target,
            self.weights_type,  # such as "bf16"
            pre=self.pre,  # the name of the pre-tokenizer; empty for the converter's choice
            # whether an embedding model has projections, in its folder 2_Dense
            dense=has_projection(self.source),
            # whether layers that predict further tokens are converted (multi-token prediction)
            predicts=self.has_prediction_layers,
            header_only=header_only,
        )

    def key(self, model: Path) -> str:
        """Return a digest of all that decides the result: the code, the settings and the files.

        By it a result is found again that was computed before. Large files are not hashed: for
        weights on the Hub the commit counts, and for a link to a local file its inode and time.

        Args:
            model: The folder of `prepare`.
        """
        digest = hashlib.sha256()
        settings = [self.converter.sha256, self.weights_type, self.pre, model.name]
        digest.update(json.dumps(settings).encode())
        on_the_hub = set(self.source.weights()) if self.source.kind == "hub" else set()
        for path in sorted(model.rglob("*")):
            if path.is_dir():
                continue
            name = path.relative_to(model).as_posix()
            digest.update(f"\n{name} ".encode())
            if name in on_the_hub:
                # the file here may have holes in place of numbers; the commit says what is in it
                digest.update(str(self.source.commit).encode())
            elif path.is_symlink():
                state = path.stat()  # of the file of the checkpoint
                fields = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
                digest.update(json.dumps(fields).encode())
            else:
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


@dataclass(frozen=True)
class ConvertedHeader:
    """The header that the converter writes for a plan."""

    header: GgufHeader

    vectors: dict[str, Vector]
    """The tensors of the RoPE, such as rope_freqs."""

    small: dict[str, bytes]
    """The data of small tensors."""


HEADERS: OrderedDict[str, ConvertedHeader] = OrderedDict()
"""Headers that the converter wrote in this process, by `Conversion.key`."""
DIGESTS: OrderedDict[str, dict[str, str]] = OrderedDict()
"""The sha256 of every tensor of whole files that it wrote, by `Conversion.key`."""
MOST_REMEMBERED = 4
"""How many results are remembered."""


def _remember(results: OrderedDict[str, T], key: str, result: T) -> None:
    """Keep a result, and forget the oldest one where there are too many."""
    results[key] = result
    results.move_to_end(key)
    while len(results) > MOST_REMEMBERED:
        results.popitem(last=False)


@dataclass(frozen=True)
class StockExport(GgufExport):
    """A checkpoint converted by llama.cpp's own converter, before it is written."""

    conversion: Conversion = field(kw_only=True)

    small: dict[str, bytes] = field(kw_only=True, repr=False)
    """The data of small tensors."""

    @property
    def converter(self) -> StockConverter:
        """The converter."""
        return self.conversion.converter

    @property
    def elements(self) -> int:
        return sum(_elements(self.model.header).values())

    @property
    def files(self) -> tuple[str, ...]:
        return given_files(self.conversion.source)

    def blocks(self, name: str) -> Iterator[bytes]:
        yield self.small[name]

    def write_data(
        self,
        target: Path,
        start: int,
        header: RewrittenHeader,
        advance: Advance,
        changed: Collection[str] = (),
    ) -> None:
        """Convert the checkpoint with llama.cpp's converter, and copy the tensors into a GGUF file.

        The converter writes a temporary file, with the same tensors and without the extension of
        the context.

        Args:
            target: The GGUF file, which has its header already.
            start: The first byte of the tensors in the target.
            header: The header of the target.
            advance: Called with the number of bytes written since the last call.
            changed: The names of the tensors that the extension of the context changes later.

        Raises:
            OSError: Where the file cannot be written.
            BadSource: Where the converter writes another header than for the plan.
        """
        # a temporary file beside the target, which is in the hidden folder of drafts
        converted = target.with_name(f"{target.name}.stock")
        try:
            with scratch() as folder:
                model = self.conversion.prepare(folder, whole=True)
                key = self.conversion.key(model)
                self.conversion.run(model, converted)

            # compare the file with the plan, which was made from its header and small tensors
            converted_header = GgufFile.open(converted).header
            self._refuse_other_header(converted_header)
            digests = digest_tensors(converted, converted_header)
            self._refuse_other_small_tensors(digests, changed)
            # the sha256 of each tensor is kept for `written_digests`, which checks the output
            _remember(DIGESTS, key, digests)

            # copy each tensor; `moves` has its start in the converted file and in the target, both
            # in bytes from the start of all tensors
            converted_start = converted_header.data_start
            with converted.open("rb") as reader, target.open("r+b") as writer:
                for old_start, new_start, size in header.moves(self.model.header):
                    copy_part(reader, converted_start + old_start, writer, start + new_start, size)
                    advance(size)
        finally:
            converted.unlink(missing_ok=True)

    def written_digests(self) -> dict[str, str] | None:
        """Return the sha256 of every tensor that the converter wrote for this checkpoint.

        None where it wrote no whole file in this process, and where one of the files changed since.
        """
        with scratch() as folder:
            model = self.conversion.prepare(folder, whole=False)
            return DIGESTS.get(self.conversion.key(model))

    def _refuse_other_header(self, written: GgufHeader) -> None:
        """Raise BadSource where the converter wrote another header than for the plan."""
        planned = self.unlabelled
        if written.values == planned.values and written.tensors == planned.tensors:
            return
        raise BadSource(
            f"{self.converter.described} wrote another header than it had planned; leave the source"
            " and the converter unchanged, and run again"
        )

    def _refuse_other_small_tensors(
        self, digests: dict[str, str], changed: Collection[str]
    ) -> None:
        """Raise BadSource where a small tensor of the converted file differs from the plan.

        For a plan, the converter gets only the header and the small tensors of a model on the Hub.
        If it computes a small tensor from a large tensor, the plan has wrong numbers.

        Args:
            digests: The sha256 of each tensor of the converted file, by name.
            changed: The names of the tensors that the extension of the context changes, whose
                numbers in the plan are used.
        """
        for name in changed:
            planned_data = self.small.get(name)  # None for a large tensor
            if planned_data is None:
                continue
            planned_digest = hashlib.sha256(planned_data).hexdigest()
            if planned_digest != digests[name]:
                raise BadSource(
                    f"{self.converter.described} made another {name} than for the plan; download"
                    " the model, give that folder, and run again"
                )


def stock_export(
    source: Source,
    family: Family,
    spec: RopeSpec,
    label: str,
    options: TargetOptions,
    quantisation: Quantisation | None,
    converter: StockConverter,
    scaled: bool,
) -> StockExport:
    """Let llama.cpp's converter write the header of a checkpoint with an unscaled RoPE.

    Args:
        source: The checkpoint.
        family: The family of the checkpoint.
        spec: Its unscaled RoPE.
        label: The label of the method, for names.
        options: The options of the output.
        quantisation: How llama.cpp quantises it afterwards; None where it does not.
        converter: The converter.
        scaled: Whether the checkpoint has a scaling, which the converter does not get.

    Raises:
        BadSource: For a checkpoint that cannot be converted.
        RopeconvError: Where the converter fails.
        UnsupportedBake: For layers that llama.cpp would compute otherwise.
        UsageError: For an unknown outtype.
    """
    # the config without its scaling, which the encoding writes into the result
    refuse_without_weights(source)
    config = source.config()
    if scaled:
        setting = RopeSetting({"rope_type": "default"}, spec.rope_theta, spec.original_context)
        config = bake_config(config, family, spec, setting)
    for key, published in family.converter_keys.items():
        if published in config:
            config = {**config, key: config[published]}

    # llama.cpp quantises in a second step, so the type here is the one that it starts from
    type_name = TYPES[base_type(options.outtype, source, quantisation)].name
    layers = len(spec.layers)
    names = [as_layer(plain_name(name), layers) for name in source.tensors]
    conversion = Conversion(
        converter,
        source,
        config,
        weights_type=type_name.lower(),
        pre=options.pre or "",
        has_prediction_layers=any(is_of_prediction_layer(name, layers) for name in names),
    )
    repository = None
    if source.kind == "hub" or source.commit:
        repository = source.reference.partition("@")[0]

    # the header and the small tensors, with the descriptions that gguf-py gives for the same folder
    with scratch() as folder:
        place = conversion.prepare(folder, whole=False)
        converted = _convert_header(conversion, place, folder)
        header = converted.header
        counts = weight_counts(_elements(header), header.values)
        composes = composes_characters(place, header.values)
        composed = find_composed(place, header.values)
        recut = find_recut(place, header.values, {})
        described = describe(place, source.name, repository, label, *counts)
        bare = describe(place, source.name, repository, "", *counts)

    # the method, and the person who quantises the model, in its descriptions
    plain_keys = metadata_keys(bare, type_name)
    named_keys = metadata_keys(described, type_name, options.quantized_by)
    labelled = _with_descriptions(header, plain_keys, named_keys)
    model = GgufModel(labelled, labelled.tensors, converted.vectors)
    _refuse_without_rotation(model, converter)
    _check_layers(model, source, family, spec)
    model = _correct_rope_keys(model, spec)
    return StockExport(
        model=model,
        tensors=[],
        description=described,
        outtype=(quantisation.outtype if quantisation else type_name).upper(),
        unlabelled=header,
        quantisation=quantisation,
        composes=composes,
        composed=composed,
        recut=recut,
        conversion=conversion,
        small=converted.small,
    )


def _convert_header(conversion: Conversion, place: Path, folder: Path) -> ConvertedHeader:
    """Return the header that llama.cpp's converter writes for a checkpoint.

    The converter runs once for it in this process; after that the header is remembered.

    Args:
        conversion: The conversion.
        place: The folder that the converter gets.
        folder: Where the header is written for the time of reading.
    """
    key = conversion.key(place)
    known = HEADERS.get(key)
    if known is not None:
        return known

    draft = folder / "header.gguf"
    conversion.run(place, draft, header_only=True)
    file = GgufFile.open(draft)
    small = {}
    for name, info in file.header.tensors.items():
        if info.size <= MOST_BYTES_OF_SMALL_TENSOR:
            small[name] = file.read(name)
    converted = ConvertedHeader(file.header, rope_tensors(file), small)
    _remember(HEADERS, key, converted)
    return converted


def digest_tensors(path: Path, header: GgufHeader) -> dict[str, str]:
    """Return the sha256 of the data of each tensor in a file, by its name."""
    digests = {}
    with path.open("rb") as file:
        for name, info in header.tensors.items():
            file.seek(header.data_start + info.offset)
            digest = hashlib.sha256()
            remaining = info.size
            while remaining:
                block = file.read(min(HASHED_BYTES, remaining))
                if not block:
                    raise BadSource(f"{path.name} ends within {name}; run again")
                digest.update(block)
                remaining -= len(block)
            digests[name] = digest.hexdigest()
    return digests


def _elements(header: GgufHeader) -> dict[str, int]:
    """The numbers of each tensor, by its name."""
    return {name: prod(info.shape) for name, info in header.tensors.items()}


def _with_descriptions(
    header: GgufHeader, plain: dict[str, GgufValue], named: dict[str, GgufValue]
) -> GgufHeader:
    """Return a header with descriptions of the extended model in place of the source model's.

    "Qwen3 8B" in general.name becomes "Qwen3 8B yarn4". Descriptions that both models share keep
    the text of llama.cpp's converter.

    Args:
        header: The header that the converter wrote.
        plain: The descriptions of the source, as gguf-py gives them.
        named: The descriptions of the extended model.
    """
    values = dict(header.values)
    for key in plain:
        if key not in named:
            values.pop(key, None)
    for key, value in named.items():
        differs_from_source = plain.get(key) != value
        if differs_from_source:
            values[key] = value
    return replace(header, values=values)


def _correct_rope_keys(model: GgufModel, spec: RopeSpec) -> GgufModel:
    """Return a GGUF file of llama.cpp's converter with correct metadata keys of RoPE.

    The converter knows fewer config keys than transformers. For Bamba it writes a wrong number of
    dimensions that rotate, and for Mellum no base of layers with a sliding window. The encoding
    writes the base and the scaling of the other layers later.

    Args:
        model: The header of the file that the converter has written.
        spec: The RoPE of the checkpoint.

    Raises:
        UnsupportedBake: Where llama.cpp ignores a corrected key, and computes another RoPE.
    """
    arch = model.get("general.architecture")

    # Bamba: the number of dimensions that rotate. `reading()` is the RoPE that llama.cpp computes.
    computed_dim = model.reading().spec.rotary_dim
    if computed_dim != spec.rotary_dim:
        model = model.after(Edit({f"{arch}.rope.dimension_count": u32(spec.rotary_dim)}))
        # some architectures have a fixed number in the code of llama.cpp
        dim_after_edit = model.reading().spec.rotary_dim
        if dim_after_edit != spec.rotary_dim:
            raise UnsupportedBake(
                f"a rotation of {spec.rotary_dim} dimensions of a head",
                f"GGUF as {arch}",
                f"llama.cpp rotates {dim_after_edit}",
                "keep safetensors",
            )

    # Mistral 4: the scaling of queries by position
    if spec.query_scaling is not None:
        model = _scale_queries(model, spec.query_scaling)

    # Mellum: the base of layers with a window (`local_form` is the RoPE of these layers)
    difference_before = _window_layer_difference(model, spec)
    if not difference_before:
        return model
    if spec.local_form is not None:
        model = model.after(Edit({f"{arch}.rope.freq_base_swa": f32(spec.local_form.theta)}))
    remaining_difference = _window_layer_difference(model, spec)
    if remaining_difference:
        raise UnsupportedBake(
            "the RoPE of window layers",
            f"GGUF as {arch}",
            remaining_difference,
            "keep safetensors",
        )
    return model


def _scale_queries(model: GgufModel, scaling: QueryScaling) -> GgufModel:
    """Return a GGUF file with the metadata keys of Mistral 4's scaling of queries by position.

    Args:
        model: The header of the file.
        scaling: The factor of queries, 1 + beta ln(1 + floor(position / length)).

    Raises:
        UnsupportedBake: Where llama.cpp does not scale queries in this architecture.
    """
    arch = find_arch(model.get("general.architecture"))
    key_of_length = arch.query_length  # such as "rope.scaling.original_context_length", or ""
    if not key_of_length:
        raise UnsupportedBake(
            "queries that grow with the position",
            f"GGUF as {arch.name}",
            "llama.cpp does not scale them",
            "keep safetensors",
        )
    keys = {
        f"{arch.name}.attention.temperature_scale": f32(scaling.beta),
        f"{arch.name}.{key_of_length}": u32(scaling.length),
    }
    return model.after(Edit(keys))


def _window_layer_difference(model: GgufModel, spec: RopeSpec) -> str:
    """How the layers with a window differ from those of the checkpoint; empty for equal ones."""
    computed = model.reading().spec
    return difference(computed.current(), spec, computed)


def _refuse_without_rotation(model: GgufModel, converter: StockConverter) -> None:
    """Raise BadSource for a file whose key turns RoPE off, in a checkpoint that has RoPE.

    conversion/granite.py writes rope.scaling.finetuned = false for every Granite 4 with Mamba, and
    does not read position_embedding_type.
    """
    arch = find_arch(model.get("general.architecture"))
    key = f"{arch.name}.rope.scaling.finetuned"
    if arch.finetuned and model.get(key) is False:
        raise BadSource(
            f"{converter.described} writes {key} = false, with which llama.cpp does not rotate,"
            f" and this model has RoPE; {converter.repair}"
        )


def _check_layers(model: GgufModel, source: Source, family: Family, spec: RopeSpec) -> None:
    """Raise an error where llama.cpp computes a layer in another way than the checkpoint's class.

    Args:
        model: The header of the GGUF file.
        source: The checkpoint.
        family: The family of the model.
        spec: The RoPE of the checkpoint, with the kind of each layer: "global", "local" (with
            another RoPE) or "none" (without RoPE).

    Raises:
        UnsupportedBake: For a difference in the number of layers, or in the window, the rotation or
            the key heads of a layer.
        BadSource: For a config without the number of heads.
    """
    computed = model.reading().spec  # the RoPE that llama.cpp computes from the file
    if len(computed.layers) != len(spec.layers):
        # HRM runs its layers several times, and llama.cpp counts each run as a layer. This is right
        # where all layers are equal: then nothing is left to compare.
        kinds_of_layers = {*computed.layers, *spec.layers}
        all_are_global = kinds_of_layers == {"global"}
        has_windows = any(spec.windows)
        if all_are_global and not has_windows:
            return
        raise UnsupportedBake(
            f"a model of {counted(len(spec.layers), 'layer')}",
            f"GGUF as {model.get('general.architecture')}",
            f"llama.cpp computes {len(computed.layers)}",
            "keep safetensors",
        )

    part = text_part(source.config(), family)
    heads = positive_int(part, family.keys.heads, family.defaults.heads)
    if heads is None:
        raise BadSource(f"config.json has no {family.keys.heads[0]}, which GGUF needs; add it")
    sizes = ModelSizes(
        config=part,
        heads=heads,
        kv_heads=kv_heads(part, family, heads),
        head_dim=spec.head_dim,
        layers=len(spec.layers),
    )
    check_layers(model.header, sizes, family, spec)
