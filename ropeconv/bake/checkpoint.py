"""Plans whose source and output are checkpoints in the HF layout."""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from ..inspection.adapter import ADAPTER_WEIGHTS
from ..inspection.receipts.folder import folder_record, original_record, valid_receipt
from ..inspection.receipts.receipt import FoldedFactors, OriginalRecord, Receipt
from ..models.config import modality_note, text_part
from ..models.family import Family
from ..models.length_limits import LengthLimit, length_limits, limits_in_text, raise_limits
from ..models.schema import DUAL_CHUNK, Config
from ..models.source import ADAPTER, CARD, SINGLE, SOURCE_CARD, Source, SourceFile
from ..models.stored.checkpoint import quantised_weights
from ..rope.errors import RecipeError, shown
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes.drafts import draft_verdicts, mtp_note
from ..runtimes.read_config import rope_dict
from ..runtimes.runtime import find
from ..runtimes.verdict import switch_notes
from .plan import Plan, PlannedFile, source_record
from .start import begin, first_inspection
from .warnings import warnings

SHARD = "model-rope.safetensors"
RENAMED = "model-00001-of-00001.safetensors"
WEIGHTS_OF_ADAPTERS = (ADAPTER_WEIGHTS, "adapter_model.bin")
"""Files of a PEFT adapter that transformers loads beside adapter_config.json."""


@dataclass(frozen=True)
class ExtraShard:
    """The changes that add tensors to a checkpoint."""

    files: list[PlannedFile]
    """New files with weights."""

    texts: dict[str, str]
    """The text of the index, by its name."""

    renamed: dict[str, str]
    """New names of files, by the old ones."""


def extra_shard(source: Source, tensors: Mapping[str, NDArray[np.float32]]) -> ExtraShard:
    """Return the changes that add tensors to a checkpoint, as one more shard.

    The index, model.safetensors.index.json, lists the shards. A checkpoint in one file has no
    index, so an index is made. The file then gets the name of a shard, since readers prefer
    `model.safetensors` to any index.

    Args:
        source: The checkpoint.
        tensors: The tensors by name, written as float32.
    """
    # the new shard, model-rope.safetensors; transformers 4 refuses a file without the metadata
    # {"format": "pt"} (load_state_dict)
    entries = [(name, "F32", data.shape) for name, data in tensors.items()]
    header = header_bytes(entries, {"format": "pt"})
    sizes = {name: data.nbytes for name, data in tensors.items()}
    file_size = len(header) + sum(sizes.values())

    def blocks() -> Iterator[bytes | memoryview]:
        """Yield the bytes of the file: the header, then the tensors in little-endian order."""
        yield header
        for data in tensors.values():
            yield np.ascontiguousarray(data, "<f4").data.cast("B")

    file = PlannedFile("write", SHARD, file_size, make=partial(write_blocks, blocks))

    # the index of the source; for a checkpoint in one file, a new index with the new name of the
    # file, model-00001-of-00001.safetensors
    index = source.text(INDEX)
    new_names = dict[str, str]()
    if index is None:
        total = sum(tensor.stop - tensor.start for tensor in source.tensors.values())
        index = index_text(total, dict.fromkeys(source.tensors, RENAMED))
        new_names = {SINGLE: RENAMED}

    index_with_new_shard = with_shard(index, SHARD, sizes)
    return ExtraShard(files=[file], texts={INDEX: index_with_new_shard}, renamed=new_names)


