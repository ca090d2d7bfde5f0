"""Plans whose source and output are GGUF files: a new header, changed ranges, and the rest copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..encode import Target
from ..encode.gguf import GgufModel, select_gguf
from ..errors import UnsupportedBake, UsageError
from ..formats.copying import Advance
from ..formats.gguf import Edit, string
from ..formats.gguf.write import new_size, write_new
from ..inspection.gguf_problems import refused_tensors
from ..inspection.inspect import inspect_gguf
from ..receipts import embedded
from ..receipts.gguf_original import ARCH, first_gguf
from ..rope.recipe import Recipe
from ..runtimes.llamacpp.read_file import read_file, rope_tensors
from ..sources import RECEIPT
from ..sources.gguf import GgufSource
from .inherited import inherit_mscale, inherited_notes, mscale_of_gguf
from .original import original_of_gguf
from .plan import GgufOutput, PlannedFile
from .record import receipt_of
from .running import modelfile_notes
from .start import derivation, scheduled, start_spec
from .warnings import list_notes, warnings


@dataclass(frozen=True)
class GgufPlan(GgufOutput):
    """A plan whose output is a GGUF file, or as many shards as the source has. edit: of its first shard and tensors."""

    source: GgufSource
    edit: Edit

    def origin(self, file: PlannedFile) -> Path | None:
        """The local path of the shard that a planned file is copied from; None where it is not copied."""
        if file.action != "copy":
            return None
        return self.source.file.shards[[one.name for one in self.files].index(file.name)].path()


def gguf_plan(source: GgufSource, recipe: Recipe, target: Target) -> GgufPlan:
    """The plan of a GGUF file: schedule, encoding, header, ranges. Parameters and errors are those of `make_plan`."""
    seen, file, reading = inspect_gguf(source), source.file, read_file(source.file)
    if target.gguf.assume_arch_keys and not reading.arch.assumed:
        raise UsageError(f"{reading.arch.name} is in the table; leave --assume-arch-keys out")
    vectors = rope_tensors(file)
    refused = refused_tensors(reading, vectors, file.get(f"{reading.arch.name}.rope.scaling.type"))
    if refused:
        why = f"llama.cpp does not load {seen.name} with {refused[0]}"
        raise UnsupportedBake("anything", file.name, why, "download another file")
    model, first, begin = GgufModel(file.header, file.tensors, vectors), None, seen
    if target.replace and (first := first_gguf(file, reading.spec)) is not None:
        model = model.after(first[1].edit)
        begin = replace(seen, name=str(model.get(ARCH)), spec=model.reading().spec, first=None)
    spec = start_spec(begin, recipe, target)
    given, recipe = recipe, inherit_mscale(recipe, mscale_of_gguf(source))
    schedule = scheduled(begin, recipe, spec, seen.spec.context)
    result = select_gguf(schedule, model, target)
    original = original_of_gguf(source, reading.spec, result.edit, target.replace)
    note = embedded(receipt_of(source, target, seen.name, recipe, seen.spec, schedule, result, original))
    edit = result.edit.merged(Edit({RECEIPT: string(note)}))
    if first is not None:
        edit = first[1].edit.then(edit)
    out, files = _place(source, edit, recipe, target)
    return GgufPlan(
        source=source,
        target=target,
        out=out,
        recipe=recipe,
        family=seen.name,
        source_spec=seen.spec,
        before=spec,
        schedule=schedule,
        result=result,
        files=files,
        skipped=(),
        warnings=(*warnings(seen, recipe, spec, schedule), *result.notes),
        notes=(
            *derivation(seen, recipe, spec),
            *inherited_notes(given, recipe, schedule),
            *list_notes(schedule),
            *modelfile_notes(source, schedule.context),
        ),
        kv_cache=seen.kv_cache,
        edit=edit,
    )


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
