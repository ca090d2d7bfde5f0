"""Shows advice on methods as a table and sentences."""

from collections.abc import Iterable, Iterator

from ..bake.advice import Advice, MatrixCell, counts, letters
from ..bake.ranked import RankedMethods
from ..formats.jsontext import JsonObject
from ..inspection.support import group_by_status
from ..models.gguf import GgufSource
from ..rope.errors import command_line
from ..rope.recipe import recipe_text
from ..runtimes.runtime import WRONG, Runtime
from .sheet import RUNTIMES, Sheet, legend


def show_advice(advice: RankedMethods, sheet: Sheet) -> None:
    """Shows advice: a row per method, the command for the first, and how to measure it."""
    rows = advice.methods
    ranking = advice.ranking
    inspection = advice.inspection
    for note in (advice.note, advice.training, advice.useless):
        if note:
            sheet.note(f"Note: {note}")
    sheet.note(inspection.assumption)
    if not rows:
        sheet.say(f"No method reaches {advice.context:,} tokens; give a shorter --context.")
        return

    (table,) = advice.shown_tables()
    runtimes = ["runtimes"] if len(advice.formats) == 1 else list(advice.formats)
    right = ["effective", "outside"]
    # the columns that a narrow terminal leaves out first: those of the first format stay longest
    optional = ["outside", "effective", *reversed(runtimes[1:])]
    if ranking:
        right += ["loss", "price", "holds to"]
        optional += [runtimes[0], "without training"]
    title = f"{advice.source}: {inspection.spec.context:,} -> {advice.context:,} tokens"
    sheet.table(title, table.columns, table.rows, optional=optional, right=right)

    for reason, flags in _refusals(rows, short=True).items():
        if len(flags) == len(rows):
            sheet.say(f"No {reason}.")
        else:
            sheet.say(f"No {reason}: {', '.join(flags)}.")
    if inspection.kv_cache:
        sheet.say(inspection.kv_cache.short(advice.context, inspection.spec.context))
    if rows[0].writable:
        _show_commands(advice, rows[0], sheet)


def _show_commands(advice: RankedMethods, first: Advice, sheet: Sheet) -> None:
    """Show the commands that bake the first method, train with it if needed, and measure it."""
    inspection = advice.inspection
    need = first.fine_tuning
    if not need.works_untuned:
        alike = {row.fine_tuning.need for row in advice.methods} == {need.need}
        subject = "every method" if alike else first.flags
        sheet.say(f"At {advice.context:,} tokens ({need.times}) {subject} {need.need}.")

    sheet.copyable(f"Bake:    {first.command}")
    if not first.works_untuned:
        # trainers load neither GGUF files nor encoders
        if not inspection.encoder and not isinstance(inspection.source, GgufSource):
            train = command_line("train-config", first.out, "--for", "axolotl")
            sheet.copyable(f"Train:   {train}")
        if advice.untuned:
            sheet.copyable(f"Untuned: {advice.untuned.command}")
    # `eval` measures the loss of the next token, which encoders do not predict
    if advice.ranking is None and not inspection.encoder:
        rows = f"base,{recipe_text(first.recipe)}"
        measure = command_line("eval", advice.source, "--methods", rows, "--text", "FILE")
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
    sheet.say(f"{row.method.name}: {row.method.finetuning_note}.")
    sheet.copyable(f"    {row.command}")
    for line in _evidence(row):
        sheet.say(f"    {line}")
    for name, writing in row.writings.items():
        wrong = []
        for status, runtimes in group_by_status(writing.verdicts):
            if status in WRONG:
                wrong.append(f"{status}: {runtimes}")
        if wrong:
            sheet.say(f"    {name} as {writing.encoding}: {'; '.join(wrong)}")


def _evidence(row: Advice) -> Iterator[str]:
    """Yield a line per source of what is known of a method."""
    if row.recommended:
        yield f"{row.recommended}."
    method = row.method.name
    for study in row.standing.studies:
        tables = {
            "beyond": study.beyond,
            "inside": study.inside,
            "repeated text": study.retrieval,
        }
        values = []
        for place, table in tables.items():
            if method not in table:
                continue
            value = f"{place} {table[method]:g}"
            if "base" in table:
                value += f" (without {table['base']:g})"
            values.append(value)
        tuned = ", fine-tuned" if study.fine_tuned else ""
        yield (
            f"{study.factor:g} times{tuned}, {study.unit}: {'; '.join(values)}. {study.model},"
            f" {study.n}: {study.source}."
        )


