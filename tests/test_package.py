"""What is shipped."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_has_its_data(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ropeconv").rglob("*.toml")}
    assert len(shipped) > 50
    assert shipped <= names
    assert {"ropeconv/py.typed", "ropeconv/templates/modeling_stored_rope.py.jinja"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_rope_imports_nothing_of_ours_and_no_torch() -> None:
    """The arrows run downward: the mathematics stand alone."""
    for path in (ROOT / "ropeconv" / "rope").rglob("*.py"):
        depth = len(path.relative_to(ROOT / "ropeconv" / "rope").parts)
        text = path.read_text()
        assert f"from {'.' * (depth + 1)}" not in text, path
        assert "import torch" not in text


def test_as_a_library(llama: Path, tmp_path: Path) -> None:
    import ropeconv

    assert set(ropeconv.__all__) == {name for name in ropeconv.__all__ if getattr(ropeconv, name)}
    recipe = ropeconv.Recipe(ropeconv.METHODS["yarn"](16.0))
    plan = ropeconv.make_plan(ropeconv.open_source(str(llama)), recipe, tmp_path / "out")
    assert {verdict.status for verdict in plan.result.verdicts} == {"exact", "ignored"}
    folder = ropeconv.apply(plan)
    assert ropeconv.inspect_source(ropeconv.open_source(str(folder))).spec.context == 1024


def test_the_readme_names_every_method_and_runtime() -> None:
    from ropeconv.rope.methods import REGISTRY
    from ropeconv.runtimes import runtimes

    text = (ROOT / "README.md").read_text()
    assert not [method.flag() for method in REGISTRY.values() if f"`{method.flag()}" not in text]
    assert not [runtime.display_name for runtime in runtimes() if runtime.display_name not in text]
