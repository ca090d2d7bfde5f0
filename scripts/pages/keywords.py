"""Writes the typed keywords of the functions of Python from the options of commands.

    python -m scripts.pages keywords

An option is declared once: in the registry of methods, or as a field of a dataclass (in
ropeconv/options.py, ropeconv/verbs/request.py, and the `options.py` of a feature). Type checkers
and editors cannot read those, so this writes them down: in ropeconv/keywords.py, and in the
`keywords.py` of features. tests/test_keywords.py compares the files with the options, and checks
with mypy what they accept. `FILES` has their classes.
"""

import subprocess
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path

from ropeconv.features.evaluation.options import EvalOptions, SizeOptions, TuneOptions
from ropeconv.hub.options import PublishOptions
from ropeconv.options import (
    ConverterOptions,
    DeviceOptions,
    Option,
    OutputPlace,
    RunOptions,
    TargetOptions,
    ValidateRequest,
    options,
)
from ropeconv.rope.methods.method import REGISTRY, Value, tokens
from ropeconv.verbs.recipes import LENGTH_MODIFIERS, method_settings, recipe_options, variable
from ropeconv.verbs.request import ApplyRequest

ROPECONV = Path(__file__).parents[2] / "ropeconv"
WIDTH = 100
Keywords = dict[str, tuple[str, str]]
"""The type, as source code, and the sentence of each keyword."""
HEAD = '''"""The keywords of the functions of Python, for type checkers, editors and `help()`.

Written by `python -m scripts.pages` from the options of the command line; change them there.
"""

import os
from collections.abc import Sequence
from typing import Literal, TypedDict

from .models.vectors import VectorLike
from .reporting import Reporter

StrPath = str | os.PathLike[str]
Length = float | str
"""A factor (4), a number of tokens (100000), or a text with either ("4", "128k")."""
'''
EVALUATION_HEAD = '''"""The keywords of `evaluate` and `tune`, for type checkers and editors.

Written by `python -m scripts.pages` from the options of the command line; change them there.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

from ropeconv.keywords import Length, StrPath
from ropeconv.reporting import Reporter
'''
FORMATS = ("safetensors", "gguf")
"""Values of `to`. The command line has more: `ollama` and `overrides` print or write beside an
output.
"""
REPORTER = {"reporter": ("Reporter", "Receives progress, and sentences for the user.")}
FAMILY = {"family": ("str", "Treat the model as one of this family, whatever its model_type.")}
LOADING = {
    "device_map": ("str", "auto spreads the model over several devices."),
    "trust_remote_code": ("bool", "Run code of the model that ropeconv has not written."),
}
WRITING = {
    "draft": (
        "object",
        "A path or Hub id: also extend this draft model to the same context, as OUT-draft.",
    ),
    "draft_original_context": (
        "Length",
        "Tokens that the draft was trained on, if it declares another length.",
    ),
    "adapter": (
        "object",
        "Also write this PEFT adapter with the output as its base, as OUT-adapter.",
    ),
    "staged": ("bool", "Leave out files that are copied unchanged."),
    "fsync": ("bool", "Wait until everything is on the disk (default: True)."),
    "check": ("bool", "Check what was written before it gets its name (default: True)."),
    "remember": ("bool", "Note on this machine where the source is (default: True)."),
    "probe": ("object", "A running `Probe`, which imports transformers once for several outputs."),
}
"""Keywords of `apply` that accept more than its flags, or that its command does not have."""
OF_COMMAND = (
    "text",
    "dataset",
    "field",
    "methods",
    "against",
    "workers",
    "budget",
    "out",
    "fail_if",
)
"""Options of `eval` and `tune` that are arguments in Python, or that only a command has."""


def recipe_type(option: Option) -> str:
    """Return the type of a keyword of a recipe, as source code."""
    methods = {variable(name): method.value for name, method in REGISTRY.items()}
    by_value = {
        Value.SWITCH: "bool",
        Value.NUMBER: "float",
        Value.FILE: "VectorLike",
        Value.TEXT: "str",
    }
    if option.parameter in methods:
        return by_value.get(methods[option.parameter], "Length")
    settings = method_settings()
    is_length = option.name in LENGTH_MODIFIERS
    if option.name in settings:
        is_length = settings[option.name][0][1].metadata["check"] is tokens
    if is_length:
        return "Length"
    if option.choices:
        return f"Literal[{', '.join(map(repr, option.choices))}]"
    return str(option.kind.__name__)


