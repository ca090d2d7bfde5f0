"""Texts that become other tokens in llama.cpp than tokenizer.json gives."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers

from ropeconv.bake.plan import Plan
from ropeconv.convert.to_gguf.recut import (
    DECOMPOSED,
    SAMPLES,
    Recut,
    find_composed,
    find_recut,
    pre_tokenizer,
)
from ropeconv.convert.to_gguf.tokenizer import Pre, composes_characters, pre_table, tokenizer_keys
from ropeconv.engines.llamacpp import LlamaCppProcess
from ropeconv.engines.llamacpp_program import Load
from ropeconv.formats.gguf.edit import RewrittenHeader
from ropeconv.formats.gguf.header import boolean, string, u32
from scripts.llamacpp.pre_tokenizers import odd_strings

from ...support.baking import AS_IS, YARN, make_plan
from ...support.llamacpp import checkpoint
from ...support.stock_tree import OWN_VOCABULARY, stock_tree, tree_for_tiny_models
from .test_tokenizer import RULES

APPROXIMATED = [pre for pre in pre_table().pre if pre.runs]
TEXTS = (*SAMPLES, *DECOMPOSED, *odd_strings(60))


def tokenizer_of(pre: Pre, words: Sequence[str] = SAMPLES) -> tokenizers.Tokenizer:
    """Byte-level BPE that has learned words whole, by default the samples."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=pre.ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer([r"split \s+"])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(words)] * 50, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer(pre.steps)
    return tokenizer


