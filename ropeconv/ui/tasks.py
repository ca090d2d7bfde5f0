"""A bake: its plan, its output on the disk, and its publication."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bake.advice import matrix
from ..bake.apply import apply, make_plan
from ..bake.checkpoint import CheckpointPlan
from ..bake.plan import Plan
from ..bake.warnings import repairs_of, run_commands
from ..bake.writing.hidden import HiddenFolder, discard
from ..errors import BadSource, UsageError
from ..evaluate.ranking import advised
from ..evaluate.result import read_result
from ..formats import jsontext
from ..formats.copying import human
from ..formats.files import read_text, scratch
from ..hub.options import PublishOptions, repository
from ..hub.preview import show_publication
from ..hub.upload_set import UploadSet, from_gguf, planned, with_card
from ..inspection.inspection import inspect_source
from ..inspection.receipts.reader import parse_receipt, receipt_of
from ..inspection.receipts.receipt import Receipt
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import Source
from ..options import Format
from ..rope.errors import RecipeError, RopeconvError
from ..rope.lengths import factor_over, parse_factor, parse_tokens
from ..runtimes.runtime import runtimes
from ..validate.validation import Validation
from ..views.advice import newest_of, show_advice, show_matrix, show_methods
from ..views.evaluation_plots import evaluation_pictures
from ..views.inspection import show_inspection, show_receipt
from ..views.plan import Outcome, show_outcome, show_plan
from ..views.results import show_result, show_validation
from ..views.schedule_plots import pictures_of
from ..views.support import statuses
from ..views.validation_plots import validation_pictures
from .desk import Desk, PageProgress
from .forms import (
    BakeForm,
    CompareForm,
    InspectForm,
    ResultsForm,
    RuntimesForm,
    command_of,
    place_of,
    recipe_of,
    target_of,
    to_bake,
    to_page,
)
from .rules import dropped, named, opened
from .sheet import HtmlSheet

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pth", ".pt")
CONFIG = "config.json"


def plan(form: BakeForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows a plan as `ropeconv apply --dry-run` does, its config.json, and what a publication would do."""
    made = _planned(form, desk)
    show_plan(made, sheet)
    config = next((file.text for file in made.files if file.name == CONFIG), None)
    if config:
        sheet.file(CONFIG, config)
    if form.repo_id:
        from ..hub.preview import preview

        found = preview(planned(made), _publication(form, desk))
        sheet.note(found.note)
        show_publication(found, sheet)
    _same(made, form, bool(form.repo_id), sheet)


