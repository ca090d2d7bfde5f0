"""Writes ropeconv/keywords.py, the typed keywords of the verbs, from the options of the command
line.

    python scripts/keywords.py

An option is declared once: in the registry of methods, or as a field of a dataclass in
ropeconv/options.py. Type checkers and editors cannot read those, so this writes them down.
tests/test_keywords.py compares the file with the options, and checks with mypy what it accepts.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

from ropeconv.cli.options import LENGTHS, method_settings, recipe_options, variable
from ropeconv.options import Option, OutputPlace, TargetOptions, options
from ropeconv.rope.methods.method import REGISTRY, Value, tokens

TARGET = Path(__file__).parents[1] / "ropeconv" / "keywords.py"
WIDTH = 100
HEAD = '''"""The keywords of `apply`, `plan` and `patch`, for type checkers, editors and `help()`.

Written by scripts/keywords.py from the options of the command line; change them there, and run it.
"""

import os
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

StrPath = str | os.PathLike[str]
Length = float | str
"""A factor (4), a number of tokens (100000), or a text with either ("4", "128k")."""
'''
FORMATS = ("safetensors", "gguf")
"""Values of `to`. The command line has more: `ollama` and `overrides` print or write beside an
output.
"""
RUN = {
    "family": ("str", "Treat the model as one of this family, whatever its model_type."),
    "draft": (
        "object",
        "A path or Hub id: also extend this draft model to the same context, as OUT-draft.",
    ),
    "draft_original_context": (
        "Length",
        "Tokens that the draft was trained on, if it declares another length.",
    ),
    "link": ("bool", "Hard-link unchanged files."),
    "force": ("bool", "Replace an earlier output of ropeconv."),
    "checksum": ("bool", "Also record the hashes of copied weights."),
    "staged": ("bool", "Leave out files that are copied unchanged."),
    "fsync": ("bool", "Wait until everything is on the disk (default: True)."),
    "check": ("bool", "Check what was written before it gets its name (default: True)."),
    "remember": ("bool", "Note on this machine where the source is (default: True)."),
    "advance": ("Callable[[int], None]", "Called with the bytes done since the last call."),
    "probe": ("object", "A running `Probe`, which imports transformers once for several outputs."),
}
"""Keywords of `apply` that are not options of an output: their types and sentences."""


def recipe_type(option: Option) -> str:
    """Return the type of a keyword of a recipe, as source code."""
    methods = {variable(name): method.value for name, method in REGISTRY.items()}
    by_value = {
        Value.SWITCH: "bool",
        Value.NUMBER: "float",
        Value.FILE: "StrPath",
        Value.TEXT: "str",
    }
    if option.parameter in methods:
        return by_value.get(methods[option.parameter], "Length")
    settings = method_settings()
    is_length = option.name in LENGTHS
    if option.name in settings:
        is_length = settings[option.name][0][1].metadata["check"] is tokens
    if is_length:
        return "Length"
    if option.choices:
        return f"Literal[{', '.join(map(repr, option.choices))}]"
    return str(option.kind.__name__)


def target_type(option: Option) -> str:
    """Return the type of a keyword of an output, as source code."""
    if option.parameter == "to":
        return f"Literal[{', '.join(map(repr, FORMATS))}]"
    if option.many:
        return "str | Sequence[str]"
    if option.kind is Path:
        return "StrPath"
    if option.choices:
        return f"Literal[{', '.join(map(repr, option.choices))}]"
    return str(option.kind.__name__)


def class_text(name: str, title: str, keywords: dict[str, tuple[str, str]]) -> str:
    """Return the source of a TypedDict. keywords: their types and sentences, by name."""
    lines = [f"class {name}(TypedDict, total=False):", f'    """{title}', "", "    Attributes:"]
    for keyword, (_, sentence) in keywords.items():
        lines += textwrap.wrap(
            f"{keyword}: {sentence}",
            WIDTH,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_on_hyphens=False,
        )
    lines += ['    """', ""]
    lines += [f"    {keyword}: {kind}" for keyword, (kind, _) in keywords.items()]
    return "\n".join(lines) + "\n"


def text() -> str:
    """Return the source of ropeconv/keywords.py."""
    recipe = {
        option.parameter: (recipe_type(option), option.help)
        for option in recipe_options()
        if option.parameter != "recipe"  # a parameter of its own
    }
    target = {
        option.parameter: (target_type(option), option.help)
        for option in options(OutputPlace, TargetOptions)
    }
    classes = [
        class_text("RecipeKeywords", "A method, its settings, and modifiers.", recipe),
        class_text(
            "TargetKeywords",
            "The output: its place, format, and the runtimes that it is for.",
            target,
        ),
        class_text("RunKeywords", "The source, and how the output is written.", RUN),
        (
            "class ApplyKeywords(RecipeKeywords, TargetKeywords, RunKeywords, total=False):\n   "
            ' """All of `apply`."""\n'
        ),
    ]
    source = "\n\n".join([HEAD, *classes])
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
