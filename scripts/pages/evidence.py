"""Writes ropeconv/bake/evidence.toml, by which `ropeconv advise` ranks methods.

    python -m scripts.pages evidence

It computes studies from the items in docs/evidence/items, takes those of docs/evidence that have
only means, and adds docs/evidence/published.toml. tests/bake/test_items.py compares the file.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import tomli

from ropeconv.bake.evidence import BASE, EvidenceTable, Study
from ropeconv.bake.items import RecordItem, read_items
from ropeconv.bake.studies import DIGITS, Mean, group_items, pairs_of_means, study_of_items
from ropeconv.features.evaluation.result import Cell, Result
from ropeconv.formats.drafts import write_file

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "evidence"
TABLE = ROOT / "ropeconv" / "bake" / "evidence.toml"
HEADER = """\
# What is known about methods: the table by which `ropeconv advise` ranks them.
# `python -m scripts.pages evidence` writes it from docs/evidence: change items or published.toml
# there. `Study` in evidence.py explains the fields.
"""
SOURCE_OF_MEANS = "docs/evaluating.md, a real model"
MEANS = {2: ("2T", "2T"), 4: ("4T", "4T-passkey"), 8: ("8T", "8T-passkey")}
"""By factor, the results of SmolLM2 whose items were not kept: with losses, and with passkeys."""


def record(folder: Path = FOLDER / "items") -> list[RecordItem]:
    """All items of the record, in the order of its files."""
    items = []
    for path in sorted(folder.glob("*.jsonl*")):
        items += read_items(path)
    return items


def measured(name: str) -> Result:
    """A result of `eval` on the real model."""
    return msgspec.json.decode((FOLDER / f"smollm2-{name}.json").read_bytes(), type=Result)


def studies_of_means() -> list[Study]:
    """The studies of results of which only means were kept."""
    studies = []
    for factor, (losses, passkeys) in MEANS.items():
        studies.append(study_of_result(measured(losses), measured(passkeys), factor))
    return studies


def study_of_result(result: Result, passkeys: Result, factor: int) -> Study:
    """Return a study of one model, from the means of its losses and of its passkeys.

    Args:
        result: The losses of each method, in nats per token.
        passkeys: The share of passkeys that each method finds.
        factor: The context of the study over the trained one.
    """
    length = factor * result.trained
    base = _loss(result, BASE, result.trained).value
    means = {}
    beyond = {}
    errors = {}
    inside = {}
    lost = {}
    retrieval = {}
    low = {}
    high = {}
    for row in result.rows:
        method = _method(row.recipe)

        # the loss at the length, and its difference to the model without a method
        at_length = _loss(result, row.name, length)
        difference = at_length.difference or 0.0
        error = at_length.difference_error or 0.0
        means[method] = Mean(at_length.value, difference, error, at_length.clusters)
        beyond[method] = round(difference, DIGITS)
        if error:
            errors[method] = round(error, DIGITS)
        lost[method] = round(at_length.value - base, DIGITS)

        # what the method costs at the trained length
        price = _loss(result, row.name, result.trained).difference
        inside[method] = round(price or 0.0, DIGITS)

        found = passkeys.cell(row.name, "passkey", "exact", length)
        assert found is not None
        retrieval[method] = round(100 * found.value, 1)
        low[method] = round(100 * (found.low or 0.0), 1)
        high[method] = round(100 * (found.high or 0.0), 1)
    questions = len(passkeys.texts)
    texts = means[BASE].texts
    return Study(
        model=f"{result.source} ({result.trained:,} tokens)",
        factor=factor,
        unit="nats per token, minus the model without a method",
        n=f"{texts} texts, {questions} questions, only means",
        source=SOURCE_OF_MEANS,
        trained=result.trained,
        texts=texts,
        questions=questions,
        start=round(base, DIGITS),
        better=pairs_of_means(means),
        beyond=beyond,
        errors=errors,
        inside=inside,
        lost=lost,
        retrieval=retrieval,
        low=low,
        high=high,
    )


def _method(recipe: dict[str, Any] | None) -> str:
    return BASE if recipe is None else str(recipe["method"])


def _loss(result: Result, row: str, length: int) -> Cell:
    cell = result.cell(row, "growth", "loss", length)
    assert cell is not None, (row, length)
    return cell


def table(items: list[RecordItem] | None = None) -> EvidenceTable:
    """Return the whole table: studies of the record, those with means only, and published ones.

    Args:
        items: The items of the record; None to read them.
    """
    if items is None:
        items = record()

    def largest_first(entry: tuple[Any, list[RecordItem]]) -> tuple[int, Any]:
        group, members = entry
        return -members[0].trained, group

    studies = []
    answered = {}  # the methods whose items have answers to questions too, by model and factor
    for group, members in sorted(group_items(items).items(), key=largest_first):
        study = study_of_items(group, members, "docs/evidence/items")
        if study is None:
            continue
        studies.append(study)
        answered[study.model, study.factor] = set(study.retrieval)

    # items replace means where they have all methods of these
    for study in studies_of_means():
        if not study.retrieval.keys() <= answered.get((study.model, study.factor), set()):
            studies.append(study)

    document = tomli.loads((FOLDER / "published.toml").read_text("utf-8"))
    published = msgspec.convert(document, EvidenceTable)
    studies += published.studies
    return EvidenceTable(tuple(studies), published.recommendations)


def text(evidence: EvidenceTable) -> str:
    """Return the table as TOML, without the fields that have their defaults."""
    lines = [HEADER]
    tables = {"studies": evidence.studies, "recommendations": evidence.recommendations}
    for name, rows in tables.items():
        for row in rows:
            lines.append(f"[[{name}]]")
            defaults = {field.name: field.default for field in msgspec.structs.fields(row)}
            for key, value in msgspec.structs.asdict(row).items():
                if value not in (defaults[key], {}, (), None):
                    lines.append(f"{key} = {_toml(value)}")
            lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value of the table as TOML."""
    if isinstance(value, dict):
        parts = [f"{key} = {_toml(number)}" for key, number in value.items()]
        return f"{{ {', '.join(parts)} }}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return f"{value:.10g}"
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Writes the file."""
    write_file(TABLE, text(table()))


if __name__ == "__main__":
    main()