def _refusals(rows: list[Advice], short: bool = False) -> dict[str, list[str]]:
    """The reasons why a format cannot hold methods, with the flags of these methods.

    Args:
        rows: The methods.
        short: Whether a reason is shown without each encoding.
    """
    flags: dict[str, list[str]] = {}
    for row in rows:
        for name, writing in row.writings.items():
            if not writing.reason:
                continue
            reason = writing.reason
            if short:
                reason, _, _ = reason.partition(": with ")
            flags.setdefault(f"{name}: {reason}", []).append(row.flags)
    return flags


def explain_columns(advice: RankedMethods) -> Iterator[str]:
    """Yields what the columns of the table mean, and how it is sorted."""
    if not advice.methods:
        return
    if advice.ranking:
        yield "Loss: nats per token, measured with this method."
        yield "Price: increase of the loss at the trained length, measured."
        yield "Holds to: longest length whose loss is within three errors of its best, measured."
    yield "Without training: known to work at this factor without fine-tuning."
    yield (
        "Runtimes, safetensors, gguf: runtimes that support the output, of those that can load the"
        " model."
    )
    yield (
        "Evidence: a recommendation, or of how many methods that were measured beside it this one"
        " is better."
    )
    yield (
        "Effective: longest distance up to which sum cos(m theta_i) is not negative (Men et al."
        " 2024)."
    )
    yield "Outside: dimensions that reach angles never seen in training."
    yield f"Sorted by: {advice.criterion}."


LEGEND = (
    "T: a new base (theta, NTK), L: linear, 3: llama3, Y: YaRN, F: any frequencies (LongRoPE"
    " factors). A letter: exact in the newest version; a dot: not exact (`ropeconv apply --dry-run"
    " --explain` says why); -: no model of the kind; ?: not tested."
)


def show_runtimes(rows: Iterable[JsonObject], sheet: Sheet) -> None:
    """Show a row per runtime, and what the columns mean.

    Args:
        rows: The runtimes, as `summaries` gives them.
        sheet: The sheet that shows them.
    """
    columns = ("--runtime", "what", "exact", "run", "read", "unknown", "source")
    optional = ("source", "what", "read", "unknown", "run")
    cells = [[str(value) for value in row.values()] for row in rows]
    shown = sheet.table("Runtimes", columns, cells, optional=optional)
    explained = ["exact"]
    if {"run", "read", "unknown"} <= set(shown):
        explained.append("run, read, unknown")
    sheet.say(legend(RUNTIMES, explained))


def summaries(rows: Iterable[Runtime], cells: Iterable[MatrixCell]) -> list[JsonObject]:
    """The rows of the table: the cells of each runtime that are exact, and how they are known."""
    by_name: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        by_name.setdefault(cell.verdict.runtime.partition("@")[0], []).append(cell)
    return [_summary(row, by_name.get(row.name, [])) for row in rows]


def _summary(row: Runtime, cells: Iterable[MatrixCell]) -> JsonObject:
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
    """The newest version of each runtime."""
    return list({row.name: row for row in rows}.values())


def show_matrix(cells: Iterable[MatrixCell], rows: list[Runtime], sheet: Sheet) -> None:
    """Show a row per family and a column per runtime.

    Args:
        cells: The cells of the families.
        rows: The runtimes.
        sheet: The sheet that shows them.
    """
    by_family: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        by_family.setdefault(cell.family, []).append(cell)
    table = []
    for family, of_family in by_family.items():
        line = [family]
        for row in rows:
            line.append(letters(cell for cell in of_family if cell.verdict.covers(row)))
        table.append(line)

    # versions are named where a runtime has several columns
    several = len({row.name for row in rows}) < len(rows)
    columns = [row.key if several else row.name for row in rows]
    sheet.table("Runtime support", ("family", *columns), table)
    sheet.say(LEGEND)
