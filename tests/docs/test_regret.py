"""The loss of the first line of `advise` on a model that its table does not have."""

import msgspec
import pytest

from ropeconv.bake.evidence import EvidenceTable, Study, evidence
from scripts.pages.evidence import FOLDER, record
from scripts.pages.regret import (
    SHAPES,
    Regret,
    first_line,
    measure_regret,
    read_regrets,
    regret_sentence,
)


def of(model: str, factor: float, on_top: str = "") -> Regret:
    wanted = (factor, on_top)
    rows = [one for one in read_regrets() if one.model.startswith(model)]
    return [one for one in rows if (one.factor, one.on_top) == wanted][-1]


def test_the_file_is_what_the_record_gives() -> None:
    assert measure_regret(evidence(), record()) == read_regrets()


def test_numbers_by_hand() -> None:
    """From docs/evaluating.md at 4 times: YaRN loses 3.37 nats, by-parts 3.45 and linear 5.14, so
    that the order by frequencies, which begins with linear, costs 1.78. Without its own studies,
    SmolLM2 is judged by Gemma 3 270M at twice the context, where by-parts is before YaRN by 0.009.
    Gemma 3's scaling is linear; on top of it, docs/methods.md has 3.716 for linear and 3.680 for
    YaRN.
    """
    real = of("SmolLM2", 4)
    assert (real.first, real.best) == ("by-parts", "yarn")
    assert real.lost == pytest.approx(3.45 - 3.37, abs=0.01)
    assert real.by_frequencies == pytest.approx(5.14 - 3.37, abs=0.02)
    linear = of("three Llamas", 2, "linear")
    assert (linear.first, linear.best) == ("linear", "yarn")
    assert linear.lost == pytest.approx(3.716 - 3.680)


def test_a_difference_of_items_has_its_error() -> None:
    items = of("Llama-0.14M-512", 2, "llama3")
    assert items.error is not None
    assert 0 < items.error < items.lost
    assert of("three Llamas", 2, "linear").error is None, "only means were kept"


def test_no_study_of_the_model_itself_is_asked() -> None:
    """A study that puts NTK first is followed for other models, and not for its own."""
    losses = {"ntk": 0.1, "yarn": 0.5, "base": 4.0}
    numbers = {"lost": losses, "beyond": losses}
    own = Study("SmolLM2-135M (8,192 tokens)", 4, "nats", "1", "here", trained=8192, **numbers)
    other = msgspec.structs.replace(own, model="three Llamas (128 tokens)", trained=128)
    assert first_line(own, "SmolLM2-135M", (other,)) == "ntk"
    assert first_line(own, "SmolLM2-135M", ()) != "ntk"
    alone = measure_regret(EvidenceTable((own,), ()), [])
    both = measure_regret(EvidenceTable((own, other), ()), [])
    assert (alone[0].first, both[0].first) == ("yarn", "ntk")


def test_the_sentence_follows_one_item() -> None:
    """The loss of one method on one model is lowered by a nat: the sentence is another one."""
    studies = list(evidence().studies)
    place = next(
        number
        for number, study in enumerate(studies)
        if study.model.startswith("SmolLM2")
        and study.factor == 4
        and study.source.startswith("docs/evaluating.md")  # of twelve texts
    )
    better = {**studies[place].beyond, "mixed": studies[place].beyond["mixed"] - 1}
    studies[place] = msgspec.structs.replace(studies[place], beyond=better)
    changed = measure_regret(EvidenceTable(tuple(studies), ()), record())
    assert regret_sentence(changed) != regret_sentence(read_regrets())
    assert max(one.lost for one in changed) == pytest.approx(1 - (3.62 - 3.45), abs=0.02)


def test_models_whose_methods_hardly_differ_are_named_as_such() -> None:
    drawn = [one.drawn for one in read_regrets() if "256-seed" in one.model]
    assert len(drawn) == 4
    page = (FOLDER.parent / "evaluating.md").read_text("utf-8")
    assert f"drawn at random is at most {max(drawn):.3f} nats behind" in page


def test_the_sentence_says_how_few_models_there_are() -> None:
    models = {one.name for one in read_regrets()}
    assert models == set(SHAPES)
    assert f"only {len(models)} models" in regret_sentence(read_regrets())
