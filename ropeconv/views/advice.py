"""Advice on methods, and the runtimes that support them, as tables and sentences.

`show_advice` is the screen of `ropeconv advise`, and `show_methods` what `--explain` adds to it.
`show_runtimes` and `show_matrix` are the screens of `ropeconv list runtimes`.
"""

from collections.abc import Iterable, Iterator, Sequence

from ..bake.advice import NOT_DECIDED, Advice, MatrixCell, MeasuredMethod, counts, letters
from ..bake.evidence import LEAST_FOUND, MOST_LOST, Study
from ..bake.ranked import RankedMethods
from ..formats.jsontext import JsonObject
from ..inspection.memory.fit import Fit
from ..inspection.support import group_by_status
from ..models.gguf import GgufSource
from ..rope.errors import command_line, counted
from ..rope.recipe import recipe_text
from ..runtimes.runtime import GOOD, WRONG, Runtime
from .sheet import RUNTIMES, Sheet, legend


def show_advice(advice: RankedMethods, sheet: Sheet, fit: Fit | None = None) -> None:
    """Show advice: a row per method, the command for the first, and how to measure it.

    Args:
        advice: The methods.
        sheet: Where they are shown.
        fit: The memory of the wanted context in a runtime; without it, only the cache is shown.
    """
    methods = advice.methods
    inspection = advice.inspection

    # what holds for all methods
    for note in (advice.note, advice.training, advice.useless):
        if note:
            sheet.note(f"Note: {note}")
    sheet.note(inspection.assumption)
    if not methods:
        sheet.say(f"No method reaches {advice.context:,} tokens; give a shorter --context.")
        return

    # the methods, and why a format cannot hold some or all of them: "No gguf: ... (--yarn 4)"
    _show_table(advice, sheet)
    for reason, flags in _refusals(methods, short=True).items():
        if len(flags) == len(methods):
            sheet.say(f"No {reason}.")
        else:
            sheet.say(f"No {reason}: {', '.join(flags)}.")
    for sentence in _describe_answers(methods):
        sheet.say(sentence)

    # the memory that the context takes, and the next commands
    if fit is not None:
        sheet.say(fit.detail)
    elif inspection.kv_cache:
        sheet.say(inspection.kv_cache.short(advice.context, inspection.spec.context))
    elif not inspection.encoder:  # such as DeepSeek V4, whose layers compress their keys
        sheet.say(f"Memory of the cache: not known for {inspection.display_name}.")
    if methods[0].writable:
        _show_commands(advice, methods[0], sheet)


def _show_table(advice: RankedMethods, sheet: Sheet) -> None:
    """Show a row per method: its flag, what was measured of it, and how many runtimes support it.

    Where the user gave a result of `ropeconv eval` (`ranking`), the measured numbers are from that,
    else from published studies.
    """
    # columns with the runtimes that support each format, such as "safetensors" and "gguf"
    format_columns = list(advice.formats)
    if len(format_columns) == 1:
        format_columns = ["runtimes"]

    # A narrow terminal leaves out the optional columns, in this order. Columns of numbers are
    # aligned at the right.
    optional = list(reversed(format_columns))
    if advice.ranking:
        optional.append("without training")
        number_columns = ["loss", "price", "holds to"]
    else:
        optional += ["loss inside", "measured on"]
        number_columns = ["loss inside", "loss at length", "price", "facts found"]

    before = advice.inspection.spec.context
    title = f"{advice.source}: {before:,} -> {advice.context:,} tokens"
    table = advice.shown_tables()[0]  # advice has only this one
    sheet.table(title, table.columns, table.rows, optional=optional, right=number_columns)
    if advice.ranking is None:
        _explain_losses(advice, sheet)
        _explain_order(advice, sheet)


