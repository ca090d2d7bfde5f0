"""Plans from one GGUF model to another: a header, some ranges, and the rest as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..encode.gguf import Model, choose_gguf
from ..errors import UnsupportedBake
from ..formats.copying import Advance
from ..formats.gguf import Edit, string
from ..formats.gguf.write import new_size, write_new
from ..inspection.gguf_problems import refused_tensors
from ..inspection.inspect import inspect_gguf
from ..receipts.write import embedded
from ..rope.methods.parts import YarnMethod
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes.llamacpp.read_file import arch_of, read_file, rope_tensors
from ..sources import RECEIPT
from ..sources.gguf import GgufSource
from .plan import GgufOutput, Step, start_spec, warnings


@dataclass(frozen=True)
class GgufPlan(GgufOutput):
    """A plan whose output is a GGUF file, or as many shards as the source has."""

    source: GgufSource
    edit: Edit

    def origin(self, step: Step) -> Path | None:
        """The local file that a step copies; None where it copies nothing."""
        if step.action != "copy":
            return None
        return self.source.file.paths[[step.name for step in self.steps].index(step.name)]


def gguf_plan(
    source: GgufSource,
    recipe: Recipe,
    out: Path | None = None,
    encoding: str = "auto",
    carrier: str = "",
    replace_scaling: bool = False,
    allow_approximate: bool = False,
) -> GgufPlan:
    """Decides everything: schedule, encoding, header, ranges.

    Raises BadSource for a damaged file, UnsupportedBake for what the architecture cannot hold.
    """
    seen, file, reading = inspect_gguf(source), source.file, read_file(source.file)
    vectors = rope_tensors(file)
    refused = refused_tensors(reading, vectors, file.get(f"{reading.arch.name}.rope.scaling.type"))
    if refused:
        raise UnsupportedBake(
            "anything", source.path.name, f"llama.cpp does not load {seen.name} with {refused[0]}", "fetch another file"
        )
    spec = start_spec(seen, recipe, replace_scaling)
    recipe = _inherit_mscale(recipe, source)
    schedule = recipe.schedule(spec)
    model = Model(file.header, file.tensors, vectors, file.chunks)
    choice = choose_gguf(schedule, model, encoding, carrier, allow_approximate)
    note = embedded(source, recipe, schedule, choice)
    edit = choice.edit.merged(Edit({RECEIPT: string(note)}))
    out = out or Path(f"{source.name}-{recipe.method.label}.gguf")
    names = shard_names(out, len(file.paths))
    return GgufPlan(
        source=source,
        out=out.with_name(names[0]),
        recipe=recipe,
        name=seen.name,
        before=spec,
        schedule=schedule,
        choice=choice,
        steps=tuple(_step(source, edit, shard, name) for shard, name in enumerate(names)),
        left_behind=(),
        warnings=(*warnings(seen, recipe, schedule), *choice.notes, *_notes(schedule)),
        edit=edit,
    )


def _inherit_mscale(recipe: Recipe, source: GgufSource) -> Recipe:
    """Models that were trained with a scale of all logits say so in a key: a new YaRN over them keeps it."""
    arch, method = arch_of(source.file), recipe.method
    found = source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier") if arch.log_multiplier else None
    if not isinstance(method, YarnMethod) or method.mscale is not None or not found:
        return recipe
    mscale = found / 0.1 if arch.mla else found
    return replace(recipe, method=replace(method, mscale=mscale, mscale_all_dim=mscale))


def shard_names(out: Path, count: int) -> list[str]:
    """Names of the files of an output: its own, or with llama.cpp's numbers."""
    if count == 1:
        return [out.name]
    return [f"{out.name.removesuffix('.gguf')}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def _step(source: GgufSource, edit: Edit, shard: int, name: str) -> Step:
    header = source.file.headers[shard]
    if shard and not header.tensors.keys() & edit.changes.keys():
        return Step("copy", name, header.size)
    size = header.size if shard else new_size(header, edit)
    return Step("patch", name, size, make=partial(_write, source, shard, edit))


def _write(source: GgufSource, shard: int, edit: Edit, target: Path, advance: Advance) -> None:
    write_new(source.file, shard, edit, target, advance)


def _notes(schedule: Schedule) -> list[str]:
    if schedule.short_inv_freq is None:
        return []
    return ["llama.cpp takes the short or the long list by the window it is started with, not by the prompt"]
