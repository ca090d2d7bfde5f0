"""Which of llama.cpp's pre-tokenizers cuts text as a tokenizer.json does."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from ...errors import BadSource


class Pre(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of them; the fields are explained at the head of pre.toml."""

    name: str
    ignore_merges: bool
    steps: tuple[str, ...]


class PreTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them."""

    pre: tuple[Pre, ...]


@cache
def pre_table() -> tuple[Pre, ...]:
    """The table in the package."""
    text = (files("ropeconv.export.tokenizer") / "pre.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), PreTable).pre


def recognise(tokenizer: dict[str, Any], names: dict[str, str]) -> str:
    """The name for tokenizer.ggml.pre. names: what this family calls some of them.

    Raises BadSource when none cuts text in the same way.
    """
    found = steps(tokenizer.get("pre_tokenizer"))
    ignore_merges = bool(tokenizer.get("model", {}).get("ignore_merges"))
    for pre in pre_table():
        if found == pre.steps and ignore_merges == pre.ignore_merges:
            return names.get(pre.name, pre.name)
    shown = "; ".join(found or ("nothing",))
    raise BadSource(
        f"tokenizer.json cuts text by a pre-tokenizer that is not in the table ({shown[:200]}), and a guess would "
        "change the tokens; if you know what llama.cpp calls it, pass --pre NAME"
    )


def steps(pre_tokenizer: Any) -> tuple[str, ...] | None:
    """What cuts text, in the words of pre.toml; None where something is not known there."""
    if not isinstance(pre_tokenizer, dict):
        return None
    if pre_tokenizer.get("type") == "Sequence":
        inner = [steps(step) for step in pre_tokenizer.get("pretokenizers", [])]
        return None if None in inner else tuple(step for found in inner if found for step in found)
    kind = pre_tokenizer.get("type")
    if kind == "ByteLevel" and not pre_tokenizer.get("add_prefix_space"):
        return ("gpt2",) if pre_tokenizer.get("use_regex", True) else ()
    if kind == "Digits" and pre_tokenizer.get("individual_digits"):
        return ("digits",)
    pattern = pre_tokenizer.get("pattern")
    if kind == "Split" and isinstance(pattern, dict) and "Regex" in pattern:
        cuts = (pre_tokenizer.get("behavior"), bool(pre_tokenizer.get("invert")))
        return (f"split {pattern['Regex']}",) if cuts in (("Isolated", False), ("Removed", True)) else None
    return None
