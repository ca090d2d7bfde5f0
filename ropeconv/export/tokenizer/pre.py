"""Recognises which of llama.cpp's pre-tokenizers splits text as a tokenizer.json does."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from itertools import pairwise

import msgspec

from ...errors import BadSource, UsageError, shown
from ...formats.typed import package_data
from .files import Bpe, PreTokenizer, TokenizerJson

MOST_STEPS = 1 << 25
"""Of merging; the 200,000 tokens of gpt-oss take a third of them, in some seconds."""


class Pre(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pre-tokenizer of llama.cpp; the beginning of pre.toml explains the fields."""

    name: str
    ignore_merges: bool
    steps: tuple[str, ...]


class PreTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of pre.toml. names: all that llama.cpp takes. pre: those that are recognised."""

    names: tuple[str, ...]
    pre: tuple[Pre, ...]


@cache
def pre_table() -> PreTable:
    """The pre-tokenizers in the table of the package, pre.toml."""
    return package_data(files("ropeconv.export.tokenizer") / "pre.toml", PreTable)


def check_name(name: str) -> None:
    """Raises UsageError for a value of --pre that llama.cpp does not take: it would not load the file."""
    names = pre_table().names
    if name not in names:
        raise UsageError(f"--pre {shown(name)} is no pre-tokenizer of llama.cpp; take one of: {', '.join(names)}")


def recognise(tokenizer: TokenizerJson, names: dict[str, str]) -> str:
    """The value of tokenizer.ggml.pre for a tokenizer.json.

    tokenizer: its content. names: of pre-tokenizers that the family calls otherwise. Raises BadSource where no known
    pre-tokenizer splits text in the same way. Whether words are looked up before they are merged (`ignore_merges`) says
    nothing where merging makes every token of the vocabulary from its own text, as in gpt-oss.
    """
    found = steps(tokenizer.pre_tokenizer)
    ignore_merges = bool(tokenizer.kind.ignore_merges)
    same = [pre for pre in pre_table().pre if pre.steps == found]
    for pre in same:
        if ignore_merges == pre.ignore_merges:
            return names.get(pre.name, pre.name)
    if same and merges_make_every_token(tokenizer.bpe):
        return names.get(same[0].name, same[0].name)
    if same:
        name, stated = names.get(same[0].name, same[0].name), str(ignore_merges).lower()
        raise BadSource(
            f"tokenizer.json cuts text as llama.cpp's {name}, and has ignore_merges = {stated}, where {name} has "
            f"{str(not ignore_merges).lower()}: words that are one token, which merging does not make, would become "
            f"other tokens; pass --pre {name} to convert it all the same"
        )
    words = "; ".join(found or ("nothing",))
    raise BadSource(
        f"tokenizer.json cuts text by a pre-tokenizer that is not in the table ({shown(words)}), and a guess would "
        "change the tokens; if you know what llama.cpp calls it, pass --pre NAME"
    )


def merges_make_every_token(bpe: Bpe) -> bool:
    """Whether merging the letters of every token of a vocabulary gives that token; not tried beyond `MOST_STEPS`."""
    if sum(len(text) ** 2 for text in bpe.vocab) > MOST_STEPS:
        return False
    ranks: dict[tuple[str, ...], int] = {}
    for rank, merge in enumerate(bpe.merges):
        ranks.setdefault(tuple(merge.split(" ", 1)) if isinstance(merge, str) else merge, rank)
    return all(_merged(text, ranks) for text in bpe.vocab)


def _merged(text: str, ranks: dict[tuple[str, ...], int]) -> bool:
    """Whether byte-pair encoding, the best pair first and of equal ones the first, ends with the whole text."""
    parts, last = list(text), len(ranks)
    while len(parts) > 1:
        found = [ranks.get(pair, last) for pair in pairwise(parts)]
        best = min(found)
        if best == last:
            return False
        at = found.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return True


def steps(pre_tokenizer: PreTokenizer | None) -> tuple[str, ...] | None:
    """The steps of a pre-tokenizer as pre.toml spells them; None where it has a step that pre.toml does not have."""
    if pre_tokenizer is None:
        return None
    kind, pattern = pre_tokenizer.type, pre_tokenizer.pattern
    if kind == "Sequence":
        inner = [steps(step) for step in pre_tokenizer.pretokenizers]
        return None if None in inner else tuple(step for found in inner if found for step in found)
    if kind == "ByteLevel" and not pre_tokenizer.add_prefix_space:
        return ("gpt2",) if pre_tokenizer.use_regex else ()
    if kind == "Digits":
        return ("digits",) if pre_tokenizer.individual_digits else ("numbers",)
    if kind == "Punctuation" and pre_tokenizer.behavior == "Contiguous":
        return ("punctuation",)
    if kind == "Split" and pattern is not None and pattern.Regex is not None:
        cuts = (pre_tokenizer.behavior, pre_tokenizer.invert)
        regex = pattern.Regex.replace("\r", r"\r").replace("\n", r"\n")
        return (f"split {regex}",) if cuts in (("Isolated", False), ("Removed", True)) else None
    return None