def _explain_losses(advice: RankedMethods, sheet: Sheet) -> None:
    """Say what the losses of the table are, and from which on a method needs no training.

    A method is compared with the unchanged model at its trained length. The sentence has the loss
    of that model, such as "(SmolLM2-135M: 3.19)". Studies of the model on other texts are added:
    "(SmolLM2-135M: 3.19 on 12 texts, 2.96 on 2 texts)".
    """
    if not advice.studies:
        return

    unchanged_model = "the loss of the unchanged model at its trained length"
    first_study = advice.studies[0]
    if first_study.start is not None:
        losses = f"{first_study.short_model}: {first_study.start:.2f}"
        if advice.has_several_samples:
            losses += f" on {first_study.texts} texts"
        for study in advice.studies[1:]:
            is_same_model = study.short_model == first_study.short_model
            has_other_texts = study.texts != first_study.texts
            if is_same_model and has_other_texts and study.start:
                losses += f", {study.start:.2f} on {study.texts} texts"
        unchanged_model += f" ({losses})"
    sheet.say(
        "Losses in nats per token, on other models. Without training: a loss at length of at most"
        f" {MOST_LOST:g} above {unchanged_model}, and {LEAST_FOUND:g} % of hidden facts found."
    )
    if advice.has_several_samples:
        sheet.say(
            "Losses on different texts cannot be compared, so methods are in the order of what they"
            " lose beside the unchanged model on the same texts."
        )

    # where the first method is not decided, its numbers are shown below
    undecided = [
        row for row in advice.methods if row.writable and row.without_training == NOT_DECIDED
    ]
    if undecided and undecided[0] is not advice.methods[0]:
        sheet.say(
            f"Not decided: {LEAST_FOUND:g} % is inside the interval of the facts found, so more"
            " questions are needed."
        )


def _explain_order(advice: RankedMethods, sheet: Sheet) -> None:
    """Name the small model that gives unmeasured methods their order, if there is one."""
    models = []
    for row in advice.methods:
        if row.weak is not None and row.writable and row.weak.study.short_model not in models:
            models.append(row.weak.study.short_model)
    if models:
        sheet.say(
            f"Methods that were not measured are in the order of {' and '.join(models)}, which"
            " loses too little without a method to judge any."
        )


def _show_commands(advice: RankedMethods, first: Advice, sheet: Sheet) -> None:
    """Show the commands that bake the first method, train with it if needed, and measure it."""
    inspection = advice.inspection

    # Whether the method needs training. It is known to work without (`works_untuned`), it is known
    # to need some, or neither is known: "undecided". The sentence is such as "At 131,072 tokens (4
    # times ...) --yarn 4 needs fine-tuning."
    tuning = first.fine_tuning
    if tuning.level == "undecided":
        sheet.say(f"{first.flags}: {tuning.sentence}")
    elif not tuning.works_untuned:
        all_need_the_same = all(row.fine_tuning.need == tuning.need for row in advice.methods)
        subject = "every method" if all_need_the_same else first.flags
        sheet.say(f"At {advice.context:,} tokens ({tuning.times}) {subject} {tuning.need}.")
    sheet.copyable(f"Bake:    {first.command}")

    # for a method that is known to need training: how to train, and another method without training
    needs_training = not tuning.may_work_untuned
    if needs_training:
        # trainers load neither GGUF files nor encoders
        can_be_trained = not inspection.encoder and not isinstance(inspection.source, GgufSource)
        if can_be_trained:
            train = command_line("train-config", first.out, "--for", "axolotl")
            sheet.copyable(f"Train:   {train}")
        if advice.untuned:
            sheet.copyable(f"Untuned: {advice.untuned.command}")

    # `eval` runs models with weights, and measures the loss of the next token, which encoders do
    # not predict
    can_be_measured = inspection.source.kind != "config" and not inspection.encoder
    if advice.ranking is None and can_be_measured:
        rows = f"base,{recipe_text(first.recipe)}"
        words = ["--methods", rows, "--text", "FILE", *inspection.source.family_words]
        measure = command_line("eval", advice.source, *words)
        sheet.copyable(f"Measure: {measure}")


def show_methods(advice: RankedMethods, sheet: Sheet) -> None:
    """Show a paragraph per method, and the reasons of methods that do not fit."""
    for line in explain_columns(advice):
        sheet.say(line)
    sheet.say("")
    for row in advice.methods:
        _show_method(row, sheet)
    sheet.say("")
    for reason, flags in _refusals(advice.methods).items():
        if len(flags) == len(advice.methods):
            sheet.say(f"No {reason} (all of them).")
        else:
            sheet.say(f"No {reason} ({', '.join(flags)}).")
    for name, reason in advice.passed_over.items():
        sheet.say(f"Left out, {name}: {reason}")


