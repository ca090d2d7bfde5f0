"""What is shipped, and what the library exports."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ropeconv

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_wheel_has_its_data(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ropeconv").rglob("*.toml")}
    assert len(shipped) > 50
    assert {*shipped, "ropeconv/py.typed", "ropeconv/templates/modeling_stored_rope.py.jinja"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_as_a_library(llama: Path, tmp_path: Path) -> None:
    recipe = ropeconv.Recipe(ropeconv.METHODS["yarn"](16.0))
    plan = ropeconv.make_plan(ropeconv.open_source(str(llama)), recipe, ropeconv.Target(out=tmp_path / "out"))
    assert {"exact", "differs", "unknown"} <= {verdict.status for verdict in plan.result.verdicts}
    done = ropeconv.apply(plan)
    assert ropeconv.inspect_source(ropeconv.open_source(str(done.path))).spec.context == 1024
    assert ropeconv.validate_checkpoint(ropeconv.Comparison.open(done.path, str(llama))).agrees


def test_the_public_names_are_listed() -> None:
    assert all(getattr(ropeconv, name) for name in ropeconv.__all__)
    assert dir(ropeconv) == sorted(ropeconv.__all__)
    assert set(ropeconv._LAZY) < set(ropeconv.__all__)
    packages = {path.name for path in Path(ropeconv.__file__).parent.iterdir() if path.is_dir()}
    assert not packages & set(ropeconv.__all__), "an import of the package would take the place of the name"


def test_every_failure_has_one_root_and_is_exported() -> None:
    for parts in (path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "ropeconv").rglob("*.py")):
        if "program" not in parts and "__main__" not in parts:
            importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))

    def below(kind: type) -> set[type]:
        return {found for child in kind.__subclasses__() for found in {child, *below(child)}}

    ours = {kind for kind in below(Exception) if kind.__module__.startswith("ropeconv")}
    assert {kind for kind in ours if not issubclass(kind, ropeconv.RopeconvError)} == set()
    private = {"UnknownRopeType", "BadAnswer", "TooLarge", "Beyond"}  # a user meets others in their place
    assert {kind.__name__ for kind in ours} - private <= set(ropeconv.__all__)


def test_the_docs_name_every_method_and_runtime() -> None:
    from ropeconv.rope.methods import REGISTRY
    from ropeconv.runtimes import runtimes

    readme, methods, readers = (
        (ROOT / name).read_text() for name in ("README.md", "docs/methods.md", "docs/runtimes.md")
    )
    flags = [f"`{method.flag()}" for method in REGISTRY.values()]
    assert [flag for flag in flags if flag not in readme or flag not in methods] == []
    assert [runtime.display_name for runtime in runtimes() if runtime.display_name not in readers] == []
