"""Texts of an evaluation and of a validation: files, patterns, and texts themselves."""

from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource, UsageError
from ropeconv.features.evaluation import texts as texts_module
from ropeconv.features.evaluation.cases import EvaluationSizes
from ropeconv.features.evaluation.evaluation import Sizes, evaluate_model
from ropeconv.features.evaluation.measures.retrieval import choose_haystacks
from ropeconv.features.evaluation.texts import (
    CheckpointTokenizer,
    gather_texts,
    long_enough,
    tokenize,
    window_ends,
)
from ropeconv.validate.comparison import Settings
from ropeconv.validate.sampling import of_text

from .engines import Letters, numbered

STORY = "It was the best of times, it was the worst of times.\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two essays."""
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(f"essay {name}")
    return tmp_path


def test_each_form_of_a_text_gives_its_name_and_its_content(folder: Path) -> None:
    assert gather_texts(STORY) == [("text", STORY)]
    assert gather_texts("a.txt") == [("a.txt", "essay a")]
    assert gather_texts(Path("a.txt")) == [("a.txt", "essay a")]
    assert gather_texts("*.txt") == [("a.txt", "essay a"), ("b.txt", "essay b")]
    assert gather_texts(folder / "*.txt") == [
        (str(folder / "a.txt"), "essay a"),
        (str(folder / "b.txt"), "essay b"),
    ]


def test_several_texts_keep_their_order_and_have_numbers(folder: Path) -> None:
    values = [STORY, Path("b.txt"), "more words\n"]
    expected = [("text 1", STORY), ("b.txt", "essay b"), ("text 3", "more words\n")]
    assert gather_texts(values) == gather_texts(iter(values)) == expected


def test_a_path_that_does_not_exist_is_a_sentence_with_the_fix(folder: Path) -> None:
    wrong: list[Any] = ["none.txt", Path("none.txt"), "none/*.txt", "word", ["a.txt", "none.txt"]]
    for value in wrong:
        with pytest.raises(UsageError, match="names no file"):
            gather_texts(value)
    for value in (3, b"a.txt", [3], None):
        with pytest.raises(UsageError, match=r"^text=.* is not"):
            gather_texts(value)
    with pytest.raises(UsageError, match="no text"):
        gather_texts([])


def test_an_evaluation_of_a_text_is_that_of_its_file(tiny_llama: Path, tmp_path: Path) -> None:
    text = " ".join(f"token {number % 7}" for number in range(400)) + "\n"
    (tmp_path / "book.txt").write_text(text)
    sizes = Sizes(lengths="32,64", windows=2)
    results = [
        evaluate_model(tiny_llama, "base", value, sizes, tmp_path / f"{number}.jsonl")
        for number, value in enumerate([text, [tmp_path / "book.txt"], str(tmp_path / "*.txt")])
    ]
    assert [result.texts for result in results] == [["text"], *[[str(tmp_path / "book.txt")]] * 2]
    first, *others = results
    assert len(first.cells) > 1
    assert all(other.cells == first.cells for other in others)
    assert all(other.tokens_sha256 == first.tokens_sha256 for other in others)


def test_a_validation_reads_a_text_as_its_file(tiny_llama: Path, tmp_path: Path) -> None:
    text = " ".join(f"token {number % 7}" for number in range(100)) + "\n"
    path = tmp_path / "book.txt"
    path.write_text(text)
    ids = of_text(Settings(text=path).text or "", tiny_llama, 50)
    assert of_text(Settings(text=text).text or "", tiny_llama, 50) == ids
    assert len(ids) == 50
    assert len({*ids}) > 1
    with pytest.raises(BadSource, match=r"^the text has \d+ tokens?, .* 50 "):
        of_text("two words\n", tiny_llama, 50)
    with pytest.raises(BadSource, match="UTF-8"):
        of_text(tmp_path / "none.txt", tiny_llama, 50)


def test_copies_of_a_text_are_left_out_and_named() -> None:
    files = [("a.txt", STORY), ("other.txt", "other words\n"), ("b.txt", STORY), ("c.txt", STORY)]
    texts = tokenize(files, Letters())
    assert [document.name for document in texts.documents] == ["a.txt", "other.txt"]
    (note,) = texts.notes
    assert all(name in note for name in ("a.txt", "b.txt", "c.txt"))
    assert "copies" in note
    assert "other.txt" not in note
    # the same text once gives the same tokens, and no note
    once = tokenize(files[:2], Letters())
    assert once.sha256 == texts.sha256
    assert not once.notes


def test_many_copies_are_counted() -> None:
    texts = tokenize([(f"row {number}", STORY) for number in range(40)], Letters())
    assert len(texts.documents) == 1
    (note,) = texts.notes
    assert "39 texts" in note
    assert "and 34 more" in note
    assert len(note) < 400


def test_texts_that_are_too_short_for_a_window_are_named() -> None:
    texts = numbered(100, 20, 30, 64)
    assert window_ends(texts, EvaluationSizes((16, 64), 16, windows=4), apart=8)
    (note,) = texts.notes
    assert "2 of 4 texts" in note
    assert "64 tokens" in note
    assert "text 1, text 2" in note
    # asked again, as by another measure, it is one note
    assert long_enough(texts, 64) == [0, 3]
    assert texts.notes == [note]
    # no note where all are long enough
    enough = numbered(100, 64)
    assert long_enough(enough, 64) == [0, 1]
    assert enough.notes == []


def test_a_special_token_in_a_text_is_plain_text(tiny_llama: Path) -> None:
    tokenizer = CheckpointTokenizer(tiny_llama)
    special = set(tokenizer.tokenizer.all_special_ids)
    assert special
    text = "an <s>old</s> price"
    tokens = tokenizer.encode(text)
    assert not special & set(tokens)
    assert tokenizer.decode(tokens) == text
    # the tokens before a text are still the special ones, and other calls are not changed
    usual = tokenizer.tokenizer(text).input_ids
    assert special & set(usual)
    assert tokenizer.prefix == tuple(tokenizer.tokenizer("").input_ids)
    assert tokenizer.encode(text) == tokens


def test_a_tokenizer_without_that_setting_still_reads_texts(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = CheckpointTokenizer(tiny_llama).encode(STORY)

    class Refusing:
        """As MistralCommonBackend of transformers, which never reads special tokens in a text."""

        def __init__(self, tokenizer: Any) -> None:
            self.tokenizer = tokenizer

        def __call__(self, text: str, split_special_tokens: bool = False, **options: Any) -> Any:
            if split_special_tokens:
                raise ValueError("split_special_tokens is not supported")
            return self.tokenizer(text, **options)

    loaded = texts_module.load_tokenizer
    monkeypatch.setattr(
        texts_module, "load_tokenizer", lambda *given: Refusing(loaded(*given)), raising=True
    )
    assert CheckpointTokenizer(tiny_llama).encode(STORY) == usual


def test_six_texts_have_as_many_windows_each() -> None:
    """Eight windows of six texts are worth 5.3 equal texts, too few for a test."""
    sizes = EvaluationSizes((16, 64), 16, windows=8)
    six = numbered(*[200] * 6)
    assert [number for number, _ in window_ends(six, sizes, apart=8)] == list(range(6))
    seven = numbered(*[200] * 7)
    assert len(window_ends(seven, sizes, apart=8)) == 8
    five = numbered(*[200] * 5)
    assert len(window_ends(five, sizes, apart=8)) == 8
    questions = choose_haystacks(numbered(*[20_000] * 6), sizes)
    assert len({document for document, _ in questions}) == len(questions) == 6
