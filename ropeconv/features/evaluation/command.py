"""`ropeconv eval`: what an extension does to a model, measured before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropeconv.cli.command import expand_options, option_names, typed_options
from ropeconv.cli.options import (
    DeviceMapOption,
    DryRunOption,
    FamilyOption,
    PlotOption,
    ReportOption,
    TrustOption,
    check_places,
)
from ropeconv.cli.screen import ProgressScreen, Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import Interruption, UsageError
from ropeconv.formats.kind import is_gguf
from ropeconv.options import RunOptions, copied
from ropeconv.rope.errors import counted
from ropeconv.rope.features import hook

from .options import EvalOptions, SizeOptions, TextOptions

if TYPE_CHECKING:
    from .evaluation import Evaluation, Sizes
    from .ranking import Condition
    from .result import Result
    from .runners.runner import RunnerRequest

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv eval Qwen/Qwen3-8B --methods base,yarn:4,mixed:4,ntk:4 --text book.txt
ropeconv eval ./model --methods base,yarn:4,yarn:4:attention_factor=1 --text 'essays/*.txt' --measure growth,passkey
ropeconv eval model-Q4_K_M.gguf --methods base,yarn:4 --text book.txt --lengths 8k,32k --budget 20m
ropeconv eval ./model-yarn4 --text book.txt --report eval.html --fail-if 'model-yarn4 > base @1T'
"""


MODEL_HELP = (
    "A folder, a GGUF file or an id on the Hub: a source, or an output of `apply`. May be left out"
    " with --server."
)


def sort_words(words: Sequence[str], options: TextOptions) -> tuple[list[str], list[str]]:
    """Separate the text files from the other words of a command line.

    The shell expands an unquoted `--text *.txt` to several words, of which typer gives the first
    to --text and the others to the arguments.

    Args:
        words: The model and the methods, possibly with text files between them.
        options: The options, with the texts that typer found.

    Returns:
        The words that are not text files, and the names of all texts.
    """
    if not options.text:
        return list(words), []

    others = []
    files = []
    for word in words:
        if Path(word).is_file() and not is_gguf(word):  # a GGUF file is a model
            files.append(word)
        else:
            others.append(word)
    return others, [*options.text, *files]


def texts_of(names: list[str], options: TextOptions) -> list[tuple[str, str]]:
    """Return the names and contents of texts, from files or a dataset.

    Args:
        names: Paths and patterns, as --text has them.
        options: The options, for the dataset and its column.

    Raises:
        UsageError: Both sources of text are given, or neither.
    """
    from .texts import read_dataset, read_files

    if names and options.dataset:
        raise UsageError("--text and --dataset are two sources of text; give one of them")
    if options.dataset:
        return read_dataset(options.dataset, options.field)
    return read_files(names)


def refuse_field(typed: Set[str], options: TextOptions) -> None:
    """Refuse --field without --dataset.

    Args:
        typed: The names of the options on the command line.
        options: Their values.

    Raises:
        UsageError: --field has no effect.
    """
    if "--field" in typed and not options.dataset:
        raise UsageError("--field is a column of --dataset; add that, or leave it out")


