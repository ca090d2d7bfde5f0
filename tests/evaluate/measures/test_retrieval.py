"""Measures that hide facts in texts and ask for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropeconv.engines import TokenLosses
from ropeconv.engines.transformers import DeviceSpec, TransformersEngine
from ropeconv.errors import BadSource, UsageError
from ropeconv.evaluate.asked import Asked
from ropeconv.evaluate.case import Case, Observation
from ropeconv.evaluate.measures import REGISTRY
from ropeconv.evaluate.measures.haystack import Haystack
from ropeconv.evaluate.measures.retrieval import Retrieval
from ropeconv.evaluate.texts.documents import Document, Texts
from ropeconv.evaluate.texts.of_checkpoint import CheckpointTokenizer

from ..reading import ANSWERS, Reader, WordTokenizer, prose

NAMES = list(ANSWERS)
BY_DEPTH = ["passkey", "niah", "kv", "vt"]
LENGTHS = (400, 777, 1500)
ASKED = Asked(LENGTHS, 512, windows=3, depths=5)


@pytest.fixture(scope="module")
def texts() -> Texts:
    return prose(WordTokenizer())


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ...support.llamacpp import checkpoint

    return checkpoint("llama", tmp_path_factory.mktemp("model") / "tiny")


def cases(name: str, texts: Texts, asked: Asked = ASKED) -> list[Case]:
    return list(REGISTRY[name].cases(texts, asked))


def right(found: list[Observation]) -> float:
    return next(one.value for one in found if one.metric == "accuracy")


def answered(case: Case, reader: Reader) -> float:
    losses = reader.token_losses(case.ids.tolist(), case.targets.tolist())
    return right(REGISTRY[case.measure].observe(case, losses))


def test_all_measures_that_retrieve_are_tested_here() -> None:
    assert {name for name, measure in REGISTRY.items() if isinstance(measure, Retrieval)} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_has_exactly_the_length_that_was_asked_for(name: str, texts: Texts) -> None:
    asked = Asked(tuple(range(500, 530)), 512, windows=1, depths=2)
    found = cases(name, texts, asked)
    assert [len(case.ids) for case in found] == [case.column for case in found]
    assert {case.column for case in found} == set(asked.lengths)
    assert all(tuple(case.ids[:2]) == texts.prefix for case in found)


@pytest.mark.parametrize("name", NAMES)
def test_the_targets_are_the_answer_and_nothing_else(name: str, texts: Texts) -> None:
    for case in cases(name, texts):
        said = texts.tokenizer.decode(case.ids[case.targets])
        assert said.replace(" ", "") == case.answer.replace(", ", "")
        assert case.targets[-1] == len(case.ids) - 1


@pytest.mark.parametrize("name", NAMES)
def test_all_lengths_have_the_same_question_and_answer(name: str, texts: Texts) -> None:
    answers: dict[tuple[int, float | None], set[str]] = {}
    for case in cases(name, texts):
        question = texts.tokenizer.decode(case.ids[case.targets[0] - 8 :])
        answers.setdefault((case.window, case.depth), set()).add(question)
    assert all(len(found) == 1 for found in answers.values())
    depths = 5 if name in BY_DEPTH else 1
    assert len(answers) == 3 * depths
    assert len({question for found in answers.values() for question in found}) == len(answers)


@pytest.mark.parametrize("name", ["passkey", "niah", "vt"])
def test_the_fact_stands_at_its_depth(name: str, texts: Texts) -> None:
    mark = {"passkey": "The pass key is {}.", "niah": "is {}.", "vt": "VAR {} ="}[name]
    for case in cases(name, texts):
        tokens = [texts.tokenizer.decode([token]) for token in case.ids]
        text, fact = "".join(tokens), mark.format(case.answer.split(", ")[0])
        assert text.count(fact) == 1, fact
        before = np.cumsum([len(token) for token in tokens])
        place = int(np.searchsorted(before, text.index(fact))) / len(tokens)
        # tasks, questions and the other facts take a share of a short sequence
        assert place == pytest.approx(case.depth, abs=0.04 + 110 / len(tokens))


def test_the_pair_stands_at_its_depth_and_pairs_fill_the_object(texts: Texts) -> None:
    for case in cases("kv", texts):
        text = texts.tokenizer.decode(case.ids)
        lines = [line for line in text.splitlines() if line.endswith(",") and line.startswith('"') and ": " in line]
        (place,) = [index for index, line in enumerate(lines) if line.endswith(f": {case.answer},")]
        assert place == round((case.depth or 0.0) * (len(lines) - 1))
        assert len({line.split(":")[0] for line in lines}) == len(lines) == len({line.split()[-1] for line in lines})
        assert sum(len(texts.tokenizer.encode(f"\n{line}")) for line in lines) > case.column - 80


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_of_the_whole_text_is_always_right(name: str, texts: Texts) -> None:
    reader = Reader(texts.tokenizer, ANSWERS[name])
    assert [answered(case, reader) for case in cases(name, texts)] == [1.0] * len(cases(name, texts))


@pytest.mark.parametrize("name", BY_DEPTH)
def test_a_reader_of_the_last_tokens_fails_at_far_depths_only(name: str, texts: Texts) -> None:
    near = Reader(texts.tokenizer, ANSWERS[name], window=800)
    by_depth: dict[float | None, set[float]] = {}
    for case in cases(name, texts, Asked((1500,), 512, windows=3, depths=3)):
        by_depth.setdefault(case.depth, set()).add(answered(case, near))
    assert by_depth[1.0] == {1.0}
    assert max(by_depth[0.0]) < 1.0
    assert all(case.column > 800 or answered(case, near) == 1.0 for case in cases(name, texts))


@pytest.mark.parametrize("name", ["cwe", "fwe"])
def test_a_reader_of_the_last_tokens_miscounts_a_long_list(name: str, texts: Texts) -> None:
    near = Reader(texts.tokenizer, ANSWERS[name], window=60)
    found = [answered(case, near) for case in cases(name, texts)]
    assert np.mean(found) < 0.85
    assert all(case.depth is None for case in cases(name, texts))


def test_common_words_are_ten_times_as_frequent_in_long_lists(texts: Texts) -> None:
    for case in cases("cwe", texts, Asked((400, 4000), 512, windows=2)):
        words = texts.tokenizer.decode(case.ids).split("others.\n")[-1].split("\nWhich")[0].split()
        common = {words.count(word) for word in case.answer.split(", ")}
        others = {words.count(word) for word in set(words[20:]) - set(case.answer.split(", "))}
        assert len(common) == 1
        assert min(common) >= 3 * max(others)
        if case.column == 4000:
            assert common == {30}
            assert max(others) <= 8


def test_frequent_words_follow_zipfs_law(texts: Texts) -> None:
    (case,) = cases("fwe", texts, Asked((3000,), 512, windows=1))
    words = texts.tokenizer.decode(case.ids).split("others.\n")[-1].split("\nWhich")[0].split()
    counts = [words.count(word) / len(words) for word in case.answer.split(", ")]
    assert counts == pytest.approx([0.608, 0.152, 0.0675], abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_everything(name: str, texts: Texts) -> None:
    def digests(seed: int) -> list[str]:
        return [case.digest for case in cases(name, texts, Asked((500,), 512, windows=2, depths=2, seed=seed))]

    assert digests(1) == digests(1)
    assert not set(digests(1)) & set(digests(2))
    assert len(set(digests(1))) == len(digests(1))


def test_samples_come_from_all_texts_and_go_on_from_one_into_the_next(texts: Texts) -> None:
    assert {case.document for case in cases("passkey", texts, Asked((300,), 512, windows=6, depths=1))} == set(range(6))
    sizes = [len(document.ids) for document in texts.documents]
    found = Haystack(texts, 5, sizes[5] - 3).hay(10 + sum(sizes))
    assert found[:3] == texts.documents[5].ids[-3:].tolist()
    assert found[3:6] == texts.documents[0].ids[:3].tolist()
    assert len(found) == 10 + sum(sizes)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_generated_counts_by_the_answers_in_it(name: str, texts: Texts) -> None:
    measure = REGISTRY[name]
    case = next(iter(measure.cases(texts, Asked((500,), 512, windows=1, depths=1, generate=True))))
    assert case.generate > len(case.targets)
    one, *others = case.answer.split(", ")
    assert right(measure.observe_text(case, f" it is {case.answer}.")) == 1.0
    assert right(measure.observe_text(case, f" {one}")) == 1 / (1 + len(others))
    assert right(measure.observe_text(case, f" {one}7")) == 0.0
    assert right(measure.observe_text(case, f"x{one}, {one}")) == 1 / (1 + len(others))
    forward = next(iter(measure.cases(texts, Asked((500,), 512, windows=1, depths=1))))
    assert np.array_equal(forward.ids, case.ids)
    assert forward.digest != case.digest  # of the same sequence something else is measured


def test_a_question_in_a_chat_stands_in_the_message_and_the_answer_behind_it(texts: Texts) -> None:
    asked = Asked((500,), 512, windows=1, depths=1, generate=True, chat=True)
    (case,) = cases("passkey", texts, asked)
    text = texts.tokenizer.decode(case.ids)
    assert len(case.ids) == 500
    assert text.startswith("<user>There is an important")
    assert text.endswith(f"What is the pass key?<model>The pass key is {case.answer}")
    with pytest.raises(UsageError, match="--generate"):
        Asked((500,), 512, chat=True)


def test_the_chat_template_of_a_checkpoint_stands_around_the_message(tiny_llama: Path) -> None:
    tokenizer = CheckpointTokenizer(tiny_llama)
    with pytest.raises(UsageError, match="no chat template"):
        tokenizer.chat()
    tokenizer.tokenizer.chat_template = (
        "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>model: {% endif %}"
    )
    before, after = tokenizer.chat()
    assert tokenizer.decode(before) == "<s>user: "
    assert tokenizer.decode(after) == "</s><s>model: "


@pytest.mark.parametrize("name", NAMES)
def test_a_length_without_room_for_the_question_is_a_sentence(name: str, texts: Texts) -> None:
    with pytest.raises(UsageError, match="--lengths"):
        cases(name, texts, Asked((45,), 512))


@pytest.mark.parametrize("name", ["niah", "kv", "cwe", "fwe"])
def test_a_text_with_few_words_is_a_sentence(name: str) -> None:
    tokenizer = WordTokenizer()
    poor = Texts((Document("poor.txt", np.array(tokenizer.encode("one two one two " * 400), np.int32)),), tokenizer)
    with pytest.raises(BadSource, match=r"2 different words from poor\.txt on"):
        cases(name, poor, Asked((500,), 512))


def test_a_model_of_random_weights_is_right_by_chance(tiny_llama: Path) -> None:
    engine = TransformersEngine.load(tiny_llama, DeviceSpec("cpu", "float32"))
    texts = prose(CheckpointTokenizer(tiny_llama))
    found: list[float] = []
    for name in NAMES:
        for case in cases(name, texts, Asked((1200,), 64, windows=1, depths=2)):
            losses: TokenLosses = engine.token_losses(case.ids.tolist(), case.targets.tolist())
            observed = REGISTRY[name].observe(case, losses)
            assert [one.metric for one in observed] == ["accuracy", "log_prob"]
            assert observed[1].value == -float(losses.loss.mean())
            found += [observed[0].value] * observed[0].weight
    assert np.mean(found) < 0.05
