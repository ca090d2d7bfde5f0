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
    """Show a table of methods, with a row for each method.

    Its columns are the flag of the method, measured losses, and the number of runtimes that support
    the method.
    """
    # columns for the runtimes that support each format: "safetensors" and "gguf"
    format_columns = list(advice.formats)
    if len(format_columns) == 1:
        format_columns = ["runtimes"]

    # a narrow terminal leaves these columns out, the first column first
    optional = list(reversed(format_columns))

    # With a result of `ropeconv eval`, the losses are from that result. "price" is the loss that a
    # method costs within the trained length, and "holds to" the length up to which it works.
    if advice.ranking:
        optional.append("without training")
        number_columns = list(advice.ranking.columns)
    # Without a result, they are from published studies. "facts found" is the share of facts hidden
    # in a long text that the model finds.
    else:
        optional += ["loss inside", "measured on"]
        number_columns = ["loss inside", "loss at length", "price", "facts found"]

    declared_context = advice.inspection.spec.context
    title = f"{advice.source}: {declared_context:,} -> {advice.context:,} tokens"
    (table,) = advice.shown_tables()
    sheet.table(title, table.columns, table.rows, optional=optional, right=number_columns)
    if advice.ranking:
        for sentence in advice.ranking.sentences():
            sheet.say(sentence)
    else:
        _explain_losses(advice, sheet)
        _explain_order(advice, sheet)


