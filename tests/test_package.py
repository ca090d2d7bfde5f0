"""What is shipped: the wheel, the names of the library, and the packages that each extra brings."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ropeconv
from ropeconv.environment import EXTRAS, MODEL_PACKAGES, installed, missing, require
from ropeconv.rope.errors import RopeconvError

from .support.optional import EXTRAS as OF_TESTS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED = {
    "llama_cpp": "llama-cpp-python",
    "huggingface_hub": "huggingface-hub",
    "tokenizers": "transformers",
    "grpc": "ray",
    "starlette": "gradio",
    "fastapi": "gradio",
    "uvicorn": "gradio",
    "google": "protobuf",
    "yaml": "pyyaml",
}
"""Packages by the name of their distribution, or of one that depends on them."""


@pytest.mark.nightly
@pytest.mark.slow
def test_the_wheel_has_its_data(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ropeconv").rglob("*.toml")}
    assert len(shipped) > 50
    assert {
        *shipped,
        "ropeconv/py.typed",
        "ropeconv/templates/modeling_stored_rope.py.jinja",
    } <= names
    assert not [name for name in names if name.startswith("tests")]


def test_the_public_names_are_listed() -> None:
    assert all(getattr(ropeconv, name) for name in ropeconv.__all__)
    assert dir(ropeconv) == sorted(ropeconv.__all__)
    assert set(ropeconv._LAZY) < set(ropeconv.__all__)


def test_every_failure_has_one_root_and_is_exported() -> None:
    for parts in (
        path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "ropeconv").rglob("*.py")
    ):
        if not {"program", "programs", "__main__"} & {*parts}:
            importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))

    def below(kind: type) -> set[type]:
        return {subclass for child in kind.__subclasses__() for subclass in {child, *below(child)}}

    ours = {kind for kind in below(Exception) if kind.__module__.startswith("ropeconv")}
    assert {kind for kind in ours if not issubclass(kind, ropeconv.RopeconvError)} == set()
    # a user meets others in their place, or has no use for what the last one adds to RopeconvError
    private = {
        "UnknownRopeType",
        "BadAnswer",
        "TooLarge",
        "MoreBytesNeeded",
        "LlamaCppError",
        "AlreadyExtended",
        "CannotChange",
        "NoLayerRuns",
        "LayerFails",
        "NotARotation",
        "NotDerivable",
    }
    assert {kind.__name__ for kind in ours} - private <= set(ropeconv.__all__)


def ordered(requirements: list[str]) -> list[str]:
    return [re.split(r"[<>=\[]", requirement)[0] for requirement in requirements]


def names(requirements: list[str]) -> set[str]:
    return set(ordered(requirements))


def third_party() -> set[str]:
    """Every package that is imported anywhere in ropeconv and is neither Python's nor its own.

    The programs of probes run in environments of other packages.
    """
    packages = set()
    for path in (ROOT / "ropeconv").rglob("*.py"):
        if path.parent.name == "programs":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            packages |= {module.partition(".")[0] for module in modules}
    return packages - sys.stdlib_module_names - {"ropeconv", ""}


def test_every_import_is_a_dependency_or_named_in_an_extra() -> None:
    packages = third_party()
    assert {IMPORTED.get(name, name) for name in packages - EXTRAS.keys()} <= names(
        PROJECT["dependencies"]
    )
    assert {"torch", "transformers", "matplotlib", "httpx2", "typer"} <= packages
    assert "click" not in packages


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_brings_the_package(package: str) -> None:
    assert IMPORTED.get(package, package) in names(
        PROJECT["optional-dependencies"][EXTRAS[package]]
    )
    assert OF_TESTS.get(package, EXTRAS[package]) == EXTRAS[package]


def test_a_missing_package_is_a_sentence_with_the_extra() -> None:
    with pytest.raises(
        RopeconvError, match=r"^x needs nothing_like_this, .* pip install nothing_like_this$"
    ):
        require("nothing_like_this", "x")
    require("json", "x")
    assert (installed("json"), installed("nothing.like.this")) == (True, False)
    assert str(missing("torch")).endswith("; pip install ropeconv")
    assert str(missing("ray")).endswith("; pip install 'ropeconv[ray]'")


def test_the_plain_install_has_the_packages_of_the_main_job_and_no_extra_is_left_for_them() -> None:
    packages = {"torch", "transformers", "safetensors", "huggingface-hub", "gguf", "typer"}
    assert packages <= names(PROJECT["dependencies"])
    assert not {"validate", "meta", "plot"} & PROJECT["optional-dependencies"].keys()


def test_the_line_for_a_machine_without_torch_has_all_other_dependencies() -> None:
    page = (ROOT / "docs" / "README.md").read_text("utf-8")
    (line,) = re.findall(
        r"^pip install --no-deps ropeconv && pip install (.+)$", page, re.MULTILINE
    )
    assert line.split() == [
        name for name in ordered(PROJECT["dependencies"]) if name not in MODEL_PACKAGES
    ]