def _show_method(row: Advice, sheet: Sheet) -> None:
    """Show a method: its command, what is known of it, and the runtimes that compute it wrongly."""
    note = row.method.finetuning_note or row.method.summary
    sheet.say(f"{row.method.name}: {note}.")
    sheet.copyable(f"    {row.command}")

    # what the publisher of the model recommends, why the method needs training, and measurements;
    # an empty text where there is nothing to say
    recommendation = row.recommended
    training_reason = row.fine_tuning.reason
    if recommendation:
        sheet.say(f"    {recommendation}.")
    if training_reason and training_reason != recommendation:
        sheet.say(f"    {training_reason}.")
    sheet.say(f"    {_describe_profile(row)}")
    for study in row.standing.studies:
        sheet.say(f"    {_describe_study(study, row.method.name)}")

    # runtimes that would compute other numbers, by the format of the output: "gguf as keys: ..."
    for format_name, writing in row.writings.items():
        wrong = []
        for status, runtimes in group_by_status(writing.verdicts):
            if status in WRONG:
                wrong.append(f"{status}: {runtimes}")
        if wrong:
            sheet.say(f"    {format_name} as {writing.encoding}: {'; '.join(wrong)}")


def _describe_profile(row: Advice) -> str:
    """Return the numbers of the schedule in a sentence."""
    # dimensions that see larger angles than in training, among those that rotate
    rotating = 2 * (len(row.schedule.inv_freq) - row.profile.not_rotating)
    sentence = f"{row.profile.outside} of {rotating} dimensions reach angles never seen in training"

    # the longest distance up to which sum cos(m theta_i) is not negative (Men et al. 2024)
    effective = row.profile.reach.effective_length
    if effective is not None and not row.profile.reach.automatic:
        sentence += f"; the sum of cosines is positive up to {effective:,} tokens"
    return f"{sentence}."


def _describe_study(study: Study, method: str) -> str:
    """Return what a study measured of a method: `4 times, nats: beyond 2.9 (without 6.1). ...`

    Args:
        study: Losses of several methods, beyond and inside the trained context and on repeated
            text, by name; "base" is the model without a method.
        method: The name of the method.
    """
    # A study that has the loss of the unchanged model at its trained length, so that it says how
    # much a method loses beside it (`lost`). `study.n` is its sample in words, such as "24 texts".
    if method in study.lost:
        inside, beyond, price, found, _ = MeasuredMethod(study, method).cells()
        return (
            f"{study.factor:g} times, nats per token: {inside} at the trained length (price"
            f" {price}), {beyond} at the length; {found} of hidden facts. {study.model}, {study.n}:"
            f" {study.source}."
        )

    # Any other study: what it measured of the method, and of the unchanged model ("base").
    tables = {
        "beyond": study.beyond,
        "inside": study.inside,
        "repeated text": study.retrieval,
    }
    measured = []
    for place, losses in tables.items():
        if method not in losses:
            continue
        value = f"{place} {losses[method]:g}"
        if "base" in losses:
            value += f" (without {losses['base']:g})"
        measured.append(value)

    setting = f"{study.factor:g} times"
    if study.fine_tuned:
        setting += ", fine-tuned"
    values = "; ".join(measured)
    return f"{setting}, {study.unit}: {values}. {study.model}, {study.n}: {study.source}."


def _refusals(rows: list[Advice], short: bool = False) -> dict[str, list[str]]:
    """Return the reasons why a format cannot hold methods, with the flags of these methods.

    Args:
        rows: The methods.
        short: Whether to cut a reason before ": with ", after which it says why each encoding of
            the format fails.

    Returns:
        The flags, by the format and the reason: "gguf: ...".
    """
    flags_by_reason: dict[str, list[str]] = {}
    for row in rows:
        for format_name, writing in row.writings.items():
            if not writing.reason:
                continue
            reason = writing.reason
            if short and ": with " in reason:
                reason, _, _ = reason.partition(": with ")
                reason += " (--explain says why)"
            flags_by_reason.setdefault(f"{format_name}: {reason}", []).append(row.flags)
    return flags_by_reason


def _describe_answers(methods: Sequence[Advice]) -> Iterator[str]:
    """Yield what each installed runtime says: `vLLM 0.32.0 (run here) supports 9 of 11 methods.`

    A method counts where the runtime computes its output in one of the formats.
    """
    # by runtime, the methods that it supports; a method is known by its flags, such as "--yarn 4"
    supported: dict[str, set[str]] = {}
    for row in methods:
        for writing in row.writings.values():  # the output in each format
            for verdict in writing.verdicts:
                was_run_here = verdict.here
                if not was_run_here:
                    continue
                flags = supported.setdefault(verdict.display_name, set())
                if verdict.status in GOOD:  # exact, or but for rounding
                    flags.add(row.flags)
    for name, flags in supported.items():
        yield f"{name} (run here) supports {len(flags)} of {counted(len(methods), 'method')}."