def plain_type(option: Option) -> str:
    """Return the type of a keyword that is the field of a dataclass, as source code."""
    if option.parameter == "to":
        return f"Literal[{', '.join(map(repr, FORMATS))}]"
    if option.many:
        return "str | Sequence[str]"
    if option.kind is Path:
        return "StrPath"
    if option.metavar == "TOKENS":
        return "Length"
    if option.choices:
        return f"Literal[{', '.join(map(repr, option.choices))}]"
    return str(option.kind.__name__)


def plain_keywords(*kinds: type, without: Collection[str] = ()) -> Keywords:
    """Return the keywords that are the fields of dataclasses. without: those that are left out."""
    keywords = {}
    for option in options(*kinds):
        if option.parameter not in without:
            keywords[option.parameter] = plain_type(option), option.help
    return keywords


def class_text(name: str, title: str, keywords: Keywords) -> str:
    """Return the source of a TypedDict."""
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


def recipe_keywords() -> Keywords:
    """Return the keywords of a recipe; a saved one is an argument of its own."""
    keywords = {}
    for option in recipe_options():
        if option.parameter != "recipe":
            keywords[option.parameter] = recipe_type(option), option.help
    return keywords


def evaluate_keywords() -> Keywords:
    """Return the keywords of `evaluate`."""
    keywords = plain_keywords(SizeOptions, RunOptions)
    keywords |= plain_keywords(EvalOptions, without=OF_COMMAND)
    keywords |= {
        "measure": ("str | Sequence[str]", "The measures: growth, passkey, ..."),
        "lengths": ("Length | Sequence[Length]", "Tokens, or multiples of the trained context."),
        "against": ("object", "The source of an output, as the first row."),
    }
    return keywords


def core_classes() -> list[str]:
    """Return the source of the classes for `apply`, `plan`, `patch`, `validate` and `push`."""
    target = plain_keywords(OutputPlace, ConverterOptions, TargetOptions)
    writing = plain_keywords(ApplyRequest, without=("dry_run", "no_fsync", "no_check"))
    validate = plain_keywords(ValidateRequest, without=("against",))
    validate["text"] = ("StrPath", "A file, or the text itself, instead of synthetic tokens.")
    push = plain_keywords(PublishOptions)
    push["ignore_receipt"] = ("bool", "Do not compare the files with the hashes in the receipt.")
    return [
        class_text("RecipeKeywords", "A method, its settings, and modifiers.", recipe_keywords()),
        class_text(
            "TargetKeywords",
            "The output: its place, format, and the runtimes that it is for.",
            target,
        ),
        class_text(
            "RunKeywords",
            "The source, and how the output is written.",
            writing | WRITING | REPORTER,
        ),
        "class ApplyKeywords(RecipeKeywords, TargetKeywords, RunKeywords, total=False):\n"
        '    """All of `apply`."""\n',
        class_text("ValidateKeywords", "How an output is run.", validate | LOADING | REPORTER),
        class_text("PushKeywords", "How an output is published.", push | REPORTER),
    ]


def evaluation_classes() -> list[str]:
    """Return the source of the classes for `evaluate` and `tune`."""
    tune = plain_keywords(TuneOptions, DeviceOptions, without=("context",))
    tune |= plain_keywords(EvalOptions, without=(*OF_COMMAND, "server", "threads"))
    return [
        class_text(
            "EvaluateKeywords",
            "The measures, and how they are taken.",
            evaluate_keywords() | LOADING | FAMILY | REPORTER,
        ),
        class_text(
            "TuneKeywords", "How frequencies are searched.", tune | LOADING | FAMILY | REPORTER
        ),
    ]


FILES = {
    ROPECONV / "keywords.py": (HEAD, core_classes),
    ROPECONV / "features" / "evaluation" / "keywords.py": (EVALUATION_HEAD, evaluation_classes),
}
"""The files that are written: how each begins, and the function that returns its classes."""


def text(path: Path) -> str:
    """Return the source of one of FILES."""
    head, classes = FILES[path]
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"],
        input="\n\n".join([head, *classes()]),
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


if __name__ == "__main__":
    for path in FILES:
        path.write_text(text(path), "utf-8")