@dataclass(frozen=True)
class CheckpointPlan(Plan):
    """A plan whose output is a folder in Hugging Face's layout."""

    source: Source
    result: CheckpointResult

    @cached_property
    def original(self) -> OriginalRecord:
        """The source checkpoint, and how the output differs from it, so that `restore` undoes that.

        Small files such as config.json have another text. A shard may be added. A file may have
        another name.
        """
        texts = {}  # the texts of small files such as config.json, by name
        added = []  # large files that the source does not have, such as a new shard
        renamed = {}  # names in the source, by names in the output
        for file in self.files:
            # `origin` is the name of the source file that this file is copied from, or empty
            is_copy = file.origin != ""
            if file.text is not None:
                texts[file.name] = file.text
            elif file.action in ("write", "convert") and not is_copy:
                added.append(file.name)
            if is_copy and file.origin != file.name:
                renamed[file.name] = file.origin

        # tensors that a fold multiplied, which cannot be restored exactly
        source = self.source
        fold = self.result.fold
        multiplied = fold.tensors if fold is not None else ()
        record = folder_record(
            source, texts, added, renamed, self.skipped, multiplied, self._folded_factors()
        )
        return original_record(source, source_record(source), folder=record)

    def _folded_factors(self) -> FoldedFactors:
        """Return the factors of the schedule that are in the weights, not in the config."""
        if self.result.fold is None:
            return FoldedFactors()
        in_config = self.result.in_config
        log_n = self.result.log_n_approximation
        return FoldedFactors(
            attention_factor=self.schedule.attention_factor / in_config.attention_factor,
            softmax_scale=self.schedule.softmax_scale / in_config.softmax_scale,
            gain=1.0 if log_n is None else log_n.gain,
        )

    def transformers_status(self, version: str) -> str:
        """Return the status of the verdict on a version of transformers, such as 4.56.0.

        "unknown" for an empty version, and for versions that the tables do not have.
        """
        if not version:
            return "unknown"
        try:
            row = find(f"transformers@{version}")[0]
        except RecipeError:
            return "unknown"
        return self.result.verdict_of(row).status


def checkpoint_plan(source: Source, recipe: Recipe, target: Target) -> CheckpointPlan:
    """Plan a checkpoint: schedule, encoding, verdicts, files.

    Parameters and errors are those of `make_plan`.
    """
    # the model that the recipe starts from
    inspection, first, source = first_inspection(source, target)
    _check_weights(source)
    config = source.config()
    family = first.model_family

    # Qwen2.5-1M reaches its length by dual chunk attention, which some runtimes apply instead
    chunked = [problem.message for problem in inspection.problems if problem.code == "dual-chunk"]
    if target.dual_chunk and not chunked:
        raise UsageError(
            f"--dual-chunk {target.dual_chunk} is about {DUAL_CHUNK}, which {source.reference} does"
            " not have; leave it out"
        )

    # the schedule, and the encoding that holds it
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
        quantised_weights=lambda: quantised_weights(source),
        judge=first.judge,
    )
    result = select(request)

    # what follows from the encoding that was selected
    if target.fold_into is not None and result.fold is None:
        raise UsageError(
            "--fold-into goes with folded weights; add --encoding weights, or leave it out"
        )
    if result.fold is not None:
        _refuse_adapter(source)
    if result.family is not family:
        _check_tokenizer(source, result.family)
    if first.draft is not None:
        result = replace(result, verdicts=draft_verdicts(first.draft, family, result.verdicts))
    # classes that derive the attention factor from two lengths may need a longer one (original_for)
    asked_context = None
    if result.context != schedule.context:
        asked_context = schedule.context
        schedule = replace(schedule, context=result.context)

    # the files of the output
    copied, skipped = source.files_to_copy(target.all_files)
    limits = [limit for limit in length_limits(source) if limit.tokens < schedule.context]
    files = _files(source, result, copied, limits, schedule.context)
    raised = [limit for limit in limits if not limit.declares(result.family.keys.context)]
    return CheckpointPlan(
        source=source,
        target=target,
        out=target.out or Path(f"{source.name}-{recipe.method.label}"),
        recipe=recipe,
        family=family.name,
        source_spec=inspection.spec,
        replaced_from=None if first is inspection else first.spec,
        before=spec,
        schedule=schedule,
        result=result,
        files=files,
        skipped=tuple(file.name for file in skipped),
        warnings=(
            *warnings(inspection, start),
            *(() if target.dual_chunk else chunked[:1]),
            *_lost_keys(config, family, result, recipe),
            *result.notes,
            *source.conversion_notes(),
        ),
        notes=(*start.notes, *_notes(source, result, schedule, target, raised, spec.mrope_section)),
        kv_cache=inspection.kv_cache,
        shape=inspection.shape,
        asked_context=asked_context,
        draft=first.draft,
        fine_tuning=start.fine_tuning,
    )


