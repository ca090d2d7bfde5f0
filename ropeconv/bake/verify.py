"""verify_output: compares an output with the plan that its recipe and its source give."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from ..convert.target import Target
from ..convert.to_gguf.stock import find_again
from ..errors import BadSource
from ..formats.disk import Advance, sha256
from ..formats.gguf.edit import RESERVED, rewrite
from ..formats.jsontext import JsonObject
from ..formats.kind import is_gguf
from ..inspection.receipts.places import (
    find_source,
    remembered_converter,
    remembered_imatrix,
)
from ..inspection.receipts.receipt import FileRecord, ImatrixRecord, Receipt, SourceRecord
from ..inspection.receipts.storage import check_files, embedded, parse_receipt, read_receipt
from ..models.gguf import GgufSource
from ..models.source import RECEIPT, Source
from ..options import Format, copied
from ..rope.errors import RopeconvError
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..validate.checks import needs_trust
from ..validate.comparison import Comparison
from .apply import make_plan
from .checkpoint import CheckpointPlan, with_readme_of
from .companion_check import member_faults, place_beside
from .file_checks import FolderCheck, GgufCheck
from .findings import Findings, Options, Verification
from .finished import made_from
from .plan import GgufOutput, Plan, PlannedFile
from .regrouped_check import RegroupedCheck, is_regrouped, without_shards
from .restore import restore_plan

NOT_COMPARED = (
    "ropeconv",
    "runtimes",
    "source",
    "files",
    "check",
    "validation",
    "servers",
    "evaluations",
)
"""Keys of a receipt that are of the version and its tables, of the place, or only known after the
files are written.
"""
KINDS_TO_CONVERT = ("meta", "gguf")
"""Kinds of sources whose files are converted."""


def plan_again(comparison: Comparison) -> Plan:
    """Return the plan of an output, made again from its source and the recipe in its receipt.

    Args:
        comparison: The output, its receipt and its source.

    Raises:
        BadSource: Recipe and source give no plan, or one with another schedule or encoding than
            the receipt has; or the converter of llama.cpp, or the importance matrix, that made
            the output is not here.
    """
    receipt = comparison.receipt
    source = comparison.source
    recipe = Recipe.from_dict(receipt.recipe)
    target = target_again(comparison)

    # Names inside of models are made of the name of the source. It may be in another place today,
    # so the plan is made with the name that it had.
    name_today = source.name
    source.name = receipt.source.name
    try:
        plan = make_plan(source, recipe, target)
        has_same_schedule = plan.schedule.digest == receipt.schedule.digest
        has_same_encoding = plan.result.encoding == receipt.encoding
        if not has_same_schedule or not has_same_encoding:
            raise BadSource("it has another encoding")
        if isinstance(plan, CheckpointPlan):
            return with_readme_of(plan, receipt)
        return plan
    except RopeconvError as problem:
        raise BadSource(
            f"{source.reference} and the recipe of {comparison.baked} do not give this output"
            f" ({problem}); name the source it was made from"
        ) from None
    finally:
        source.name = name_today


def target_again(comparison: Comparison) -> Target:
    """Return the options with which an output was made, from its receipt.

    Args:
        comparison: The output, its receipt (the record of how it was made) and its source.

    Raises:
        BadSource: The conversion script or the importance matrix of the run is not on this disk.
    """
    receipt = comparison.receipt
    # the format of the output; the option --to does not go with a GGUF file as the source
    to: Format | None = receipt.target.to
    if isinstance(comparison.source, GgufSource):
        to = None

    # llama.cpp's conversion script: the receipt has its digest, and the user's state its last path
    converter_script = None
    if receipt.converter is not None:
        digest = receipt.converter.sha256
        last_path = remembered_converter(digest)
        converter_script = find_again(digest, last_path).script

    # the importance matrix, with which llama.cpp quantised the file
    imatrix = None
    if receipt.imatrix is not None:
        imatrix = _find_imatrix(receipt.imatrix, comparison)

    # all other options are those of the receipt
    return copied(
        Target,
        receipt.target,
        to=to,
        out=comparison.baked,
        converter=converter_script,
        imatrix=imatrix,
    )


def _find_imatrix(record: ImatrixRecord, comparison: Comparison) -> Path:
    """The file with the importance matrix of an output: where it was, or beside the output.

    Raises:
        BadSource: It is not there, or has changed.
    """
    places = [comparison.baked.parent / Path(record.name).name]
    remembered = remembered_imatrix(record.sha256)
    if remembered is not None:
        places.insert(0, remembered)
    for place in places:
        if place.is_file() and sha256(place) == record.sha256:
            return place
    raise BadSource(
        f"{comparison.baked} was quantised by the importance matrix {record.name}, which is not"
        " here; put that file beside it"
    )


def unlike_plan(plan: Plan, receipt: Receipt, ignore_shards: bool = False) -> list[str]:
    """Return the keys in which the receipt of an output differs from the receipt of its plan.

    A receipt is the record of how an output was made. The result is ["schedule", "list of files"],
    for example, and empty if nothing differs. Paths are not compared.

    Args:
        plan: The plan of the output, which was made again from the source.
        receipt: The receipt in the output.
        ignore_shards: True to leave out facts about shards, for a model whose tensors may have been
            in other shards when the output was made.
    """
    # the planned receipt is written as JSON and parsed, so that its numbers have the rounding of
    # the recorded receipt
    planned_receipt = parse_receipt(embedded(plan.receipt()), "the plan")
    recorded_receipt = receipt
    if ignore_shards:
        planned_receipt = without_shards(planned_receipt)
        recorded_receipt = without_shards(recorded_receipt)
    planned = _plain(planned_receipt)
    recorded = _plain(recorded_receipt)
    unlike = []
    for key in planned:
        if key not in NOT_COMPARED and planned[key] != recorded[key]:
            unlike.append(key)

    # The files, and how each was made ("copy" or "convert"). The user may give the source in
    # another layout than before, such as safetensors in place of Meta's .pth files. The same files
    # are then copied in place of converted, so only the names are compared.
    was_converted = receipt.source.kind in KINDS_TO_CONVERT
    is_converted = plan.source.kind in KINDS_TO_CONVERT
    compares_actions = was_converted == is_converted
    if plan.is_folder:
        recorded_files = _list_files(receipt.files, compares_actions)
        planned_files = _list_files(plan.files, compares_actions)
        if recorded_files != planned_files:
            unlike.append("list of files")
    return unlike


def _list_files(
    files: Iterable[PlannedFile | FileRecord], with_actions: bool
) -> list[tuple[str, str, str]]:
    """Each file as (name, name in the source, how it was made), sorted."""
    rows = []
    for file in files:
        action = file.action if with_actions else ""
        rows.append((file.name, file.origin or file.name, action))
    return sorted(rows)


def _plain(receipt: Receipt) -> JsonObject:
    """Return a receipt as JSON data, without the source of the original model."""
    data: JsonObject = json.loads(json.dumps(receipt.to_dict()))
    if receipt.original is not None:
        data["original"].pop("source")
    return data


def verify_output(
    comparison: Comparison, options: Options | None = None, advance: Advance = lambda done: None
) -> Verification:
    """Compare every file of an output with the file that its recipe and its source give.

    No code in the output is run.

    Args:
        comparison: The output, its receipt (the record of how it was made) and its source.
        options: How the output is compared; None for the defaults.
        advance: Called with the bytes of weights that were compared since the last call.

    Raises:
        BadSource: A file differs from the receipt, the output has foreign code, or the recipe and
            the source do not give this output.
        Disagreement: A file differs from the plan, or cannot be compared.
    """
    options = options or Options()
    output = comparison.baked

    # small files of a folder, by the digests in its receipt, unless the user accepts edits; and
    # Python code that ropeconv did not write, unless the user trusts it
    if not is_gguf(output):
        if not options.edited:
            check_files(output, comparison.receipt, weights=False)
        needs_trust(output, options.code)

    # all files, by a new plan from the source, since a receipt may be edited too
    plan = plan_again(comparison)
    findings = Findings(options)
    if isinstance(plan, GgufOutput):
        _verify_gguf(comparison, plan, findings, advance)
    else:
        _verify_receipt(comparison, plan, findings)
        if isinstance(plan, CheckpointPlan):
            FolderCheck(folder=output, plan=plan, findings=findings, advance=advance).run()

    # Outputs beside this output: its adapter, its draft model, or the model that it is the draft
    # of. They are compared with their receipts first, and then the draft with its source.
    faults = member_faults(output, comparison.receipt)
    if not faults:
        faults = _draft_faults(comparison, options)
    for fault in faults:
        findings.add_difference(fault)
    return findings.result(output)


def _draft_faults(comparison: Comparison, options: Options) -> list[str]:
    """Return what is wrong with the draft model beside an output, as clauses.

    The draft is compared with its source. Without a draft, or if the source of the draft is not on
    this disk, the list is empty.
    """
    draft = place_beside(comparison.baked, comparison.receipt.target.draft)
    if draft is None:
        return []
    source = find_source(draft)
    if not source:
        return []

    # the draft is an output too, with its own source and receipt
    try:
        # drafts that name each other would be compared without end
        if read_receipt(draft).target.draft:
            return [f"its draft {draft.name} names a draft of its own"]
        verify_output(Comparison.open(draft, source), options)
    except RopeconvError as problem:
        return [str(problem)]
    return []


def _verify_receipt(
    comparison: Comparison, plan: Plan, findings: Findings, ignore_shards: bool = False
) -> None:
    """Compare the receipt of an output with its plan; `ignore_shards` is as in `unlike_plan`."""
    for key in unlike_plan(plan, comparison.receipt, ignore_shards):
        findings.add_difference(f"its receipt has another {key}")


def _verify_gguf(
    comparison: Comparison, plan: GgufOutput, findings: Findings, advance: Advance
) -> None:
    """Compare a GGUF model with a new plan of it: its receipt, its keys and its tensors.

    Args:
        comparison: The model, its receipt (the record of how it was made) and its source.
        plan: The plan, which was made again from the source.
        findings: Where differences are recorded.
        advance: Called with the bytes of tensors that were compared since the last call.
    """
    file = GgufSource(comparison.baked).file

    # The receipt, without facts about shards for a model that may have been split or merged since
    # it was written. This does not change what llama.cpp computes.
    was_split_again = is_regrouped(file, plan)
    has_shards = len(file.shards) > 1
    _verify_receipt(comparison, plan, findings, ignore_shards=was_split_again or has_shards)

    # Keys that only describe the model, such as its name, follow from the place of the source. They
    # may differ if the user gives the source from another place than before.
    source_has_moved = _is_elsewhere(comparison.receipt.source, comparison.source)

    # keys and tensors: shard by shard, or each tensor by its name, in whatever shard it is
    check_class = RegroupedCheck if was_split_again else GgufCheck
    check = check_class(
        file=file, plan=plan, findings=findings, elsewhere=source_has_moved, advance=advance
    )
    check.run()


def earlier_output(plan: Plan) -> Comparison | None:
    """Return the output of an earlier run of the same plan, if it is there.

    Its receipt must name the same source, recipe, target and schedule (`made_from`). No other file
    is compared.
    """
    if not plan.out.exists():
        return None
    try:
        receipt = read_receipt(plan.out)
    except BadSource:
        return None
    if made_from(receipt) != made_from(plan.receipt()):
        return None
    return Comparison.open(plan.out, plan.source.reference)


def _is_elsewhere(recorded: SourceRecord, given: Source | GgufSource) -> bool:
    """Whether the source of an output is now given from another place than the receipt has.

    Such as a folder in place of the repository on the Hub. A receipt does not have the path of a
    local source, so two folders count as one place.
    """
    if recorded.kind != given.kind:
        return True
    return bool(recorded.reference) and recorded.reference != given.reference


def change_done(source: GgufSource, recipe: Recipe, target: Target) -> Plan | None:
    """Return the plan of a change in place if the same command has changed the file before.

    A second `--yarn 2 --on-top --in-place` must not double the factor again. The command is planned
    once more, and the receipt of the plan (source, method, options, schedule) is compared with the
    receipt in the file.

    Args:
        source: The GGUF file.
        recipe: The method and its modifiers.
        target: The options of the command, with `in_place`.

    Returns:
        The plan; None if the file was changed in another way, or not at all.
    """
    # A file without a receipt was not changed by ropeconv. --replace starts from the file before
    # all changes, so it can be run twice.
    has_receipt = RECEIPT in source.file.header.values
    if target.replace or not has_receipt:
        return None

    # Plan the command once more. The plan starts from the file before the change (--replace), where
    # that is possible. With --on-top and --as-is it starts from the changed file.
    starts_from_changed_file = recipe.on_top or isinstance(recipe.method, AsIs)
    target_again = replace(target, replace=not starts_from_changed_file)
    try:
        restore_plan(source, in_place=True)  # raises if another program has changed the file too
        recorded = read_receipt(source.path)
        plan = make_plan(source, recipe, target_again)
    except RopeconvError:
        return None

    # the keys of the file must be as planned; a plan with --on-top has the factor twice, so its
    # keys are not compared
    if not recipe.on_top and _other_keys(source, plan):
        return None

    # compare the receipts, after making two fields equal that differ for the same command:
    # 1. --replace, which was added above
    planned = plan.receipt()
    recorded_target = replace(recorded.target, replace=planned.target.replace)
    recorded_with_replace = msgspec.structs.replace(recorded, target=recorded_target)
    # 2. the schedule and its encoding, for a plan that starts from the changed file
    if starts_from_changed_file:
        planned = msgspec.structs.replace(
            planned, schedule=recorded.schedule, encoding=recorded.encoding
        )
    is_same_change = made_from(recorded_with_replace) == made_from(planned)
    return plan if is_same_change else None


def _other_keys(source: GgufSource, plan: Plan) -> list[str]:
    """The keys of a file that a change in place of it would change, but for receipt and reserve."""
    assert isinstance(plan, GgufOutput)
    planned = rewrite(source.file.header, plan.edit).values
    written = source.file.header.values
    differing = []
    for key in {*planned, *written} - {RECEIPT, RESERVED}:
        if planned.get(key) != written.get(key):
            differing.append(key)
    return differing
