"""Writes the pages about commands, documents and functions, which follow from the code.

    python -m scripts.pages reference

It writes docs/commands.md, docs/schemas/ and the list of names at the end of docs/python.md.
tests/docs/test_generated.py compares them with the code.
"""

import ast
import inspect
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from typer.core import TyperArgument, TyperOption

import ropeconv
from ropeconv.bake.hidden import Begun, FinishedFile, Moves
from ropeconv.bake.plan import PlanDocument
from ropeconv.cli.app import all_commands, find
from ropeconv.features.evaluation.cases import EvalLine
from ropeconv.features.evaluation.result import Result
from ropeconv.features.evaluation.tune.result import TuningResult
from ropeconv.features.evaluation.tune.scorer import PassLine
from ropeconv.features.run.jobs import RunLine
from ropeconv.formats.journal import Head
from ropeconv.inspection.document import InspectionDocument
from ropeconv.inspection.receipts.receipt import Receipt
from ropeconv.inspection.receipts.storage import Results

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WIDEST = 120
"""Columns of the text of pages."""
WRITTEN = "<!-- Written by `python -m scripts.pages`. -->\n\n"
SCHEMAS: dict[str, tuple[type, ...]] = {
    "plan": (PlanDocument,),
    "receipt": (Receipt,),
    "inspection": (InspectionDocument,),
    "evaluation": (Result,),
    "tuning": (TuningResult,),
    "gguf-results": (Results,),
    "journal": (Head, EvalLine, PassLine, RunLine),
    "apply-journal": (Begun, FinishedFile, Moves),
}
"""Types of documents by the names of their schemas."""
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Write a longer context, and undo it": (
        "Start here. The [tutorial](tutorial.md) uses these commands on a small model.",
        ("apply", "profiles", "restore"),
    ),
    "Look at a model": (
        (
            "These commands read no weights, except `bound --weights`, and write nothing, except a"
            " picture of `plot` and a file of `family --save`."
        ),
        ("inspect", "advise", "compare", "plot", "bound", "family"),
    ),
    "Check and measure": (
        "[Validating](validating.md) and [evaluating](evaluating.md) explain the results.",
        (
            "validate",
            "probe",
            "identify",
            "vectors",
            "eval",
            "evidence compare",
            "evidence add",
            "tune",
        ),
    ),
    "Publish, train, run many": (
        (
            "See [publishing](publishing.md), [training](training.md) and [running many"
            " models](running.md)."
        ),
        ("imatrix", "push", "train-config", "run", "ui"),
    ),
    "List what ropeconv knows": (
        "",
        ("list methods", "list families", "list archs", "list runtimes", "update-data"),
    ),
}
"""Commands by what people do, with a sentence on each task."""
INTRODUCTION = (
    "After this page you know what every command does, and which options it has. `ropeconv COMMAND"
    " --help` prints them in a terminal, and `--help-all` adds expert options. `--json` prints one"
    " document ([keys](python.md#json)), `-q` only the result, such as a path. `ropeconv"
    " --install-completion` makes bash, zsh or fish complete commands, options, files, and the"
    " names of runtimes and families. Exit codes: 0 done, 1 a known failure, 2 wrong usage, 3 a"
    " check ran and disagreed, 130 interrupted."
)
"""The beginning of docs/commands.md."""
EVERYWHERE = ("--help", "--help-all", "--json", "--quiet")
"""Options that are described once."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Verbs": (
        "apply",
        "plan",
        "validate",
        "inspect",
        "compare",
        "advise",
        "patch",
        "evaluate",
        "tune",
        "restore",
        "push",
        "profiles",
        "train_config",
        "plot",
        "bound",
        "imatrix",
        "run",
        "Output",
        "Reporter",
    ),
    "Sources": (
        "open_source",
        "inspect_source",
        "Inspection",
        "side_by_side",
        "derive_family",
        "RopeSpec",
    ),
    "Recipes and schedules": ("METHODS", "Recipe", "Schedule", "reach"),
    "Plans and outputs": (
        "make_plan",
        "Target",
        "Plan",
        "read_receipt",
        "Receipt",
        "restore_plan",
    ),
    "Features of other packages": ("Feature",),
    "Validating": (
        "probe",
        "Comparison",
        "Settings",
        "validate_checkpoint",
        "validate_gguf",
        "validate_server",
        "identify",
        "vectors",
    ),
    "Evaluating": ("evaluate_model", "Sizes", "Result"),
    "Tuning": ("tune_model", "SearchSettings", "TuningResult"),
    "Errors": (
        "RopeconvError",
        "UsageError",
        "RecipeError",
        "BadSource",
        "UnknownModelType",
        "UnsupportedBake",
        "Disagreement",
        "NotFinite",
        "Interruption",
        "ImpossibleSize",
        "DamagedPackage",
    ),
}
"""Names of the package by the sections of the API in docs/python.md."""


def option_rows(name: str) -> dict[str, str]:
    """Return the rows of the table of options of a command, by their flags."""
    return {option.opts[0]: _row(option) for option in find(name).options}


def _row(option: TyperOption) -> str:
    flags = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar}"
    has_default = option.default not in (None, "", []) and option.default is not False
    default = f" Default: `{option.default}`." if option.show_default and has_default else ""
    cells = (", ".join(f"`{flag}{value}`" for flag in flags), f"{option.help}{default}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def method_options() -> dict[str, str]:
    """Return the rows of the options that describe a method, which `apply`, `plot` and `bound`
    share.
    """
    others = [option_rows(name) for name in ("plot", "bound")]
    rows = option_rows("apply")
    return {
        flag: row
        for flag, row in rows.items()
        if flag not in EVERYWHERE and all(flag in table for table in others)
    }


def common_options() -> dict[str, str]:
    """Return the rows of other options that several commands have, where they are the same."""
    rows = [(flag, row) for name in all_commands() for flag, row in option_rows(name).items()]
    shared = Counter(row for _, row in rows)
    left_out = {*EVERYWHERE, *method_options()}
    return {flag: row for flag, row in rows if shared[row] > 2 and flag not in left_out}


def commands() -> str:
    """Return the page of commands, by what people do."""
    text = textwrap.fill(INTRODUCTION, WIDEST, break_on_hyphens=False)
    parts = [f"# Commands\n\n{WRITTEN}{text}\n"]
    shared = method_options()
    common = common_options()
    for title, (sentence, names) in TASKS.items():
        parts.append(f"## {title}\n" + (f"\n{sentence}\n" if sentence else ""))
        parts += [_section(name, shared, common) for name in names]
    sentence = (
        "[Methods](methods.md) explains them. S is a factor such as 4, or a length such as 128k or"
        " 100000."
    )
    parts.append(f"## Method options\n\n{sentence}\n\n{_table(shared.values())}\n")
    parts.append(
        f"## Common options\n\nSeveral commands have these.\n\n{_table(common.values())}\n"
    )
    return "\n".join(parts)


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _section(name: str, shared: Mapping[str, str], common: Mapping[str, str]) -> str:
    """Return the section of a command.

    Args:
        name: The command.
        shared: The rows of the method options, which are described once.
        common: The rows of options that several commands have, by flag.
    """
    command = find(name)
    usage = " ".join(["ropeconv", name, *map(_usage, command.arguments), "[OPTIONS]"])
    first_paragraph = (command.help or "").split("\n\n")[0]
    summary = textwrap.fill(" ".join(first_paragraph.split()), WIDEST, break_on_hyphens=False)
    examples = [line for line in command.examples if line.startswith("ropeconv ")]
    parts = [
        f"### ropeconv {name}",
        summary,
        f"```text\n{usage}\n```",
        "```sh\n" + "\n".join(examples) + "\n```",
    ]
    for argument in command.arguments:
        if argument.help:
            text = f"`{_usage(argument)}`: {argument.help}"
            parts.append(textwrap.fill(text, WIDEST, break_on_hyphens=False))

    # options that are described elsewhere, and those with a row here
    by_flag = option_rows(name)
    has_methods = "--yarn" in by_flag
    left_out = (*EVERYWHERE, *shared) if has_methods else EVERYWHERE
    others = []
    rows = []
    for flag, row in by_flag.items():
        if flag in left_out:
            continue
        if common.get(flag) == row:
            others.append(f"`{flag}`")
        else:
            rows.append(row)
    if has_methods:
        parts.append("It also has the [method options](#method-options).")
    if others:
        words = f"[Common options](#common-options): {', '.join(others)}."
        parts.append(textwrap.fill(words, WIDEST, break_on_hyphens=False, break_long_words=False))
    if rows:
        parts.append(_table(rows))
    return "\n\n".join(parts) + "\n"


def _usage(argument: TyperArgument) -> str:
    """Return an argument as it stands in a command: `SOURCE`, `[NAME]`, `SOURCE...`."""
    name = argument.metavar or argument.name
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs == -1 else "")


def schema_text(name: str) -> str:
    """Return a file of docs/schemas: a JSON schema (draft 2020-12), from the types that are decoded
    and encoded.
    """
    return json.dumps(_plain(schema_of(SCHEMAS[name])), indent=2, ensure_ascii=False) + "\n"


def schema_of(kinds: tuple[type, ...]) -> dict[str, Any]:
    """Return the JSON schema of a document that is one of some types, with the fields described.

    Args:
        kinds: The types. Their docstrings and those of their fields become descriptions.
    """
    any_of, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    classes = _classes()
    for name, component in components.items():
        if name not in classes:
            continue
        properties = component.get("properties", {})
        for field, description in field_docstrings(classes[name]).items():
            if field in properties:
                properties[field] |= {"description": description}
    schema = any_of[0] if len(kinds) == 1 else {"anyOf": list(any_of)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "$defs": components,
    }


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the strings below the fields of a class and of its bases, by field."""
    described: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("ropeconv"):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            if not isinstance(field, ast.AnnAssign) or not isinstance(below, ast.Expr):
                continue
            if isinstance(below.value, ast.Constant):
                name = ast.unparse(field.target)
                described[name] = " ".join(str(below.value.value).split())
    return described


