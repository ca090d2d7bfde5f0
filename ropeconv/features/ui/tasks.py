"""The tasks of the pages, each with its form and the sheet that it fills.

`TASKS` has them by name. A task shows what the command of the same name prints.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropeconv.bake.advice import Advice, MatrixCell, matrix
from ropeconv.bake.apply import make_plan
from ropeconv.bake.hidden import HiddenFolder, discard_stopped_run
from ropeconv.bake.modelfile import modelfile_of
from ropeconv.bake.plan import Plan
from ropeconv.bake.quality import quality
from ropeconv.bake.ranked import RankedMethods, advised
from ropeconv.bake.warnings import repairs
from ropeconv.errors import BadSource, Interruption, StopRequest, UsageError
from ropeconv.formats import jsontext
from ropeconv.formats.files import read_text
from ropeconv.formats.kind import is_gguf
from ropeconv.hub.card import with_card
from ropeconv.hub.options import PublishOptions, repository
from ropeconv.hub.upload_set import planned_upload
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.receipts.receipt import Receipt
from ropeconv.inspection.receipts.storage import parse_receipt, receipt_of
from ropeconv.inspection.support import POPULAR, WORDS, title_of
from ropeconv.models.gguf import GgufSource
from ropeconv.models.hub import answers
from ropeconv.models.source import Source
from ropeconv.options import Format, MachineOptions, copied
from ropeconv.rope.errors import RecipeError, RopeconvError, command_line, shown
from ropeconv.rope.features import hook
from ropeconv.rope.lengths import factor_over, parse_factor, parse_tokens
from ropeconv.runtimes.runtime import runtimes
from ropeconv.runtimes.verdict import Verdict
from ropeconv.validate.validation import Validation
from ropeconv.verbs.asking import asking_installed
from ropeconv.verbs.opened import inspect_opened
from ropeconv.verbs.output import Writing, write_output
from ropeconv.verbs.publishing import publish_staged
from ropeconv.verbs.validation import ValidationChoice
from ropeconv.verbs.validation import validate as validate_output
from ropeconv.views.advice import show_advice, show_methods
from ropeconv.views.inspection import show_inspection, show_receipt
from ropeconv.views.memory import advised_fit, show_memory
from ropeconv.views.plan import show_outcome, show_plan
from ropeconv.views.results import show_validation
from ropeconv.views.schedule_plots import pictures_of
from ropeconv.views.validation_plots import validation_pictures

from .forms import (
    BakeForm,
    CompareForm,
    ModelForm,
    RuntimesForm,
    address_of_plan,
    command_of,
    open_dropped,
    open_model,
    recipe_of,
    target_of,
    to_page,
)
from .measured import measured_pictures
from .sheet import HtmlSheet, PageProgress, PageReporter, TaskContext

CONFIG = "config.json"


def plan(form: BakeForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Show a plan as `ropeconv apply --dry-run` does, and what a publication would do.

    Args:
        form: The values of the page.
        task: Receives progress.
        sheet: Becomes the answer on the page.
    """
    output_plan = _make_plan(form, task)
    _show_plan_with_fit(output_plan, sheet)
    sheet.say(f"It will be written to {output_plan.out}")
    if output_plan.is_for_ollama:
        sheet.say(f"Its Modelfile for Ollama will be {modelfile_of(output_plan)}")
    _show_details(output_plan, sheet)  # frequencies, runtimes and files, in a part to unfold

    # with a repository, what is uploaded to the Hub
    if form.repo_id:
        from ropeconv.hub.preview import preview, show_publication

        publication = preview(planned_upload(output_plan), _publication(form))
        sheet.note(publication.note)
        show_publication(publication, sheet)
    _show_command_line(output_plan, form, publishing=bool(form.repo_id), sheet=sheet)

    # plots of the method that ropeconv brings along: the user's model was not measured yet
    pictures = measured_pictures(output_plan)
    if pictures:
        sheet.title("Measured on another model")
        sheet.pictures(pictures)


def _show_plan_with_fit(output_plan: Plan, sheet: HtmlSheet) -> None:
    """Show a plan, whether its output fits, and what was measured about its method."""
    show_plan(output_plan, sheet)
    if output_plan.fit:
        sheet.say(f"Fits: {output_plan.fit.sentence}")
    # what was measured, or the command that measures it
    words = quality(output_plan)
    if words:
        sheet.say(f"Quality: {words}")


