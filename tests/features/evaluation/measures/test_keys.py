"""Many questions in one pass: lines with a word and its number, asked for at the end."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from ropeconv.engines.engine import TokenLosses
from ropeconv.errors import BadSource, UsageError
from ropeconv.features.evaluation.cases import Case, EvaluationSizes, Observation
from ropeconv.features.evaluation.evaluation import SUITES, Sizes, suite_measures
from ropeconv.features.evaluation.measures import lm_eval
from ropeconv.features.evaluation.measures.measure import REGISTRY
from ropeconv.features.evaluation.measures.retrieval import KEYS_PER_DEPTH
from ropeconv.features.evaluation.measures.ruler import GENERATED
from ropeconv.features.evaluation.measures.speed import peak_bytes
from ropeconv.features.evaluation.statistics import cells_of, notes
from ropeconv.features.evaluation.texts import Texts, tokenize
from ropeconv.inspection.receipts.metrics import METRICS

from ..engines import Computed, Letters, WordTokenizer, prose

ASKED = EvaluationSizes((1500, 6000), 512, windows=2, depths=5)
COUNT = 5 * KEYS_PER_DEPTH
LINE = re.compile(r"\n([A-Z][a-z]+): (\d{5})(?=\n|$)")
of_each = pytest.mark.parametrize("name", ["keys", "latest"])


@pytest.fixture(scope="module")
def texts() -> Texts:
    return prose(WordTokenizer())


def cases(name: str, texts: Texts) -> list[Case]:
    return list(REGISTRY[name].cases(texts, ASKED))


def lines(case: Case, texts: Texts) -> list[tuple[int, str, str]]:
    """The lines with a word and a number: the place in the text, the word and the number."""
    text = texts.tokenizer.decode(case.ids.tolist())
    found = []
    for match in LINE.finditer(text):
        found.append((match.start(), match[1], match[2]))
    return found


@of_each
def test_the_answers_at_the_end_are_the_last_numbers_in_the_text(name: str, texts: Texts) -> None:
    for case in cases(name, texts):
        assert len(case.ids) == case.column
        known: dict[str, str] = {}
        found = lines(case, texts)
        asked = found[-COUNT:]
        for _, word, number in found[:-COUNT]:
            known[word] = number
        assert len(known) == COUNT
        assert [(word, number) for _, word, number in asked] == [
            (word, known[word]) for _, word, _ in asked
        ]
        answers = texts.tokenizer.decode(case.ids[case.targets].tolist())
        assert answers == "".join(number for _, _, number in asked)
    mentions = {"keys": 1, "latest": 3}[name]
    assert len(found) == (mentions + 1) * COUNT


@of_each
def test_each_question_is_an_item_with_the_depth_of_its_line(name: str, texts: Texts) -> None:
    measure = REGISTRY[name]
    case = cases(name, texts)[-1]
    found = lines(case, texts)
    # places in tokens: white space makes some parts of the text wider than others
    ends = np.cumsum([len(texts.tokenizer.decode([token])) for token in case.ids.tolist()])
    last_place = {word: int(np.searchsorted(ends, place)) for place, word, _ in found[:-COUNT]}
    end = int(np.searchsorted(ends, found[-COUNT][0]))  # where the questions begin
    words = [word for _, word, _ in found[-COUNT:]]

    # the first question is answered, all others are not
    right = np.zeros(len(case.targets), bool)
    right[:5] = True
    observations = measure.observe(case, TokenLosses(np.ones(len(right)), right))
    exact = [one for one in observations if one.metric == "exact"]
    assert [one.value for one in exact] == [1.0] + [0.0] * (COUNT - 1)
    assert len({one.window for one in exact}) == COUNT
    assert sorted({one.depth for one in exact}) == [0.1, 0.3, 0.5, 0.7, 0.9]
    for one, word in zip(exact, words, strict=True):
        assert one.depth == pytest.approx(last_place[word] / end, abs=0.15)

    # one wrong token makes an answer wrong
    right[4] = False
    observations = measure.observe(case, TokenLosses(np.ones(len(right)), right))
    assert sum(one.value for one in observations if one.metric == "exact") == 0.0


def test_questions_of_two_windows_are_different_items(texts: Texts) -> None:
    measure = REGISTRY["keys"]
    seen: set[object] = set()
    for case in cases("keys", texts):
        right = np.ones(len(case.targets), bool)
        observations = measure.observe(case, TokenLosses(np.ones(len(right)), right))
        moved = [measure.with_place(case, one) for one in observations]
        assert moved == observations
        seen |= {one.pair for one in observations}
    assert len(seen) == 2 * 2 * COUNT * 2  # windows, lengths, questions, metrics


QUESTIONS = {
    "keys": "49d6c5743721d8d5",
    "latest": "d7a82e3089596eb0",
    "niah": "10a643d9509a097d",
    "passkey": "b5e751c265e47f88",
}
"""Digests of the questions of `test_the_questions_of_the_public_record_are_still_the_same`."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_questions_of_the_public_record_are_still_the_same(name: str) -> None:
    """Its numbers are of these tokens, so a change of them needs a new record."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [letters[number % 26] * 2 + letters[number // 7 % 26] for number in range(3000)]
    files = [("a.txt", " ".join(words)), ("b.txt", " ".join(reversed(words)))]
    read = tokenize(files, Letters((1,)))
    digest = hashlib.sha256()
    for case in REGISTRY[name].cases(read, EvaluationSizes((4000,), 512, windows=2, depths=5)):
        digest.update(case.digest.encode())
    assert digest.hexdigest()[:16] == QUESTIONS[name]


def test_a_text_too_short_for_the_questions_is_refused(texts: Texts) -> None:
    with pytest.raises(UsageError, match=r"keys needs sequences of at least \d+ tokens"):
        list(REGISTRY["keys"].cases(texts, EvaluationSizes((256,), 512)))


def test_speed_is_the_tokens_of_a_pass_over_its_seconds(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    measure = REGISTRY["speed"]
    case = next(measure.cases(texts, EvaluationSizes((1500,), 512)))
    engine = Computed(lambda ids, place: 0.0)
    observations: list[Observation] = measure.run("base", case, engine, texts.tokenizer)
    assert [(one.metric, one.value) for one in observations] == [("tokens_per_second", 375.0)]
    assert engine.asked == [64, 1500]


def test_the_table_of_speed_has_the_memory_too() -> None:
    assert METRICS["memory"].shown
    assert not METRICS["log_prob"].shown
    assert not METRICS["memory"].rising


def test_the_memory_of_a_cpu_is_the_peak_of_the_process(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\n")
    assert peak_bytes(torch.device("cpu"), tmp_path) == 2048 * 1024
    assert peak_bytes(torch.device("cpu"), tmp_path / "other") == 0
    assert peak_bytes(torch.device("mps"), tmp_path) == 0


def test_the_suite_has_its_measures_and_rulers_tasks_where_lm_eval_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = "ropeconv.features.evaluation.evaluation.installed"
    monkeypatch.setattr(place, lambda package: False)
    names = [measure.name for measure in suite_measures("long")]
    assert names == list(SUITES["long"])
    monkeypatch.setattr(place, lambda package: package == "lm_eval")
    monkeypatch.setattr(lm_eval, "require", lambda *words: None)
    with_ruler = suite_measures("long")
    assert [measure.name for measure in with_ruler][len(names) :] == [
        f"lm-eval:{task}" for task in GENERATED
    ]
    # at lengths for which RULER has a score
    sizes = EvaluationSizes((4096, 5000, 8192), 4096)
    assert [case.column for case in with_ruler[-1].cases(prose(WordTokenizer()), sizes)] == [
        4096,
        8192,
    ]
    with pytest.raises(UsageError, match="--suite short is not known"):
        suite_measures("short")


def test_measures_of_the_user_are_before_those_of_the_suite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ropeconv.features.evaluation.evaluation.installed", lambda package: False)
    chosen = Sizes(measures="sliding:64,keys", suite="long").chosen_measures()
    names = [measure.name for measure in chosen]
    assert names[:2] == ["sliding", "keys"]
    assert sorted(names) == sorted({"sliding", *SUITES["long"]})
    assert [measure.name for measure in Sizes().chosen_measures()] == ["growth"]


def text_of(alphabet: str, words: int, width: int, space: str = "") -> str:
    """A text of different words, in sentences of seven words."""
    parts = []
    for number in range(words):
        word = "".join(alphabet[number // 5**place % len(alphabet)] for place in range(width))
        parts.append(word + ("。" if number % 7 == 0 else space))
    return "".join(parts)


@pytest.mark.parametrize("alphabet", ["長上下文本的位置編碼方法", "あいうえおかきくけこアイウ"])
@pytest.mark.parametrize("name", ["keys", "latest", "niah"])
def test_texts_without_spaces_have_words_too(name: str, alphabet: str) -> None:
    read = tokenize([("zh.txt", text_of(alphabet, 3000, 3))], Letters((1,)))
    sizes = EvaluationSizes((3000, 4000), 512, windows=2, depths=5)
    questions: dict[int, set[str]] = {}
    for case in REGISTRY[name].cases(read, sizes):
        assert len(case.ids) == case.column
        text = read.tokenizer.decode(case.ids.tolist())
        found = re.findall(r"\n(..): \d{5}(?=\n|$)|\nThe special number of (..) is \d{7}\.", text)
        words = {first or second for first, second in found}
        assert len(words) == {"niah": 4}.get(name, COUNT)
        assert all(set(word) <= set(alphabet) for word in words)
        questions.setdefault(case.window, set()).update(words)
    assert set(questions) == {0, 1}


def test_a_text_without_words_for_questions_is_refused_with_what_to_do() -> None:
    # Thai has neither spaces between words nor signs that are words
    long = tokenize([("th.txt", text_of("กขคงจฉชซ", 9000, 3))], Letters())
    sizes = EvaluationSizes((4000,), 512, windows=1)
    with pytest.raises(BadSource, match=r"th.txt.* 25.*passkey") as refused:
        list(REGISTRY["keys"].cases(long, sizes))
    assert "longer" not in str(refused.value)
    assert list(REGISTRY["passkey"].cases(long, sizes))
    # a short text may have more words further on
    short = tokenize([("short.txt", "some words\n" * 100)], Letters())
    with pytest.raises(BadSource, match="longer"):
        list(REGISTRY["keys"].cases(short, sizes))


@of_each
def test_windows_and_questions_are_counted_apart(name: str, texts: Texts) -> None:
    measure = REGISTRY[name]
    observations: list[Observation] = []
    for case in cases(name, texts):
        right = np.ones(len(case.targets), bool)
        for one in measure.observe(case, TokenLosses(np.ones(len(right)), right)):
            observations.append(measure.with_place(case, one))
    cells = cells_of("base", observations, [])
    assert {cell.metric for cell in cells} == {"exact", "log_prob"}
    for cell in cells:
        assert cell.windows == 2
        if cell.metric == "exact":
            assert cell.questions == 2 * (COUNT if cell.depth is None else KEYS_PER_DEPTH)
        # the questions are still the items of a few texts
        if cell.depth is None:
            assert cell.clusters == 2 * COUNT


def test_a_single_window_of_many_questions_does_not_cover_the_difference_of_texts(
    texts: Texts,
) -> None:
    measure = REGISTRY["keys"]
    case = cases("keys", texts)[0]
    right = np.ones(len(case.targets), bool)
    observations = measure.observe(case, TokenLosses(np.ones(len(right)), right))
    (sentence,) = notes(cells_of("base", observations, []))
    assert sentence.startswith("keys: ")
    assert "1 text " in sentence
