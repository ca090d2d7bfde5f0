"""A checkpoint with modules in its folder: no command that is given there imports one of them."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from ..support.optional import skip_where_advised
from ..support.run_plans import models, plan_text

ROOT = Path(__file__).parents[2]
PLANTED = """\
import sys

with open({marker!r}, "a") as marker:
    marker.write({name!r} + " ")
kept = sys.path[:]
sys.path[:] = [path for path in kept if path and path != {folder!r}]
del sys.modules[{name!r}]
__import__({name!r})
sys.path[:] = kept
"""
"""A module that leaves a mark, and then is the real one."""
CONSOLE = str(Path(sys.executable).with_name("ropeconv"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint and a text, and a module of each name that anything imports. A
    plan is beside it.
    """
    folder = models(tmp_path_factory.mktemp("hostile"), "a")
    for path in (folder / "models" / "a").iterdir():
        path.rename(folder / path.name)
    (folder / "nothing.py").touch()
    plan = plan_text("apply", sources=f'"{folder}"', recipes='"yarn:4"')
    (tmp_path_factory.mktemp("plan", numbered=False) / "plan.toml").write_text(plan)
    names = {name for name in sys.stdlib_module_names if not name.startswith("_")}
    names |= {name for name in packages_distributions() if name.isidentifier()}
    for name in names - set(sys.builtin_module_names) - {"ropeconv", "importlib"}:
        text = PLANTED.format(marker=str(folder / "marks"), name=name, folder=str(folder))
        (folder / f"{name}.py").write_text(text)
    # Python itself imports some for `-m`, before any line of the module that it runs
    while python(folder, "-m", "nothing") and marks(folder):
        for name in marks(folder).split():
            (folder / f"{name}.py").unlink()
    return folder


def python(place: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder; the modules of the project are found by PYTHONPATH."""
    (place / "marks").unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}
    env.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *words], cwd=place, env=env, capture_output=True, text=True, check=False
    )


def marks(place: Path) -> str:
    return (place / "marks").read_text() if (place / "marks").exists() else ""


def test_the_modules_leave_marks(place: Path) -> None:
    """The negative control: another program that is started there imports them."""
    assert python(place, "-c", "import numpy").returncode == 0
    assert "numpy" in marks(place).split()


MODULE = ("-m", "ropeconv")
COMMANDS = {
    "python -m": (MODULE, "inspect ."),
    "the script": ((CONSOLE,), "inspect ."),
    "the probe of apply": (MODULE, "apply . --yarn 4 -o ../yarn"),
    "a worker of eval": (
        MODULE,
        "eval . --methods yarn:4 --text text.txt --lengths 1T --workers 1",
    ),
    "a worker of run": ((CONSOLE,), "run ../plan/plan.toml"),
    "llama.cpp": (MODULE, "apply . --yarn 4 --to gguf --outtype q4_0 -o ../yarn.gguf"),
}


@pytest.mark.parametrize(("start", "command"), COMMANDS.values(), ids=COMMANDS)
def test_no_module_of_the_folder_is_imported(
    start: tuple[str, ...], command: str, place: Path
) -> None:
    done = python(place, *start, *command.split())
    skip_where_advised(done.stderr)
    assert (done.returncode, marks(place)) == (0, ""), done.stderr