def _classes() -> dict[str, type]:
    """The classes of ropeconv that are imported, by name, of which none is used twice."""
    classes = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("ropeconv."):
            for kind in vars(module).values():
                if isinstance(kind, type) and kind.__module__ == name:
                    classes[kind.__name__] = kind
    return classes


def _plain(schema: Any) -> Any:
    """A schema whose descriptions are single lines, whatever the indentation of docstrings."""
    if isinstance(schema, Mapping):
        return {
            key: _line(value) if key == "description" else _plain(value)
            for key, value in schema.items()
        }
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


def _line(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else _plain(text)


def python_page() -> str:
    """Return docs/python.md with the names that the package exports, for mkdocstrings."""
    text = (DOCS / "python.md").read_text("utf-8").partition(WRITTEN)[0]
    parts = [f"{text}{WRITTEN.rstrip()}\n"]
    for title, names in GROUPS.items():
        parts.append(f"### {title}\n\n" + "\n".join(f"::: {place(name)}" for name in names) + "\n")
    return "\n".join(parts)


def place(name: str) -> str:
    """Where an exported name is defined, with dots."""
    if name == "METHODS":
        return "ropeconv.rope.methods.method.REGISTRY"
    value = getattr(ropeconv, name)
    return f"{value.__module__}.{value.__name__}"


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "python.md": python_page,
    **{f"schemas/{name}.json": partial(schema_text, name) for name in SCHEMAS},
}
"""Files in docs/, and what makes them."""


def main() -> None:
    """Rewrites the pages."""
    for name, content in PAGES.items():
        (DOCS / name).write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
