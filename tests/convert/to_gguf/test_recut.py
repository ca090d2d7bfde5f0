"""Texts that llama.cpp cuts into other words than tokenizer.json."""

import json
from pathlib import Path

import pytest
import tokenizers

from ropeconv.convert.to_gguf.recut import SAMPLES, find_recut, pre_tokenizer
from ropeconv.convert.to_gguf.tokenizer import Pre, pre_table, tokenizer_keys
from ropeconv.engines.llamacpp import LlamaCppProcess
from ropeconv.engines.llamacpp_program import Load
from ropeconv.formats.gguf.edit import RewrittenHeader
from ropeconv.formats.gguf.header import boolean, string, u32
from scripts.llamacpp.pre_tokenizers import odd_strings

from ...support.baking import YARN, make_plan
from ...support.llamacpp import checkpoint
from .test_tokenizer import RULES

APPROXIMATED = [pre for pre in pre_table().pre if pre.runs]
TEXTS = (*SAMPLES, *odd_strings(60))


def tokenizer_of(pre: Pre) -> tokenizers.Tokenizer:
    """Byte-level BPE that has learned words with combining marks."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=pre.ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer(pre.steps)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(SAMPLES)] * 50, trainer)
    return tokenizer


def folder_of(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def in_llama_cpp(folder: Path, rows: int) -> list[list[int]]:
    """The tokens of TEXTS in llama.cpp, from a file with the keys of the tokenizer only."""
    keys = tokenizer_keys(folder, rows, RULES) | {
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
    assert found is not None
    place = TEXTS.index(found.text)
    assert (found.usual, found.in_llama_cpp) == (len(usual[place]), len(actual[place]))
    assert found.in_llama_cpp > found.usual


def test_a_tokenizer_that_llama_cpp_follows_has_no_example(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    [pre] = [pre for pre in pre_table().pre if pre.name == "qwen35"]
    tokenizer = tokenizer_of(pre)
    folder = folder_of(tokenizer, tmp_path / "tokenizer")
    rows = tokenizer.get_vocab_size()
    usual = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert in_llama_cpp(folder, rows) == usual
    assert find_recut(folder, tokenizer_keys(folder, rows, RULES), {}) is None


def test_the_plan_says_it_with_the_example(tmp_path: Path) -> None:
    [pre] = [pre for pre in APPROXIMATED if pre.name == "gpt-4o"]
    tokenizer = tokenizer_of(pre)
    source = checkpoint("llama", tmp_path / "llama", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(source / "tokenizer.json"))
    plan = make_plan(source, YARN, to="gguf", outtype="f32")
    notes = [note for note in plan.warnings if "combining marks" in note]
    assert len(notes) == 1
    assert SAMPLES[0] in notes[0]
