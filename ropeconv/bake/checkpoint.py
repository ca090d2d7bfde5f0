"""Plans whose source and output are checkpoints in the HF layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..encode import CheckpointResult, EncodeRequest, Target, select
from ..encode.fold.shards import dtype_notes, folded_shards, grown_index
from ..errors import BadSource, UsageError
from ..families import Family
from ..formats import jsontext
from ..formats.index import INDEX
from ..formats.safetensors import Tensor
from ..formats.tokenizer_config import raised
from ..inspection.inspect import TOKENIZER
from ..rope.errors import RecipeError
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes import find
from ..runtimes.two_lists import switching
from ..sources import Source
from .extra_shard import extra_shard
from .inherited import inherit_mscale, inherited_notes, mscale_of_config
from .original import original_of_folder
from .plan import Plan, PlannedFile
from .start import derivation, first_inspection, scheduled, start_spec
from .warnings import warnings

CONVERTED = {"meta": "Meta's layout", "gguf": "a GGUF file"}
"""Kinds of sources whose safetensors files are generated, and what they are."""


@dataclass(frozen=True)
class CheckpointPlan(Plan):
    """A plan whose output is a folder in Hugging Face's layout."""

    source: Source
    result: CheckpointResult

    def origin(self, file: PlannedFile) -> Path | None:
        """The local path of the file that a planned file is copied from; None where it is not copied."""
        return self.source.path(file.origin or file.name) if file.action == "copy" else None

    def predicted(self, version: str) -> str:
        """The status for one version of transformers; "unknown" for versions that the tables do not have."""
        if not version:
            return "unknown"
        try:
            return self.result.status_of(find(f"transformers@{version}")[0])
        except RecipeError:
            return "unknown"


def checkpoint_plan(source: Source, recipe: Recipe, target: Target) -> CheckpointPlan:
    """The plan of a checkpoint: schedule, encoding, verdicts, files. Parameters and errors are those of `make_plan`."""
    seen, first, source = first_inspection(source, target)
    if source.kind != "config" and not source.weights() and not _pickled(source):
        raise _no_weights(source)
    config, family = source.config(), first.family
    spec = start_spec(first, recipe, target)
    given, recipe = recipe, inherit_mscale(recipe, mscale_of_config(config, first))
    schedule = scheduled(first, recipe, spec, seen.spec.context)
    result = select(EncodeRequest(schedule, spec, family, config, target, lambda: _tensors(source)))
    target.check_folded(result.fold is not None)
    if result.family is not family:
        _refuse_other_tokens(source, result.family)
    if result.context != schedule.context:
        schedule = replace(schedule, context=result.context)
    files, skipped = _files(source, result, schedule, target)
    return CheckpointPlan(
        source=source,
        target=target,
        out=target.out or Path(f"{source.name}-{recipe.method.label}"),
        recipe=recipe,
        family=family.name,
        source_spec=seen.spec,
        before=spec,
        schedule=schedule,
        result=result,
        files=files,
        skipped=skipped,
        warnings=(
            *warnings(seen, recipe, spec, schedule),
            *result.notes,
            *source.conversion_notes(),
            *dtype_notes(target.fold.dtype or "stored"),
        ),
        notes=(
            *filter(None, (first.assumption,)),
            *derivation(seen, recipe, spec),
            *inherited_notes(given, recipe, schedule),
            *_two_lists(result, schedule),
        ),
        kv_cache=seen.kv_cache,
        original=original_of_folder(source, files, skipped, result.fold),
    )


def _two_lists(result: CheckpointResult, schedule: Schedule) -> tuple[str, ...]:
    """What runtimes do with two factor lists; empty for one."""
    if schedule.short_inv_freq is None:
        return ()
    return switching(result.family, schedule.original_context, result.verdicts)


def _refuse_other_tokens(source: Source, other: Family) -> None:
    """Raises BadSource without tokenizer.json: classes of other model types read tokenizer.model in other ways."""
    names = {file.name for file in source.files()}
    if "tokenizer.model" in names and "tokenizer.json" not in names:
        raise BadSource(
            f"{source.reference} has tokenizer.model and no tokenizer.json, and transformers reads that otherwise in a "
            f"{other.name} model; load the tokenizer once and save_pretrained it, which writes tokenizer.json"
        )


def _pickled(source: Source) -> str:
    """The name of a file with the weights as pickle, which are copied as they are; empty without one."""
    names = [file.name for file in source.files()]
    return next((name for name in names if name.endswith(".bin")), "")


def _no_weights(source: Source) -> BadSource:
    names, pickled = [file.name for file in source.files()], _pickled(source)
    if pickled:
        return BadSource(
            f"{source.reference} has its weights only as pickle ({pickled}), which ropeconv copies and does not open, "
            "and here they would change; take --encoding native or factors, or load it once with transformers and "
            "save_pretrained it as safetensors"
        )
    if any(name.endswith(".safetensors") and "-of-" in name for name in names):
        return BadSource(f"{source.reference} has shards and no {INDEX} to say what they hold; download that file too")
    return BadSource(
        f"{source.reference} has no safetensors weights; "
        "give the complete folder, or its config.json alone to bake only that"
    )


def _tensors(source: Source) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name. Raises UsageError for one that is converted and has no headers yet."""
    if source.kind in CONVERTED:
        raise UsageError(f"{CONVERTED[source.kind]} is folded in two steps: apply it to a folder first, then fold that")
    if source.kind != "config" and not source.weights():
        raise _no_weights(source)
    return source.tensors


def _files(
    source: Source, result: CheckpointResult, schedule: Schedule, target: Target
) -> tuple[tuple[PlannedFile, ...], tuple[str, ...]]:
    """The files of the output, sorted by name, and the names of files of the source that it leaves out."""
    copied, skipped = source.copied_files(target.all_files)
    dtype = target.fold.dtype or "stored"
    texts = {name: source.text(name) or "" for name in source.generated_texts()}
    texts["config.json"] = jsontext.dump(result.config, like=source.text("config.json") or "")
    tokenizer = raised(source.text(TOKENIZER), schedule.context)
    if tokenizer is not None:
        texts[TOKENIZER] = tokenizer
    texts |= result.texts
    generated = {item.name: item for item in source.generated_files()}
    folded = {shard.name: shard for shard in folded_shards(source, result.fold, dtype)}
    extra = extra_shard(source, result.added)
    texts |= extra.texts or grown_index(source, result.fold, dtype)
    files = [*extra.files, *(PlannedFile("write", name, len(text.encode()), text=text) for name, text in texts.items())]
    for file in copied:
        if file.name in folded:
            shard = folded[file.name]
            files.append(PlannedFile("patch", shard.name, shard.size, make=shard.write))
        elif file.name in generated:
            made, estimated = generated[file.name], not file.name.endswith(".safetensors")
            files.append(PlannedFile("convert", file.name, file.size, make=made.write, estimated=estimated))
        elif file.name not in texts:
            name = extra.renamed.get(file.name, file.name)
            files.append(PlannedFile("copy", name, file.size, file.sha256, origin=file.name))
    return tuple(sorted(files, key=lambda file: file.name)), tuple(file.name for file in skipped)