def explain_columns(advice: RankedMethods) -> Iterator[str]:
    """Yield the meaning of the columns of the table, and how it is sorted."""
    if not advice.methods:
        return
    if advice.ranking:
        yield "Loss: nats per token, measured with this method."
        yield "Price: increase of the loss at the trained length, measured."
        yield "Holds to: longest length whose loss is within three errors of its best, measured."
    else:
        yield "Loss inside, loss at length: at the trained length, and at the factor of the study."
        yield "Price: increase of the loss at the trained length by the method."
        yield "Facts found: passkeys or needles at that factor, with an interval of 95 %."
    yield (
        f"Without training: the loss at the length is at most {MOST_LOST:g} nats above that of the"
        f" unchanged model at its trained length, and {LEAST_FOUND:g} % of hidden facts are found;"
        " or the publisher recommends it, or the model was trained with this scaling."
    )
    yield (
        "Runtimes, safetensors, gguf: runtimes that support the output, of those that can load the"
        " model."
    )
    yield f"Sorted by: {advice.criterion}."


MATRIX_LEGEND = (
    "T: a new base (theta, NTK), L: linear, 3: llama3, Y: YaRN, F: any frequencies (LongRoPE"
    " factors). A letter: exact in the newest version; a dot: not exact (`ropeconv apply --dry-run"
    " --explain` says why); -: no model of the kind; ?: not tested."
)


def show_runtimes(rows: Iterable[JsonObject], sheet: Sheet) -> None:
    """Show a row per runtime, and what the columns mean.

    Args:
        rows: The runtimes, as `summaries` gives them: dicts of seven values, in the order of the
            columns.
        sheet: The sheet that shows them.
    """
    columns = ("--runtime", "what", "exact", "run", "read", "unknown", "source")
    optional = ("source", "what", "read", "unknown", "run")
    lines = []
    for row in rows:
        lines.append([str(value) for value in row.values()])
    shown_columns = sheet.table("Runtimes", columns, lines, optional=optional)

    # A narrow terminal leaves optional columns out. The columns "run", "read" and "unknown" have
    # one explanation, which is shown if all three are.
    explained = ["exact"]
    has_counts = {"run", "read", "unknown"} <= set(shown_columns)
    if has_counts:
        explained.append("run, read, unknown")
    sheet.say(legend(RUNTIMES, explained))


def summaries(rows: Iterable[Runtime], cells: Iterable[MatrixCell]) -> list[JsonObject]:
    """Return the rows of the table: the cells of each runtime that are exact, and how they are
    known.
    """
    by_name: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        name, _, _ = cell.verdict.runtime.partition("@")
        by_name.setdefault(name, []).append(cell)
    return [_summary(row, by_name.get(row.name, [])) for row in rows]


def _summary(row: Runtime, cells: Iterable[MatrixCell]) -> JsonObject:
    """Return the row of one runtime. cells: those of all its versions."""
    covered = [cell for cell in cells if cell.verdict.covers(row)]
    exact = sum(cell.verdict.status == "exact" for cell in covered)
    return {
        "runtime": row.key,
        "display_name": row.display_name,
        "exact": f"{exact} of {len(covered)}",
        **counts(covered),
        "source": row.source,
    }


def newest_of(rows: Iterable[Runtime]) -> list[Runtime]:
    """Return the newest version of each runtime. rows: with older versions first."""
    newest = {}
    for row in rows:
        newest[row.name] = row
    return list(newest.values())


def show_matrix(cells: Iterable[MatrixCell], runtimes: list[Runtime], sheet: Sheet) -> None:
    """Show a row per family and a column per runtime.

    Args:
        cells: The cells of the families.
        runtimes: The runtimes, one for each column.
        sheet: The sheet that shows them.
    """
    by_family: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        by_family.setdefault(cell.family, []).append(cell)

    # For a family and a runtime, one text has a letter for each way to write a RoPE: "TL.Y.", where
    # a dot is a way that the runtime does not compute exactly.
    lines = []
    for family, family_cells in by_family.items():
        line = [family]
        for runtime in runtimes:
            cells_of_runtime = [cell for cell in family_cells if cell.verdict.covers(runtime)]
            line.append(letters(cells_of_runtime))
        lines.append(line)

    # versions are named where a runtime has several columns
    columns = [runtime.name for runtime in runtimes]
    if len(set(columns)) < len(columns):
        columns = [runtime.key for runtime in runtimes]  # with the version
    sheet.table("Runtime support", ("family", *columns), lines)
    sheet.say(MATRIX_LEGEND)
