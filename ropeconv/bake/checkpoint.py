"""Plans whose source and output are checkpoints in the HF layout."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..convert.encoding import CheckpointResult, EncodeRequest, select
from ..convert.fold import shard_writers
from ..convert.target import Target
from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..formats.disk import Advance, write_blocks
from ..formats.safetensors import INDEX, Tensor, header_bytes, index_text, with_shard
from ..inspection.receipts.folder import folder_record, original_record, valid_receipt
from ..inspection.receipts.receipt import OriginalRecord, Receipt
from ..models.config import modality_note
from ..models.family import Family
from ..models.length_limits import LengthLimit, length_limits, limits_in_text, raise_limits
from ..models.schema import DUAL_CHUNK
from ..models.source import CARD, SINGLE, SOURCE_CARD, Source
from ..rope.errors import RecipeError
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes.drafts import draft_verdicts, mtp_note
from ..runtimes.runtime import find
from ..runtimes.verdict import switch_notes
from .plan import Plan, PlannedFile, source_record
from .start import begin, first_inspection
from .warnings import warnings

SHARD = "model-rope.safetensors"
RENAMED = "model-00001-of-00001.safetensors"


def extra_shard(
    source: Source, tensors: Mapping[str, NDArray[np.float32]]
) -> tuple[list[PlannedFile], dict[str, str], dict[str, str]]:
    """Return the files that add float32 tensors to a checkpoint: new ones, new texts, and new names
    by the old ones.

    A checkpoint in one file gets an index, and its file another name, since readers prefer
    `model.safetensors` to any index.
    """
    header = header_bytes(
        [(name, "F32", data.shape) for name, data in tensors.items()], {"format": "pt"}
    )
    size = len(header) + sum(data.nbytes for data in tensors.values())

    def blocks() -> Iterator[bytes | memoryview]:
        yield header
        yield from (np.ascontiguousarray(data, "<f4").data.cast("B") for data in tensors.values())

    index = source.text(INDEX)
    renamed = dict[str, str]()
    if index is None:
        total = sum(tensor.stop - tensor.start for tensor in source.tensors.values())
        index = index_text(total, dict.fromkeys(source.tensors, RENAMED))
        renamed = {SINGLE: RENAMED}
    text = with_shard(index, SHARD, {name: data.nbytes for name, data in tensors.items()})
    return (
        [PlannedFile("write", SHARD, size, make=partial(write_blocks, blocks))],
        {INDEX: text},
        renamed,
    )


@dataclass(frozen=True)
class CheckpointPlan(Plan):
    """A plan whose output is a folder in Hugging Face's layout."""

    source: Source
    result: CheckpointResult

    @cached_property
    def original(self) -> OriginalRecord:
        source, fold = self.source, self.result.fold
        texts = {file.name: file.text for file in self.files if file.text is not None}
        without_text = [file for file in self.files if file.text is None and not file.origin]
        added = [file.name for file in without_text if file.action in ("write", "convert")]
        renamed = {
            file.name: file.origin
            for file in self.files
            if file.origin and file.origin != file.name
        }
        multiplied = fold.tensors if fold is not None else ()
        record = folder_record(source, texts, added, renamed, self.skipped, multiplied)
        return original_record(source, source_record(source), folder=record)

    def predicted(self, version: str) -> str:
        """Return the status for one version of transformers; "unknown" for versions that are not in
        the tables.
        """
        if not version:
            return "unknown"
        try:
            return self.result.verdict_of(find(f"transformers@{version}")[0]).status
        except RecipeError:
            return "unknown"


