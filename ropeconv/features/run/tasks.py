"""The registry of tasks, and what a worker keeps for them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ropeconv.bake.findings import Options
from ropeconv.bake.hidden import discard, is_empty
from ropeconv.bake.verify import earlier_output, verify_output
from ropeconv.engines.probe import Probe
from ropeconv.engines.transformers.load import out_of_memory
from ropeconv.errors import BadSource, Disagreement
from ropeconv.features.evaluation.cases import EVAL
from ropeconv.features.evaluation.evaluation import Evaluation, open_evaluation
from ropeconv.features.evaluation.result import Result, headline, measures_of, write_result
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.features.evaluation.texts import read_files
from ropeconv.formats.journal import Journal
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.kind import is_gguf
from ropeconv.hub.card import with_card
from ropeconv.hub.options import PublishOptions
from ropeconv.hub.publish import publish, staged
from ropeconv.hub.upload_set import UploadSet, from_folder, from_gguf
from ropeconv.inspection.receipts.metrics import metric_of
from ropeconv.inspection.receipts.storage import check_files, read_receipt
from ropeconv.reporting import SilentReporter
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.verbs.output import Writing, write_output
from ropeconv.verbs.validation import ValidationChoice, run_validation

from .jobs import Unit, stamp
from .plan_file import EvalTable

Task = Callable[[Unit, Probe | None], JsonObject]
"""Runs a unit, and returns its result, JSON-ready. Raises RopeconvError where it fails."""


def apply_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Writes the output of a unit.

    Raises as `make_plan` and `apply` do, and BadSource or Disagreement where something else has its
    place.
    """
    plan = unit.plan()
    document = {"path": str(plan.out), "bytes": plan.bytes, "encoding": plan.result.encoding}
    earlier = earlier_output(plan)
    if earlier is not None:
        try:
            verify_output(earlier)
        except (BadSource, Disagreement) as problem:
            reason = str(problem).partition("; run apply again")[0]
            raise type(problem)(
                f"{reason}; move it away and run the plan again, which writes it anew"
            ) from None
        discard(plan.out)  # a kill may have come between the last name and the end
        return {**document, "earlier": True, "stamp": stamp(plan.out)}
    if os.path.lexists(plan.out) and not is_empty(plan.out):
        raise BadSource(
            f"{plan.out} exists and is not the output of this unit; move it away, or give the plan"
            " another `out`"
        )
    # a validation is a task of its own
    not_now = ValidationChoice()
    output = write_output(with_card(plan), Writing(), not_now, SilentReporter(), probe)
    return {
        **document,
        "checked": output.check is not None,
        "reason": output.reason,
        "stamp": stamp(plan.out),
    }


@contextmanager
def evaluation_of(unit: Unit) -> Iterator[Evaluation]:
    """The evaluation of a unit, which can be estimated and run while it is entered."""
    table = msgspec.convert(
        {name: value for name, value in unit.settings.items() if name != "sha256"}, EvalTable
    )
    opening = RunnerRequest(
        unit.source.reference,
        [recipe.row() for recipe in unit.recipes],
        device=table.device,
        dtype=table.dtype,
        chunk=table.chunk,
        family=unit.family,
    )
    files = read_files(table.text)
    short = {Path(name).name: text for name, text in files}  # the same on every machine
    texts = list(short.items()) if len(short) == len(files) else files
    with open_evaluation(opening, table.sizes(), texts) as evaluation:
        yield evaluation


def eval_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Evaluates the recipes of a unit. Raises RopeconvError where no row can be run."""
    path = Path(unit.out)
    with evaluation_of(unit) as evaluation:
        source = evaluation.runner.source
        with Journal(path.with_name(f"{path.stem}-{source[:16]}.jsonl"), EVAL, source) as journal:
            damaged = list(journal.notes)
            out_of_memory(lambda: evaluation.run(journal))
        result = evaluation.result(unit.source.name)
    write_result(result, path)
    return {"path": unit.out, "rows": headlines(result), "notes": damaged, "stamp": stamp(path)}


def headlines(result: Result) -> dict[str, str]:
    """The main number of each row at the longest length, with its error; why a row was not run."""
    measure = next(iter(measures_of(result)))
    length = max(result.lengths)
    metric = headline(result, measure)
    words = metric_of(metric)
    words_of = {}
    for row in result.rows:
        cell = result.cell(row.name, measure, metric, length)
        if cell is None:
            words_of[row.name] = row.refused or "not measured"
        elif cell.difference is None:
            words_of[row.name] = words.value(cell.value)
        else:
            error = (
                "" if cell.difference_error is None else f" ± {words.error(cell.difference_error)}"
            )
            words_of[row.name] = f"{words.difference(cell.difference)}{error}"
    return words_of


def push_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Publishes the output of a unit. Raises as `publish` does; what is there from an earlier run
    is completed.
    """
    options = {name: value for name, value in unit.settings.items() if name not in ("to", "kept")}
    publication = PublishOptions(repo_id=unit.settings["to"], **options)
    notes = list[str]()

    def send(upload: UploadSet) -> JsonObject:
        url = publish(
            upload, publication, lambda message: notes.append(message) if message else None
        )
        uploaded = sum(upload.size(name) for name in upload.adds)
        return {"url": url, "uploaded": uploaded, "copied": len(upload.copies), "notes": notes}

    path = Path(unit.out)
    if unit.settings["kept"]:
        if is_gguf(path):
            return send(from_gguf(path))
        check_files(path, read_receipt(path))
        return send(from_folder(path))
    with staged(unit.plan(), probe) as (_, upload):
        return send(upload)


def validate_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Validate the output of a unit. Raises Disagreement where it does not compute the schedule."""
    comparison = Comparison.open(Path(unit.out), unit.source.reference)
    settings = Settings(**unit.settings)
    result, _ = run_validation(comparison, settings, "", "", Options(), SilentReporter())
    if not result.agrees:
        raise Disagreement(result.sentence)
    return {"runtime": result.runtime, "sentence": result.sentence}


TASKS: dict[str, Task] = {
    "apply": apply_unit,
    "validate": validate_unit,
    "eval": eval_unit,
    "push": push_unit,
}
