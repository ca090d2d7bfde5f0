"""Measures that hide facts in texts and ask for them."""

import numpy as np
import pytest

from ropeconv.engines.engine import TokenLosses
from ropeconv.features.evaluation.cases import Case, EvaluationSizes, Observation
from ropeconv.features.evaluation.measures.measure import REGISTRY
from ropeconv.features.evaluation.texts import Texts

from ..engines import WordTokenizer, prose

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