def checkpoint_plan(source: Source, recipe: Recipe, target: Target) -> CheckpointPlan:
    """Plan a checkpoint: schedule, encoding, verdicts, files. Parameters and errors are those of
    `make_plan`.
    """
    inspection, first, source = first_inspection(source, target)
    if not source.weights() and not any(file.name.endswith(".bin") for file in source.files()):
        _tensors(source)  # raises, except for a config.json; pickled weights are copied unchanged
    config = source.config()
    family = first.model_family
    chunked = [problem.message for problem in inspection.problems if problem.code == "dual-chunk"]
    if target.dual_chunk and not chunked:
        raise UsageError(
            f"--dual-chunk {target.dual_chunk} is about {DUAL_CHUNK}, which {source.reference} does"
            " not have; leave it out"
        )
    start = begin(inspection, first, recipe, target)
    recipe = start.recipe
    spec = start.spec
    schedule = start.schedule
    request = EncodeRequest(
        schedule=schedule,
        spec=spec,
        family=family,
        config=config,
        target=target,
        tensors=lambda: _tensors(source),
        judge=first.judge,
    )
    result = select(request)
    if target.fold_into is not None and result.fold is None:
        raise UsageError(
            "--fold-into goes with folded weights; add --encoding weights, or leave it out"
        )
    if result.family is not family:
        _check_tokenizer(source, result.family)
    if first.draft is not None:
        result = replace(result, verdicts=draft_verdicts(first.draft, family, result.verdicts))
    if result.context != schedule.context:
        schedule = replace(schedule, context=result.context)
    files, skipped, limits = _files(source, result, schedule.context, target)
    return CheckpointPlan(
        source=source,
        target=target,
        out=target.out or Path(f"{source.name}-{recipe.method.label}"),
        recipe=recipe,
        family=family.name,
        source_spec=inspection.spec,
        before=spec,
        schedule=schedule,
        result=result,
        files=files,
        skipped=skipped,
        warnings=(
            *warnings(inspection, start),
            *(() if target.dual_chunk else chunked[:1]),
            *result.notes,
            *source.conversion_notes(),
        ),
        notes=(*start.notes, *_notes(source, result, schedule, target, limits, spec.mrope_section)),
        kv_cache=inspection.kv_cache,
        draft=first.draft,
        fine_tuning=start.fine_tuning,
    )


def _notes(
    source: Source,
    result: CheckpointResult,
    schedule: Schedule,
    target: Target,
    limits: list[LengthLimit],
    sections: tuple[int, ...],
) -> Iterator[str]:
    """Yield what the files of an output do beyond the schedule.

    limits: those of the length that it raises. sections: the mrope_section of the source.
    """
    if schedule.short_inv_freq is not None:
        yield from switch_notes(result.family, schedule.original_context, result.verdicts)
    yield from filter(None, (mtp_note(source.config()), modality_note(source.config(), sections)))
    if target.dual_chunk == "drop":
        yield f"the config is written without {DUAL_CHUNK}"
    if limits:
        keys = ", ".join(f"{limit.key} in {limit.file} ({limit.tokens:,})" for limit in limits)
        yield f"raises to {schedule.context:,} tokens what limited prompts to fewer: {keys}"


def _check_tokenizer(source: Source, family: Family) -> None:
    """Raise BadSource for a tokenizer that transformers reads differently when the family changes
    to another.
    """
    names = {file.name for file in source.files()}
    if "tokenizer.model" in names and "tokenizer.json" not in names:
        raise BadSource(
            f"{source.reference} has tokenizer.model and no tokenizer.json, and transformers reads"
            f" that differently in a {family.name} model; load the tokenizer once and"
            " save_pretrained it, which writes tokenizer.json"
        )


def _tensors(source: Source) -> dict[str, Tensor]:
    """The tensors of a checkpoint, none for a config.json or a graph. Raises BadSource without
    safetensors weights.
    """
    if source.kind in ("config", "graph") or source.weights():
        return source.tensors
    names = [file.name for file in source.files()]
    pickled = next((name for name in names if name.endswith(".bin")), "")
    if pickled:
        raise BadSource(
            f"{source.reference} has its weights only as pickle ({pickled}), which ropeconv copies"
            " and does not open, and here they would change; pass --encoding native or factors, or"
            " load it once with transformers and save_pretrained it as safetensors"
        )
    if any(name.endswith(".safetensors") and "-of-" in name for name in names):
        raise BadSource(
            f"{source.reference} has shards and no {INDEX} to say what they hold; download that"
            " file too"
        )
    raise BadSource(
        f"{source.reference} has no safetensors weights; give the complete folder, or only its"
        " config.json to bake that"
    )


