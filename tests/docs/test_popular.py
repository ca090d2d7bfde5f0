"""The answers of installed runtimes about 50 published models: nothing is unknown without a reason,
and no reason is a fault of the probe.

`python -m scripts.laboratory.popular` writes the answers.
"""

import pytest

from ropeconv.runtimes.runtime import GOOD
from scripts.laboratory.popular import USUAL, Answered, config_of, read_results
from scripts.pages.popular_tables import popular_counts, sentence

FAULTS = ("the probe fails on this model", "the probe does not understand", "cannot be imported")


def is_explained(answered: Answered) -> bool:
    """Whether an answer says what the runtime does, or why that is not known."""
    if answered.status in GOOD:
        return True
    return bool(answered.reason) and not answered.reason.startswith(FAULTS)


def test_fifty_models_were_asked_about_two_methods_in_every_runtime() -> None:
    asked = read_results()
    assert asked is not None
    assert len(USUAL) == 50
    assert set(asked.models) == set(USUAL)
    assert {"transformers", "vllm", "mlx-lm", "exllamav3"} <= set(asked.versions)
    for model, rows in asked.models.items():
        assert config_of(model).is_file()
        assert {words.split()[0] for words in rows} == {"--yarn", f"--{USUAL[model]}"}
        for answers in rows.values():
            assert set(answers) == set(asked.versions)
            assert all(map(is_explained, answers.values()))


@pytest.mark.parametrize(
    "answered",
    [
        Answered("unknown"),
        Answered("differs"),
        Answered("unknown", "the probe fails on this model: RuntimeError: shapes"),
    ],
)
def test_an_answer_without_a_reason_is_noticed(answered: Answered) -> None:
    assert not is_explained(answered)


def test_the_counts_are_of_all_answers() -> None:
    for line in popular_counts().splitlines()[2:]:
        cells = line.strip("| ").split(" | ")
        assert sum(map(int, cells[1:])) == 2 * len(USUAL)


def test_an_answer_is_a_sentence() -> None:
    own = Answered("exact", encoding="ramp", only_for="--runtime vllm")
    assert sentence(own) == "exact (ramp); written with --runtime vllm"
    assert sentence(Answered("refused", "KeyError: 'factor'")) == "refused: KeyError: 'factor'"