@app.command("eval", cls=Command, epilog=EXAMPLES)
@expand_options
def eval_command(
    ctx: typer.Context,
    options: EvalOptions,
    sizes: SizeOptions,
    running: RunOptions,
    screen: ProgressScreen,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = "",
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD:VALUE",
            help="Methods to compare with the unchanged model, such as yarn:4.",
        ),
    ] = None,
    device_map: DeviceMapOption = "",
    report: ReportOption = None,
    plot: PlotOption = None,
    trust_remote_code: TrustOption = False,
    family: FamilyOption = "",
    dry_run: DryRunOption = False,
) -> None:
    """Measure loss and retrieval of a model with several methods, before anything is written.

    The model is loaded once for all methods. Exit codes: 0 done, 3 a condition of --fail-if holds,
    130 stopped before the end (the same command continues).
    """
    from msgspec import to_builtins

    from ropeconv.formats.journal import default_path
    from ropeconv.verbs.rows import parse_rows

    from .evaluation import Sizes, parse_duration, refuse_ignored
    from .ranking import parse_condition
    from .result import record
    from .runners.runner import RunnerRequest
    from .views import show_result

    # everything that can be refused without a model is refused before one is loaded
    measures = copied(Sizes, sizes).chosen_measures()
    typed = typed_options(ctx)
    refuse_field(typed, options)
    refuse_ignored(option_names(typed), model, options.servers, measures)
    check_places(report, plot, options.out)

    # MODEL, then methods or text files
    words = list(named or ())
    if model:
        words.insert(0, model)
    words, text_names = sort_words(words, options)
    if not options.servers:
        _refuse_config(words[0] if words else model)
    model = words[0] if words else ""
    methods = _choose_methods(words[1:], options.methods)
    budget = parse_duration(options.budget) if options.budget else 0.0
    conditions = [parse_condition(text) for text in options.fail_if]
    request = RunnerRequest(
        model=model,
        rows=parse_rows(methods) if methods else [],
        against=options.against,
        servers=options.servers,
        device=running.device,
        dtype=running.dtype,
        device_map=device_map,
        chunk=running.chunk,
        family=family,
        trust_remote_code=trust_remote_code,
        threads=options.threads,
    )
    texts = []
    if text_names or options.dataset or any(measure.needs_text for measure in measures):
        texts = texts_of(text_names, options)

    # the model is loaded here, and freed at the end of the block
    opened = _open_evaluation(options.workers, request, copied(Sizes, sizes), texts)
    with opened as evaluation:
        rows = evaluation.rows
        names = [measure.name for measure in evaluation.measures]
        for condition in conditions:
            condition.check([row.name for row in rows], names, evaluation.sizes)
        if dry_run:
            _show_plan(evaluation, model, budget, screen)
            return
        journal = options.journal or default_path(evaluation.runner.source)
        _run(evaluation, journal, options.fresh, budget, screen)

    result = evaluation.result(model or ", ".join(row.url for row in rows))
    _write(result, options.out, plot, report)
    if screen.as_json:
        screen.data(to_builtins(result))
    else:
        show_result(result, screen)
    # half a result is shown, but neither recorded nor judged
    if evaluation.outcome.stopped:
        raise Interruption("stopped before its end; the same command continues")

    try:
        for path in record(result, rows, screen.note):
            screen.note(f"The receipt of {path} has these numbers.")
    finally:  # conditions are judged even where a receipt cannot be written
        failed = _judge(conditions, result, screen)
    if failed:
        raise SystemExit(3)


def _refuse_config(word: str) -> None:
    """Raise UsageError where the only word that could be a model is a config without weights."""
    if Path(word).suffix.lower() == ".json":
        raise UsageError(
            f"{word} has no weights, and eval runs a model; give the folder of a checkpoint, or its"
            " name on the Hub"
        )


def _choose_methods(named: Sequence[str], methods: str) -> str:
    """Return the rows of the table as text: "base,yarn:4" for `eval MODEL_HELP yarn:4`.

    It is empty for the default rows.

    Args:
        named: The methods after MODEL, which are compared with the unchanged model.
        methods: The value of --methods.

    Raises:
        UsageError: Both are given.
    """
    if not named:
        return methods
    if methods:
        raise UsageError("name methods after MODEL or with --methods, not both")
    return ",".join(["base", *named])


def _write(result: Result, out: Path | None, plot: Path | None, report: Path | None) -> None:
    """Write the files that --out, --plot and --report name."""
    from ropeconv.formats.drafts import together
    from ropeconv.views.plot_style import write_pictures

    from .plots import evaluation_pictures
    from .report import write_evaluation_report
    from .result import write_result

    with together():  # an error in one of them leaves all of them unwritten
        if out is not None:
            write_result(result, out)
        if plot is not None:
            write_pictures(evaluation_pictures(result), plot)
        if report is not None:
            write_evaluation_report(result, report)


def _judge(conditions: Sequence[Condition], result: Result, screen: Screen) -> bool:
    """Show whether each condition of --fail-if holds, and return whether one does."""
    any_holds = False
    for condition in conditions:
        holds, sentence = condition.judge(result)
        screen.note(sentence)
        if holds:
            any_holds = True
    return any_holds


def _open_evaluation(
    workers: str, request: RunnerRequest, sizes: Sizes, texts: list[tuple[str, str]]
) -> AbstractContextManager[Evaluation]:
    """Open an evaluation whose sequences run in this process, or on several workers.

    Args:
        workers: The workers as --workers has them; empty for this process.
        request: The model and its rows, each the model with one method.
        sizes: The lengths and measures, as the user has written them.
        texts: Names and contents of texts.
    """
    from .evaluation import open_evaluation

    if not workers:
        return open_evaluation(request, sizes, texts)

    # the feature `run`, which may be left out of an installation, has a function for workers
    open_on_workers = hook("open_spread")
    evaluation: AbstractContextManager[Evaluation] = open_on_workers(workers, request, sizes, texts)
    return evaluation


