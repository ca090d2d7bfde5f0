"""Texts that llama.cpp cuts into other words than tokenizer.json, where it only approximates that.

llama.cpp has no classes of letters such as \\p{Lu} in its patterns, and writes them as lookaheads
over \\p{L}. Combining marks are not letters there, so words end before them: accents that are
written apart, and the vowel signs of Hindi, Thai or Arabic (src/llama-vocab.cpp, tekken and
gpt-4o).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...environment import installed
from ...formats.gguf.header import GgufValue
from .tokenizer import pre_table, steps
from .vocabulary import TokenizerJson, read

SAMPLES = (
    "\u0939\u093f\u0928\u094d\u0926\u0940",  # "Hindi" in Hindi
    "\u09ac\u09be\u0982\u09b2\u09be",  # "Bangla" in Bengali
    "\u0e19\u0e49\u0e33",  # "water" in Thai
    "\u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645",  # a greeting in Arabic, with its vowels
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",  # the same in Hebrew
    "cafe\u0301",
    "e\u0301's",
)
"""Words with combining marks."""


@dataclass(frozen=True)
class Recut:
    """A text that becomes other tokens in llama.cpp."""

    text: str

    usual: int
    """The tokens that tokenizer.json gives."""

    in_llama_cpp: int
    """The tokens that it becomes in llama.cpp."""


def find_recut(
    folder: Path, keys: Mapping[str, GgufValue], names: Mapping[str, str]
) -> Recut | None:
    """Return a word that llama.cpp would split into other tokens than the tokenizer of a model.

    A GGUF file has the name of a pre-tokenizer, by which llama.cpp splits text into words. For some
    names, its code splits otherwise than the tokenizers that have the name. The result is None
    where no difference is known.

    Args:
        folder: The folder of the tokenizer.
        keys: The keys of the tokenizer in GGUF.
        names: Names by which the family calls pre-tokenizers, by their usual names: {"starcoder":
            "command-r"} for Command R.
    """
    path = folder / "tokenizer.json"
    data = read(path, TokenizerJson)
    if data is None or "tokenizer.ggml.pre" not in keys:
        return None
    if not installed("tokenizers"):  # which splits the words here
        return None

    # the entry of the table (pre.toml) with the name that was written and the steps of this
    # tokenizer; `runs` are the steps of llama.cpp where it splits text otherwise
    name_in_gguf = keys["tokenizer.ggml.pre"].decode()
    own_steps = steps(data.pre_tokenizer)
    for entry in pre_table().pre:
        name_of_entry = names.get(entry.name, entry.name)
        is_of_tokenizer = name_of_entry == name_in_gguf and entry.steps == own_steps
        steps_of_llamacpp = entry.runs
        if is_of_tokenizer and steps_of_llamacpp:
            return _compare(path, steps_of_llamacpp)
    return None


def _compare(path: Path, runs: Sequence[str]) -> Recut | None:
    """The first sample that other steps cut so that its tokens differ."""
    import tokenizers

    usual = tokenizers.Tokenizer.from_file(str(path))
    other = tokenizers.Tokenizer.from_file(str(path))
    other.pre_tokenizer = pre_tokenizer(runs)
    for text in SAMPLES:
        right = usual.encode(text, add_special_tokens=False).ids
        actual = other.encode(text, add_special_tokens=False).ids
        if right != actual:
            return Recut(text, len(right), len(actual))
    return None


def pre_tokenizer(of_steps: Sequence[str]) -> Any:
    """Return the pre-tokenizer of `tokenizers` with the steps of an entry of pre.toml.

    ("digits", "gpt2") gives Sequence([Digits(individual_digits=True), ByteLevel(use_regex=True)]).
    """
    import tokenizers
    from tokenizers import pre_tokenizers as cuts

    made: list[Any] = []
    for step in of_steps:
        kind, _, pattern = step.partition(" ")
        if kind == "split":
            made.append(cuts.Split(tokenizers.Regex(pattern), "isolated"))
        elif kind == "digits":
            made.append(cuts.Digits(individual_digits=True))
        elif kind == "numbers":
            made.append(cuts.Digits(individual_digits=False))
        elif kind == "punctuation":
            made.append(cuts.Punctuation("contiguous"))
        else:
            assert kind == "gpt2", step
            made.append(cuts.ByteLevel(add_prefix_space=False, use_regex=True))
    if "gpt2" not in of_steps:  # which writes bytes as letters too
        made.append(cuts.ByteLevel(add_prefix_space=False, use_regex=False))
    return cuts.Sequence(made)
