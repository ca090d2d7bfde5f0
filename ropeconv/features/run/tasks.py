"""The tasks of a run, each of which runs a unit in a worker.

`TASKS` has them by name. A worker gives them its probe, a process with the installed transformers.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ropeconv.bake.findings import Options
from ropeconv.bake.hidden import discard_stopped_run, is_empty
from ropeconv.bake.modelfile import write_modelfile
from ropeconv.bake.verify import earlier_output, verify_output
from ropeconv.engines.probe import Probe
from ropeconv.engines.transformers.load import advice_on_memory
from ropeconv.errors import BadSource, Disagreement
from ropeconv.features.evaluation.cases import EVAL
from ropeconv.features.evaluation.evaluation import Evaluation, open_evaluation
from ropeconv.features.evaluation.result import Result, main_metric, measures_of, write_result
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
from ropeconv.reporting import SilentReporter
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.verbs.output import Writing, write_output
from ropeconv.verbs.validation import ValidationChoice, run_validation

from .jobs import Unit, stamp
from .plan_file import EvalTable

Task = Callable[[Unit, Probe | None], JsonObject]
"""Runs a unit, and returns its result, JSON-ready; a unit that fails raises RopeconvError."""


def apply_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Write the output of a unit, and return what the journal of the run says about it.

    An earlier run may have written the output, and been killed before it wrote that into the
    journal. Such an output is compared with its source byte by byte, and kept.

    Args:
        unit: The source, the recipe and the target.
        probe: A process with the installed transformers, which the checks ask; None without it.

    Raises:
        BadSource: Something else has its place.
        Disagreement: An earlier output has other bytes.
        RopeconvError: As `make_plan` and `apply` do.
    """
    plan = unit.plan()
    document = {"path": str(plan.out), "bytes": plan.bytes, "encoding": plan.result.encoding}

    earlier = earlier_output(plan)
    if earlier is not None:
        _verify_earlier(earlier)
        # the run may have been killed before it removed the hidden folder beside the output
        discard_stopped_run(plan.out)
        if plan.is_for_ollama:
            write_modelfile(plan)
        return {**document, "earlier": True, "stamp": stamp(plan.out)}

    if os.path.lexists(plan.out) and not is_empty(plan.out):
        raise BadSource(
            f"{plan.out} exists and is not the output of this unit; move it away, or give the plan"
            " another `out`"
        )
    without_validation = ValidationChoice()  # `validate` is a task of its own
    output = write_output(with_card(plan), Writing(), without_validation, SilentReporter(), probe)
    return {
        **document,
        "checked": output.check is not None,
        "reason": output.reason,
        "stamp": stamp(plan.out),
    }


def _verify_earlier(earlier: Comparison) -> None:
    """Compare an earlier output with its source, byte by byte.

    Raises:
        BadSource: It cannot be read.
        Disagreement: It has other bytes.
    """
    try:
        verify_output(earlier)
    except (BadSource, Disagreement) as problem:
        # The message of `verify_output` ends with "; run apply again ...", which does not repair a
        # run of a plan file. So that end is replaced.
        reason, _, _ = str(problem).partition("; run apply again")
        raise type(problem)(
            f"{reason}; move it away and run the plan again, which writes it anew"
        ) from None


@contextmanager
def evaluation_of(unit: Unit) -> Iterator[Evaluation]:
    """Open the evaluation of a unit, which can be estimated and run while it is entered.

    Args:
        unit: The model, the recipes to compare, and the table [eval] of the plan.
    """
    # the digest of the texts is only there for the key of the unit, and no setting of [eval]
    settings = dict(unit.settings)
    settings.pop("sha256", None)
    table = msgspec.convert(settings, EvalTable)
    opening = RunnerRequest(
        model=unit.source.reference,
        rows=[recipe.row() for recipe in unit.recipes],
        device=table.device,
        dtype=table.dtype,
        chunk=table.chunk,
        family=unit.family,
    )

    # A result has the names of its texts. Without their folders it is the same on every machine, so
    # folders are left out, unless two texts then had one name.
    texts = read_files(table.text)
    by_name = {Path(name).name: text for name, text in texts}
    if len(by_name) == len(texts):
        texts = list(by_name.items())
    with open_evaluation(opening, table.sizes(), texts) as evaluation:
        yield evaluation


