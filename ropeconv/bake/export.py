"""Plans whose source is a checkpoint and whose output is a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..encode import Target
from ..encode.gguf import select_gguf
from ..export import Exported, export
from ..export.exported import SMALL
from ..export.metadata import file_name
from ..export.quantise import FTYPES, quantise
from ..export.write import write_tensors
from ..formats.copying import Advance
from ..formats.gguf import Edit, Rewritten, rewrite, string
from ..formats.gguf.write import write_changes
from ..formats.index import INDEX
from ..inspection.inspect import ConfigInspection
from ..inspection.kv_cache import gguf_cache
from ..receipts import embedded
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..runtimes.llamacpp import arch_of_header
from ..sources import RECEIPT, Source
from .inherited import inherit_mscale, inherited_notes, mscale_of_config
from .original import original_of_export
from .plan import GgufOutput, PlannedFile
from .record import receipt_of
from .start import derivation, first_inspection, scheduled, start_spec
from .warnings import list_notes, warnings


@dataclass(frozen=True)
class ExportPlan(GgufOutput):
    """A plan whose output is a GGUF file converted from safetensors.

    exported: the conversion without scaling. edit: from that to the output.
    """

    source: Source
    exported: Exported
    edit: Edit

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of files of the source that nothing of the output is made of, which may change meanwhile."""
        read = {*self.source.weights(), *SMALL, INDEX, RECEIPT}
        return tuple(file.name for file in self.source.files() if file.name not in read)


def export_plan(source: Source, recipe: Recipe, target: Target) -> ExportPlan:
    """The plan of a conversion: schedule, encoding, header, tensors. Parameters and errors are those of `make_plan`."""
    seen, first, source = first_inspection(source, target)
    spec = start_spec(first, recipe, target)
    given, recipe = recipe, inherit_mscale(recipe, mscale_of_config(source.config(), first))
    schedule = scheduled(first, recipe, spec, seen.spec.context)
    label = "" if isinstance(recipe.method, AsIs) else recipe.method.label
    exported = export(source, seen.family, spec.unscaled(), label, target.gguf)
    result = select_gguf(schedule, exported.model, target)
    original = original_of_export(source, exported, result.edit)
    note = embedded(receipt_of(source, target, seen.name, recipe, seen.spec, schedule, result, original))
    edit = result.edit.merged(Edit({RECEIPT: string(note)}))
    made = rewrite(exported.model.header, edit)
    out = target.out or Path(file_name(exported.description, exported.outtype))
    size = _size(exported, made)
    return ExportPlan(
        source=source,
        target=target,
        out=out,
        recipe=recipe,
        family=seen.name,
        source_spec=seen.spec,
        before=spec,
        schedule=schedule,
        result=result,
        files=(_file(out.name, size, exported, made, edit),),
        skipped=(),
        warnings=(*warnings(seen, recipe, spec, schedule), *result.notes, *_notes(source, seen, exported)),
        notes=(
            *filter(None, (first.assumption,)),
            *derivation(seen, recipe, spec),
            *inherited_notes(given, recipe, schedule),
            *list_notes(schedule),
        ),
        kv_cache=gguf_cache(exported.model, arch_of_header(exported.model)),
        exported=exported,
        edit=edit,
    )


def _file(name: str, size: int, exported: Exported, made: Rewritten, edit: Edit) -> PlannedFile:
    write = partial(_write, exported, made, edit)
    return PlannedFile("convert", name, size, make=write, estimated=bool(exported.quantised))


def _size(exported: Exported, made: Rewritten) -> int:
    """Size of the output in bytes; an estimate where llama.cpp quantises it."""
    head, last = len(made.place(0)), max(info.offset + info.size for info in made.tensors.values())
    if not exported.quantised:
        return head + last
    elements = sum(tensor.elements for tensor in exported.tensors)
    return head + round(elements * FTYPES[exported.quantised][1] / 8)


def _write(exported: Exported, made: Rewritten, edit: Edit, target: Path, advance: Advance) -> None:
    if not exported.quantised:
        return _write_floats(exported, made, edit, target, advance)
    floats = target.with_name(target.name + ".floats")
    try:
        _write_floats(exported, made, edit, floats, advance)
        quantise(floats, target, exported.quantised)
    finally:
        floats.unlink(missing_ok=True)


def _write_floats(exported: Exported, made: Rewritten, edit: Edit, target: Path, advance: Advance) -> None:
    head = made.place(0)
    target.write_bytes(head)
    advance(len(head))
    write_tensors(target, len(head), exported.tensors, made.tensors, advance)
    with target.open("r+b") as file:
        write_changes(file, exported.model.header, len(head), dict(edit.changes))
        for item in edit.added:
            file.seek(len(head) + made.tensors[item.name].offset)
            file.write(item.data)


def _notes(source: Source, seen: ConfigInspection, exported: Exported) -> list[str]:
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
        found.append("only the language model is converted; llama.cpp takes the vision part from a file of its own")
    return found