def folder_of(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def in_llama_cpp(folder: Path, rows: int, pre: str = "") -> list[list[int]]:
    """The tokens of TEXTS in llama.cpp, from a file with the keys of the tokenizer only."""
    keys = tokenizer_keys(folder, rows, RULES, pre) | {
        "tokenizer.ggml.add_bos_token": boolean(False),
        "tokenizer.ggml.add_space_prefix": boolean(False),
    }
    values = {"general.architecture": string("llama"), "llama.vocab_size": u32(rows), **keys}
    path = folder / "vocabulary.gguf"
    path.write_bytes(RewrittenHeader(values, {}, 32, 0).plain())
    with LlamaCppProcess(Load(path=str(path), vocabulary_only=True)) as process:
        return [process.encode(text) for text in TEXTS]


@pytest.mark.parametrize("pre", APPROXIMATED, ids=lambda pre: pre.name)
def test_an_example_is_what_llama_cpp_makes_of_it(pre: Pre, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    tokenizer = tokenizer_of(pre)
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    rows = tokenizer.get_vocab_size()
    actual = in_llama_cpp(folder, rows)

    # llama.cpp runs the steps of `runs`, and not those of tokenizer.json
    usual = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    tokenizer.pre_tokenizer = pre_tokenizer(pre.runs)
    approximated = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert actual == approximated
    assert actual != usual

    found = find_recut(folder, tokenizer_keys(folder, rows, RULES), {})
    assert_real(found, usual, actual)
    assert found is not None
    assert found.difference == pre.difference != ""


def assert_real(found: Recut | None, usual: list[list[int]], actual: list[list[int]]) -> None:
    """An example has the numbers of tokens that both programs give. Both lists are for TEXTS."""
    assert found is not None
    place = TEXTS.index(found.text)
    assert usual[place] != actual[place]
    assert (found.usual, found.in_llama_cpp) == (len(usual[place]), len(actual[place]))


def composing() -> tokenizers.Tokenizer:
    """Byte-level BPE that composes characters, as those of Qwen 2 and 3 and Command R."""
    [pre] = [pre for pre in pre_table().pre if pre.name == "qwen2"]
    tokenizer = tokenizer_of(pre, [unicodedata.normalize("NFC", word) for word in DECOMPOSED])
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    return tokenizer


def test_an_example_of_composition_is_what_llama_cpp_makes_of_it(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    tokenizer = composing()
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    rows = tokenizer.get_vocab_size()
    actual = in_llama_cpp(folder, rows)
    usual = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    found = find_composed(folder, tokenizer_keys(folder, rows, RULES))
    assert_real(found, usual, actual)

    # all differences are those of composition
    decomposed = [
        text for text, one, other in zip(TEXTS, usual, actual, strict=True) if one != other
    ]
    assert decomposed
    for text in decomposed:
        assert unicodedata.normalize("NFC", text) != text


def test_an_example_of_as_many_tokens_is_only_the_second_choice(tmp_path: Path) -> None:
    """A vocabulary that has learned one word in both forms, whose words have marks inside."""
    [pre] = [pre for pre in pre_table().pre if pre.name == "qwen35"]
    first, *_ = DECOMPOSED
    tokenizer = tokenizer_of(
        pre, [first, *(unicodedata.normalize("NFC", word) for word in DECOMPOSED)]
    )
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    found = find_composed(folder, tokenizer_keys(folder, tokenizer.get_vocab_size(), RULES))
    assert found is not None
    assert found.text == DECOMPOSED[1]
    assert "in place of" in found.described
    assert "in place of" not in Recut(first, 2, 2).described


def test_a_tokenizer_that_composes_nothing_has_no_example_of_it(tmp_path: Path) -> None:
    tokenizer = composing()
    tokenizer.normalizer = None
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    assert find_composed(folder, tokenizer_keys(folder, tokenizer.get_vocab_size(), RULES)) is None


def test_there_is_no_example_where_more_than_composition_differs(tmp_path: Path) -> None:
    """llama.cpp's own converter converts such tokenizers, whose numbers would be wrong here."""
    tokenizer = composing()
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    keys = tokenizer_keys(folder, tokenizer.get_vocab_size(), RULES)
    assert find_composed(folder, keys) is not None
    steps = [tokenizers.normalizers.NFC(), tokenizers.normalizers.Lowercase()]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert composes_characters(folder, keys)
    assert find_composed(folder, keys) is None


@pytest.mark.parametrize("name", ["llama4", "kanana2", "minimax-m2", "talkie"])
def test_an_alias_of_a_pre_tokenizer_has_the_same_example(name: str, tmp_path: Path) -> None:
    """llama.cpp's own converter writes these names."""
    pytest.importorskip("llama_cpp")
    [pre] = [pre for pre in APPROXIMATED if pre.name == "gpt-4o"]
    tokenizer = tokenizer_of(pre)
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    rows = tokenizer.get_vocab_size()
    actual = in_llama_cpp(folder, rows, pre=name)
    usual = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert_real(
        find_recut(folder, tokenizer_keys(folder, rows, RULES, pre=name), {}), usual, actual
    )
    # a name of which that is not known
    keys = tokenizer_keys(folder, rows, RULES, pre="granite-embed-multi-97m")
    assert find_recut(folder, keys, {}) is None


def test_a_tokenizer_that_llama_cpp_follows_has_no_example(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    [pre] = [pre for pre in pre_table().pre if pre.name == "qwen35"]
    tokenizer = tokenizer_of(pre)
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    rows = tokenizer.get_vocab_size()
    usual = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert in_llama_cpp(folder, rows) == usual
    assert find_recut(folder, tokenizer_keys(folder, rows, RULES), {}) is None


def checkpoint_with(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    """A Llama with a tokenizer."""
    source = checkpoint("llama", folder, vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(source / "tokenizer.json"))
    return source


def notes_on(words: str, plan: Plan) -> list[str]:
    """What a plan says with some words."""
    return [note for note in plan.warnings if words in note]


def approximated() -> tokenizers.Tokenizer:
    """A tokenizer that splits text as that of gpt-oss."""
    [pre] = [pre for pre in APPROXIMATED if pre.name == "gpt-4o"]
    return tokenizer_of(pre)


def test_the_plan_says_it_with_the_example(tmp_path: Path) -> None:
    marked = checkpoint_with(approximated(), tmp_path / "marked")
    plan = make_plan(marked, YARN, to="gguf", outtype="f32")
    [note] = notes_on("combining marks", plan)
    assert f"'{SAMPLES[0]}' " in note
    assert notes_on("NFC", plan) == []

    composed = checkpoint_with(composing(), tmp_path / "composed")
    plan = make_plan(composed, YARN, to="gguf", outtype="f32")
    [note] = notes_on("NFC", plan)
    assert f"'{DECOMPOSED[0]}' " in note
    assert notes_on("combining marks", plan) == []


@pytest.mark.usefixtures("quick")
def test_the_plan_says_it_of_a_file_of_llama_cpps_converter_too(tmp_path: Path) -> None:
    """The converter finds the name of the pre-tokenizer by a digest, which is stated here."""
    for name, tokenizer, words in (
        ("llama4", approximated(), "combining marks"),
        ("qwen2", composing(), "NFC"),
    ):
        source = checkpoint_with(tokenizer, tmp_path / name)
        wrapper = OWN_VOCABULARY.replace('"gpt-2"', f'"{name}"')
        tree = tree_for_tiny_models(tmp_path / f"tree-{name}", stock_tree(), wrapper)
        plan = make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf", converter=tree)
        [note] = notes_on(words, plan)
        [own_note] = notes_on(words, make_plan(source, AS_IS, to="gguf", outtype="f32"))
        assert note == own_note
        assert len(notes_on("becomes other tokens", plan)) == 1