def write(form: BakeForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Writes and checks an output. Where that is stopped, or fails, nothing is kept that was not there before."""
    if desk.rules.public:
        raise UsageError("nothing is written to the disk of this page; publish it, or run the command on your machine")
    made = _planned(form, desk)
    earlier = HiddenFolder.beside(made.out).root.exists()  # of a run that goes on from it
    try:
        with desk.progress(f"Writing {made.out}", made.bytes) as advance:
            done = apply(with_card(made), advance=advance)
        desk.finish()
    except BaseException:
        with suppress(RopeconvError):  # another run has it
            if not earlier:
                discard(made.out)
        raise
    sheet.note(done.reason and f"Not checked: {done.reason}.")
    sheet.good(f"Wrote {done.path}.")
    show_outcome(made, Outcome(done.path, done.check, run=run_commands(made, done.path)), sheet)
    _same(made, form, False, sheet)


def publish(form: BakeForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Publishes an output. Nothing of it stays on this disk."""
    how = _publication(form, desk)
    if desk.rules.public and not desk.token:
        raise UsageError("nobody is signed in; sign in with Hugging Face first, so that it is published as yours")
    made = _planned(form, desk)
    _refuse_weights(made, desk)
    from ..hub.preview import staged

    if isinstance(made, CheckpointPlan):
        with staged(made, writing=desk.progress("Writing", made.bytes)) as (done, what):
            url = _sent(what, how, desk, sheet)
    else:
        with scratch() as folder:
            out = folder / made.out.name
            with desk.progress("Writing", made.bytes) as advance:
                done = apply(replace(made, out=out, target=replace(made.target, out=out)), fsync=False, advance=advance)
            url = _sent(from_gguf(done.path), how, desk, sheet)
    sheet.note(done.reason and f"Not checked: {done.reason}.")
    sheet.link(url, f"Published: {url}")
    show_outcome(made, Outcome(check=done.check), sheet)
    _same(made, form, True, sheet)


def _same(made: Plan, form: BakeForm, publishing: bool, sheet: HtmlSheet) -> None:
    sheet.title("The same in a terminal")
    sheet.copyable(command_of(made, form, publishing))


def _planned(form: BakeForm, desk: Desk) -> Plan:
    out = None if desk.rules.public else place_of(form)  # no place of a machine of others
    recipe, target = recipe_of(form), target_of(form, out)
    if recipe.method.slow_note:
        desk.tell(PageProgress(recipe.method.slow_note))
    source = opened(form, desk.rules)
    target.check(recipe, source.kind == "gguf")
    return make_plan(source, recipe, target)


def _publication(form: BakeForm, desk: Desk) -> PublishOptions:
    if not form.repo_id:
        raise UsageError("no repository is named; write owner/name of the one that it is published in")
    return PublishOptions(
        private=form.private, exist_ok=form.exist_ok, token=desk.token or None,
        through_here=desk.rules.weights, repo_id=repository(form.repo_id),
    )  # fmt: skip


def _refuse_weights(made: Plan, desk: Desk) -> None:
    """Raises RopeconvError where weights would go through a page that moves none."""
    if desk.rules.weights:
        return
    on_hub = made.source.kind == "hub"
    moved = [file for file in made.files if file.name.endswith(WEIGHTS) and not (file.action == "copy" and on_hub)]
    if moved:
        size = human(sum(file.size for file in moved))
        raise RopeconvError(
            f"{size} of weights would go through this page, which moves none; choose an encoding that changes the "
            "config alone, or run the command of the plan on your machine"
        )


def _sent(what: UploadSet, how: PublishOptions, desk: Desk, sheet: HtmlSheet) -> str:
    from ..hub.publish import publish as publish_on_hub

    with desk.progress(f"Publishing {how.repo_id}"):
        url = publish_on_hub(what, how, sheet.note)
    desk.finish()
    return url


def inspect(form: InspectForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows a model as `ropeconv inspect` does, and draws its frequencies."""
    source = opened(form, desk.rules)
    seen = inspect_source(source)
    sheet.note(seen.assumption)
    show_inspection(seen, sheet, repairs_of(source, seen))
    if form.source:
        sheet.ways("Next", [("compare methods for it", to_page("compare", CompareForm(source=form.source)))])
    spec = seen.spec
    curves = {"as it is": spec.current().inv_freq} if spec.scaled else {}
    sheet.pictures(pictures_of(spec, curves, spec.context))


MOST_SHARDS = 64
"""Files of weights whose headers are read, as a conversion needs them."""
DRAWN = 5
"""Methods that are drawn, the first of the table."""


def compare(form: CompareForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows the methods as `ropeconv advise` does, and draws the first of them."""
    source = opened(form, desk.rules)
    measured = Path(form.measured) if form.measured else None
    large = isinstance(source, Source) and len(source.weights()) > MOST_SHARDS
    outputs: tuple[Format, ...] | None = ("safetensors",) if large else None
    found = advised(source, _length(form.context, source), measured, outputs)
    show_advice(found, sheet)
    if large:
        sheet.note(f"GGUF is not planned here for more than {MOST_SHARDS} files of weights; `ropeconv advise` does it.")
    if found.found:
        if form.source:
            ways = [
                (one.method.command, to_bake(form.source, one.method, one.context, one.replace)) for one in found.found
            ]
            sheet.ways("Plan one of them", ways)
        curves = {one.method.name: one.schedule.inv_freq for one in found.found[:DRAWN]}
        sheet.title("The first of them" if len(found.found) > DRAWN else "Their frequencies")
        sheet.pictures(pictures_of(found.seen.first_spec, curves, found.context))
        sheet.title("Each of them")
    show_methods(found, sheet)


def _length(text: str, source: Source | GgufSource) -> int:
    """A length in tokens, or the trained one times a factor: 128k, 131072 or 4."""
    if not text:
        raise UsageError("no length is given; write one such as 128k, or a factor such as 4")
    try:
        factor = parse_factor(text, "the length")
    except RecipeError:
        return parse_tokens(text)
    if isinstance(factor, str):
        return parse_tokens(factor)
    trained = inspect_source(source).first_spec.original_context
    return round(trained * factor_over(factor, trained, "the length"))


def results(form: ResultsForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows a receipt with all that it knows, or the result of an evaluation or a validation."""
    if form.upload:
        _dropped(Path(form.upload), sheet)
    else:
        _receipt(receipt_of(open_source(named(form.source, desk.rules))), sheet)


def _dropped(path: Path, sheet: HtmlSheet) -> None:
    """Shows what a dropped file is: the result of `eval`, that of `validate`, a receipt, or a GGUF file with one."""
    if path.suffix == ".gguf":
        _receipt(receipt_of(dropped(path)), sheet)
        return
    text = read_text(path, path.name)
    data = jsontext.parse(text, path.name)
    if "cells" in data:
        result = read_result(path)
        show_result(result, sheet)
        sheet.pictures(evaluation_pictures(result))
    elif "buckets" in data:
        _validation(data, path.name, sheet)
    elif "recipe" in data:
        _receipt(parse_receipt(text, path.name), sheet)
    else:
        raise UsageError(f"{path.name} is no receipt and no result of `ropeconv eval` or `validate`; drop one of these")


def _receipt(receipt: Receipt, sheet: HtmlSheet) -> None:
    show_receipt(receipt, sheet)
    for name, found in ({"the installed transformers": receipt.validation} | receipt.servers).items():
        if found:
            _validation(found, f"Validated by {name}", sheet)


def _validation(data: dict[str, object], title: str, sheet: HtmlSheet) -> None:
    try:
        result = Validation.from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadSource(f"{title} is not a validation of ropeconv; run `ropeconv validate` again") from None
    show_validation(result, title, sheet)
    sheet.pictures(validation_pictures(result))


WRITINGS = {
    "theta": "a new base: theta, NTK", "linear": "linear", "llama3": "Llama 3.1 scaling", "yarn": "YaRN",
    "factors": "any frequencies (longrope factors)",
}  # fmt: skip
"""The ways to write RoPE, by the names that the matrix has for them."""


def shown(form: RuntimesForm) -> str:
    """The answer of the page: a letter per cell for all families, else a row per cell with its evidence."""
    sheet = HtmlSheet()
    cells = [
        cell
        for cell in matrix()
        if form.family in ("", cell.family) and form.runtime in ("", cell.verdict.runtime.partition("@")[0])
    ]
    if not form.family:
        rows = [row for row in runtimes() if form.runtime in ("", row.name)]
        show_matrix(cells, rows if form.runtime else newest_of(rows), sheet)
        sheet.note("Choose a family to see every cell with its reason and its evidence.")
        return sheet.html()
    columns = ("runtime", "method", "status", "reason", "evidence", "stated at")
    table = [
        (
            cell.verdict.display_name, WRITINGS[cell.writing], str(cell.verdict.status), cell.verdict.reason,
            " ".join(filter(None, (cell.verdict.grade, cell.verdict.evidence.detail))), cell.verdict.source,
        )
        for cell in cells
    ]  # fmt: skip
    sheet.table(f"What runtimes compute of {form.family}", columns, table)
    sheet.say(statuses((row[2], "") for row in table))
    return sheet.html()


Task = Callable[[Any, Desk, HtmlSheet], None]
TASKS: dict[str, Task] = {
    "inspect": inspect, "compare": compare, "plan": plan, "write": write, "publish": publish, "results": results,
}  # fmt: skip
