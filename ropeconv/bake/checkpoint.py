"""Plans whose source and output are checkpoints in the HF layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..convert.encoding import CheckpointResult, EncodeRequest
from ..convert.fold_files import dtype_notes, folded_shards, grown_index
from ..convert.selection import select
from ..convert.target import Target
from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..formats.disk import Advance, Splice, write_blocks
from ..formats.safetensors import INDEX, Tensor, header_bytes, index_text, with_shard, write_stream
from ..inspection.receipts.folder import stated
from ..inspection.receipts.receipt import Receipt
from ..models.family import Family
from ..models.length_limits import SMALL, LengthLimit, length_limits, limits_in_text, raised
from ..models.schema import DUAL_CHUNK
from ..models.source import CARD, SINGLE, SOURCE_CARD, Source
from ..rope.errors import RecipeError
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes.grouping import find
from ..runtimes.verdict import switching
from .plan import Plan, PlannedFile
from .record import original_of_folder
from .start import begin, first_inspection, mscale_of_config
from .warnings import warnings

SHARD = "model-rope.safetensors"
RENAMED = "model-00001-of-00001.safetensors"


@dataclass(frozen=True)
class Additions:
    """The changes to the files of a checkpoint that add tensors.

    files: to write in addition. texts: text files to write, by name, in place of the source's. renamed: new names of
    files of the source, by their old ones.
    """

    files: tuple[PlannedFile, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


def extra_shard(source: Source, tensors: Mapping[str, NDArray[np.float32]]) -> Additions:
    """The files that add tensors to a checkpoint; empty without tensors.

    source: the checkpoint. tensors: float32, by name. A checkpoint in one file gets an index, and its file another
    name, since readers prefer `model.safetensors` to any index.
    """
    if not tensors:
        return Additions()
    header = header_bytes([(name, "F32", data.shape) for name, data in tensors.items()], {"format": "pt"})
    size = len(header) + sum(data.nbytes for data in tensors.values())
    file = PlannedFile("write", SHARD, size, make=partial(_write, header, tensors))
    index, renamed = source.text(INDEX), {}
    if index is None:
        size = sum(tensor.stop - tensor.start for tensor in source.tensors.values())
        index = index_text(size, dict.fromkeys(source.tensors, RENAMED))
        renamed = {SINGLE: RENAMED}
    text = with_shard(index, SHARD, {name: data.nbytes for name, data in tensors.items()})
    return Additions((file,), {INDEX: text}, renamed)


def _write(header: bytes, tensors: Mapping[str, NDArray[np.float32]], target: Path, advance: Advance) -> None:
    write_stream(target, header, (np.ascontiguousarray(data, "<f4").data for data in tensors.values()))
    advance(target.stat().st_size)


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
    chunked = next((problem for problem in seen.problems if problem.code == "dual-chunk"), None)
    if target.dual_chunk and chunked is None:
        raise UsageError(
            f"--dual-chunk {target.dual_chunk} is about {DUAL_CHUNK}, which {source.reference} does not have; leave it "
            "out"
        )
    start = begin(seen, first, recipe, target, mscale_of_config(config, first))
    recipe, spec, schedule = start.recipe, start.spec, start.schedule
    result = select(EncodeRequest(schedule, spec, family, config, target, lambda: _tensors(source)))
    target.check_folded(result.fold is not None)
    if result.family is not family:
        _refuse_other_tokens(source, result.family)
    if result.context != schedule.context:
        schedule = replace(schedule, context=result.context)
    files, skipped, limits = _files(source, result, schedule, target)
    two_lists = schedule.short_inv_freq is not None
    lists = switching(result.family, schedule.original_context, result.verdicts) if two_lists else ()
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
            *((chunked.message,) if chunked and not target.dual_chunk else ()),
            *result.notes,
            *source.conversion_notes(),
            *dtype_notes(target.fold_dtype or "stored"),
        ),
        notes=(
            *start.notes,
            *lists,
            *((f"the config is written without {DUAL_CHUNK}",) if target.dual_chunk == "drop" else ()),
            *_raised_note(limits, schedule.context),
        ),
        kv_cache=seen.kv_cache,
        original=original_of_folder(source, files, skipped, result.fold),
    )


def _refuse_other_tokens(source: Source, other: Family) -> None:
    """Raises BadSource without tokenizer.json: classes of other model types read tokenizer.model in other ways."""
    names = {file.name for file in source.files()}
    if "tokenizer.model" in names and "tokenizer.json" not in names:
        raise BadSource(
            f"{source.reference} has tokenizer.model and no tokenizer.json, and transformers reads that differently "
            f"in a {other.name} model; load the tokenizer once and save_pretrained it, which writes tokenizer.json"
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
            "and here they would change; pass --encoding native or factors, or load it once with transformers and "
            "save_pretrained it as safetensors"
        )
    if any(name.endswith(".safetensors") and "-of-" in name for name in names):
        return BadSource(f"{source.reference} has shards and no {INDEX} to say what they hold; download that file too")
    return BadSource(
        f"{source.reference} has no safetensors weights; "
        "give the complete folder, or its config.json alone to bake only that"
    )


def _tensors(source: Source) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, from its headers. Raises BadSource where it has no safetensors weights."""
    if source.kind != "config" and not source.weights():
        raise _no_weights(source)
    return source.tensors


