"""Writes the pages that follow from the code, and runs scripts/tables.py and scripts/method_pictures.py --missing.

    python scripts/reference.py

The pages are docs/commands.md, schemas.md and api.md. tests/docs/test_reference.py compares them with the code.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import ropeconv
from ropeconv.bake.plan import PlanDocument
from ropeconv.bake.writing.hidden import Begun, FinishedFile, Moves
from ropeconv.cli.app import COMMANDS
from ropeconv.evaluate.cases import EvalLine
from ropeconv.evaluate.result import Result
from ropeconv.evaluate.tune.result import TuningResult
from ropeconv.evaluate.tune.scorer import PassLine
from ropeconv.formats.journal import Head
from ropeconv.inspection.document import InspectionDocument
from ropeconv.inspection.receipts.reader import Results
from ropeconv.inspection.receipts.receipt import Receipt
from ropeconv.run.jobs import RunLine

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WIDTH, WIDEST = 100, 120
"""Columns of the help, and of the text of pages."""
PROGRAM = """
import json
from typer.testing import CliRunner
from ropeconv.cli.app import COMMANDS, app
names = {"": ["--help"]} | {name: [name, "--help"] for name in COMMANDS}
found = {name: CliRunner().invoke(app, words, prog_name="ropeconv") for name, words in names.items()}
assert not [name for name, done in found.items() if done.exit_code]
print(json.dumps({name: done.output for name, done in found.items()}))
"""
WRITTEN = "<!-- Written by scripts/reference.py. -->\n\n"
SCHEMAS: dict[str, tuple[str, tuple[type, ...]]] = {
    "The receipt": (
        "`ropeconv.json` in an output folder, and the value of the key `ropeconv.json` in a GGUF file "
        "([in words](json.md#the-receipt)).",
        (Receipt,),
    ),
    "A plan": (
        "`ropeconv apply --dry-run --json` ([in words](json.md#apply)). After writing, `apply --json` has these "
        "keys and some more.",
        (PlanDocument,),
    ),
    "An inspection": ("`ropeconv inspect --json` ([in words](json.md#inspect)).", (InspectionDocument,)),
    "Results beside a GGUF file": (
        "`NAME.gguf.validation.json`: what `validate` and `eval` found out about a GGUF file, which cannot hold it "
        "without becoming another file.",
        (Results,),
    ),
    "The result of eval": ("`ropeconv eval --json`, and the file of `-o` ([in words](json.md#eval)).", (Result,)),
    "The result of tune": (
        "`ropeconv tune --json`, and the file of `-o`, which `--recipe` takes ([in words](json.md#tune)).",
        (TuningResult,),
    ),
    "Journals": (
        "Files of JSON lines of `eval` and `tune` (`--journal`), and of `run` (`journal.jsonl` in the folder of "
        "outputs). The first line is a `Head`, each other one an `EvalLine`, a `PassLine` or a `RunLine`. Every line "
        "ends with a key `crc32`, the CRC-32 of what is before that key, which starts from 0 in the first line and "
        "from the value of the first line in the others, so that no line of another model is read.",
        (Head, EvalLine, PassLine, RunLine),
    ),
    "The journal of apply": (
        "A file of JSON lines with `crc32` in the hidden folder in which an output is written, until it has its name "
        "([Writing](writing.md)).",
        (Begun, FinishedFile, Moves),
    ),
}  # fmt: skip
"""Documents by their headings: what they are, and their types."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Verbs": ("apply", "validate", "inspect", "compare", "patch", "evaluate", "restore", "Output"),
    "Sources": ("open_source", "inspect_source", "Inspection", "side_by_side", "RopeSpec"),
    "Recipes and schedules": ("METHODS", "Recipe", "Schedule", "bound", "reach", "advise"),
    "Plans and outputs": (
        "make_plan", "Target", "Plan", "AppliedPlan", "read_receipt", "Receipt", "restore_plan",
    ),
    "Validating": ("Comparison", "Settings", "validate_checkpoint", "validate_gguf", "validate_server"),
    "Evaluating": ("evaluate_model", "Sizes", "Result"),
    "Tuning": ("tune_model", "SearchSettings", "TuningResult"),
    "Errors": (
        "RopeconvError", "UsageError", "RecipeError", "BadSource", "UnknownModelType", "UnsupportedBake",
        "Disagreement", "NotFinite", "Interrupted", "ImpossibleSize", "DamagedPackage",
    ),
}  # fmt: skip
"""Names of the package by the sections of api.md."""


