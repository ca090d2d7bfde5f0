"""The recipe, the target and the command line of the form of a bake."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

from ..bake import Plan
from ..encode import GgufTarget, Target
from ..encode.target import Format
from ..errors import UsageError, shown
from ..evaluate.row import parse_rows
from ..formats.regular import expanded
from ..receipts import read_recipe
from ..receipts.commands import apply_words
from ..rope.methods import REGISTRY, Value
from ..rope.recipe import Recipe
from .forms import BakeForm

METHODS = tuple(name for name, kind in REGISTRY.items() if kind.value is not Value.FILE)
"""The methods that a form can name; those of a file come as a recipe."""


def recipe_of(form: BakeForm) -> Recipe:
    """The recipe of a form: the dropped one, else the method with its value and settings.

    Raises UsageError and RecipeError for what is no recipe.
    """
    if form.recipe:
        if form.method or form.value or form.settings:
            raise UsageError("a recipe and a method are given; take one of them away")
        return read_recipe(Path(form.recipe))
    if not form.method:
        raise UsageError("no method is chosen; choose one, such as yarn with the value 4")
    if form.method not in METHODS:
        raise UsageError(f"{shown(form.method)} is no method; choose one of {', '.join(METHODS)}")
    settings = [re.sub(r"\s*=\s*", "=", one.strip()) for one in form.settings.split(",") if one.strip()]
    wrong = next((one for one in (form.value, *settings) if "," in one or "\n" in one), None)
    wrong = wrong or next((one for one in settings if "=" not in one), None)
    if wrong is not None:
        raise UsageError(f"{shown(wrong)} is no setting; write name=value, with commas between several")
    words = [form.method, *([form.value.replace(" ", "")] if form.value else []), *settings]
    (row,) = parse_rows(":".join(words))
    assert row.recipe is not None
    return row.recipe


def target_of(form: BakeForm, out: Path | None = None) -> Target:
    """The target of a form. out: the folder or GGUF file, None for the default. Raises UsageError for other formats."""
    if form.to not in ("", *get_args(Format)):
        raise UsageError(f"{shown(form.to)} is no format; choose {' or '.join(get_args(Format))}")
    gguf = GgufTarget(outtype=form.outtype or None)
    owner = form.repo_id.partition("/")[0]
    return Target(
        to=form.to or None,  # type: ignore[arg-type]
        out=out,
        encoding=form.encoding or "auto",
        runtimes=form.runtimes,
        gguf=gguf.published_by(owner) if owner else gguf,
        replace=form.replace,
    )


def command_of(plan: Plan, form: BakeForm, publishing: bool) -> str:
    """The command line that does the same, in the place of the plan where the form names one.

    publishing: whether that is a publication, and not a file or folder.
    """
    words = apply_words(plan.source.reference, plan.receipt().steps[-1], plan.source.kind == "gguf")
    if form.recipe and "--recipe" in words:  # one with lists, which no option can be
        words[words.index("--recipe") + 1] = Path(form.recipe).name
    if publishing:
        words += ["--push", form.repo_id, *(["--private"] if form.private else [])]
        words += ["--exist-ok"] if form.exist_ok else []
    elif plan.target.out is not None:
        words += ["-o", str(plan.target.out)]
    return shlex.join(words)


def place_of(form: BakeForm) -> Path | None:
    """Where the output is to be; None for the default."""
    return expanded(form.out) if form.out else None