def _files(
    source: Source, result: CheckpointResult, schedule: Schedule, target: Target
) -> tuple[tuple[PlannedFile, ...], tuple[str, ...], list[LengthLimit]]:
    """The files of the output by name, names of files that it leaves out, and limits of the length that it raises."""
    copied, skipped = source.copied_files(target.all_files)
    dtype = target.fold_dtype or "stored"
    texts = {name: source.text(name) or "" for name in source.generated_texts()}
    texts["config.json"] = jsontext.dump(result.config, like=source.text("config.json") or "")
    context = schedule.context
    low = [limit for limit in length_limits(source) if limit.tokens < context]
    left = [limit for limit in limits_in_text("config.json", texts["config.json"]) if limit.tokens < context]
    left += [limit for limit in low if limit.file != "config.json"]
    named = [limit for limit in low if not limit.declares(result.family.keys.context)]
    raised_texts, splices = _raised(source, texts, {file.name: file.size for file in copied}, left, context)
    texts |= raised_texts | dict(result.texts)
    generated = {item.name: item for item in source.generated_files()}
    folded = {shard.name: shard for shard in folded_shards(source, result.fold, dtype)}
    extra = extra_shard(source, result.added)
    texts |= extra.texts or grown_index(source, result.fold, dtype)
    files = [*extra.files, *(PlannedFile("write", name, len(text.encode()), text=text) for name, text in texts.items())]
    for file in copied:
        if file.name in folded:
            shard = folded[file.name]
            files.append(PlannedFile("patch", shard.name, shard.size, make=shard.write))
        elif file.name in splices:
            splice = splices[file.name]
            make = partial(write_blocks, partial(_spliced, source, file.name, splice))
            files.append(PlannedFile("patch", file.name, splice.size(file.size), make=make, splice=splice))
        elif file.name in generated:
            made, estimated = generated[file.name], not file.name.endswith(".safetensors")
            name, origin = extra.renamed.get(file.name, file.name), file.name if file.name in extra.renamed else ""
            files.append(PlannedFile("convert", name, file.size, make=made.write, origin=origin, estimated=estimated))
        elif file.name not in texts:
            name = extra.renamed.get(file.name, file.name)
            files.append(PlannedFile("copy", name, file.size, file.sha256, origin=file.name))
    return tuple(sorted(files, key=lambda file: file.name)), tuple(file.name for file in skipped), named


def _raised(
    source: Source, texts: Mapping[str, str], sizes: Mapping[str, int], limits: list[LengthLimit], context: int
) -> tuple[dict[str, str], dict[str, Splice]]:
    """By their names, the small files with limits raised to a context, and the changes to the large ones."""
    small, splices = dict[str, str](), dict[str, Splice]()
    for name in dict.fromkeys(limit.file for limit in limits):
        inside = [limit for limit in limits if limit.file == name]
        if name in texts or sizes[name] <= SMALL:
            content = (texts.get(name) or source.text(name) or "").encode()
            splice = raised(inside, context, content[inside[0].start : inside[-1].stop])
            small[name] = b"".join(splice.applied((content,))).decode()
        else:
            splices[name] = raised(inside, context, source.read(name, inside[0].start, inside[-1].stop))
    return small, splices


def _spliced(source: Source, name: str, splice: Splice) -> Iterator[bytes]:
    return splice.applied(source.stream(name))


def _raised_note(limits: list[LengthLimit], context: int) -> tuple[str, ...]:
    """Which limits of the length are raised; empty without any."""
    if not limits:
        return ()
    named = ", ".join(f"{limit.key} in {limit.file} ({limit.tokens:,})" for limit in limits)
    return (f"raises to {context:,} tokens what limited prompts to fewer: {named}",)


CARD_SIZE = 4096
"""Bytes that a card has, about."""


def with_readme(
    plan: CheckpointPlan, make: Callable[[Path, Advance], None], size: int = CARD_SIZE, sha256: str | None = None
) -> CheckpointPlan:
    """Return a plan that writes a README.md too, and copies that of the source as README-source.md.

    A README.md that ropeconv wrote into the source is replaced. The plan stays as it is where the source has both
    names already, and for a config.json without weights.

    Args:
        plan: Of a folder, without the README.md.
        make: Writes the file.
        size: Its bytes, about.
        sha256: Of its content, where that is known.
    """
    if plan.source.kind == "config":
        return plan
    copied = {file.name: file for file in plan.files}
    if CARD in copied and _is_written(plan.source):
        del copied[CARD]
    if CARD in copied:
        if SOURCE_CARD in copied:
            return plan
        card = copied.pop(CARD)
        copied[SOURCE_CARD] = replace(card, name=SOURCE_CARD, origin=card.origin or CARD)
    copied[CARD] = PlannedFile("write", CARD, size, sha256, make=make, estimated=True)
    files = tuple(sorted(copied.values(), key=lambda file: file.name))
    return replace(plan, files=files, original=original_of_folder(plan.source, files, plan.skipped, plan.result.fold))


def with_readme_of(plan: CheckpointPlan, receipt: Receipt) -> CheckpointPlan:
    """Return the plan of an output whose receipt lists a README.md that was written with it; other plans stay."""
    known = next((file for file in receipt.files if (file.name, file.action) == (CARD, "write")), None)
    return plan if known is None else with_readme(plan, _nothing, known.size, known.sha256)


def _nothing(target: Path, advance: Advance) -> None:
    """Write an empty file: the text of a card cannot be made again, since later versions put it otherwise."""
    target.write_bytes(b"")


def _is_written(source: Source) -> bool:
    """Whether the README.md of a source is as ropeconv wrote it."""
    receipt, sizes = stated(source), {file.name: file.size for file in source.files()}
    return receipt is not None and any(
        (file.name, file.action, file.size) == (CARD, "write", sizes.get(CARD)) for file in receipt.files
    )