def _show_plan(evaluation: Evaluation, model: str, budget: float, screen: Screen) -> None:
    """Print what would be run, how long it takes, and how much memory.

    Args:
        evaluation: The evaluation, of which the first sequences are run to time them.
        model: The model as the user named it.
        budget: The time that it may take in seconds, 0 for any.
        screen: Where it is printed.

    Raises:
        UsageError: The evaluation would take longer than the budget.
    """
    sizes = evaluation.sizes
    estimate = evaluation.estimate()
    estimate.check(budget, sizes)  # raises UsageError
    memory = ""
    if not evaluation.workers:  # the memory of another machine is not known here
        memory = evaluation.runner.memory(sizes.longest)

    if screen.as_json:
        rows = []
        for row in evaluation.rows:
            why_refused = evaluation.outcome.refused(row.name)  # empty for a row that can be run
            rows.append(row.to_dict() | {"refused": why_refused or None})
        document = {
            "source": model,
            "rows": rows,
            "lengths": list(sizes.lengths),
            "estimate": estimate.to_dict(),
            "memory": memory,
        }
        screen.data(document)
        return

    _show_sequences(evaluation, model, screen)
    why_left_out = evaluation.outcome.sentences(sizes.trained)
    for sentence in why_left_out:
        screen.say(f"Left out: {sentence}")
    screen.say(estimate.sentence)
    if memory:
        screen.say(memory)


def _show_sequences(evaluation: Evaluation, model: str, screen: Screen) -> None:
    """Print how many sequences and tokens each measure reads at each length, as a table."""
    # a pass is one run of the model over a sequence; measures that use the losses of the same pass
    # share a line, such as "growth, longppl"
    sequences = Counter[tuple[str, int]]()
    tokens = Counter[tuple[str, int]]()
    for units in evaluation.passes.values():
        measures = ", ".join(unit.measure.name for unit in units)
        case = units[0].case  # all units of a pass share one sequence
        sequences[measures, case.column] += 1
        tokens[measures, case.column] += len(case.ids)

    lines = []
    for (measures, length), count in sequences.items():
        total = tokens[measures, length]
        lines.append((measures, f"{length:,}", f"{count:,}", f"{total:,}"))
    columns = ("measure", "length", "sequences", "tokens")
    title = f"{model}, {counted(len(evaluation.rows), 'row')}"
    screen.table(title, columns, lines, right=columns[1:])


def _run(evaluation: Evaluation, journal: Path, fresh: bool, budget: float, screen: Screen) -> None:
    """Run an evaluation with a progress bar.

    The first Ctrl-C ends the evaluation after the running sequence; the second ends it at once.

    Args:
        evaluation: The evaluation.
        journal: The file that keeps the losses of finished sequences, also of earlier runs.
        fresh: Whether to begin a new journal.
        budget: The time that the evaluation may take in seconds; 0 for any time.
        screen: Where progress and notes are shown.

    Raises:
        Interruption: The user ended the evaluation at once.
        UsageError: The evaluation takes longer than the budget.
    """
    from ropeconv.engines.engine import Progress
    from ropeconv.engines.transformers.load import advice_on_memory
    from ropeconv.formats.journal import Journal

    from .cases import EVAL

    with Journal(journal, EVAL, evaluation.runner.source, fresh) as opened:
        # say what is left out, such as a row that the runtime cannot compute
        missing = evaluation.missing(opened)
        reasons = evaluation.outcome.sentences(evaluation.sizes.trained)
        for sentence in reasons:
            screen.note(f"Left out: {sentence}")

        # estimate the time; this runs a few sequences, whose losses go into the journal
        if missing and budget:
            estimate = evaluation.estimate(opened)
            estimate.check(budget, evaluation.sizes)  # raises UsageError
            screen.note(estimate.sentence)

        # say how much was done before; `passes` has every run of the model over a sequence
        finished = len(evaluation.passes) - len(missing)
        if finished:
            are_kept = counted(finished, "sequence is", "sequences are")
            screen.note(f"{are_kept} in the journal, {journal}.")

        # Run the rest. `stopped()` is true after the first Ctrl-C; the second raises
        # KeyboardInterrupt.
        afterwards = "what has been measured will be shown"
        try:
            with (
                screen.counting("Measuring") as (total, advance),
                screen.stopping(afterwards) as stopped,
                advice_on_memory(),
            ):
                progress = Progress(note=screen.note, total=total, advance=advance, stopped=stopped)
                evaluation.run(opened, progress)
        except KeyboardInterrupt:
            finished = len(evaluation.passes) - len(evaluation.missing(opened))
            are_kept = counted(finished, "finished sequence is", "finished sequences are")
            raise Interruption(
                f"interrupted; {are_kept} in the journal, {journal}: the same command continues"
                " from there"
            ) from None
