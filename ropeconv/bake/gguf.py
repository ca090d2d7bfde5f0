"""Plans whose output is a GGUF file.

`gguf_plan` edits one and copies the rest of it, `export_plan` converts a checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from ..convert.gguf_encoding import GgufModel, GgufResult
from ..convert.gguf_selection import select_gguf
from ..convert.target import Target
from ..convert.to_gguf.export import GgufExport, export, file_name
from ..convert.to_gguf.imatrix import read_imatrix
from ..convert.to_gguf.pooling import has_projection
from ..convert.to_gguf.quantise import (
    Quantisation,
    choose_quantisation,
    quantised_sizes,
    quantiser,
    size_of,
)
from ..convert.to_gguf.stock import StockConverter, find_converter
from ..convert.to_gguf.stock_export import StockExport, stock_export
from ..convert.to_gguf.write import TensorFile, are_alike, write_tensors
from ..environment import Requirement, installed
from ..errors import BadSource, UnsupportedBake, UsageError
from ..formats.disk import Advance
from ..formats.gguf.edit import (
    COUNT,
    SHARDS,
    Edit,
    RewrittenHeader,
    new_size,
    rewrite,
    write_changes,
    write_new,
)
from ..formats.gguf.file import GgufFile, shard_names
from ..formats.gguf.header import TYPES, GgufHeader, pad_size
from ..formats.gguf.split import NUMBER, parse_size, split_names, write_part
from ..inspection.inspection import ConfigInspection, Inspection, inspect_gguf
from ..inspection.kv_cache import gguf_cache
from ..inspection.memory.shape import gguf_shape
from ..inspection.problems import refused_tensors
from ..inspection.receipts.folder import original_record
from ..inspection.receipts.gguf import (
    ARCH,
    QUANTISED,
    edit_to_original,
    original_of,
    record_of_export,
    record_of_file,
    record_of_output,
    valid_gguf_receipt,
)
from ..inspection.receipts.receipt import ConverterRecord, ImatrixRecord, OriginalRecord
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.errors import RopeconvError, shown
from ..rope.forms import InterpolatedForm, Llama3, Yarn
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe, flags, parse_recipe
from ..runtimes.llamacpp.archs import arch_of_header
from ..runtimes.llamacpp.read_header import Reading, read_file, rope_tensors
from .plan import GgufOutput, PlannedFile, source_record
from .start import PlanStart, begin, first_inspection
from .warnings import list_notes, modelfile_notes, warnings

SPLIT_KEYS = (NUMBER, COUNT, SHARDS)


@dataclass(frozen=True)
class GgufPlan(GgufOutput):
    """A plan whose output is an edited GGUF file, or as many shards as the source has."""

    source: GgufSource

    @property
    def start(self) -> GgufFile:
        return self.source.file

    def origin(self, file: PlannedFile) -> Path | None:
        """Return the local path of the shard from which a file is copied; None for other files."""
        if file.action != "copy":
            return None
        names = [planned.name for planned in self.files]
        shard = self.source.file.shards[names.index(file.name)]
        return shard.path()

    @cached_property
    def original(self) -> OriginalRecord:
        """The model that `restore` leads back to, and how the output differs from it.

        It is the model before the first run of ropeconv, also if this is the second run.
        """
        file = self.source.file
        edit = self.result.edit
        receipt = valid_gguf_receipt(file, self.source_spec)

        # ropeconv did not write the source, or its receipt does not say what was before: the source
        # is that model
        if receipt is None or receipt.original is None or receipt.original.gguf is None:
            return OriginalRecord(source_record(self.source), gguf=record_of_file(file, edit))

        # The source is an output of ropeconv, and its receipt names the model. The new output is
        # made from the source, in one more step, or with --replace from that model.
        first_model = receipt.original.source
        replaces_scaling = self.target.replace
        record = record_of_output(
            file,
            input_record=receipt.original.gguf,
            before=original_of(file, receipt),
            edit=edit,
            replaced=replaces_scaling,
        )
        steps = () if replaces_scaling else receipt.steps
        return OriginalRecord(first_model, gguf=record, steps=steps)


def gguf_plan(source: GgufSource, recipe: Recipe, target: Target) -> GgufPlan:
    """Plan a GGUF file whose header gets a new RoPE, with the data of the source.

    Parameters and errors are those of `make_plan`.
    """
    inspection = inspect_gguf(source)
    reading = read_file(source.file)
    model = _open_model(source.file, reading, target)

    # With --replace, an output of ropeconv is first restored to the file before its first run, by
    # the edit `undo`. Then `model` and `first`, from which the recipe starts, are that file.
    first = inspection
    undo = None
    if target.replace:
        undo = edit_to_original(source.file, reading.spec)
    if undo is not None:
        model = model.after(undo)
        first = _inspect_restored(inspection, model)

    # most methods start from the RoPE without any scaling
    keeps_scaling = recipe.on_top or isinstance(recipe.method, AsIs)
    if not keeps_scaling:
        model = model.from_unscaled()

    start = begin(inspection, first, recipe, target)
    result = _select_encoding(start, model, target)

    # the output: one file, or as many shards as the source has
    if target.in_place:
        out = source.place_to_change()
        names = [out.name]
    else:
        out = target.out or Path(f"{source.name}-{recipe.method.label}.gguf")
        names = shard_names(out.name, len(source.file.shards))
    plan = GgufPlan(
        source=source,
        target=target,
        out=out.with_name(names[0]),
        files=(),
        skipped=(),
        recipe=start.recipe,
        family=inspection.name,
        source_spec=inspection.spec,
        replaced_from=None if first is inspection else first.spec,
        before=start.spec,
        schedule=start.schedule,
        result=result,
        warnings=(*_draft_note(inspection, target), *warnings(inspection, start), *result.notes),
        notes=(
            *start.notes,
            *list_notes(start.schedule),
            *modelfile_notes(source, start.schedule.context),
        ),
        kv_cache=inspection.kv_cache,
        shape=inspection.shape,
        draft=inspection.draft,
        undo=undo,
        fine_tuning=start.fine_tuning,
    )

    # The files come last: the edit of a plan has its receipt, which is made from the plan.
    files = []
    for shard, name in enumerate(names):
        files.append(shard_file(source, plan.edit, shard, name))
    return replace(plan, files=tuple(files))


def _inspect_restored(inspection: Inspection, restored: GgufModel) -> Inspection:
    """Return the inspection of an output of ropeconv, as if it were restored already.

    Args:
        inspection: The inspection of the output.
        restored: The model that restoring it will give.
    """
    return replace(
        inspection,
        name=str(restored.get(ARCH)),
        spec=restored.reading().spec,
        first=None,
        fine_tuning=None,
    )


def _open_model(file: GgufFile, reading: Reading, target: Target) -> GgufModel:
    """The model in a GGUF file. Raises UnsupportedBake where llama.cpp does not load it."""
    arch = reading.arch
    if target.assume_arch_keys and not arch.assumed:
        raise UsageError(f"{arch.name} is in the table; leave --assume-arch-keys out")

    vectors = rope_tensors(file)
    scaling = file.get(f"{arch.name}.rope.scaling.type")
    refused = refused_tensors(reading, vectors, scaling)
    if refused:
        why = f"llama.cpp does not load {arch.name} with {refused[0]}"
        raise UnsupportedBake("anything", file.name, why, "download another file")
    return GgufModel(file.header, file.tensors, vectors)


def _select_encoding(start: PlanStart, model: GgufModel, target: Target) -> GgufResult:
    """Choose the encoding that writes the schedule into the file.

    Raises:
        UnsupportedBake: No encoding can. `--linear 2 --on-top` of a model with yarn scaling does
            not fit into a GGUF header; then the message advises `--yarn 2 --on-top`, if that fits.
    """
    try:
        return select_gguf(start.schedule, model, target)
    except UnsupportedBake as refusal:
        repair = _advise_to_widen(start, model, target)
        if not repair:
            raise
        name = f"the GGUF architecture {arch_of_header(model).name}"
        raise UnsupportedBake("this schedule", name, refusal.reason, repair) from None


def _advise_to_widen(start: PlanStart, model: GgufModel, target: Target) -> str:
    """Advise to widen the scaling that a file has, in place of another method on top of it.

    A GGUF header has keys for one scaling. A linear scaling (`--linear 2 --on-top`) does not fit
    into a header with a yarn scaling. `--yarn 2 --on-top` fits, since it only doubles the factor of
    the yarn scaling.

    Returns:
        The advice, such as "pass --yarn 2 --on-top, which widens the yarn scaling that the file
        has". Empty where the wider scaling cannot be written either.
    """
    wider = _with_method_of_scaling(start)
    if wider is None:
        return ""
    try:
        select_gguf(wider.schedule(start.spec), model, target)
    except RopeconvError:  # it cannot be written
        return ""
    options = " ".join(flags(wider) or ())
    return f"pass {options}, which widens the {start.spec.form.kind} scaling that the file has"


def _with_method_of_scaling(start: PlanStart) -> Recipe | None:
    """Return a recipe for the same length with the method of the scaling that a file has already.

    A GGUF file has one scaling, so `--linear 2 --on-top` of a yarn scaling cannot be written. This
    function then returns `--yarn 2 --on-top`. It returns None for a recipe that is not on top of a
    scaling or has the method of the scaling, and for a scaling that no option of ropeconv makes.
    """
    recipe = start.recipe
    form = start.spec.form  # the scaling of the file
    is_other_method = form.kind != recipe.method.name
    if not recipe.on_top or not is_other_method:
        return None
    has_known_scaling = isinstance(form, (InterpolatedForm, Llama3, Yarn))
    if not has_known_scaling:
        return None

    # The factor over the declared context. It is 2 for `--linear 2`, and also for `--linear 256k`
    # if 128k are declared. `factor_over` divides a length by the trained context (32k), so
    # `relative` first writes 256k as 64k.
    declared = start.spec.context
    trained = start.spec.original_context
    method_over_trained = recipe.method.relative(declared, trained)
    factor = method_over_trained.factor_over(trained)
    if factor is None:
        return None
    same_kind = parse_recipe(f"{form.kind}:{factor:.12g}")  # e.g. "yarn:2"
    return Recipe(same_kind.method, context=recipe.context, on_top=True)


def _draft_note(inspection: Inspection, target: Target) -> tuple[str, ...]:
    """A sentence on a draft that is extended without its target; empty for others."""
    if inspection.draft is None or target.drafts_for:
        return ()
    reference = inspection.source.reference
    note = (
        f"{reference} is {inspection.draft.says} and runs with its target: extend that to the same"
        f" context, or both together with `ropeconv apply TARGET --draft {reference}`"
    )
    return (note,)


def shard_file(source: GgufSource, edit: Edit, shard: int, name: str) -> PlannedFile:
    """Return the planned file of one shard of an edited model.

    Args:
        source: The model before the edit.
        edit: The edit. It changes keys in the first shard only.
        shard: The number of the shard; the first is 0.
        name: The name of the file.

    Raises:
        BadSource: For a first shard whose keys do not fit the shards, which llama.cpp would not
            load.
    """
    # later shards have no keys, and most have no tensor that changes
    header = source.file.headers[shard]
    if shard == 0:
        _check_split(source.file, rewrite(header, edit))
    elif not header.tensors.keys() & edit.changes.keys():
        return PlannedFile("copy", name, header.size)

    def write(target: Path, advance: Advance) -> None:
        """Write the shard to a path."""
        # Download a shard of a file on the Hub. That may take long: `advance` raises if the run was
        # stopped meanwhile, so that nothing is written then.
        source.file.shards[shard].path()
        advance(0)
        write_new(source.file, shard, edit, target, advance)

    size = new_size(header, edit) if shard == 0 else header.size
    return PlannedFile("patch", name, size, make=write)


def _check_split(file: GgufFile, first: RewrittenHeader) -> None:
    """Check that a new first shard declares as many shards and tensors as there are.

    Args:
        file: The file before the edit, with all its shards.
        first: The new header of the first shard.

    Raises:
        BadSource: It declares another number.
    """
    # the actual numbers
    shards = len(file.shards)
    tensors = len(first.tensors)
    for later_header in file.headers[1:]:
        tensors += len(later_header.tensors)

    # what the keys split.count and split.tensors.count of the new header say; 0 without them
    declared_shards = 0
    if SHARDS in first.values:
        declared_shards = first.values[SHARDS].decode()
    declared_tensors = 0
    if COUNT in first.values:
        declared_tensors = first.values[COUNT].decode()

    # a file that is not split may lack these keys, or declare one shard
    if shards == 1 and declared_shards in (0, 1):
        return
    if shards > 1 and declared_shards == shards and declared_tensors == tensors:
        return
    raise BadSource(
        f"{file.name} would have {SHARDS} = {shown(declared_shards)} and {COUNT} ="
        f" {shown(declared_tensors)} for {shards} shards of {tensors} tensors; fetch the file"
        " again"
    )


@dataclass(frozen=True)
class ExportPlan(GgufOutput):
    """A plan whose output is a GGUF file converted from safetensors."""

    source: Source

    exported: GgufExport
    """The conversion without scaling."""

    planned_types: dict[str, int]
    """ggml's number of the type of each tensor, in their order in the output; empty where llama.cpp
    quantises, and is not installed.
    """

    @property
    def start(self) -> GgufModel:
        return self.exported.model

    @property
    def quantisation(self) -> Quantisation | None:
        """How llama.cpp quantises the output; None where it does not."""
        return self.exported.quantisation

    @property
    def tensor_types(self) -> dict[str, str]:
        """The type of each tensor, by its name, such as "Q4_K"."""
        return {name: TYPES[type].name for name, type in self.planned_types.items()}

    @property
    def file_type(self) -> int | None:
        """The value of llama.cpp's key general.file_type."""
        if self.quantisation is not None:
            return self.quantisation.file_type
        return super().file_type

    @property
    def resume_key(self) -> str:
        """The key by which an interrupted run is recognised, with the importance matrix."""
        imatrix = self.imatrix_record
        digest = "" if imatrix is None else imatrix.sha256
        return f"{super().resume_key} {digest}"

    @property
    def temporary_bytes(self) -> int:
        """The floats that llama.cpp quantises, and the whole file where it is split."""
        size = 0
        if self.quantisation is not None:
            size += _end_of(self.exported.model.header)
        if len(self.files) > 1:
            size += self.bytes
        return size

    def write_whole(self, target: Path, advance: Advance) -> None:
        """Write the output as one file, also where it is split afterwards.

        Args:
            target: The file.
            advance: Called with the bytes written since the last call.
        """
        header = rewrite(self.exported.model.header, self.edit)
        _write_exports([ConversionTarget(self.exported, header, self.edit, target)], advance)

    @property
    def converter(self) -> StockConverter | None:
        """llama.cpp's own converter, where that converts the source; None for ropeconv's."""
        if isinstance(self.exported, StockExport):
            return self.exported.converter
        return None

    @property
    def converter_record(self) -> ConverterRecord | None:
        """The version and digest of llama.cpp's conversion script; None where ropeconv converts."""
        if self.converter is None:
            return None
        return ConverterRecord(self.converter.version, self.converter.sha256)

    @property
    def imatrix_record(self) -> ImatrixRecord | None:
        """The name and digest of the importance matrix; None without one."""
        if self.quantisation is None or self.quantisation.imatrix is None:
            return None
        return ImatrixRecord(self.quantisation.imatrix.name, self.quantisation.imatrix.sha256)

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The packages for reading the weights, and llama.cpp for quantising them."""
        needed = super().requirements
        if self.quantisation is not None:
            return (*needed, quantiser(self.quantisation.outtype))
        return needed

    @property
    def ignored_files(self) -> tuple[str, ...]:
        """Names of files of the source that do not affect the output and may change meanwhile."""
        read = {*self.source.weights(), *self.exported.files}
        return tuple(file.name for file in self.source.files() if file.name not in read)

    @cached_property
    def original(self) -> OriginalRecord:
        """The checkpoint that was converted, and what `restore` needs to undo the method.

        The output is a conversion with the method in it. `restore` makes the GGUF file that the
        same conversion gives without a method. So the record has the keys of that file, such as
        llama.rope.freq_base, and the contents of small tensors that the method changes.

        Three headers play a part: that of the conversion without the method (`plain`); the same
        with the method in the name of the model (`header`); and, by the edit, that of the output.
        """
        source = self.source
        exported = self.exported

        def convert_tensor(name: str) -> bytes:
            """Return the bytes of a tensor, converted without the method."""
            return b"".join(exported.blocks(name))

        # keys that are not of the conversion: those of llama.cpp's quantiser, and about shards
        later_keys = []
        if self.quantisation is not None:
            later_keys += [QUANTISED, *self.quantisation.keys]
        if len(self.files) > 1:
            later_keys += SPLIT_KEYS
        record = record_of_export(
            plain=exported.unlabelled,  # the model has its own name, such as "Qwen3 8B"
            header=exported.model.header,  # such as "Qwen3 8B yarn4"
            read=convert_tensor,
            edit=self.result.edit,
            later_keys=later_keys,
        )
        return original_record(source, source_record(source), gguf=record)


def export_plan(source: Source, recipe: Recipe, target: Target) -> ExportPlan:
    """Plan the conversion of a checkpoint to a GGUF file, with the schedule in its header.

    Parameters and errors are those of `make_plan`.
    """
    # with --replace, `first` and `source` are the model before the first run of ropeconv
    inspection, first, source = first_inspection(source, target)
    start = begin(inspection, first, recipe, target)

    # the conversion without any scaling, whose name has the method; then the encoding, an edit of
    # that which puts the schedule in
    label = ""
    if not isinstance(recipe.method, AsIs):
        label = recipe.method.label
    spec = start.spec.unscaled()
    converter = _choose_converter(inspection, target)
    imatrix = None if target.imatrix is None else read_imatrix(target.imatrix)
    quantisation = choose_quantisation(target, imatrix)
    exported: GgufExport
    if converter is None:
        exported = export(source, inspection.model_family, spec, label, target, quantisation)
    else:
        exported = stock_export(
            source,
            inspection.model_family,
            spec,
            label,
            target,
            quantisation,
            converter,
            scaled=first.spec.scaled,
        )
    result = _select_encoding(start, exported.model, target)
    planned_header = rewrite(exported.model.header, result.edit)
    types = _plan_types(exported, planned_header)

    arch = arch_of_header(exported.model)
    cache = gguf_cache(exported.model, arch)
    shape = gguf_shape(exported.model, arch, cache)
    if shape is not None:
        shape = shape.with_weights(_data_size(exported, planned_header, types))

    # one file, or several whose tensors are planned; for a type each of llama.cpp's quantiser
    out = target.out or Path(file_name(exported.description, exported.outtype))
    groups = [list(types)]
    if target.split_max_size is not None:
        if quantisation is not None:  # only llama.cpp knows the sizes
            quantiser(quantisation.outtype).check()
        sizes = quantised_sizes(planned_header.tensors, types)
        groups = split_names(sizes, parse_size(target.split_max_size))
    names = shard_names(out.name, len(groups))
    plan = ExportPlan(
        source=source,
        target=target,
        out=out.with_name(names[0]),
        files=(),
        skipped=(),
        recipe=start.recipe,
        family=inspection.name,
        source_spec=inspection.spec,
        replaced_from=None if first is inspection else first.spec,
        before=start.spec,
        schedule=start.schedule,
        result=result,
        warnings=(
            *warnings(inspection, start),
            *result.notes,
            *_notes_on_conversion(source, inspection, exported),
        ),
        notes=(*start.notes, *source.conversion_notes(), *list_notes(start.schedule)),
        kv_cache=cache,
        shape=shape,
        exported=exported,
        planned_types=types,
        fine_tuning=start.fine_tuning,
    )
    if len(groups) > 1:
        return _with_parts(plan, groups, names)

    # The file comes last: its header has the receipt, which is made from the plan without files.
    # `plan.edit` is the edit of the encoding with that receipt.
    header = rewrite(exported.model.header, plan.edit)
    file = PlannedFile(
        action="convert",
        name=out.name,
        size=len(header.bytes_with_reserve(0)) + _data_size(exported, header, types),
        make=plan.write_whole,
        estimated=quantisation is not None,
    )
    return replace(plan, files=(file,))


def _plan_types(exported: GgufExport, header: RewrittenHeader) -> dict[str, int]:
    """The type of each tensor of the output, by llama.cpp where that quantises.

    It is the number that GGUF has for the type: {"blk.0.attn_q.weight": 12} for Q4_K. Empty where
    llama.cpp will choose the types and is not installed.

    Args:
        exported: The conversion of the checkpoint to GGUF, without the method.
        header: Its header with the method.

    Raises:
        UnsupportedBake: llama.cpp needs an importance matrix for it, or another one.
    """
    if exported.quantisation is None:
        return {name: info.type for name, info in header.tensors.items()}
    if not installed("llama_cpp"):
        return {}
    return exported.quantisation.plan(header)


def _with_parts(plan: ExportPlan, groups: list[list[str]], names: list[str]) -> ExportPlan:
    """Return a plan of a conversion whose output is split into several files.

    Args:
        plan: The plan of the conversion, still without files.
        groups: The names of the tensors of each file.
        names: The names of the files, such as `model-00001-of-00003.gguf`.
    """
    # 1. The plan with files of size 0. Its header has keys about the number of files.
    files_of_size_0 = tuple(PlannedFile("convert", name, size=0, estimated=True) for name in names)
    plan_in_parts = replace(plan, files=files_of_size_0)
    header = rewrite(plan_in_parts.exported.model.header, plan_in_parts.edit)

    # 2. The estimated sizes, in bytes. No space is reserved in the header for later edits.
    header_size = len(header.bytes_with_reserve(0))
    tensor_sizes = quantised_sizes(header.tensors, plan_in_parts.planned_types)

    writer = PartWriter(plan_in_parts, tuple(tuple(group) for group in groups))
    files = []
    for number, (name, tensors) in enumerate(zip(names, groups, strict=True)):
        size = sum(pad_size(tensor_sizes[tensor], header.alignment) for tensor in tensors)
        if number == 0:  # the keys of the model are in the first file
            size += header_size
        make = partial(writer.write, number)
        files.append(PlannedFile("convert", name, size, make=make, estimated=True))
    return replace(plan_in_parts, files=tuple(files))


@dataclass(frozen=True)
class PartWriter:
    """Writes the files of a conversion that is split, from one file beside their drafts."""

    plan: ExportPlan
    groups: tuple[tuple[str, ...], ...]
    """The names of the tensors of each file."""

    def write(self, number: int, target: Path, advance: Advance) -> None:
        """Write one file; the whole model is written before the first, and removed after the last.

        Args:
            number: The file, from 0.
            target: Where it is written.
            advance: Called with the bytes written since the last call.

        Raises:
            BadSource: Where the tensors are others than were planned.
        """
        whole = target.with_name("whole.gguf")
        if not whole.exists():
            self.plan.write_whole(whole, advance)
            written = GgufFile.open(whole).header.tensors
            types = {name: info.type for name, info in written.items()}
            # the order of tensors counts too, which equal dictionaries need not share
            if list(types.items()) != list(self.plan.planned_types.items()):
                raise BadSource(
                    "llama.cpp's quantiser chose other types than it had planned; run again"
                )

        write_part(whole, self.groups, number, target, advance)
        is_last = number == len(self.groups) - 1
        if is_last:
            whole.unlink()


def _choose_converter(inspection: ConfigInspection, target: Target) -> StockConverter | None:
    """Return the converter of llama.cpp (convert_hf_to_gguf.py) if it is to convert a checkpoint.

    It does so if the user passes --converter, or if ropeconv cannot convert the family itself.

    Returns:
        The converter; None where ropeconv converts the checkpoint, or refuses it with a reason.

    Raises:
        UnsupportedBake: ropeconv cannot convert the family, and there is no llama.cpp here.
    """
    family = inspection.model_family
    ropeconv_converts = family.gguf is not None
    ropeconv_refuses = bool(family.no_gguf)  # the reason why no GGUF file can be made
    is_known = ropeconv_converts or ropeconv_refuses
    if target.converter is None and is_known:
        return None
    converter = find_converter(target.converter)
    if converter is None:
        raise UnsupportedBake(
            "GGUF output",
            family.display_name,
            "ropeconv does not know its conversion, and no llama.cpp is installed that may",
            "pass --converter PATH, a checkout of llama.cpp with its convert_hf_to_gguf.py",
        )
    # if the converter fails, a message advises to leave --converter out, where that is possible
    return replace(converter, is_optional=ropeconv_converts)


def _data_size(
    exported: GgufExport, header: GgufHeader | RewrittenHeader, types: dict[str, int]
) -> int:
    """The bytes of the tensors of a conversion.

    Args:
        exported: The conversion of the checkpoint to GGUF, without the method.
        header: The header of the file, or a header with the tensors that the method adds.
        types: The type of each tensor. Where there are none, llama.cpp will quantise the tensors
            and is not installed: the result is an estimate.
    """
    if exported.quantisation is None:
        return _end_of(header)
    if not types:
        return round(exported.elements * exported.quantisation.usual_bits / 8)
    return size_of(header.tensors, types)


def _end_of(header: GgufHeader | RewrittenHeader) -> int:
    """The bytes of the tensors of a header."""
    return max((info.offset + info.size for info in header.tensors.values()), default=0)


@dataclass(frozen=True)
class ConversionTarget:
    """A conversion and the file that it is written to."""

    exported: GgufExport
    """The conversion without scaling."""

    header: RewrittenHeader
    """The header of the output before it is quantised."""

    edit: Edit
    """The edit from the conversion to the output."""

    target: Path

    @cached_property
    def header_bytes(self) -> bytes:
        """The beginning of the file: the header, padded up to the first tensor."""
        return self.header.bytes_with_reserve(0)

    @property
    def floats(self) -> Path:
        """The file with the tensors: the target, or the one that llama.cpp quantises."""
        if self.exported.quantisation is not None:
            return self.target.with_name(f"{self.target.name}.floats")
        return self.target


def share_reading(first: ExportPlan, second: ExportPlan) -> bool:
    """Return whether two conversions differ only in types, so that `write_together` takes both."""
    if first.converter is not None or second.converter is not None:
        return False  # llama.cpp's converter reads the weights itself
    if len(first.files) > 1 or len(second.files) > 1:
        return False  # files of a split model are made from one file
    return are_alike(first.exported.tensors, second.exported.tensors)


def bytes_together(plans: Sequence[ExportPlan]) -> int:
    """Return the most bytes that `write_together` has on the disk at one time."""
    size = 0
    for plan in plans:
        size += plan.bytes + plan.temporary_bytes
    return size


def write_together(plans: Sequence[ExportPlan], targets: Sequence[Path], advance: Advance) -> None:
    """Write several conversions of one model, and read and dequantise its weights once.

    Args:
        plans: The plans, of which all `share_reading`.
        targets: The file to write for each.
        advance: Called with the bytes written since the last call.
    """
    conversions = []
    for plan, target in zip(plans, targets, strict=True):
        header = rewrite(plan.exported.model.header, plan.edit)
        conversions.append(ConversionTarget(plan.exported, header, plan.edit, target))
    _write_exports(conversions, advance)


def _write_exports(conversions: Sequence[ConversionTarget], advance: Advance) -> None:
    """Write the files of conversions, and quantise them with llama.cpp where that is planned.

    llama.cpp's quantiser reads a file and writes another file. A conversion that is quantised is
    first written to `floats`, a temporary file. For any other conversion, `floats` is the path of
    the output.

    Args:
        conversions: The conversions of one model, whose tensors differ only in types.
        advance: Called with the bytes written since the last call.
    """
    try:
        # the headers, and behind them the tensors of all conversions, from one reading of the model
        for conversion in conversions:
            floats = conversion.floats
            floats.write_bytes(conversion.header_bytes)
            advance(len(conversion.header_bytes))
        _write_converted_tensors(conversions, advance)

        # the tensors that the method changes or adds, such as rope_freqs.weight
        for conversion in conversions:
            _write_edited_tensors(conversion)
            quantisation = conversion.exported.quantisation
            if quantisation is not None:
                quantisation.run(conversion.floats, conversion.target)
                conversion.floats.unlink()
    finally:
        # after an error, temporary files may be left
        for conversion in conversions:
            if conversion.exported.quantisation is not None:
                conversion.floats.unlink(missing_ok=True)


def _write_converted_tensors(conversions: Sequence[ConversionTarget], advance: Advance) -> None:
    """Write the unchanged tensors of conversions behind their headers.

    Some methods change tensors: `_write_edited_tensors` does that afterwards.

    Args:
        conversions: The conversions, whose headers are written.
        advance: Called with the bytes written since the last call.
    """
    files_of_ropeconv = []
    for conversion in conversions:
        path = conversion.floats
        data_start = len(conversion.header_bytes)
        exported = conversion.exported

        # llama.cpp's script converts one file at a time. The digests of the written tensors are
        # kept for the check of the output, except for tensors that are changed afterwards.
        if isinstance(exported, StockExport):
            changed_later = tuple(conversion.edit.changes)
            exported.write_data(path, data_start, conversion.header, advance, changed_later)
            continue

        # ropeconv writes all its files together, from one reading of the weights
        infos = conversion.header.tensors
        files_of_ropeconv.append(TensorFile(path, data_start, exported.tensors, infos))
    if files_of_ropeconv:
        write_tensors(files_of_ropeconv, advance)


def _write_edited_tensors(conversion: ConversionTarget) -> None:
    """Write the tensors that an edit changes, such as multiplied weights, and new tensors.

    Args:
        conversion: The conversion, whose header and tensors are written.
    """
    edit = conversion.edit
    start = len(conversion.header_bytes)  # the first byte of the tensors
    with conversion.floats.open("r+b") as file:
        write_changes(file, conversion.exported.model.header, start, dict(edit.changes))
        for name, data in edit.added.items():
            file.seek(start + conversion.header.tensors[name].offset)
            file.write(data)


def _notes_on_conversion(
    source: Source, inspection: ConfigInspection, exported: GgufExport
) -> list[str]:
    """Return sentences on parts of a model that llama.cpp lacks or computes in another way.

    None of these stops a conversion, since llama.cpp's own converter does the same.

    Args:
        source: The checkpoint.
        inspection: The inspection of the checkpoint.
        exported: The conversion: a StockExport if llama.cpp's script makes it, otherwise by
            ropeconv.
    """
    notes = []
    spec = inspection.spec
    arch = arch_of_header(exported.model)

    # converted by llama.cpp's script
    if isinstance(exported, StockExport):
        notes.append(
            f"this model is converted by {exported.converter.described}, and ropeconv writes the"
            " RoPE into the result; check the output with `ropeconv validate`"
        )

    # a sliding window, for an architecture in which llama.cpp has none
    has_window = any(size is not None and size < spec.context for size in spec.windows)
    if has_window and arch.window is None:
        notes.append(
            "llama.cpp ignores the sliding window of this model: there every layer sees the whole"
            " context"
        )

    # DeepSeek V3 and others: layers for multi-token prediction
    if exported.without_prediction:
        notes.append(
            "layers that predict further tokens (MTP) are left out, as by llama.cpp's own converter"
        )

    # models of sentence-transformers with a Dense layer behind the pooling
    keeps_projection = bool(exported.projections) or isinstance(exported, StockExport)
    if has_projection(source) and not keeps_projection:
        notes.append(
            "the projection of its embeddings (Dense in modules.json) is left out, as by"
            " llama.cpp's own converter: embeddings are the pooled states"
        )

    # tokenizer.json first composes e and an accent to one character (NFC), which llama.cpp does not
    # do; `composed` is an example of a text that gets other tokens in llama.cpp
    if exported.composes:
        example = ""
        if exported.composed is not None:
            example = f", for example {exported.composed.described}"
        notes.append(
            "llama.cpp does not compose characters (NFC) as tokenizer.json does: text with"
            f" decomposed ones, such as e and a combining accent, becomes other tokens{example};"
            " compose such text before it is sent"
        )

    # llama.cpp splits some texts into other words than tokenizer.json; `recut` is an example of a
    # text that gets other tokens in llama.cpp
    if exported.recut is not None:
        notes.append(
            f"llama.cpp {exported.recut.difference}, and tokenizer.json does not: such text becomes"
            f" other tokens, for example {exported.recut.described}"
        )

    # a vision model, whose vision part is a file of its own (`bake/projector.py`)
    if "vision_config" in source.config():
        notes.append(
            "only the language model is converted here; llama.cpp loads the vision part from a"
            " file mmproj-NAME.gguf, which --converter writes beside the output"
        )
    return notes