def _explain_losses(advice: RankedMethods, sheet: Sheet) -> None:
    """Explain the losses of the table below it, and when a method counts as "without training"."""
    if not advice.studies:
        return

    # The loss with which methods are compared: "the loss of the unchanged model at its trained
    # length (SmolLM2-135M: 3.19 on 12 texts, 2.96 on 2 texts)". The second number is from another
    # study of the same model.
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

    # a method works without training if it loses at most 0.2 nats and finds at least 50 % of facts
    most_lost = f"{MOST_LOST:g}"
    least_found = f"{LEAST_FOUND:g}"
    sheet.say(
        "Losses in nats per token, on other models. Without training: a loss at length of at most"
        f" {most_lost} above {unchanged_model}, and {least_found} % of hidden facts found."
    )
    if advice.has_several_samples:
        sheet.say(
            "Losses on different texts cannot be compared, so methods are in the order of what they"
            " lose beside the unchanged model on the same texts."
        )

    # "not decided": too few questions were asked to say whether a method finds 50 % of facts. If
    # the first method is not decided, `_show_commands` says why, so it is not said here.
    undecided = [
        row for row in advice.methods if row.writable and row.without_training == NOT_DECIDED
    ]
    first_is_undecided = bool(undecided) and undecided[0] is advice.methods[0]
    if undecided and not first_is_undecided:
        sheet.say(
            f"Not decided: {least_found} % is inside the interval of the facts found, so more"
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
    tuning = first.fine_tuning
    is_undecided = tuning.level == "undecided"  # measured, with too few questions
    needs_training = not tuning.works_untuned and not is_undecided

    # whether the method needs training: "At 131,072 tokens (4 times ...) --yarn 4 needs
    # fine-tuning."
    says_why = is_undecided or advice.ranking is not None
    if says_why and tuning.sentence:
        sheet.say(f"{first.flags}: {tuning.sentence}")
    elif needs_training:
        all_need_the_same = all(row.fine_tuning.need == tuning.need for row in advice.methods)
        subject = "every method" if all_need_the_same else first.flags
        sheet.say(f"At {advice.context:,} tokens ({tuning.times}) {subject} {tuning.need}.")
    sheet.copyable(f"Bake:    {first.command}")

    # how to train, and the best method that works without training
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
    method = row.method
    description = method.summary
    if method.finetuning_note:  # says how much training the method needs
        description = method.finetuning_note
    sheet.say(f"{method.name}: {description}.")
    sheet.copyable(f"    {row.command}")

    # what the publisher of the model recommends, and why the method needs training; both may be
    # empty, or the same sentence
    recommendation = row.recommended
    training_reason = row.fine_tuning.reason
    if recommendation:
        sheet.say(f"    {recommendation}.")
    if training_reason and training_reason != recommendation:
        sheet.say(f"    {training_reason}.")

    # the measured profile, and published studies that have measured the method
    sheet.say(f"    {_describe_profile(row)}")
    for study in _studies_behind(row):
        sheet.say(f"    {_describe_study(study, method.name)}")

    # runtimes that would compute other numbers: "gguf as keys: ignored: ollama 0.5"
    for format_name, encoded in row.writings.items():
        wrong = []
        for status, runtimes in group_by_status(encoded.verdicts):
            if status in WRONG:
                wrong.append(f"{status}: {runtimes}")
        if wrong:
            sheet.say(f"    {format_name} as {encoded.encoding}: {'; '.join(wrong)}")


def _studies_behind(row: Advice) -> list[Study]:
    """Return the studies behind a row: the one in the table first, then those of its standing."""
    studies: list[Study] = []
    for measurement in (row.measured, row.weak):
        if measurement is not None:
            studies.append(measurement.study)
    for study in row.standing.studies:
        if study not in studies:
            studies.append(study)
    return studies


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
    """Return sentences on what a study measured for a method.

    For example "4 times, nats: beyond 2.9 (without 6.1). Llama-2-7B, 24 texts: arXiv 2309.00071."

    Args:
        study: A published study of several methods.
        method: The name of the method.
    """
    factor = f"{study.factor:g} times"
    sample = study.n  # such as "24 texts"
    origin = f"{study.model}, {sample}: {study.source}."

    # Studies that also measured the unchanged model at its trained length: `study.lost` has how
    # much larger the loss of each method is.
    if method in study.lost:
        measured = MeasuredMethod(study, method)
        loss_inside, loss_at_length, price, facts_found, _model = measured.cells()
        measured_losses = (
            f"{factor}, nats per token: {loss_inside} at the trained length (price {price}),"
            f" {loss_at_length} at the length"
        )
        if measured.retrieval is None:
            return f"{measured_losses}. {origin}"
        return f"{measured_losses}; {facts_found} of hidden facts. {origin}"

    # Other studies: losses by method, where "base" is the model without a method.
    losses_by_text = {
        "beyond": study.beyond,
        "inside": study.inside,
        "repeated text": study.retrieval,
    }
    parts = []
    for text, losses in losses_by_text.items():
        if method not in losses:
            continue
        part = f"{text} {losses[method]:g}"
        if "base" in losses:
            part += f" (without {losses['base']:g})"
        parts.append(part)

    if study.fine_tuned:
        factor += ", fine-tuned"
    return f"{factor}, {study.unit}: {'; '.join(parts)}. {origin}"


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
        yield "Holds to: longest length whose loss is not significantly above its best, measured."
        yield "Minus base: the loss minus that of the unchanged model on the same tokens, measured."
    else:
        yield "Loss inside, loss at length: at the trained length, and at the factor of the study."
        yield "Price: increase of the loss at the trained length by the method."
        yield (
            "Facts found: right answers to questions about hidden facts (passkey, keys or needle)"
            " at that factor, with an interval of 95 %."
        )
    yield (
        f"Without training: the loss at the length is at most {MOST_LOST:g} nats above that of the"
        f" unchanged model at its trained length, and {LEAST_FOUND:g} % of hidden facts are found;"
        " or the publisher recommends it, or no layer that rotates sees a new angle."
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
    """Show a table of runtimes, with a row for each runtime, and explain its columns.

    Args:
        rows: The runtimes as dicts, from `summaries`: {"runtime": "vllm", "display_name": "vLLM",
            "exact": "40 of 44", ...}.
        sheet: The screen.
    """
    # the title of each column, and its key in the dicts
    keys = {
        "--runtime": "runtime",
        "what": "display_name",
        "exact": "exact",
        "run": "run",
        "read": "read",
        "unknown": "unknown",
        "source": "source",
    }
    lines = []
    for row in rows:
        lines.append([str(row[key]) for key in keys.values()])

    # a narrow terminal leaves these columns out, the first column first
    optional = ("source", "what", "read", "unknown", "run")
    shown_columns = sheet.table("Runtimes", tuple(keys), lines, optional=optional)

    # the columns "run", "read" and "unknown" are explained together, if all of them are shown
    explained = ["exact"]
    shows_all_counts = {"run", "read", "unknown"} <= set(shown_columns)
    if shows_all_counts:
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
    """Show which kinds of RoPE scaling each runtime computes exactly for each model family.

    The table has a row for each family and a column for each runtime.

    Args:
        cells: The verdicts, one for each family, version of a runtime and kind of scaling.
        runtimes: The runtimes of the columns.
        sheet: The screen.
    """
    cells_by_family: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        cells_by_family.setdefault(cell.family, []).append(cell)

    lines = []
    for family, family_cells in cells_by_family.items():
        line = [family]
        for runtime in runtimes:
            runtime_cells = [cell for cell in family_cells if cell.verdict.covers(runtime)]
            # "TL.Y." has a letter for each kind of scaling: T for a new base, L for linear, Y for
            # YaRN, ... A dot is a kind that the runtime does not compute exactly.
            line.append(letters(runtime_cells))
        lines.append(line)

    # the columns are "vllm", ...; with several versions of a runtime they are "vllm@0.33", ...
    columns = [runtime.name for runtime in runtimes]
    has_several_versions = len(set(columns)) < len(columns)
    if has_several_versions:
        columns = [runtime.key for runtime in runtimes]
    sheet.table("Runtime support", ("family", *columns), lines)
    sheet.say(MATRIX_LEGEND)
