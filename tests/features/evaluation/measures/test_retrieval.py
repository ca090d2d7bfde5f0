"""Measures that hide facts in texts and ask for them."""

import re

import numpy as np
import pytest

from ropeconv.engines.engine import TokenLosses
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.cases import Case, EvaluationSizes, Observation
from ropeconv.features.evaluation.measures.measure import REGISTRY
from ropeconv.features.evaluation.texts import Texts

from ..engines import Letters, WordTokenizer, numbered, prose

ASKED = EvaluationSizes((400, 777, 1500), 512, windows=3, depths=5)
of_each = pytest.mark.parametrize("name", ["passkey", "niah"])


@pytest.fixture(scope="module")
def texts() -> Texts:
    return prose(WordTokenizer())


def cases(name: str, texts: Texts, sizes: EvaluationSizes = ASKED) -> list[Case]:
    return list(REGISTRY[name].cases(texts, sizes))


def right(observations: list[Observation]) -> float:
    return next(
        observation.value for observation in observations if observation.metric == "accuracy"
    )


@of_each
def test_a_sequence_has_exactly_the_length_that_was_asked_for(name: str, texts: Texts) -> None:
    sizes = EvaluationSizes(tuple(range(500, 530)), 512, windows=1, depths=2)
    sequences = cases(name, texts, sizes)
    assert [len(case.ids) for case in sequences] == [case.column for case in sequences]
    assert {case.column for case in sequences} == set(sizes.lengths)
    assert all(tuple(case.ids[:2]) == texts.prefix for case in sequences)


@of_each
def test_the_targets_are_the_answer_and_all_lengths_have_the_same_question(
    name: str, texts: Texts
) -> None:
    questions: dict[tuple[int, float | None], set[str]] = {}
    for case in cases(name, texts):
        assert texts.tokenizer.decode(case.ids[case.targets]) == case.answer
        assert case.targets[-1] == len(case.ids) - 1
        question = texts.tokenizer.decode(case.ids[case.targets[0] - 8 :])
        questions.setdefault((case.window, case.depth), set()).add(question)
    assert len(questions) == 3 * 5
    assert all(len(variants) == 1 for variants in questions.values())
    assert len(set.union(*questions.values())) == len(questions)


@of_each
def test_the_fact_stands_at_its_depth(name: str, texts: Texts) -> None:
    for case in cases(name, texts):
        tokens = [texts.tokenizer.decode([token]) for token in case.ids]
        text = "".join(tokens)
        fact = f" is {case.answer}."
        assert text.count(fact) == 1, fact
        place = int(
            np.searchsorted(np.cumsum([len(token) for token in tokens]), text.index(fact))
        ) / len(tokens)
        # tasks, questions and the other facts take a share of a short sequence
        assert place == pytest.approx(case.depth, abs=0.04 + 110 / len(tokens))


def test_accuracy_is_the_share_of_likeliest_tokens_of_the_answer(texts: Texts) -> None:
    case = cases("passkey", texts)[0]
    losses = TokenLosses(
        np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([True, True, True, False, True])
    )
    metrics = {
        observation.metric: observation.value
        for observation in REGISTRY["passkey"].observe(case, losses)
    }
    assert metrics == {"accuracy": pytest.approx(0.8), "exact": 0.0, "log_prob": pytest.approx(-3)}
    (exact,) = (
        o
        for o in REGISTRY["passkey"].observe(case, TokenLosses(losses.loss, np.ones(5, bool)))
        if o.metric == "exact"
    )
    assert (exact.value, exact.weight) == (1.0, 1)


@of_each
def test_what_is_generated_counts_by_the_answer_in_it(name: str, texts: Texts) -> None:
    forward, case = (
        cases(name, texts, EvaluationSizes((500,), 512, windows=1, depths=1, generate=generate))[0]
        for generate in (False, True)
    )
    assert case.generate > len(case.targets)
    for output, value in (
        (f" it is {case.answer}.", 1.0),
        (f" {case.answer}7", 0),
        (f"x{case.answer}, {case.answer}", 1),
    ):
        assert right(REGISTRY[name].observe_text(case, output)) == value
    assert np.array_equal(forward.ids, case.ids)
    assert forward.digest != case.digest  # of the same sequence something else is measured


