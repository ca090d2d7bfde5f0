"""Plans whose source and output are GGUF files: a new header, changed ranges, and the rest copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..convert.gguf_encoding import GgufModel, GgufResult
from ..convert.selection import select_gguf
from ..convert.target import Target
from ..convert.to_gguf.export import SMALL, GgufExport, export
from ..convert.to_gguf.metadata import file_name
from ..convert.to_gguf.write import FTYPES, quantise, write_tensors
from ..errors import UnsupportedBake, UsageError
from ..formats.disk import Advance
from ..formats.gguf.edit import Edit, RewrittenHeader, new_size, rewrite, write_changes, write_new
from ..formats.gguf.values import string
from ..formats.safetensors import INDEX
from ..inspection.inspection import ConfigInspection, inspect_gguf
from ..inspection.kv_cache import gguf_cache
from ..inspection.problems import refused_tensors
from ..inspection.receipts.gguf import ARCH, first_gguf
from ..inspection.receipts.receipt import OriginalRecord
from ..inspection.receipts.writer import embedded
from ..models.gguf import GgufSource
from ..models.source import RECEIPT, Source
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..runtimes.llamacpp.archs import arch_of_header
from ..runtimes.llamacpp.read_header import read_file, rope_tensors
from .plan import GgufOutput, PlannedFile
from .record import original_of_export, original_of_gguf, receipt_of
from .start import Start, begin, first_inspection, mscale_of_config, mscale_of_gguf
from .warnings import list_notes, modelfile_notes, warnings


@dataclass(frozen=True)
class GgufPlan(GgufOutput):
    """A plan whose output is an edited GGUF file, or as many shards as the source has."""

    source: GgufSource

    def origin(self, file: PlannedFile) -> Path | None:
        """The local path of the shard that a planned file is copied from; None where it is not copied."""
        if file.action != "copy":
            return None
        return self.source.file.shards[[one.name for one in self.files].index(file.name)].path()


def gguf_plan(source: GgufSource, recipe: Recipe, target: Target) -> GgufPlan:
    """The plan of a GGUF file: schedule, encoding, header, ranges. Parameters and errors are those of `make_plan`."""
    seen, file, reading = inspect_gguf(source), source.file, read_file(source.file)
    if target.assume_arch_keys and not reading.arch.assumed:
        raise UsageError(f"{reading.arch.name} is in the table; leave --assume-arch-keys out")
    vectors = rope_tensors(file)
    refused = refused_tensors(reading, vectors, file.get(f"{reading.arch.name}.rope.scaling.type"))
    if refused:
        why = f"llama.cpp does not load {seen.name} with {refused[0]}"
        raise UnsupportedBake("anything", file.name, why, "download another file")
    model, undo, first = GgufModel(file.header, file.tensors, vectors), None, seen
    if target.replace and (known := first_gguf(file, reading.spec)) is not None:
        undo = known[1].edit
        model = model.after(undo)
        first = replace(seen, name=str(model.get(ARCH)), spec=model.reading().spec, first=None)
    start = begin(seen, first, recipe, target, mscale_of_gguf(source))
    result = select_gguf(start.schedule, model, target)
    original = original_of_gguf(source, reading.spec, result.edit, target.replace)
    edit = _with_receipt(source, target, start, result, original)
    if undo is not None:
        edit = undo.then(edit)
    out, files = _place(source, edit, recipe, target)
    return GgufPlan(
        **_shared(source, target, start, result),
        out=out,
        files=files,
        warnings=(*warnings(seen, start.recipe, start.spec, start.schedule), *result.notes),
        notes=(*start.notes, *list_notes(start.schedule), *modelfile_notes(source, start.schedule.context)),
        kv_cache=seen.kv_cache,
        edit=edit,
    )


def _with_receipt(
    source: Source | GgufSource, target: Target, start: Start, result: GgufResult, original: OriginalRecord
) -> Edit:
    """The edit of an encoding with the receipt among the keys."""
    seen = start.seen
    receipt = receipt_of(source, target, seen.name, start.recipe, seen.spec, start.schedule, result, original)
    return result.edit.merged(Edit({RECEIPT: string(embedded(receipt))}))


def _shared(source: Source | GgufSource, target: Target, start: Start, result: GgufResult) -> dict[str, Any]:
    """The fields that plans of both kinds have alike."""
    return {
        "source": source, "target": target, "recipe": start.recipe, "family": start.seen.name,
        "source_spec": start.seen.spec, "before": start.spec, "schedule": start.schedule, "result": result,
        "skipped": (),
    }  # fmt: skip


def _place(source: GgufSource, edit: Edit, recipe: Recipe, target: Target) -> tuple[Path, tuple[PlannedFile, ...]]:
    """The path of the output (of several shards the first) and its planned files."""
    if target.in_place:
        place = source.place_to_change()
        return place, (shard_file(source, edit, 0, place.name),)
    out = target.out or Path(f"{source.name}-{recipe.method.label}.gguf")
    names = shard_names(out, len(source.file.shards))
    files = tuple(shard_file(source, edit, shard, name) for shard, name in enumerate(names))
    return out.with_name(names[0]), files


def shard_names(out: Path, count: int) -> list[str]:
    """File names of an output of `count` shards: that of `out`, or with llama.cpp's shard numbers for several."""
    if count == 1:
        return [out.name]
    return [f"{out.name.removesuffix('.gguf')}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def shard_file(source: GgufSource, edit: Edit, shard: int, name: str) -> PlannedFile:
    """The planned file of one shard. source: the model. edit: of it. shard: which, from 0. name: of the new file."""
    header = source.file.headers[shard]
    if shard and not header.tensors.keys() & edit.changes.keys():
        return PlannedFile("copy", name, header.size)
    size = header.size if shard else new_size(header, edit)
    return PlannedFile("patch", name, size, make=partial(_write, source, shard, edit))


def _write(source: GgufSource, shard: int, edit: Edit, target: Path, advance: Advance) -> None:
    source.file.shards[shard].path()
    advance(0)  # so that a run that was stopped while a shard was fetched writes nothing
    write_new(source.file, shard, edit, target, advance)


@dataclass(frozen=True)
class ExportPlan(GgufOutput):
    """A plan whose output is a GGUF file converted from safetensors. exported: the conversion without scaling."""

    source: Source
    exported: GgufExport

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of files of the source that nothing of the output is made of, which may change meanwhile."""
        read = {*self.source.weights(), *SMALL, INDEX, RECEIPT}
        return tuple(file.name for file in self.source.files() if file.name not in read)


def export_plan(source: Source, recipe: Recipe, target: Target) -> ExportPlan:
    """The plan of a conversion: schedule, encoding, header, tensors. Parameters and errors are those of `make_plan`."""
    seen, first, source = first_inspection(source, target)
    start = begin(seen, first, recipe, target, mscale_of_config(source.config(), first))
    label = "" if isinstance(recipe.method, AsIs) else recipe.method.label
    exported = export(source, seen.family, start.spec.unscaled(), label, target)
    result = select_gguf(start.schedule, exported.model, target)
    edit = _with_receipt(source, target, start, result, original_of_export(source, exported, result.edit))
    header = rewrite(exported.model.header, edit)
    out = target.out or Path(file_name(exported.description, exported.outtype))
    file = PlannedFile(
        "convert", out.name, _size(exported, header), make=partial(_write_export, exported, header, edit),
        estimated=bool(exported.quantised),
    )  # fmt: skip
    found = warnings(seen, start.recipe, start.spec, start.schedule)
    return ExportPlan(
        **_shared(source, target, start, result),
        out=out,
        files=(file,),
        warnings=(*found, *result.notes, *_notes(source, seen, exported)),
        notes=(*start.notes, *list_notes(start.schedule)),
        kv_cache=gguf_cache(exported.model, arch_of_header(exported.model)),
        exported=exported,
        edit=edit,
    )


def _size(exported: GgufExport, made: RewrittenHeader) -> int:
    """Size of the output in bytes; an estimate where llama.cpp quantises it."""
    head, last = len(made.place(0)), max(info.offset + info.size for info in made.tensors.values())
    if not exported.quantised:
        return head + last
    elements = sum(tensor.elements for tensor in exported.tensors)
    return head + round(elements * FTYPES[exported.quantised][1] / 8)


def _write_export(exported: GgufExport, made: RewrittenHeader, edit: Edit, target: Path, advance: Advance) -> None:
    if not exported.quantised:
        return _write_floats(exported, made, edit, target, advance)
    floats = target.with_name(target.name + ".floats")
    try:
        _write_floats(exported, made, edit, floats, advance)
        quantise(floats, target, exported.quantised)
    finally:
        floats.unlink(missing_ok=True)


def _write_floats(exported: GgufExport, made: RewrittenHeader, edit: Edit, target: Path, advance: Advance) -> None:
    head = made.place(0)
    target.write_bytes(head)
    advance(len(head))
    write_tensors(target, len(head), exported.tensors, made.tensors, advance)
    with target.open("r+b") as file:
        write_changes(file, exported.model.header, len(head), dict(edit.changes))
        for item in edit.added:
            file.seek(len(head) + made.tensors[item.name].offset)
            file.write(item.data)


def _notes(source: Source, seen: ConfigInspection, exported: GgufExport) -> list[str]:
    found = []
    spec, arch = seen.spec, arch_of_header(exported.model)
    if arch.window is None and any(size is not None and size < spec.context for size in spec.windows):
        found.append("llama.cpp ignores the sliding window of this model: there every layer sees the whole context")
    if exported.without_prediction:
        found.append("layers that predict further tokens (MTP) are left out, as by llama.cpp's own converter")
    if exported.composes:
        found.append(
            "llama.cpp does not compose characters (NFC) as tokenizer.json does: text with decomposed ones, such as e "
            "and a combining accent, becomes other tokens; compose such text before it is sent"
        )
    if "vision_config" in source.config():
        found.append("only the language model is converted; llama.cpp loads the vision part from a separate file")
    return found