def _check_weights(source: Source) -> None:
    """Raise BadSource for a folder without weights; pickled ones are copied unchanged."""
    is_pickled = any(file.name.endswith(".bin") for file in source.files())
    if not source.weights() and not is_pickled:
        _tensors(source)  # raises, except for a config.json


KEYS_OF_EVERY_OUTPUT = frozenset(
    (
        "rope_type type rope_theta factor original_max_position_embeddings max_position_embeddings"
        " partial_rotary_factor"
    ).split()
)
"""Keys of a RoPE dictionary that every output has, in it or beside it."""
KEYS_OF_SCALING = frozenset(
    (
        "attention_factor beta_fast beta_slow truncate mscale mscale_all_dim low_freq_factor"
        " high_freq_factor short_factor long_factor short_mscale long_mscale"
    ).split()
)
"""Keys that follow from the schedule: a new scaling has its own."""


def _lost_keys(
    config: Config, family: Family, result: CheckpointResult, recipe: Recipe
) -> Iterator[str]:
    """Yield a warning about RoPE settings of the source that the output does not have, if any.

    An output may be written for the class of another family. Its RoPE dictionary (rope_scaling or
    rope_parameters) may then lack a setting that the source has.

    Args:
        config: The config.json of the source.
        family: The family of the source.
        result: The config of the output, with the family of the output.
        recipe: The method and its modifiers.
    """
    # RoPE dictionaries, e.g. {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32}. A config.json
    # without one gives the default of the class in transformers, with a note.
    source_rope, notes_on_class_default = rope_dict(text_part(config, family), family)
    output_rope, _ = rope_dict(text_part(result.config, result.family), result.family)
    if notes_on_class_default:  # config.json has no settings that can be lost
        return

    # Every output has keys such as `factor`, in the dictionary or beside it. Keys such as
    # `beta_fast` belong to the scaling, which --as-is keeps and any other method replaces.
    may_be_missing = KEYS_OF_EVERY_OUTPUT
    if not isinstance(recipe.method, AsIs):
        may_be_missing = KEYS_OF_EVERY_OUTPUT | KEYS_OF_SCALING

    lost = []
    for key, value in source_rope.items():
        is_setting = value is not None and not isinstance(value, dict)
        if is_setting and key not in output_rope and key not in may_be_missing:
            lost.append(f"{key} = {shown(value)}")
    if lost:
        yield f"the output is written without {' and '.join(lost)} of the source's RoPE settings"


def _notes(
    source: Source,
    result: CheckpointResult,
    schedule: Schedule,
    target: Target,
    limits: list[LengthLimit],
    sections: tuple[int, ...],
) -> Iterator[str]:
    """Yield sentences for users on consequences of a plan, and on changes beside the RoPE settings.

    Args:
        source: The checkpoint.
        result: The schedule as its encoding writes it.
        schedule: The frequencies, attention factor and lengths that are written.
        target: The options of the output.
        limits: The limits of the length that the output raises.
        sections: The mrope_section of the source.
    """
    # LongRoPE: one list of frequencies for short prompts, and another list for long prompts
    if schedule.short_inv_freq is not None:
        yield from switch_notes(result.family, schedule.original_context, result.verdicts)

    # layers that predict further tokens (MTP), and positions of images (M-RoPE)
    prediction_note = mtp_note(source.config())
    if prediction_note:
        yield prediction_note
    image_note = modality_note(source.config(), sections)
    if image_note:
        yield image_note

    if target.dual_chunk == "drop":
        yield f"the config is written without {DUAL_CHUNK}"
    if limits:
        keys = ", ".join(f"{limit.key} in {limit.file} ({limit.tokens:,})" for limit in limits)
        yield f"raises to {schedule.context:,} tokens what limited prompts to fewer: {keys}"


