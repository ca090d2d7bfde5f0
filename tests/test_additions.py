"""Additions as CONTRIBUTING.md describes them, performed in a copy: the files of a row, one
command, and the tests of the row. `./scripts/test --all` runs the whole fast suite there.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import CONFIGS
from .support.extent import ALL, sample
from .test_contributing import ROOT, table

CONFIG = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
METHOD = '''"""Frequencies halfway to those of position interpolation."""

from dataclasses import dataclass

from ..forms import Form, InterpolatedForm
from ..spec import RopeSpec
from .method import ScaledMethod, register


@register
@dataclass(frozen=True)
class Halfway(ScaledMethod):
    """inv_freq_i = theta_i / sqrt(s). Positions are interpolated by the root of the factor."""

    name = "halfway"
    order = 45
    summary = "position interpolation by the root of the factor"
    paper = "Nobody 2026"
    finetuning_note = "not tried"

    def form(self, spec: RopeSpec, factor: float) -> Form:
        return InterpolatedForm(spec.rope_theta, factor**0.5)
'''
ENCODING = '''"""Encoding `plain`: a schedule of `--linear` as the rope type linear, and nothing else."""

from ...errors import UnsupportedBake
from ...models.family import Family
from ...rope.forms import InterpolatedForm
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ..config_edit import RopeSetting
from ..encoding import config_encoding


@config_encoding("plain", order=90, max_ulp=7)
def plain(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """The schedule as a factor. Raises UnsupportedBake for one that has other frequencies than `--linear`."""
    if not isinstance(schedule.form, InterpolatedForm):
        raise UnsupportedBake("these frequencies", "the plain encoding", "it holds one factor", "use --linear")
    return RopeSetting({"rope_type": "linear", "factor": schedule.form.factor}, spec.rope_theta, schedule.context)
'''
RUNTIME = """name = "nimble"
title = "Nimble"

[[rows]]
version = "1.0"
source = "nimble 1.0, nimble/rope.py:10-60"
custom_code = "refused"
custom_code_reason = "it runs no code of a checkpoint"

[rows.rules.generic]
schemas = ["rope_scaling"]
theta = "top"
other = "refused"

[rows.rules.generic.types.default]
[rows.rules.generic.types.linear]

[[rows.families]]
names = ["llama"]
rules = "generic"
"""
OPTION = (
    '    margin: int | None = option(None, "Tokens to leave unused.", "Runtimes",'
    ' metavar="TOKENS")\n\n'
)
AFTER_OPTIONS = "    def published_by("
ADDITIONS = {
    "option of an output": (
        "margin",
        OPTION,
        f"apply {CONFIG} --yarn 4 --margin 16 --dry-run",
        "commands.md",
        "--margin",
    ),
    "method": (
        "halfway",
        METHOD,
        f"apply {CONFIG} --halfway 4 --dry-run",
        "methods.md",
        "| `--halfway FACTOR` |",
    ),
    "encoding (checkpoint)": (
        "plain",
        ENCODING,
        "apply model --linear 4 --encoding plain --validate cpu",
        "runtimes.md",
        "| `plain` |",
    ),
    "runtime": (
        "nimble",
        RUNTIME,
        "list runtimes --runtime nimble",
        "runtimes.md",
        "| Nimble 1.0 |",
    ),
}
"""By the row: a name, the text of its file, a command that uses it, and a page that gets a certain
text.
"""


FAST = [f"tests/{folder}" for folder in ("rope", "formats", "models", "runtimes", "convert", "cli")]
"""What `./scripts/test fast` runs, and every case is tested with."""


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    """What a contributor has: the checkout without its history; and a model."""
    for name in ("ropeconv", "templates", "docs", "scripts", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*.toml")):
        shutil.copy(path, tmp_path)
    return tmp_path


def python(copy: Path, *words: str) -> str:
    """What a program prints that runs with the copy as its ropeconv, and succeeds."""
    others = ("PYTEST_", "ROPECONV_TESTS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=copy,
        env=kept | {"PYTHONPATH": str(copy)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("addition", sample(list(ADDITIONS), 1))
def test_an_addition_is_the_files_of_its_row_and_one_command(copy: Path, addition: str) -> None:
    pytest.importorskip("matplotlib")
    name, text, command, page, written = ADDITIONS[addition]
    touched, _, tests = table()[addition]
    (place,) = re.findall(r"`([^`]+)`", touched)
    path = copy / place.replace("NAME", name)
    described = copy / "docs" / page
    assert written not in described.read_text()
    before, after = path.read_text().split(AFTER_OPTIONS) if path.exists() else ("", "")
    path.write_text(before + text + AFTER_OPTIONS * bool(before) + after)
    python(copy, "-m", "scripts.pages")  # which computes the numbers of the data
    assert written in described.read_text()
    python(copy, "-m", "ropeconv", *command.split())
    files = FAST if ALL else re.findall(r"`(tests/[^`]+)`", tests)
    python(
        copy,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        "not numbers_of_the_data",  # which the pages have anew, and no test can know
        *files,
    )