def eval_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Evaluate the recipes of a unit, and write the result to a file.

    Args:
        unit: The model, the recipes, and the file of the result.
        probe: Not used; all tasks have the same parameters.

    Returns:
        The path of the file, the main number of each row in words, notes for the user, and a digest
        of the file, by which a later run notices a change.

    Raises:
        RopeconvError: No row can be run.
    """
    path = Path(unit.out)
    with evaluation_of(unit) as evaluation:
        # the journal is for this model only, so its name has a digest of the model
        model_digest = evaluation.runner.source
        journal_path = path.with_name(f"{path.stem}-{model_digest[:16]}.jsonl")
        with Journal(journal_path, EVAL, model_digest) as journal:
            notes = list(journal.notes)
            with advice_on_memory():
                evaluation.run(journal)
        result = evaluation.result(unit.source.name)
    write_result(result, path)
    return {"path": unit.out, "rows": main_numbers(result), "notes": notes, "stamp": stamp(path)}


def main_numbers(result: Result) -> dict[str, str]:
    """Return the main number of each row at the longest length, in words.

    Such as {"base": "2.31 nats", "yarn:4": "-0.42 nats ± 0.05"}: the first row has its number, and
    the others have their difference to it. A row that was not run has the reason.
    """
    # the number is the main metric of the first measure, such as the loss of growth
    length = max(result.lengths)
    measure = measures_of(result)[0]
    metric_name = main_metric(result, measure)
    metric = metric_of(metric_name)  # how such a number is written
    words = {}
    for row in result.rows:
        cell = result.cell(row.name, measure, metric_name, length)
        if cell is None:
            words[row.name] = row.refused or "not measured"
        elif cell.difference is None:
            words[row.name] = metric.value(cell.value)
        else:
            words[row.name] = metric.difference(cell.difference)
            if cell.difference_error is not None:
                words[row.name] += f" ± {metric.error(cell.difference_error)}"
    return words


def push_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Publish the output of a unit. A repository of an earlier run is completed.

    Args:
        unit: The output, with the table [push] of the plan.
        probe: A process with the installed transformers, which the checks ask; None without it.

    Raises:
        RopeconvError: As `publish` does.
    """
    options = dict(unit.settings)
    repo_id = options.pop("to")
    is_kept = options.pop("kept")
    publication = PublishOptions(repo_id=repo_id, **options)
    path = Path(unit.out)

    # without apply among the tasks there is no output on the disk: its files are made for the
    # upload, one at a time
    if not is_kept:
        with staged(unit.plan(), probe) as (_, upload):
            return _publish(upload, publication)
    if is_gguf(path):
        return _publish(from_gguf(path), publication)
    return _publish(from_folder(path), publication)


def _publish(upload: UploadSet, publication: PublishOptions) -> JsonObject:
    """Publish files, and return the result of the task."""
    notes = list[str]()

    def note(message: str) -> None:
        if message:
            notes.append(message)

    url = publish(upload, publication, note)
    uploaded = sum(upload.size(name) for name in upload.adds)
    return {"url": url, "uploaded": uploaded, "copied": len(upload.copies), "notes": notes}


def validate_unit(unit: Unit, probe: Probe | None) -> JsonObject:
    """Validate the output of a unit: run it, and compare it with its patched source.

    Args:
        unit: The output, with the table [validate] of the plan as settings.
        probe: Is not used: all tasks get the process that checks frequencies in transformers, and
            here the model itself runs.

    Raises:
        Disagreement: It does not compute the schedule.
    """
    comparison = Comparison.open(Path(unit.out), unit.source.reference)
    result, _ = run_validation(
        comparison,
        Settings(**unit.settings),
        server="",  # the output is loaded here, and not on a server
        model="",  # only a server has several models
        checks=Options(),
        reporter=SilentReporter(),
    )
    if not result.agrees:
        raise Disagreement(result.sentence)
    return {"runtime": result.runtime, "sentence": result.sentence}


TASKS: dict[str, Task] = {
    "apply": apply_unit,
    "validate": validate_unit,
    "eval": eval_unit,
    "push": push_unit,
}
