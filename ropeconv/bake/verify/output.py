"""verify_output: compares an output with the plan that its recipe and its source give."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from ...convert.encoding import ENCODINGS
from ...convert.target import Target
from ...errors import BadSource
from ...formats.disk import Advance
from ...formats.jsontext import JsonObject
from ...inspection.receipts.reader import check_files, parse_receipt, read_receipt
from ...inspection.receipts.receipt import FileRecord, Receipt
from ...inspection.receipts.writer import embedded
from ...models.gguf import GgufSource
from ...models.source import RECEIPT, Source
from ...options import copied
from ...rope.errors import RopeconvError
from ...rope.recipe import Recipe
from ...validate.checks import check_same_model, check_tokenizer, needs_trust
from ...validate.comparison import Comparison
from ...version import __version__
from ..apply import make_plan
from ..checkpoint import CheckpointPlan, with_readme_of
from ..plan import GgufOutput, Plan, PlannedFile
from .findings import Findings, Options, Verification
from .folder import FolderCheck
from .gguf import GgufCheck

OF_FILES = ("files", "check", "validation", "servers", "evaluations")
"""Keys of a receipt that are known only after the files are written."""
ALWAYS = ("recipe", "encoding", "schedule", "fold", "in_config", "log_n_approximation", "before", "original", "target")
"""Keys of a receipt that are the same in every version."""
CONVERTED = ("meta", "gguf")
"""Kinds of sources whose files are made and not copied."""
TEXTS = ("rope", "after")
"""Fields of `before` that are for people, and may be put otherwise in another version."""


def plan_again(comparison: Comparison) -> Plan:
    """The plan of an output.

    comparison: the output and its source. Raises BadSource where recipe and source give no plan with the schedule and
    the encoding of the receipt.
    """
    receipt, source = comparison.receipt, comparison.source
    recipe = Recipe.from_dict(receipt.recipe)
    named, source.name = source.name, receipt.source.name  # names of models are made of it
    problem = "it has another encoding"
    try:
        for target in _targets(comparison):
            try:
                plan = make_plan(source, recipe, replace(target, out=comparison.baked))
            except RopeconvError as refused:
                problem = str(refused)
                continue
            if plan.result.encoding == receipt.encoding and plan.schedule.digest == receipt.schedule.digest:
                return with_readme_of(plan, receipt) if isinstance(plan, CheckpointPlan) else plan
    finally:
        source.name = named
    raise BadSource(
        f"{source.reference} and the recipe of {comparison.baked} give no such output ({problem}); name the source it "
        "was made from"
    )


def unlike_plan(plan: Plan, receipt: Receipt) -> list[str]:
    """Keys of a receipt that are not those of its plan. Paths of the source may differ, and texts of other versions."""
    text = embedded(plan.receipt())
    if isinstance(plan, GgufOutput):
        text = str(plan.edit.values[RECEIPT].decode())
    wanted, said = _plain(parse_receipt(text, "the plan")), _plain(receipt)
    keys = tuple(key for key in wanted if key not in (*OF_FILES, "source"))
    if receipt.ropeconv != __version__:
        keys = ALWAYS
        for data in (wanted, said):
            data["before"] = {key: value for key, value in data["before"].items() if key not in TEXTS}
    unlike = [key for key in keys if wanted[key] != said[key]]
    # of another kind, it copies what was converted, or converts what was copied
    same = (receipt.source.kind in CONVERTED) == (plan.source.kind in CONVERTED)
    if plan.is_folder and _files(receipt.files, same) != _files(plan.files, same):
        unlike.append("list of files")
    return unlike


def _files(files: Iterable[PlannedFile | FileRecord], actions: bool) -> list[tuple[str, str, str]]:
    """Names and origins of files, and with `actions` what was done to make them."""
    return sorted((one.name, one.origin or one.name, one.action if actions else "") for one in files)


def _plain(receipt: Receipt) -> JsonObject:
    data: JsonObject = json.loads(json.dumps(receipt.to_dict()))
    if receipt.original is not None:
        data["original"].pop("source")
    return data


def _targets(comparison: Comparison) -> Iterator[Target]:
    """The target that the receipt records, and the same with the encoding that was chosen."""
    receipt, said = comparison.receipt, comparison.receipt.target
    target = copied(Target, said, to=None if isinstance(comparison.source, GgufSource) else said.to)
    yield target
    if said.encoding == "auto":
        yield replace(target, encoding=receipt.encoding)  # tables of runtimes grow


def verify_output(
    comparison: Comparison,
    options: Options | None = None,
    advance: Advance = lambda done: None,
) -> Verification:
    """Compares every file of an output with what its recipe and its source give. Nothing in the output is run.

    comparison: the output and its source. options: how. advance: called with the bytes of weights that were compared
    since the last call.

    Raises BadSource where files are not those of the receipt, where the output brings code of others, and where recipe
    and source give no such output; Disagreement where a file is not what they give, or cannot be compared.
    """
    options, baked = options or Options(), comparison.baked
    found = Findings(options)
    if baked.suffix != ".gguf":
        if not options.edited:
            check_files(baked, comparison.receipt, weights=False)
        needs_trust(baked, options.code)
        source, encoding = comparison.source, ENCODINGS.get(comparison.receipt.encoding)
        if isinstance(source, Source) and source.kind != "config" and encoding is not None:
            check_same_model(baked, source, encoding)  # more to the point than the first difference
            check_tokenizer(baked, source)
    plan = plan_again(comparison)
    for key in unlike_plan(plan, comparison.receipt):
        found.differs(f"its receipt has another {key}")
    if isinstance(plan, GgufOutput):
        said, given = comparison.receipt.source, comparison.source
        elsewhere = (said.kind, said.reference) != (given.kind, given.reference if said.reference else None)
        GgufCheck(GgufSource(baked).file, plan, found, elsewhere, advance).run()
    elif isinstance(plan, CheckpointPlan):
        FolderCheck(baked, plan, found, advance).run()
    return found.result(baked)


def earlier_output(plan: Plan) -> Comparison | None:
    """The output that is where a plan is to be written, if its receipt is that of the plan; else None.

    plan: what is to be written. Its files are not compared: `verify_output` does that.
    """
    try:
        found = read_receipt(plan.out) if plan.out.exists() else None
    except BadSource:
        return None
    if found is None or made_from(found) != made_from(plan.receipt()):
        return None
    return Comparison.open(plan.out, plan.source.reference)


def made_from(receipt: Receipt) -> bytes:
    """What an output was made of and how, as JSON, without what was measured of it later. receipt: of it."""
    return msgspec.json.encode([receipt.source, receipt.recipe, receipt.target, receipt.schedule, receipt.encoding])
