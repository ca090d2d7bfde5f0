"""The public record: what is written is read, wrong files are refused, and what follows from it."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv.bake.evidence import evidence
from ropeconv.bake.items import RecordItem, compare_rows, read_items, write_items
from ropeconv.bake.studies import Group, Mean, group_items, pairs_of_means, study_of_items
from ropeconv.errors import BadSource, UsageError
from ropeconv.rope.errors import RopeconvError
from scripts.pages.evidence import TABLE, record, table, text

replaced = msgspec.structs.replace
TRAINED = 1024
ROWS = {"base": 2.0, "yarn": 0.1, "ntk": 0.15}
"""What a row adds at four times the trained length."""


def item(method: str, length: int, number: int, value: float, **more: Any) -> RecordItem:
    given: dict[str, Any] = {
        "row": "base" if method == "base" else f"{method}:4",
        "measure": "growth",
        "metric": "loss",
        "window": 0,
        "factor": None if method == "base" else 4.0,
        "model": "Tiny",
        "trained": TRAINED,
    }
    return RecordItem(
        method=method, length=length, text=f"{number}.txt", value=value, **given | more
    )


def items() -> Iterator[RecordItem]:
    """Losses of 16 texts whose difficulty differs by more than the rows, and answers."""
    draw = np.random.default_rng(6)
    for number in range(16):
        hard = float(draw.normal(3, 0.5))
        for method, added in ROWS.items():
            for length, lost in ((TRAINED, 0.01 * (method != "base")), (4 * TRAINED, added)):
                noise = float(draw.normal(0, 0.005))
                yield item(method, length, number, hard + lost + noise)
            right = float(method == "yarn" and number < 12)
            answer = {"measure": "passkey", "metric": "exact", "depth": 0.5}
            yield item(method, 4 * TRAINED, number, right, **answer)
            if method == "base":
                yield item(method, TRAINED, number, 1.0, **answer)


@pytest.fixture(scope="module")
def measured() -> list[RecordItem]:
    return list(items())


@pytest.mark.parametrize("name", ["record.jsonl.gz", "record.jsonl"])
def test_what_was_written_is_read(measured: list[RecordItem], tmp_path: Path, name: str) -> None:
    write_items(measured, tmp_path / name)
    assert read_items(tmp_path / name) == measured
    first = (tmp_path / name).read_bytes()
    write_items(measured, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first, "git sees no change where there is none"
    lines = gzip.decompress(first) if name.endswith("gz") else first
    assert json.loads(lines.splitlines()[0])["method"] == "base"


def line(**changes: Any) -> bytes:
    return json.dumps(msgspec.to_builtins(item("yarn", 4096, 0, 3.0)) | changes).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no item"),
        (b"{", "line 1"),
        (line() + b"\n[]", "line 2"),
        (line() + b"\n" + line(), "item 2: yarn:4 has this growth of 0.txt twice"),
        (line(value=None), "line 1"),
        (line(unit="nat"), "unit"),
        (line(metric="exact", value=1.5), "a share is from 0 to 1"),
        (line(depth=2.0), "a depth is from 0 to 1"),
        (line(row="base"), "its row is base, and its method yarn"),
        (line(model=""), "is empty"),
        (line(row="base", method="base"), "base, which has no factor"),
        (line(value=-5.0), "loss is -5"),
        (line(value=100.5), "from 0 to 100"),
        (line(measure="keys", metric="log_prob", value=0.5), "from -100 to 0"),
        (line(measure="lm-eval:task", metric="any", value=1e200), "1e\\+200"),
        (line(value=float("nan")), "NaN, which is not a finite number"),
        (line(value=float("-inf")), "-Infinity, which is not a finite number"),
        (line(factor=-4.0), "factor is -4"),
        (line(factor=0.0), "factor is 0"),
        (line(factor=1e6), "factor is 1e\\+06"),
        (line(factor=8.0), "its factor 8"),
        (line(factor=None), "its factor None"),
        (line(row="yarn:8k"), "its factor 4"),  # of 1,024 tokens
        (line(method="banana"), "method banana is not known"),
        (line(row="banana:4"), "its row is banana:4, and its method yarn"),
        (line(method="linear"), "its row is yarn:4, and its method linear"),
        (line(method="yarn:4"), "method yarn:4 is not known"),
        (line(measure="growth:4"), "measure growth:4 is not known"),
        (line(metric="banana"), "metric is banana, and growth has loss"),
        (line(measure="passkey"), "metric is loss, and passkey has"),
        (line(window=-1), "window is below 0"),
        (line(weight=4097), "4,097 of 4,096 tokens"),
        (line(trained=0), "below 1"),
        (line(length=1 << 40), "above 2,147,483,647"),
        (line(text="a\nb"), "text has a control character"),
        (line(model="a\x1b[31m"), "model has a control character"),
        (line(text="x" * 501), "501 characters"),
        (line() + b"\n" + line(text="1.txt", trained=2048), "item 2: Tiny is trained for 2,048"),
        (gzip.compress(line())[:-9], "ends too early"),
        (b"\x1f\x8bnothing", "is damaged"),
    ],
)
def test_a_wrong_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    with pytest.raises(BadSource, match=message):
        read_items(tmp_path / "x.jsonl.gz")


@pytest.mark.parametrize(
    "changes",
    [
        {"row": "yarn:4k"},  # four times 1,024 tokens
        {"row": "yarn:4:beta_fast=16"},
        {"row": "recipe:mine.json", "factor": None},
        {"row": "my-output", "method": "my-output", "factor": None},
        {"row": "yarn:4", "method": "yarn:4", "factor": None},  # the name of a server
        {"row": "theta:1e6", "method": "theta", "factor": None},
        {"row": "piecewise:4", "method": "piecewise"},
        {"value": -1e-6},
        {"measure": "sliding:256"},
        {"measure": "needle", "metric": "exact", "value": 1.0},
        {"measure": "lm-eval:task", "metric": "perplexity", "value": 1e20},
        {"measure": "speed", "metric": "tokens_per_second", "value": 1e5},
        {"identity": ""},
        {"text": "cafe\u0301 本.txt"},
    ],
)
def test_possible_items_are_read(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(line(**changes))
    assert len(read_items(tmp_path / "x.jsonl")) == 1


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="eval -o"):
        read_items(tmp_path / "none.jsonl.gz")


def test_two_rows_are_paired_on_their_texts(measured: list[RecordItem]) -> None:
    """The losses of texts differ by 0.5 nats, and the rows by a tenth of that."""
    proof = compare_rows(measured, "yarn:4", "ntk:4", 4 * TRAINED, "growth", "loss")
    assert proof is not None
    assert proof.difference == pytest.approx(-0.05, abs=0.006)
    assert (proof.count, proof.decided) == (16, True)
    assert compare_rows(measured, "yarn:4", "mixed:4", 4 * TRAINED, "growth", "loss") is None


def test_items_of_other_samples_are_not_paired(measured: list[RecordItem]) -> None:
    changed = [replaced(one, sample="other") if one.method == "ntk" else one for one in measured]
    assert compare_rows(changed, "yarn:4", "ntk:4", 4 * TRAINED, "growth", "loss") is None


def of_model(measured: list[RecordItem], name: str, **more: Any) -> list[RecordItem]:
    return [replaced(one, model=name, **more) for one in measured]


def compared(items: list[RecordItem]) -> float | None:
    proof = compare_rows(items, "yarn:4", "ntk:4", 4 * TRAINED, "growth", "loss")
    return None if proof is None else proof.difference


@pytest.mark.parametrize("turned", [False, True])
def test_items_of_two_models_are_not_mixed(measured: list[RecordItem], turned: bool) -> None:
    other = of_model(measured, "Other")
    mixed = [*other, *measured] if turned else [*measured, *other]
    with pytest.raises(UsageError, match="Other, Tiny"):
        compared(mixed)
    one_of_each = [one for one in mixed if (one.model == "Tiny") == (one.method == "yarn")]
    assert compared(one_of_each) is None


def test_items_of_two_digests_are_not_paired(measured: list[RecordItem]) -> None:
    """The first files of the record have no digests, and later items of their models have one."""
    named = {"yarn": "1" * 64, "ntk": "2" * 64}
    apart = [replaced(one, identity=named.get(one.method, "")) for one in measured]
    assert compared(apart) is None
    named["ntk"] = ""
    together = [replaced(one, identity=named.get(one.method, "")) for one in measured]
    assert compared(together) == compared(measured)

    # pairs of two models that have one name
    other_texts = of_model(measured, "Tiny", identity="3" * 64, sample="other")
    with pytest.raises(UsageError, match="digests"):
        compared([*of_model(measured, "Tiny", identity="1" * 64), *other_texts])


def test_items_of_two_precisions_are_not_paired(measured: list[RecordItem]) -> None:
    apart = [replaced(one, dtype=f"float{16 if one.method == 'ntk' else 32}") for one in measured]
    assert compared(apart) is None


def test_a_study_is_the_means_of_its_items(measured: list[RecordItem]) -> None:
    ((group, members),) = group_items(measured).items()
    assert group == Group("Tiny", 4.0, "")
    study = study_of_items(group, members, "here")
    assert study is not None
    assert (study.texts, study.questions) == (16, 16)
    assert study.beyond == {
        "base": 0,
        "yarn": pytest.approx(-1.9, abs=0.01),
        "ntk": pytest.approx(-1.85, abs=0.01),
    }
    assert study.lost["yarn"] == pytest.approx(0.1, abs=0.01)
    assert study.inside["ntk"] == pytest.approx(0.01, abs=0.01)
    assert study.retrieval == {"base": 0, "yarn": 75, "ntk": 0}
    assert study.low["yarn"] < 75 < study.high["yarn"]
    assert set(study.better) == {("yarn", "base"), ("ntk", "base"), ("yarn", "ntk")}
    assert [study.compare_with_bar(name) for name in ("base", "yarn", "ntk", "mixed")] == [
        "missed",
        "undecided",  # 12 of 16
        "missed",  # it loses little, and finds nothing
        None,
    ]


@pytest.mark.parametrize("measure", ["passkey", "needle", "keys"])
@pytest.mark.parametrize(("right", "counts"), [(1.0, True), (0.0, False), (None, False)])
def test_questions_that_the_model_fails_at_its_trained_length_say_nothing(
    measured: list[RecordItem], measure: str, right: float | None, counts: bool
) -> None:
    """So it is where the model was not asked there (None)."""
    changed = []
    for one in measured:
        if one.measure == "growth":
            changed.append(one)
        elif one.length > TRAINED:
            changed.append(replaced(one, measure=measure))
        elif right is not None:
            changed.append(replaced(one, measure=measure, value=right))
    ((group, members),) = group_items(changed).items()
    study = study_of_items(group, members, "here")
    assert study is not None
    assert bool(study.retrieval) == counts
    assert (study.compare_with_bar("yarn") is None) == (not counts)


def test_questions_that_the_model_answers_come_before_those_that_it_fails(
    measured: list[RecordItem],
) -> None:
    """Beside passkeys that the unchanged model does not find, the numbers of `keys` count."""
    changed = []
    for one in measured:
        if one.measure == "growth":
            changed.append(one)
            continue
        found = 1.0 if one.length == TRAINED else one.value
        changed.append(replaced(one, measure="keys", value=found))
        changed.append(replaced(one, measure="passkey", value=0.0))
    ((group, members),) = group_items(changed).items()
    study = study_of_items(group, members, "here")
    assert study is not None
    assert study.retrieval["yarn"] == 75


def test_means_decide_what_is_far_beyond_both_errors() -> None:
    """Two rows behind the first: 0.9 apart, 4.4 errors of 0.1 each for 12 texts are 0.9."""
    base = Mean(9.0, 0.0, 0.0, 12)
    near = Mean(4.0, -5.0, 0.1, 12)
    assert pairs_of_means({"base": base, "yarn": near}) == (("yarn", "base"),)
    far = Mean(4.9, -4.1, 0.1, 12)
    less = Mean(4.5, -4.5, 0.1, 12)
    assert pairs_of_means({"yarn": near, "linear": far}) == (("yarn", "linear"),)
    assert pairs_of_means({"yarn": near, "mixed": less}) == ()
    few = near._replace(texts=5)
    assert pairs_of_means({"base": base, "yarn": few}) == ()


# The record of this repository


def test_the_table_of_advise_is_that_of_the_record() -> None:
    assert TABLE.read_text("utf-8") == text(table()), "run python -m scripts.pages evidence"


def test_one_changed_item_changes_the_table() -> None:
    """The negative control: a number of the record that somebody edits is seen."""
    changed = record()
    place = next(
        number
        for number, one in enumerate(changed)
        if one.measure == "growth" and one.factor and one.length == one.factor * one.trained
    )
    changed[place] = replaced(changed[place], value=changed[place].value + 1)
    assert text(table(changed)) != TABLE.read_text("utf-8")


def test_a_study_without_texts_decides_nothing() -> None:
    for study in evidence().studies:
        if not study.texts:
            assert not study.better, study.source
    published = [study for study in evidence().studies if "Peng et al." in study.source]
    assert published
    assert all(study.sign("yarn", "linear") == 0 for study in published if "yarn" in study.beyond)


def test_wrong_files_of_the_record_are_refused_by_one_kind_of_error() -> None:
    assert issubclass(BadSource, RopeconvError)