def _check_tokenizer(source: Source, family: Family) -> None:
    """Raise BadSource for a tokenizer that transformers reads differently in another family."""
    names = {file.name for file in source.files()}
    if "tokenizer.model" in names and "tokenizer.json" not in names:
        raise BadSource(
            f"{source.reference} has tokenizer.model and no tokenizer.json, and transformers reads"
            f" that differently in a {family.name} model; load the tokenizer once and"
            " save_pretrained it, which writes tokenizer.json"
        )


def _refuse_adapter(source: Source) -> None:
    """Raise UsageError for a folder with a PEFT adapter, which a fold would not scale.

    `from_pretrained` loads an adapter that is in the folder of the weights on top of them.
    """
    names = {file.name for file in source.files()}
    if ADAPTER in names and names.intersection(WEIGHTS_OF_ADAPTERS):
        raise UsageError(
            f"{source.reference} has a PEFT adapter ({ADAPTER}), which adds to weights that"
            " --encoding weights scales; choose another encoding, or merge the adapter into the"
            " weights first"
        )


def _tensors(source: Source) -> dict[str, Tensor]:
    """The tensors of a checkpoint, none for a config.json or a graph.

    Raises:
        BadSource: For a checkpoint without weights in safetensors.
    """
    if source.kind in ("config", "graph") or source.weights():
        return source.tensors

    # there are none: say what is there in their place
    names = [file.name for file in source.files()]
    for name in names:
        if name.endswith(".bin"):
            raise BadSource(
                f"{source.reference} has its weights only as pickle ({name}), which ropeconv copies"
                " and does not open, and here they would change; pass --encoding native or factors,"
                " or load it once with transformers and save_pretrained it as safetensors"
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
    source: Source,
    result: CheckpointResult,
    copied: Iterable[SourceFile],
    limits: list[LengthLimit],
    context: int,
) -> tuple[PlannedFile, ...]:
    """The files of the output, sorted by name.

    A file of the source is copied unless something else replaces it, in this order: weights that a
    fold multiplies, a file that a conversion makes, a text that is written anew.

    Args:
        source: The checkpoint.
        result: The schedule as its encoding writes it.
        copied: The files of the source that the output has too.
        limits: The limits of the source that are below the context.
        context: The tokens that the output declares.
    """
    # Texts, of which a later one replaces an earlier one of the same name: those that a conversion
    # makes, the config with the schedule, files with raised limits of the length, and the modelling
    # code of an encoding.
    texts = {name: source.text(name) or "" for name in source.generated_texts()}
    texts["config.json"] = jsontext.dump(result.config, like=source.text("config.json") or "")
    texts |= _with_raised_limits(source, texts, limits, context)
    texts |= result.texts

    # Weights: tensors that are added, as one more shard with its index, for which the only file of
    # a checkpoint gets another name; and shards whose tensors a fold multiplies.
    extra = ExtraShard([], {}, {})  # no files, no texts, and no new names
    if result.added:
        extra = extra_shard(source, result.added)
    texts |= extra.texts
    writers = {}
    if result.fold is not None:
        writers = shard_writers(source, result.fold)

    files = list(extra.files)
    for name, text in texts.items():
        files.append(PlannedFile("write", name, len(text.encode()), text=text))

    # files of the source: changed by a fold, made by a conversion, or copied
    generated = {item.name: item for item in source.generated_files()}
    for file in copied:
        is_renamed = file.name in extra.renamed
        name = extra.renamed.get(file.name, file.name)
        if file.name in writers:  # a fold adds no tensors, so these keep their names
            files.append(PlannedFile("patch", file.name, file.size, make=writers[file.name]))
        elif file.name in generated:
            # only the size of weights follows from their shapes, before anything is converted
            has_known_size = file.name.endswith(".safetensors")
            files.append(
                PlannedFile(
                    action="convert",
                    name=name,
                    size=file.size,
                    make=generated[file.name].write,
                    origin=file.name if is_renamed else "",
                    estimated=not has_known_size,
                )
            )
        elif file.name not in texts:
            files.append(
                PlannedFile(
                    action="copy", name=name, size=file.size, sha256=file.sha256, origin=file.name
                )
            )
    return tuple(sorted(files, key=lambda file: file.name))