def _show_details(output_plan: Plan, sheet: HtmlSheet) -> None:
    """Show all of a plan in a part that the user can unfold, and its new config.json."""
    with sheet.folded("Details: frequencies, every runtime, files"):
        show_plan(output_plan, sheet, explain=True)
    for file in output_plan.files:
        if file.name == CONFIG and file.text:
            sheet.file(CONFIG, file.text)


def write(form: BakeForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Write and check an output.

    After a stop or an error, the files that this call has written are removed.

    Args:
        form: The values of the page.
        task: Receives progress, and is asked at the end to ignore a stop (`finish`).
        sheet: Becomes the answer on the page.
    """
    output_plan = _make_plan(form, task)
    # an earlier run that was killed may have left files to continue with, which are not removed
    continues_earlier_run = HiddenFolder(output_plan.out).root.exists()
    # Not validated: after a Cancel the page says that nothing was kept, which would be wrong during
    # a validation, when the output is there already.
    without_validation = ValidationChoice()  # its default
    try:
        output = write_output(
            with_card(output_plan),
            Writing(),
            without_validation,
            PageReporter(task, sheet),
            title=f"Writing {output_plan.out}",
        )
        task.finish()
    except BaseException as problem:
        if continues_earlier_run:
            raise
        with suppress(RopeconvError):  # raised where another run writes the same output
            discard_stopped_run(output_plan.out)
        # an Interruption says that the same command continues the run: not without its files
        if isinstance(problem, Interruption):
            raise StopRequest from None
        raise

    sheet.good(f"{output.place}.")
    if output.reason:
        sheet.note(f"Not checked: {output.reason}.")
    without_path = replace(output, path=None)  # the page shows the path already (`output.place`)
    show_outcome(without_path, sheet)

    # the answer replaces the plan on the page, which people still want to read
    sheet.title("The plan")
    show_plan(output_plan, sheet)
    _show_details(output_plan, sheet)
    _show_command_line(output_plan, form, publishing=False, sheet=sheet)


def validate(form: BakeForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Compare the output of a form with its source, as `ropeconv validate` does.

    The result is recorded in the receipt of the output.

    Args:
        form: The values of the page, with which the output was written.
        task: Receives progress.
        sheet: Becomes the answer on the page.

    Raises:
        UsageError: The output is not there.
    """
    output_plan = _make_plan(form, task)
    out = output_plan.out
    if not out.exists():
        raise UsageError(f"there is no output at {shown(str(out))}; press Write first")

    source = form.upload or form.source
    steps = HtmlSheet()
    result = validate_output(out, source, reporter=PageReporter(task, steps))
    if result.agrees:
        sheet.good(f"Validated {out}: PASS.")
    else:
        sheet.problem(f"Validated {out}: FAIL.")
    sheet.blocks += steps.blocks  # what was run, below the answer
    show_validation(result, f"{out.name} against {output_plan.source.name}", sheet)
    sheet.pictures(validation_pictures(result))
    sheet.title("The same on the command line")
    sheet.copyable(command_line("validate", out, "--against", form.source or Path(source).name))
    sheet.title("The plan")
    _show_plan_with_fit(output_plan, sheet)
    _show_details(output_plan, sheet)


def publish(form: BakeForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Publish an output. Nothing of it stays on this disk."""
    publication = _publication(form)
    output_plan = _make_plan(form, task)
    reporter = PageReporter(task, sheet)
    output = publish_staged(output_plan, publication, reporter)
    task.finish()
    sheet.link(output.published, f"Published: {output.published}")
    show_outcome(output, sheet)
    _show_command_line(output_plan, form, publishing=True, sheet=sheet)


def _show_command_line(plan: Plan, form: BakeForm, publishing: bool, sheet: HtmlSheet) -> None:
    """Show the command line that does the same."""
    sheet.title("The same on the command line")
    sheet.copyable(command_of(plan, form, publishing))


def _make_plan(form: BakeForm, task: TaskContext) -> Plan:
    """Return the plan of a form, with an absolute place, since the page says where it is."""
    recipe = recipe_of(form)
    target = target_of(form)
    if recipe.method.slow_note:
        task.tell(PageProgress(recipe.method.slow_note))
    source = open_model(form)
    target.check(recipe, source.kind == "gguf")
    with asking_installed(target.runtimes, ""):
        output_plan = make_plan(source, recipe, target)
    machine = copied(MachineOptions, form)
    return replace(output_plan, out=output_plan.out.absolute(), asked=machine)


def _publication(form: BakeForm) -> PublishOptions:
    """Return the options of a publication."""
    if not form.repo_id:
        raise UsageError("no repository is given; write owner/name of the one to publish to")
    return copied(PublishOptions, form, repo_id=repository(form.repo_id))


def inspect(form: ModelForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Show a model as `ropeconv inspect` does, and draw its frequencies.

    All numbers and runtimes are in a part that the user can unfold.

    Args:
        form: The model, by its name or as a dropped file.
        task: Not needed, since this takes no time.
        sheet: Becomes the answer on the page.
    """
    source = open_model(form)
    # runtimes that are installed beside ropeconv are asked what they compute from the config
    with asking_installed(names=None, python="", tell=sheet.note):
        inspection = inspect_opened(source)

    # the summary, links to other pages, and the details
    sheet.note(inspection.assumption)
    show_inspection(inspection, sheet)
    if form.source:  # a dropped file has no name that an address could hold
        links = (
            ("extend its context", to_page("", BakeForm(source=form.source))),
            ("compare methods", to_page("compare", CompareForm(source=form.source))),
        )
        sheet.ways("On these pages", links)
    fixes = repairs(source, inspection)  # commands that repair the problems of its config
    with sheet.folded("Details: every number, every runtime"):
        show_inspection(inspection, sheet, fixes, explain=True)

    # the pictures have the unscaled frequencies; those of a scaled model are drawn beside them
    spec = inspection.spec
    curves = {}
    if spec.scaled:
        curves["now"] = spec.current().inv_freq
    sheet.title("Its RoPE in pictures")
    sheet.pictures(pictures_of(spec, curves, spec.context))


MOST_MATCHES = 8
"""Models that a search shows."""


def search(form: BakeForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Show the most downloaded models on the Hub whose names have what was typed.

    They are links that fill the form.

    Args:
        form: The values of the page.
        task: Not needed, since this takes no time.
        sheet: Gets the links.
    """
    from huggingface_hub import HfApi

    if not form.source:
        raise UsageError("no name is given to search for; write a part of one, such as qwen3")
    api = HfApi(library_name="ropeconv")
    links = []
    with answers(form.source):  # an error of the Hub becomes a sentence for the user
        for match in api.list_models(search=form.source, sort="downloads", limit=MOST_MATCHES):
            address = to_page("", replace(form, source=match.id))
            links.append((match.id, address))
    if links:
        sheet.ways("On the Hub", links)
    else:
        sheet.say(f"The Hub has no model with {form.source!r} in its name.")


MOST_SHARDS = 64
"""Files of weights whose headers are read, as a conversion needs them."""
MOST_DRAWN = 5
"""Methods that are drawn, the first of the table."""


def compare(form: CompareForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Show the methods that reach a length as `ropeconv advise` does, and draw the first of them.

    Args:
        form: The model, the length to reach, and a result of `eval` to sort by.
        task: Not needed, since nothing is counted.
        sheet: Becomes the answer on the page.
    """
    source = open_model(form)
    measured = Path(form.measured) if form.measured else None

    # A conversion to GGUF reads the header of each shard: on the Hub a request each, which takes
    # longer than a page may. None stands for all formats that the model can have.
    has_many_shards = isinstance(source, Source) and len(source.weights()) > MOST_SHARDS
    formats: tuple[Format, ...] | None = ("safetensors",) if has_many_shards else None
    length = _parse_length(form.context, source)

    # runtimes that are installed beside ropeconv are asked what they compute from each config
    with asking_installed(names=None, python="", tell=sheet.note):
        advice = advised(source, length, measured, formats)

    # the table of methods, and whether the model fits into the memory of this machine
    fit = advised_fit(advice, MachineOptions())
    show_advice(advice, sheet, fit)
    show_memory(fit, sheet)
    if has_many_shards:
        sheet.note(
            f"GGUF is left out for more than {MOST_SHARDS} files of weights; use `ropeconv advise`."
        )
    if advice.methods:
        if form.source:  # a dropped file has no name that an address could hold
            _link_methods(form.source, advice.methods, sheet)
        _draw_methods(advice, sheet)
    with sheet.folded("Details: columns, each method"):
        show_methods(advice, sheet)


def _link_methods(source: str, methods: Sequence[Advice], sheet: HtmlSheet) -> None:
    """Add a link for each method to the page that plans an output with it, as "--yarn 4"."""
    links = []
    for row in methods:
        address = address_of_plan(source, row.recipe, row.replace)
        links.append((row.flags, address))
    sheet.ways("Plan a method", links)


def _draw_methods(advice: RankedMethods, sheet: HtmlSheet) -> None:
    """Draw the frequencies of the first methods over those of the unscaled model."""
    is_a_part = len(advice.methods) > MOST_DRAWN
    drawn = f"The first {MOST_DRAWN} methods" if is_a_part else "The methods"
    sheet.title(f"{drawn} in pictures")
    curves = {row.method.name: row.schedule.inv_freq for row in advice.methods[:MOST_DRAWN]}
    sheet.pictures(pictures_of(advice.inspection.first_spec, curves, advice.context))


def _parse_length(text: str, source: Source | GgufSource) -> int:
    """Return a context length from a text such as 128k, 131072, or 4 for a factor of 4."""
    if not text:
        raise UsageError("no length is given; write one such as 128k, or a factor such as 4")
    try:
        factor_or_length = parse_factor(text, "the length")
    except RecipeError:
        return parse_tokens(text)
    # `parse_factor` returns a length as a text, such as "128k"
    if isinstance(factor_or_length, str):
        return parse_tokens(factor_or_length)
    trained = inspect_source(source).first_spec.original_context
    return round(trained * factor_over(factor_or_length, trained, "the length"))


def results(form: ModelForm, task: TaskContext, sheet: HtmlSheet) -> None:
    """Show a receipt with all that it knows, or the result of an evaluation or a validation."""
    if form.upload:
        _show_dropped(Path(form.upload), sheet)
    else:
        _show_receipt(receipt_of(open_model(form)), sheet)


def _show_dropped(path: Path, sheet: HtmlSheet) -> None:
    """Show a file that was dropped on the page: a result, a receipt, or a GGUF file of ropeconv."""
    if is_gguf(path):
        _show_receipt(receipt_of(open_dropped(path)), sheet)
        return

    # JSON files of ropeconv are told apart by a key that only one of them has
    text = read_text(path, path.name)
    data = jsontext.parse(text, path.name)
    if "cells" in data:
        # a function of the feature `evaluation`, which this one cannot import
        show_evaluation = hook("show_evaluation")
        pictures = show_evaluation(path, sheet)
        sheet.pictures(pictures)
    elif "buckets" in data:
        _show_validation(data, path.name, sheet)
    elif "recipe" in data:
        _show_receipt(parse_receipt(text, path.name), sheet)
    else:
        raise UsageError(
            f"{path.name} is not a receipt or a result of `ropeconv eval` or `validate`; drop one"
            " of these"
        )


def _show_receipt(receipt: Receipt, sheet: HtmlSheet) -> None:
    """Show a receipt and the validations in it."""
    show_receipt(receipt, sheet)
    validations = {"the installed transformers": receipt.validation} | receipt.servers
    for name, record in validations.items():
        if record:
            _show_validation(record, f"Validated by {name}", sheet)


def _show_validation(data: dict[str, object], title: str, sheet: HtmlSheet) -> None:
    """Show the result of a validation."""
    try:
        result = Validation.from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadSource(
            f"{title} is not a validation of ropeconv; run `ropeconv validate` again"
        ) from None
    show_validation(result, title, sheet)
    sheet.pictures(validation_pictures(result))


WRITINGS = {
    "yarn": "YaRN",
    "linear": "position interpolation (linear)",
    "llama3": "Llama 3.1 scaling",
    "theta": "a new base (theta, NTK)",
    "factors": "any frequencies (LongRoPE factors)",
}
"""The ways to write RoPE, by the names that the matrix has for them."""
FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "gemma3",
    "phi3",
    "deepseek_v3",
    "qwen3_5",
    "gemma4",
    "gpt_oss",
    "llama4",
    "mixtral",
    "gemma2",
    "qwen2_5_vl",
    "qwen3_vl",
    "glm4",
    "glm4_moe",
    "kimi_k2",
    "olmo2",
    "granite",
    "cohere2",
    "smollm3",
    "falcon",
    "phi",
    "stablelm",
    "starcoder2",
    "exaone4",
    "ministral3",
    "gpt_neox",
)
"""The families that most people run; the others follow by name."""
LEGEND = (
    "supported: computes the method. wrong: silently computes another RoPE. ignored: silently runs"
    " without scaling. fails: stops with an error. untested: not known. -: the runtime does not"
    " have the family, or the method does not apply to it."
)


def runtime_names() -> list[str]:
    """Return the runtimes of the table, those that most people use first."""
    listed = dict.fromkeys(row.name for row in runtimes())
    popular = [name for name in POPULAR if name in listed]
    others = [name for name in listed if name not in POPULAR]
    return popular + others


def family_names() -> list[str]:
    """Return the families of the table, those that most people use first."""
    by_name = sorted({cell.family for cell in matrix()})
    return list(dict.fromkeys([*FAMILIES, *by_name]))


def runtimes_html(form: RuntimesForm) -> str:
    """Return the table of runtimes as HTML: a row for each family, a column for each runtime.

    A cell says whether the newest version of the runtime supports the family. With one family in
    the form, a second table has every version.

    Args:
        form: The family and the runtime, empty for all, and how the config writes RoPE (`writing`,
            such as "yarn").
    """
    runtime_columns = [name for name in runtime_names() if form.runtime in ("", name)]
    writing = form.writing
    if writing not in WRITINGS:
        writing = next(iter(WRITINGS))

    # each cell is the verdict of one version of a runtime on one family and one writing
    cells = [cell for cell in matrix() if form.family in ("", cell.family)]

    # the verdict on the newest version by family, writing and runtime: `cells` has older versions
    # first, so that a newer verdict replaces an older one
    newest_verdicts = {}
    for cell in cells:
        newest_verdicts[cell.family, cell.writing, _runtime_of(cell)] = cell.verdict

    # the heading of each column, such as "vLLM"
    titles = {}
    for (_, _, runtime), verdict in newest_verdicts.items():
        titles[runtime] = title_of(verdict)
    headings = [titles.get(runtime, runtime) for runtime in runtime_columns]

    # a row such as ("llama", "supported", "-", "ignored")
    shown_families = {cell.family for cell in cells}
    rows = []
    for family in family_names():
        if family not in shown_families:
            continue
        row = [family]
        for runtime in runtime_columns:
            verdict_or_none = newest_verdicts.get((family, writing, runtime))
            row.append(_support_word(verdict_or_none))
        rows.append(tuple(row))

    sheet = HtmlSheet()
    sheet.say(LEGEND)
    sheet.table(f"{WRITINGS[writing]}, in the newest version", ["", *headings], rows)
    if form.family:
        cells_of_writing = [cell for cell in cells if cell.writing == writing]
        details = _version_rows(cells_of_writing, runtime_columns)
        sheet.table("Every version", ("runtime", "support", "reason", "evidence"), details)
    else:
        sheet.note("Choose a family to see every version, with reasons and evidence.")
    return sheet.html()


def _version_rows(cells: Sequence[MatrixCell], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row for each version of the named runtimes, in the order of the names.

    Args:
        cells: The verdicts of one family and one way to write RoPE.
        names: The names of the runtimes.
    """
    rows: list[tuple[str, ...]] = []
    for name in names:
        for cell in cells:
            if _runtime_of(cell) != name:
                continue
            verdict = cell.verdict
            support = WORDS[verdict.status]
            rows.append((verdict.display_name, support, verdict.reason, _evidence(verdict)))
    return rows


def _runtime_of(cell: MatrixCell) -> str:
    """Return the name of the runtime of a cell, without the version."""
    name, _, _ = cell.verdict.runtime.partition("@")
    return name


def _support_word(verdict: Verdict | None) -> str:
    """Return the word of the table for a verdict, such as "supported"; "-" where it has none."""
    if verdict is None or WORDS[verdict.status] == "unsupported":
        return "-"
    return WORDS[verdict.status] or "-"


def _evidence(verdict: Verdict) -> str:
    """Return where a verdict is from: "ran 0.33.0; vllm/config/model.py:1043", say."""
    verb = {"run": "ran", "read": "read"}.get(verdict.grade, "")
    detail = f"{verb} {verdict.evidence.detail}".strip()
    return "; ".join(part for part in (detail, verdict.source) if part)


Task = Callable[[Any, TaskContext, HtmlSheet], None]
TASKS: dict[str, Task] = {
    "search": search,
    "inspect": inspect,
    "compare": compare,
    "plan": plan,
    "write": write,
    "validate": validate,
    "publish": publish,
    "results": results,
}
