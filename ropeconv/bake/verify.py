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
CONVERTED = ("meta", "gguf")
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
    target = _target_again(comparison)

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


def _target_again(comparison: Comparison) -> Target:
    """The target options with which an output was made, from its receipt.

    Raises:
        BadSource: The converter or the importance matrix that it names is not here.
    """
    # a receipt always states the format, and a plan from a GGUF file takes no `to`
    receipt = comparison.receipt
    to: Format | None = receipt.target.to
    if isinstance(comparison.source, GgufSource):
        to = None

    # files that the receipt names by their digests
    converter = None
    if receipt.converter is not None:
        digest = receipt.converter.sha256
        converter = find_again(digest, remembered_converter(digest)).script
    imatrix = None
    if receipt.imatrix is not None:
        imatrix = _find_imatrix(receipt.imatrix, comparison)
    return copied(
        Target,
        receipt.target,
        to=to,
        out=comparison.baked,
        converter=converter,
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


def unlike_plan(plan: Plan, receipt: Receipt, in_shards: bool = False) -> list[str]:
    """Return the keys of a receipt that differ from those that its plan gives, except for paths.

    Such as ["schedule", "list of files"]; empty for a receipt that is as planned.

    Args:
        plan: The plan of the output, which was made again.
        receipt: The receipt in the output.
        in_shards: Whether its source may have had its tensors in other shards, and another header.
    """
    # the planned receipt goes through JSON, as the recorded one did, so that numbers have the same
    # rounding
    planned_receipt = parse_receipt(embedded(plan.receipt()), "the plan")
    recorded_receipt = receipt
    if in_shards:
        planned_receipt = without_shards(planned_receipt)
        recorded_receipt = without_shards(recorded_receipt)
    planned = _plain(planned_receipt)
    recorded = _plain(recorded_receipt)
    unlike = []
    for key in planned:
        if key not in NOT_COMPARED and planned[key] != recorded[key]:
            unlike.append(key)

    # The files, and how each was made (copied, converted). The latter is not compared where the
    # source is now given in another layout than then, such as safetensors in place of Meta's
    # layout: its files are copied where they were converted, or the other way round.
    was_converted = receipt.source.kind in CONVERTED
    is_converted = plan.source.kind in CONVERTED
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
    data: JsonObject = json.loads(json.dumps(receipt.to_dict()))
    if receipt.original is not None:
        data["original"].pop("source")
    return data


def verify_output(
    comparison: Comparison, options: Options | None = None, advance: Advance = lambda done: None
) -> Verification:
    """Compare every file of an output with the one that its recipe and its source give.

    Nothing in the output is run.

    Args:
        comparison: The output, its receipt and its source.
        options: How it is compared.
        advance: Called with the bytes of weights that were compared since the last call.

    Raises:
        BadSource: Where files are not those of the receipt, where the output brings foreign code,
            and where recipe and source do not give this output.
        Disagreement: Where a file differs, or cannot be compared.
    """
    # what costs nothing: small files against the receipt, and code that is not ropeconv's
    options = options or Options()
    baked = comparison.baked
    if not is_gguf(baked):
        if not options.edited:
            check_files(baked, comparison.receipt, weights=False)
        needs_trust(baked, options.code)

    # everything against a plan from the source, since a receipt may have been edited too
    plan = plan_again(comparison)
    findings = Findings(options)
    if isinstance(plan, GgufOutput):
        _verify_gguf(comparison, plan, findings, advance)
    else:
        _verify_receipt(comparison, plan, findings)
        if isinstance(plan, CheckpointPlan):
            FolderCheck(folder=baked, plan=plan, findings=findings, advance=advance).run()

    # the other members of its set: an adapter, a draft model or the target of one, beside it
    clauses = member_faults(baked, comparison.receipt)
    if not clauses:
        clauses = _draft_faults(comparison, options)
    for clause in clauses:
        findings.differs(clause)
    return findings.result(baked)


def _draft_faults(comparison: Comparison, options: Options) -> list[str]:
    """Return in clauses how the draft model beside an output differs, if its source is found."""
    draft = place_beside(comparison.baked, comparison.receipt.target.draft)
    if draft is None:
        return []
    source = find_source(draft)
    if not source:
        return []

    # the draft is an output too, with its own source and receipt
    try:
        # a draft with a draft would be compared without end
        if read_receipt(draft).target.draft:
            return [f"its draft {draft.name} names a draft of its own"]
        verify_output(Comparison.open(draft, source), options)
    except RopeconvError as problem:
        return [str(problem)]
    return []


def _verify_receipt(
    comparison: Comparison, plan: Plan, findings: Findings, in_shards: bool = False
) -> None:
    """Compare the receipt with the plan; parameters are as in `unlike_plan`."""
    for key in unlike_plan(plan, comparison.receipt, in_shards):
        findings.differs(f"its receipt has another {key}")


def _verify_gguf(
    comparison: Comparison, plan: GgufOutput, findings: Findings, advance: Advance
) -> None:
    """Compare a GGUF model with its plan, which was made again: its receipt, keys and tensors.

    A model that was split into other shards later is compared tensor by tensor, by their names.
    """
    file = GgufSource(comparison.baked).file
    regrouped = is_regrouped(file, plan)
    _verify_receipt(comparison, plan, findings, in_shards=regrouped or len(file.shards) > 1)

    # keys that only describe the model, such as its name, may differ where the source is given from
    # elsewhere than when the output was made
    is_elsewhere = _is_elsewhere(comparison.receipt.source, comparison.source)

    check_class = RegroupedCheck if regrouped else GgufCheck
    check_class(file, plan, findings, is_elsewhere, advance).run()


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
    """Return the plan of a change in place if an earlier run of the same command has made it.

    So the same command twice changes a file once: a second `--yarn 2 --on-top --in-place` does not
    double the factor again. The command is planned once more, and the receipt of that plan (the
    record of what was made from what) is compared with the receipt in the file.

    Args:
        source: The file.
        recipe: The method and its modifiers.
        target: A target in place.

    Returns:
        The plan; None where the file was not changed so, or cannot be restored.
    """
    # --replace always starts from the file before any change, so a second run adds nothing
    has_receipt = RECEIPT in source.file.header.values
    if target.replace or not has_receipt:
        return None

    # The command as it is planned now. Most methods start from the file before the change, which
    # --replace restores first. Methods that keep the scaling start from the file of today.
    keeps_scaling = recipe.on_top or isinstance(recipe.method, AsIs)
    target_again = replace(target, replace=not keeps_scaling)
    try:
        restore_plan(source, in_place=True)  # raises if the receipt does not lead back
        receipt = read_receipt(source.path)
        plan = make_plan(source, recipe, target_again)
    except RopeconvError:
        return None

    # a key of the file is not as the command would write it
    if not recipe.on_top and _other_keys(source, plan):
        return None

    # Two fields of the receipts differ for the same command too. One is --replace, which was added
    # to the plan above and is not in the recorded command.
    planned = plan.receipt()
    recorded_target = replace(receipt.target, replace=planned.target.replace)
    recorded = msgspec.structs.replace(receipt, target=recorded_target)
    # The other is the schedule, and with it the encoding. A method that keeps the scaling was
    # planned above for the changed file, so it has the change twice.
    if keeps_scaling:
        planned = msgspec.structs.replace(
            planned, schedule=receipt.schedule, encoding=receipt.encoding
        )
    is_same_change = made_from(recorded) == made_from(planned)
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
