"""Pages that scripts write are what the code and the data say: commands, schemas, API, tables and
pictures.
"""

import importlib.metadata
import re

import msgspec
import numpy as np
import pytest

import ropeconv
from ropeconv.bake.evidence import evidence
from ropeconv.cli.app import all_commands
from ropeconv.cli.screen import Screen
from ropeconv.features.evaluation.result import Result
from ropeconv.features.evaluation.views import show_result
from ropeconv.models.registry import families
from ropeconv.rope.methods.method import REGISTRY
from scripts.pages import record_tables, tables
from scripts.pages.evidence import TABLE, record, studies_of_means, table, text
from scripts.pages.method_pictures import DRAWN, PICTURES, ROOT, drawn
from scripts.pages.reference import DOCS, EVERYWHERE, GROUPS, PAGES, SCHEMAS, TASKS, option_rows

from ..support.extent import sample


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text("utf-8") == PAGES[page](), "run python -m scripts.pages"


def test_every_command_and_its_every_option_are_there() -> None:
    text = (DOCS / "commands.md").read_text("utf-8")
    parts = re.split(r"^#{2,3} (?:ropeconv )?(.+)\n", text, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert sections.keys() >= {*all_commands(), *TASKS, "Method options", "Common options"}
    assert sorted(name for _, names in TASKS.values() for name in names) == sorted(all_commands())
    shared = sections["Method options"]
    assert "| `--theta-bound TOKENS` |" in shared
    for name in all_commands():
        described = sections[name] + shared * ("method options" in sections[name])
        common = (
            sections[name].partition("[Common options](#common-options): ")[2].partition(".\n")[0]
        )
        for flag in re.findall(r"`(--[\w-]+)`", common):
            assert f"`{flag}" in sections["Common options"]
        assert [
            flag
            for flag in option_rows(name)
            if flag not in EVERYWHERE and f"`{flag}" not in described
        ] == []


def test_the_table_of_models_has_every_family_once() -> None:
    known = [family for family in families() if not family.refuse]
    converted = [family for family in families() if family.gguf is not None]
    rows = re.findall(r"\| (\d+|-) \| (\d+) \|$", tables.model_table(), re.MULTILINE)
    assert sum(int(count) for count, _ in rows if count != "-") == len(known)
    assert sum(int(count) for _, count in rows) == len(converted)


def test_the_counts_of_families_in_sentences_are_those_of_the_data() -> None:
    known = [family for family in families() if not family.refuse]
    converted = [family for family in families() if family.gguf is not None]
    invertible = [family for family in converted if family.gguf and family.gguf.config]
    counts = (str(len(known)), str(len(converted)), str(len(invertible)))

    changes = " ".join((ROOT / "CHANGELOG.md").read_text("utf-8").split())
    (said,) = re.findall(r"(\d+) model families;", changes)
    assert (
        said,
        *re.findall(r"convert (\d+) families to GGUF and (\d+) back", changes)[0],
    ) == counts
    assert f"converts to GGUF; {len(invertible)} of them also back" in (
        DOCS / "families.md"
    ).read_text("utf-8")
    assert f"Files of the {len(invertible)} families" in (DOCS / "gguf.md").read_text("utf-8")


def test_every_schema_is_linked_and_no_other_file_is_there() -> None:
    linked = re.findall(r"\(schemas/([\w-]+)\.json\)", (DOCS / "python.md").read_text("utf-8"))
    assert (
        sorted(linked)
        == sorted(SCHEMAS)
        == sorted(path.stem for path in (DOCS / "schemas").iterdir())
    )


def test_the_page_says_which_commands_have_json_and_which_a_function() -> None:
    page = " ".join((DOCS / "python.md").read_text("utf-8").split())
    without_json = [name for name in all_commands() if "--json" not in option_rows(name)]
    assert re.findall(r"Every command but `([\w-]+)` has `--json`", page) == without_json

    (renamed,) = re.findall(r"function of the same name \((.*?)\)", page)
    functions = dict(re.findall(r"`([\w-]+)` is `(\w+)`", renamed))
    assert {*functions.values()} <= {*ropeconv.__all__}
    (listed,) = re.findall(r"The commands (.*?) have none\.", page)
    without_function = set()
    for name in all_commands():
        command_name, _, _ = name.partition(" ")  # `list methods` is of `list`
        if functions.get(command_name, command_name) not in ropeconv.__all__:
            without_function.add(command_name)
    assert set(re.findall(r"`([\w-]+)`", listed)) == without_function


def test_every_exported_name_stands_in_the_api_once() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(ropeconv.__all__) - {"__version__"})


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_page_has_the_numbers_of_the_data(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert tables.filled(page, text) == text, "run python -m scripts.pages"


def test_the_page_has_the_screen_of_a_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    show_result(measured("2T"), Screen())
    page = (ROOT / "docs/evaluating.md").read_text("utf-8")
    rows = page.partition("--methods base,linear:2")[2].partition("```")[0].splitlines()[2:]
    assert len(rows) == 20
    assert set(rows) - {"..."} <= set(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_advise_and_the_page_have_the_numbers_that_were_measured(factor: int) -> None:
    """From the results of `eval`, and not by the functions that write the table and the page."""
    losses = measured(f"{factor}T")
    passkeys = measured("2T" if factor == 2 else f"{factor}T-passkey")
    study = next(study for study in studies_of_means() if study.factor == factor)
    # at 8 times, advise has the single numbers of the record instead
    assert (study in evidence().studies) is (factor != 8)
    page = (ROOT / "docs/evaluating.md").read_text("utf-8")
    start = losses.cell("base", "growth", "loss", 8192)
    assert start is not None
    for name, beyond in study.beyond.items():
        row = name if name == "base" else f"{name}:{factor}"
        loss, inside = (
            losses.cell(row, "growth", "loss", column) for column in (factor * 8192, 8192)
        )
        exact = passkeys.cell(row, "passkey", "exact", factor * 8192)
        assert loss and inside and exact  # noqa: PT018
        assert beyond == round(loss.difference or 0, 4), name
        assert study.inside[name] == round(inside.difference or 0, 4), name
        assert study.lost[name] == round(loss.value - start.value, 4), name
        assert study.retrieval[name] == round(100 * exact.value, 1), name

        (line,) = re.findall(rf"^\| {name} \| {factor} \|(.*)\|$", page, re.MULTILINE)
        cells = [cell.strip() for cell in line.split("|")]
        price = f"{inside.difference:+.2f}" if inside.difference else ""
        assert cells[1] == price, name
        assert float(cells[2]) == pytest.approx(loss.value, abs=0.0051), name
        assert cells[4].startswith(f"{100 * exact.value:.0f} % ("), name


def test_a_changed_number_of_the_record_is_seen_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The negative control of the test that compares the page with the data."""
    study, *others = studies_of_means()
    changed = msgspec.structs.replace(study, lost=study.lost | {"yarn": 0.3})
    monkeypatch.setattr(record_tables, "studies_of_means", lambda: [changed, *others])
    page = (ROOT / "docs/evaluating.md").read_text("utf-8")
    assert tables.filled("docs/evaluating.md", page) != page


@pytest.mark.parametrize(
    ("measure", "metric"), [("growth", "loss"), ("longppl", "loss"), ("keys", "exact")]
)
def test_one_changed_item_is_seen_on_the_page_and_by_advise(
    measure: str, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number of one text and row, of thousands in the record."""
    items = record()
    place = next(
        number
        for number, item in enumerate(items)
        if item.model == "SmolLM2-135M-Instruct"
        and (item.row, item.length, item.measure, item.metric) == ("yarn:2", 16384, measure, metric)
    )
    page = (ROOT / "docs/evaluating.md").read_text("utf-8")
    monkeypatch.setattr(record_tables, "record", lambda: items)
    assert tables.filled("docs/evaluating.md", page) == page

    value = 1 - items[place].value if metric == "exact" else items[place].value + 3
    items[place] = msgspec.structs.replace(items[place], value=value)
    changed = tables.filled("docs/evaluating.md", page)
    before = [line for line in page.splitlines() if line.startswith("| yarn | +")]
    after = [line for line in changed.splitlines() if line.startswith("| yarn | +")]
    assert before[0] != after[0], "at 2T"
    assert before[1:] == after[1:], "at 4T, and of the other model"

    # advise has the losses of the same items
    if measure == "growth":
        assert text(table(items)) != TABLE.read_text("utf-8")


def measured(name: str) -> Result:
    """What `eval` wrote on the real model."""
    return msgspec.json.decode(
        (ROOT / f"docs/evidence/smollm2-{name}.json").read_bytes(), type=Result
    )


TESTED = re.search(
    r"^matplotlib==(\S+)", (ROOT / "scripts" / "constraints.txt").read_text(), re.MULTILINE
)


def test_every_method_that_changes_frequencies_has_a_section_with_its_picture() -> None:
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    parts = re.split(r"^### `--([a-z0-9-]+)`\n", text, flags=re.MULTILINE)
    sections = {
        name: body.split("\n## ")[0] for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    assert set(DRAWN) == set(sections)
    for name, body in sections.items():
        assert re.findall(r"!\[[^]]{20,}\]\((.*?)\)", body) == [f"pictures/method-{name}.svg"]
        assert "\nSource: " in body
        note = " ".join(f"Fine-tuning: {REGISTRY[name].finetuning_note}".split()).rstrip(": ")
        assert note in " ".join((body + "Fine-tuning").split())


def parts(text: str) -> tuple[str, list[float]]:
    """A picture without its numbers and the names made from them, and its numbers: processors round
    a few otherwise.
    """
    text = re.sub(r'(?<=[#"])[a-z][0-9a-f]{10}(?=[")])', "name", text)
    return re.sub(r"-?\d+\.\d+", "0", text), [
        float(number) for number in re.findall(r"-?\d+\.\d+", text)
    ]


@pytest.mark.parametrize("name", sample(DRAWN, 3))
def test_a_picture_is_that_of_the_method(name: str) -> None:
    if TESTED is None or importlib.metadata.version("matplotlib") != TESTED[1]:
        pytest.skip("another matplotlib than that of scripts/constraints.txt draws other files")
    (kept, numbers), (drawing, others) = map(
        parts, ((PICTURES / f"method-{name}.svg").read_text("utf-8"), drawn(name))
    )
    assert (kept, len(numbers)) == (drawing, len(others)), (
        "run python -m scripts.pages method_pictures"
    )
    np.testing.assert_allclose(
        numbers, others, rtol=0, atol=0.01, err_msg="run python -m scripts.pages method_pictures"
    )