class Merging(WordTokenizer):
    """Tokens that cross the space before a number, as a tokenizer learns that splits no words."""

    def encode(self, text: str) -> list[int]:
        parts = (
            r"The pass key is \d{1,2}|literal is \d| is \d\d|: \d|\d{1,3}| ?[^\W\d]+|\s|[^\w\s]|_"
        )
        return [self._number(part) for part in re.findall(parts, text)]


@pytest.mark.parametrize("generate", [False, True])
@pytest.mark.parametrize("name", ["passkey", "niah", "keys", "latest"])
def test_every_digit_is_scored_where_tokens_cross_the_space_before_it(
    name: str, generate: bool
) -> None:
    texts = prose(Merging())
    sizes = EvaluationSizes((1500,), 512, windows=4, depths=3, generate=generate)
    for case in cases(name, texts, sizes):
        decode = texts.tokenizer.decode
        if not case.answer:  # keys and latest have several answers
            groups = np.split(case.targets, np.flatnonzero(np.diff(case.targets) > 1) + 1)
            assert len(groups) == 15
            assert all(re.fullmatch(r"(: )?\d{5}", decode(case.ids[group])) for group in groups)
            continue
        # the answer, and at most the first token also has an end of the question
        assert decode(case.ids[case.targets]).endswith(case.answer)
        assert not decode(case.ids[case.targets[1:]]).endswith(case.answer)
        assert case.targets[-1] == len(case.ids) - 1
        if generate:
            prompt = decode(case.ids[: case.targets[0]])
            assert not prompt[-1].isdigit()
            assert case.generate > len(case.ids) - case.targets[0]


def test_a_tokenizer_that_cannot_write_a_number_is_refused() -> None:
    class WithoutDigits(Letters):
        def encode(self, text: str) -> list[int]:
            return super().encode(re.sub(r"\d", "", text))

    with pytest.raises(UsageError, match="tokenizer"):
        cases("passkey", prose(WithoutDigits((1,))))


def documents_of(texts: Texts, length: int, windows: int, name: str = "passkey") -> list[int]:
    """The documents of the windows, as the errors are between these."""
    sizes = EvaluationSizes((length,), 512, windows=windows, depths=1)
    return [case.document for case in cases(name, texts, sizes)]


def test_windows_that_read_on_into_one_text_count_as_one_text() -> None:
    # eleven texts of 70 tokens before a long one, which most of every window is then from
    assert len(set(documents_of(numbered(*[70] * 11, 30_000), 4096, 12))) == 1
    # six long texts, and a short one before each
    pairs = documents_of(numbered(*[70, 30_000] * 6), 1024, 12)
    assert len(set(pairs)) == 6
    # texts that are shorter than a sequence all lead into each other
    assert len(set(documents_of(numbered(*[700] * 9), 1024, 9))) == 1


def test_windows_within_their_texts_count_as_so_many_texts() -> None:
    texts = numbered(*[2_000_000] * 12)
    documents = documents_of(texts, 1024, 24)
    assert sorted(documents) == sorted([*range(12)] * 2)
    # each window is of the text that it begins in
    order = np.random.default_rng(0).permutation(12).tolist()
    assert documents == order * 2
    # a single text is one, from wherever it is read
    assert set(documents_of(numbered(500), 1024, 8)) == {0}


@pytest.mark.parametrize("name", ["keys", "latest", "niah"])
def test_other_questions_count_texts_in_the_same_way(name: str, texts: Texts) -> None:
    # far longer sequences than texts
    length = 2 * max(len(document.ids) for document in texts.documents)
    documents = documents_of(texts, length, 6, name)
    assert len(documents) == 6
    assert set(documents) == {documents[0]}
