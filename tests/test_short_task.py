"""The task of short questions, made of examples as lm_eval has them."""

from typing import Any

import pytest

from scripts.research.short_task import METRICS, read_questions

EXAMPLES = """The following are multiple choice questions (with answers) about anatomy.

Q: Which cavity contains the pituitary gland?
(A) Abdominal (B) Cranial (C) Pleural (D) Spinal
A: Let's think step by step. The gland is at the base of the brain. The answer is (B).

Q: Two statements:
(1) the first. How many lines are there?
(A) 4 (B) 3 (C) 6 (D) 24 (E) 8
A: Let's think step by step.
It is not (A), and 2 times 4 is 8. The answer is (E).

"""


def test_examples_become_questions() -> None:
    first, second = read_questions({"anatomy": EXAMPLES})
    assert first == {
        "subject": "anatomy",
        "question": "Which cavity contains the pituitary gland?",
        "choices": ["Abdominal", "Cranial", "Pleural", "Spinal"],
        "answer": 1,
    }
    assert second["question"] == "Two statements:\n(1) the first. How many lines are there?"
    assert (second["choices"][second["answer"]], len(second["choices"])) == ("8", 5)


def test_an_example_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="anatomy"):
        read_questions({"anatomy": EXAMPLES.replace("(A) Abdominal", "Abdominal")})


@pytest.mark.parametrize(
    ("right", "acc", "acc_norm", "log_prob"),
    [
        (0, 1.0, 0.0, -2.0),  # the likeliest text, since it is short
        (1, 0.0, 1.0, -0.5),  # the likeliest by characters
        (2, 0.0, 0.0, -3.0),
    ],
)
def test_the_likeliest_answer_by_characters_counts(
    right: int, acc: float, acc_norm: float, log_prob: float
) -> None:
    module: dict[str, Any] = {}
    exec(METRICS, module)
    question = {"choices": ["no", "certainly", "never"], "answer": right}
    results = [(-4.0, False), (-4.5, False), (-15.0, True)]
    found = module["metrics_of_question"](question, results)
    assert found == {"acc": acc, "acc_norm": acc_norm, "right_log_prob": pytest.approx(log_prob)}