def helps() -> dict[str, str]:
    """What `ropeconv COMMAND --help` prints by command, the same for everybody: 100 columns, no colour, UTF-8."""
    env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH), "TERM": "dumb", "NO_COLOR": "1"}
    env |= {"PYTHONUTF8": "1", "HOME": "/home/you"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout)
    return {name: "\n".join(line.rstrip() for line in text.strip().splitlines()) for name, text in found.items()}


def commands() -> str:
    """The page of commands: the help of each, below the first sentence of what it does."""
    listed = "\n".join(
        f"- [`ropeconv {name}`](#ropeconv-{name}): {_first(made)}" for name, (made, _) in COMMANDS.items()
    )
    introduction = textwrap.fill(
        "What `ropeconv COMMAND --help` prints; `-h` is the same as `--help`. `ropeconv --install-completion` makes "
        "the shell complete commands, options and choices. [JSON](json.md) says what `--json` prints.",
        WIDEST,
        break_on_hyphens=False,
    )
    shown = helps()
    parts = [f"# Commands\n\n{WRITTEN}{introduction}\n\n{listed}\n", f"## ropeconv\n\n```text\n{shown['']}\n```\n"]
    parts += [f"## ropeconv {name}\n\n```text\n{shown[name]}\n```\n" for name in COMMANDS]
    return "\n".join(parts)


def _first(command: Any) -> str:
    """The first sentence of the help of a command."""
    text = " ".join((inspect.getdoc(command) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


def schemas() -> str:
    """The page of JSON schemas (draft 2020-12), from the types that are decoded and encoded."""
    introduction = textwrap.fill(
        "JSON schemas (draft 2020-12) of the documents that ropeconv keeps and reads again, of plans and of "
        "inspections, from the types in the code. A reader should accept keys that are not listed, since later "
        "versions may add some; `schema` is raised when one changes its meaning. What the other commands print under "
        "`--json` is described in words: see [JSON](json.md).",
        WIDEST,
        break_on_hyphens=False,
    )
    parts = [f"# JSON schemas\n\n{WRITTEN}{introduction}\n"]
    for title, (what, kinds) in SCHEMAS.items():
        schema = json.dumps(_plain(schema_of(kinds)), indent=2, ensure_ascii=False)
        parts.append(f"## {title}\n\n{textwrap.fill(what, WIDEST, break_on_hyphens=False)}\n\n```json\n{schema}\n```\n")
    return "\n".join(parts)


def schema_of(kinds: tuple[type, ...]) -> dict[str, Any]:
    """The schema of a document that is one of some types. kinds: those types."""
    any_of, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    one = any_of[0] if len(kinds) == 1 else {"anyOf": list(any_of)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **one, "$defs": components}


def _plain(schema: Any) -> Any:
    """A schema whose descriptions are single lines, whatever the indentation of docstrings."""
    if isinstance(schema, Mapping):
        return {key: _line(value) if key == "description" else _plain(value) for key, value in schema.items()}
    return [_plain(one) for one in schema] if isinstance(schema, list) else schema


def _line(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else _plain(text)


def api() -> str:
    """The page of the Python API: the names that the package exports, for mkdocstrings."""
    text = textwrap.fill(
        "Every name that `import ropeconv` gives, with its docstring. [Python](python.md) has examples and says how "
        "they go together. The text below is filled in when the site is built (`./scripts/docs`); in a checkout, "
        "`help(ropeconv.make_plan)` prints the same.",
        WIDEST,
        break_on_hyphens=False,
    )
    parts = [f"# Python API\n\n{WRITTEN}{text}\n"]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n\n" + "\n".join(f"::: {place(name)}" for name in names) + "\n")
    return "\n".join(parts)


def place(name: str) -> str:
    """Where an exported name is defined, with dots."""
    if name not in ropeconv._LAZY:
        return f"ropeconv.errors.{name}"
    module, attribute = ropeconv._LAZY[name]
    made = getattr(ropeconv, name)
    if callable(made):
        module = made.__module__.removeprefix("ropeconv.")
    return f"ropeconv.{module}.{attribute}"


PAGES = {"commands.md": commands, "schemas.md": schemas, "api.md": api}


def main() -> None:
    """Rewrites the pages, tables and missing pictures."""
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")
    for script in (["tables.py"], ["method_pictures.py", "--missing"]):
        subprocess.run([sys.executable, "-W", "ignore", str(ROOT / "scripts" / script[0]), *script[1:]], check=True)


if __name__ == "__main__":
    main()
