"""Texts that become other tokens in llama.cpp than tokenizer.json gives, as examples for the plan.

`find_recut` is for texts that llama.cpp cuts into other words, where it only approximates a
pre-tokenizer, and `find_composed` for characters that it does not compose (NFC).

llama.cpp has no classes of letters such as \\p{Lu} in its patterns, and writes them as lookaheads
over \\p{L}. Combining marks are not letters there, so words end before them: accents that are
written apart, and the vowel signs of Hindi, Thai or Arabic (src/llama-vocab.cpp, tekken and
gpt-4o). Where a pattern has such a class, it is taken for \\p{L} (src/unicode.cpp; tiny_aya and
youtu).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...environment import installed
from ...formats.gguf.header import GgufValue
from .tokenizer import composes_characters, pre_table, steps
from .vocabulary import COMPOSED, TokenizerJson, read

SAMPLES = (
    "\u0939\u093f\u0928\u094d\u0926\u0940",  # "Hindi" in Hindi
    "\u09ac\u09be\u0982\u09b2\u09be",  # "Bangla" in Bengali
    "\u0e19\u0e49\u0e33",  # "water" in Thai
    "\u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645",  # a greeting in Arabic, with its vowels
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",  # the same in Hebrew
    "cafe\u0301",
    "e\u0301's",
    "iPhone",
    "12345km",
    "2  1000",
)
"""Words with combining marks, and others that an approximation splits otherwise."""
DECOMPOSED = (
    "cafe\u0301",
    "Tie\u0302\u0301ng Vie\u0323\u0302t",  # "Vietnamese" in Vietnamese
    "\u1112\u1161\u11ab\u1100\u1173\u11af",  # "Hangul" in single letters
)
"""Words with decomposed characters, as file names of macOS have them."""


@dataclass(frozen=True)
class Recut:
    """A text that becomes other tokens in llama.cpp."""

    text: str

    usual: int
    """The tokens that tokenizer.json gives."""

    in_llama_cpp: int
    """The tokens that it becomes in llama.cpp."""

    difference: str = ""
    """The action of llama.cpp, as a verb with its objects."""

    @property
    def described(self) -> str:
        """The text with both numbers of tokens."""
        if self.in_llama_cpp == self.usual:
            return f"'{self.text}' {self.in_llama_cpp} other ones"
        return f"'{self.text}' {self.in_llama_cpp} in place of {self.usual}"


def find_recut(
    folder: Path, keys: Mapping[str, GgufValue], names: Mapping[str, str]
) -> Recut | None:
    """Return a word that llama.cpp splits into other tokens than a tokenizer.json, as an example.

    tokenizer.ggml.pre in a GGUF file is the name of a pre-tokenizer, the rules that split text into
    words. For some names, llama.cpp's rules differ from those of the tokenizers with that name.

    Args:
        folder: The folder with tokenizer.json.
        keys: The metadata keys of the tokenizer in GGUF.
        names: Second names of pre-tokenizers in the family of the model, by their usual names:
            {"starcoder": "command-r"} for Command R.

    Returns:
        The word and its number of tokens in both programs; None where no difference is known.
    """
    path = folder / "tokenizer.json"
    data = read(path, TokenizerJson)
    if data is None or "tokenizer.ggml.pre" not in keys:
        return None
    # the example is made with this package
    if not installed("tokenizers"):
        return None

    name_in_gguf = keys["tokenizer.ggml.pre"].decode()
    steps_of_tokenizer = steps(data.pre_tokenizer)  # such as ("digits", "gpt2")
    for entry in pre_table().pre:
        # the entry of pre.toml with the name in the file and the steps of the tokenizer
        first_name = names.get(entry.name, entry.name)
        has_name = name_in_gguf in (first_name, *entry.aliases)
        has_steps = entry.steps == steps_of_tokenizer
        # the steps in llama.cpp's code; empty where they are the same as the tokenizer's
        steps_of_llamacpp = entry.runs
        if has_name and has_steps and steps_of_llamacpp:
            # the tokenizer, and a copy that splits text as llama.cpp does
            usual, as_in_llamacpp = _load_two_copies(path)
            as_in_llamacpp.pre_tokenizer = pre_tokenizer(steps_of_llamacpp)
            found = _first_difference(usual, as_in_llamacpp, SAMPLES)
            return replace(found, difference=entry.difference) if found else None
    return None


def find_composed(folder: Path, keys: Mapping[str, GgufValue]) -> Recut | None:
    """Return a word with accents that becomes other tokens in llama.cpp, as an example for users.

    Unicode can write an "e" with an accent as two characters, the letter and a combining accent.
    Some tokenizers join such characters into one (the normalizer NFC). llama.cpp does not.

    Args:
        folder: The folder with tokenizer.json.
        keys: The metadata keys of the tokenizer in GGUF.

    Returns:
        The word and its number of tokens in both programs. None for a tokenizer that does not join
        characters, or that normalizes text in further ways.
    """
    path = folder / "tokenizer.json"
    data = read(path, TokenizerJson)
    if data is None or data.normalizer is None:
        return None
    if not composes_characters(folder, keys):
        return None
    only_composes = COMPOSED.issuperset(data.normalizer.steps)
    if not only_composes:
        return None
    # the example is made with this package
    if not installed("tokenizers"):
        return None

    # the tokenizer, and a copy that does not join characters, as llama.cpp
    usual, as_in_llamacpp = _load_two_copies(path)
    as_in_llamacpp.normalizer = None
    return _first_difference(usual, as_in_llamacpp, DECOMPOSED)


def _load_two_copies(path: Path) -> tuple[Any, Any]:
    """A tokenizer of `tokenizers`, and another one like it, to be changed."""
    import tokenizers

    text = path.read_text("utf-8")
    return tokenizers.Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)


def _first_difference(usual: Any, other: Any, texts: Sequence[str]) -> Recut | None:
    """The first text that becomes more tokens by another tokenizer, or else other tokens."""
    differing = []
    for text in texts:
        right = usual.encode(text, add_special_tokens=False).ids
        actual = other.encode(text, add_special_tokens=False).ids
        if len(actual) > len(right):
            return Recut(text, len(right), len(actual))
        if right != actual:
            differing.append(Recut(text, len(right), len(actual)))
    return differing[0] if differing else None


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