def _with_raised_limits(
    source: Source, texts: Mapping[str, str], limits: list[LengthLimit], context: int
) -> dict[str, str]:
    """Return the new texts of files with a limit on the length of prompts, by name of the file.

    Such a limit is `model_max_length` in tokenizer_config.json. A runtime would cut or refuse
    longer prompts, so the limit is raised to the context of the output.

    Args:
        source: The checkpoint.
        texts: By name, the texts of output files that differ from the source, with config.json.
        limits: The limits of the source that are below the context.
        context: The tokens that the output declares.
    """
    # A limit is a number at an offset in a text. The output has another config.json, with other
    # offsets, so the limits in that text are searched for again.
    to_raise = [limit for limit in limits if limit.file != "config.json"]
    for limit in limits_in_text("config.json", texts["config.json"]):
        if limit.tokens < context:
            to_raise.append(limit)
    limits_by_file: dict[str, list[LengthLimit]] = {}
    for limit in to_raise:
        limits_by_file.setdefault(limit.file, []).append(limit)

    new_texts = {}
    for name, limits_of_file in limits_by_file.items():
        # the text of the output, or of the source if the output has the same
        text = texts.get(name) or source.text(name) or ""
        new_texts[name] = raise_limits(limits_of_file, context, text.encode()).decode()
    return new_texts


CARD_SIZE = 4096
"""The usual size of a card in bytes."""


def with_readme(
    plan: CheckpointPlan,
    make: Callable[[Path, Advance], None],
    size: int = CARD_SIZE,
    sha256: str | None = None,
) -> CheckpointPlan:
    """Return a plan that also writes a README.md.

    The README.md of the source is copied as README-source.md, except for one that ropeconv wrote
    into the source, which is replaced. The plan does not change where the source has both names,
    and for a config.json without weights.

    Args:
        plan: A plan of a folder, without the README.md.
        make: Writes the file.
        size: Its approximate size in bytes.
        sha256: The hash of its content, where that is known.
    """
    if plan.source.kind == "config":
        return plan

    # a card that ropeconv wrote into the source is replaced
    files = {file.name: file for file in plan.files}
    if _has_own_card(plan.source):
        files.pop(CARD, None)

    # any other card of the source keeps its text under another name
    if CARD in files and SOURCE_CARD in files:
        return plan
    source_card = files.pop(CARD, None)
    if source_card is not None:
        files[SOURCE_CARD] = replace(
            source_card, name=SOURCE_CARD, origin=source_card.origin or CARD
        )

    files[CARD] = PlannedFile(
        action="write", name=CARD, size=size, sha256=sha256, make=make, estimated=True
    )
    return replace(plan, files=tuple(sorted(files.values(), key=lambda file: file.name)))


def _has_own_card(source: Source) -> bool:
    """Whether a source is an output of ropeconv that still has the README.md of ropeconv."""
    receipt = valid_receipt(source)
    if receipt is None:
        return False
    sizes = {file.name: file.size for file in source.files()}
    for file in receipt.files:
        was_written = file.name == CARD and file.action == "write"
        if was_written and file.size == sizes.get(CARD):
            return True
    return False


def with_readme_of(plan: CheckpointPlan, receipt: Receipt) -> CheckpointPlan:
    """Return the plan with a README.md, where the receipt of the output lists one as written."""
    for file in receipt.files:
        if (file.name, file.action) == (CARD, "write"):
            # an empty one: the text of a card depends on the version that wrote it
            return with_readme(plan, lambda target, advance: target.touch(), file.size, file.sha256)
    return plan