def _files(
    source: Source, result: CheckpointResult, context: int, target: Target
) -> tuple[tuple[PlannedFile, ...], tuple[str, ...], list[LengthLimit]]:
    """The files of the output by name, the files that it leaves out, and the limits of the length
    that it raises.
    """
    copied, skipped = source.files_to_copy(target.all_files)
    texts = {name: source.text(name) or "" for name in source.generated_texts()}
    texts["config.json"] = jsontext.dump(result.config, like=source.text("config.json") or "")
    low = [limit for limit in length_limits(source) if limit.tokens < context]
    texts |= _raised(source, texts, low, context) | dict(result.texts)
    generated = {item.name: item for item in source.generated_files()}
    files, new_texts, renamed = extra_shard(source, result.added) if result.added else ([], {}, {})
    folded = {} if result.fold is None else shard_writers(source, result.fold)
    texts |= new_texts
    files += [
        PlannedFile("write", name, len(text.encode()), text=text) for name, text in texts.items()
    ]
    for file in copied:
        name = renamed.get(file.name, file.name)
        if file.name in folded:
            files.append(PlannedFile("patch", file.name, file.size, make=folded[file.name]))
        elif file.name in generated:
            origin = file.name if file.name in renamed else ""
            estimated = not file.name.endswith(".safetensors")
            write = generated[file.name].write
            files.append(
                PlannedFile(
                    "convert", name, file.size, make=write, origin=origin, estimated=estimated
                )
            )
        elif file.name not in texts:
            files.append(PlannedFile("copy", name, file.size, file.sha256, origin=file.name))
    raised_limits = [limit for limit in low if not limit.declares(result.family.keys.context)]
    return (
        tuple(sorted(files, key=lambda file: file.name)),
        tuple(file.name for file in skipped),
        raised_limits,
    )


def _raised(
    source: Source, texts: Mapping[str, str], low: list[LengthLimit], context: int
) -> dict[str, str]:
    """The texts of files with limits raise_limits to the context. low: limits of the source."""
    in_config = [
        limit
        for limit in limits_in_text("config.json", texts["config.json"])
        if limit.tokens < context
    ]
    limits = in_config + [limit for limit in low if limit.file != "config.json"]
    names = dict.fromkeys(limit.file for limit in limits)
    contents = {name: (texts.get(name) or source.text(name) or "").encode() for name in names}
    return {
        name: raise_limits(
            [limit for limit in limits if limit.file == name], context, content
        ).decode()
        for name, content in contents.items()
    }


CARD_SIZE = 4096
"""The usual size of a card in bytes."""


def with_readme(
    plan: CheckpointPlan,
    make: Callable[[Path, Advance], None],
    size: int = CARD_SIZE,
    sha256: str | None = None,
) -> CheckpointPlan:
    """Return a plan that also writes a README.md, and copies that of the source as
    README-source.md.

    A README.md that ropeconv wrote into the source is replaced. The plan does not change where the
    source has both names, and for a config.json without weights.

    Args:
        plan: A plan of a folder, without the README.md.
        make: Writes the file.
        size: Its approximate size in bytes.
        sha256: The hash of its content, where that is known.
    """
    if plan.source.kind == "config":
        return plan
    copied = {file.name: file for file in plan.files}
    receipt = valid_receipt(plan.source)
    sizes = {file.name: file.size for file in plan.source.files()}
    written = (CARD, "write", sizes.get(CARD))
    if receipt is not None and any(
        (file.name, file.action, file.size) == written for file in receipt.files
    ):
        copied.pop(CARD, None)
    if CARD in copied:
        if SOURCE_CARD in copied:
            return plan
        card = copied.pop(CARD)
        copied[SOURCE_CARD] = replace(card, name=SOURCE_CARD, origin=card.origin or CARD)
    copied[CARD] = PlannedFile("write", CARD, size, sha256, make=make, estimated=True)
    files = tuple(sorted(copied.values(), key=lambda file: file.name))
    return replace(plan, files=files)


def with_readme_of(plan: CheckpointPlan, receipt: Receipt) -> CheckpointPlan:
    """Return the plan with a README.md, where the receipt of the output lists one that was written
    with it.
    """
    known = next(
        (file for file in receipt.files if (file.name, file.action) == (CARD, "write")), None
    )
    if known is None:
        return plan
    # an empty one: the text of a card depends on the version that wrote it
    return with_readme(plan, lambda target, advance: target.touch(), known.size, known.sha256)
