"""Shows advice on methods as a table and sentences."""

from __future__ import annotations

from collections.abc import Iterable

from ..bake.advice import Advice, MatrixCell, counts, leaders, letters
from ..evaluate.ranking import RankedMethods, Ranking
from ..formats.jsontext import JsonObject
from ..runtimes.runtime import Runtime
from .sheet import RUNTIMES, Sheet, legend


def show_advice(advice: RankedMethods, sheet: Sheet) -> None:
    """Shows advice: a row per method, what the columns mean, and the command for the first."""
    found, ranking, cache = advice.found, advice.ranking, advice.seen.kv_cache
    sheet.note(advice.note and f"Note: {advice.note}")
    sheet.note(advice.seen.assumption)
    sheet.note(f"Note: {advice.useless}" if advice.useless else "")
    formats = tuple(found[0].writings) if found else ()
    extra = ("loss", "price", "holds to") if ranking else ()
    columns = ("method", *extra, "untuned", "effective", "outside", *formats, "fast pairs")
    shown = sheet.table(
        f"{advice.source} at {advice.context:,} tokens", columns, [_row(one, ranking) for one in found],
        optional=("fast pairs", *reversed(formats[1:]), "outside", *((*formats[:1], "untuned") if ranking else ())),
        right=("effective", "outside", *extra),
    )  # fmt: skip
    for name, description in _columns(found):
        if name in shown or not found:
            sheet.say(f"{name.capitalize()}: {description}")
    if cache:
        sheet.say(f"With every method: {cache.sentence(advice.context, advice.seen.spec.context)}")
    sheet.say(f"Sorted by: {advice.criterion}.")
    if ranking is None:
        sheet.say("None of these numbers is a measurement of this model: `ropeconv eval` makes one (--measured).")
    if found:
        sheet.say("\nTo bake the first:")
        sheet.copyable(found[0].command)


def show_methods(advice: RankedMethods, sheet: Sheet) -> None:
    """Shows a paragraph per method, the best methods by each number, and the reasons of methods that do not fit."""
    found = advice.found
    for one in found:
        sheet.say(f"{one.method.name}: {one.method.finetuning_note}.")
        sheet.copyable(f"    {one.command}")
        for name, writing in one.writings.items():
            if writing.exceptions:
                sheet.say(f"    {name} as {writing.encoding}: {writing.exceptions}")
    sheet.say("")
    for sentence in leaders(found):
        sheet.say(sentence)
    for reason, flags in _refusals(found).items():
        sheet.say(f"Not for {reason} ({'all of them' if len(flags) == len(found) else ', '.join(flags)}).")
    for name, reason in advice.passed.items():
        sheet.say(f"Passed over, {name}: {reason}")


def _refusals(found: list[Advice]) -> dict[str, list[str]]:
    """The reasons why a format cannot hold methods, with the flags of these methods."""
    said: dict[str, list[str]] = {}
    for one in found:
        for name, writing in one.writings.items():
            if writing.reason:
                said.setdefault(f"{name}: {writing.reason}", []).append(one.method.flag())
    return said


def _row(one: Advice, ranking: Ranking | None) -> tuple[str, ...]:
    at = one.profile.reach
    windowed = not at.count and at.length < one.schedule.context  # no layer sees further
    effective = "any" if at.automatic or windowed else f"{at.searched - 1:,}+" if at.first_violation is None else ""
    return (
        one.method.command,
        *(ranking.cells(one) if ranking else ()),
        "yes" if one.works_untuned else "no",
        effective or f"{at.effective_length:,}",
        f"{one.profile.outside} of {2 * len(one.schedule.inv_freq)}",
        *(writing.summary for writing in one.writings.values()),
        f"/ {one.profile.fast_change:.3g}",
    )


def _columns(found: list[Advice]) -> list[tuple[str, str]]:
    """Pairs of a column of the table and its explanation."""
    if not found:
        return [("no method reaches it", "give a shorter --context")]
    one = found[0]
    return [
        ("loss", "nats per token, measured with this method."),
        ("price", "what it adds to the loss at the trained length, measured."),
        ("holds to", "the longest length to which its loss stays within three errors of its best."),
        ("untuned", "reported to work at this factor without fine-tuning."),
        ("effective", "tokens up to which sum cos(m theta_i) is never negative (`ropeconv bound`)."),
        ("outside", f"dimensions that turn further than in training, of those that complete no period in "
                    f"{one.schedule.original_context:,} tokens ({one.profile.critical_dimension} do)."),
        *((name, "in how many of the runtimes that load it this output is exact.") for name in list(one.writings)[:1]),
        ("fast pairs", "by how much frequencies that complete a period are divided at most."),
    ]  # fmt: skip


LEGEND = (
    "T a new base (theta, NTK), L linear, 3 llama3, Y YaRN, F any frequencies (longrope factors). A letter: exact in "
    "the newest version; a dot: not exact, `ropeconv inspect` and `apply --dry-run --explain` say why; -: it has no "
    "such model; ?: nobody looked."
)


def show_runtimes(rows: Iterable[JsonObject], sheet: Sheet) -> None:
    """Shows a row per runtime, and what the columns mean. rows: as `summary` gives them."""
    columns = ("--runtime", "what", "exact", "run", "read", "unknown", "source")
    optional = ("source", "what", "read", "unknown", "run")
    shown = sheet.table("Runtimes", columns, [tuple(map(str, row.values())) for row in rows], optional=optional)
    counted = {"run", "read", "unknown"} <= set(shown)
    sheet.say(legend(RUNTIMES, ("exact", *(["run, read, unknown"] if counted else []))))


def summary(row: Runtime, cells: Iterable[MatrixCell]) -> JsonObject:
    """A row of the table: the cells of a runtime that are exact, and how they are known."""
    own = [cell for cell in cells if cell.verdict.covers(row)]
    exact = sum(cell.verdict.status == "exact" for cell in own)
    return {
        "runtime": row.key, "display_name": row.display_name, "exact": f"{exact} of {len(own)}", **counts(own),
        "source": row.source,
    }  # fmt: skip


def newest_of(rows: Iterable[Runtime]) -> list[Runtime]:
    """The newest version of each runtime."""
    return list({row.name: row for row in rows}.values())


def show_matrix(cells: Iterable[MatrixCell], rows: list[Runtime], sheet: Sheet) -> None:
    """Shows a row per family and a column per runtime. cells: of the families. rows: the runtimes."""
    by_family: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        by_family.setdefault(cell.family, []).append(cell)
    table = [
        (family, *(letters(cell for cell in of_family if cell.verdict.covers(row)) for row in rows))
        for family, of_family in by_family.items()
    ]
    several = len({row.name for row in rows}) < len(rows)
    columns = [row.key if several else row.name for row in rows]
    sheet.table("What each runtime computes", ("family", *columns), table)
    sheet.say(LEGEND)
