"""Packages of extras: each late import is known, and a missing package is named with the extra that brings it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ropeconv.errors import RopeconvError
from ropeconv.extras import EXTRAS, installed, missing, require

from .sources.test_meta import release
from .support.optional import EXTRAS as OF_TESTS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED = {
    "llama_cpp": "llama-cpp-python", "huggingface_hub": "huggingface-hub",
    "tokenizers": "transformers", "grpc": "ray", "starlette": "gradio", "fastapi": "gradio", "uvicorn": "gradio",
}  # fmt: skip
"""Packages by the name of their distribution, or of one that depends on them."""


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[]", requirement)[0] for requirement in requirements}


def third_party() -> set[str]:
    """Every package that is imported anywhere in ropeconv and is neither Python's nor its own."""
    found = set()
    for path in (ROOT / "ropeconv").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {module.partition(".")[0] for module in modules}
    return found - sys.stdlib_module_names - {"ropeconv", ""}


def test_every_import_is_a_dependency_or_named_in_an_extra() -> None:
    found = third_party()
    assert {IMPORTED.get(name, name) for name in found - EXTRAS.keys()} <= names(PROJECT["dependencies"])
    assert {"torch", "transformers", "matplotlib", "httpx2"} <= found


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_brings_the_package(package: str) -> None:
    assert IMPORTED.get(package, package) in names(PROJECT["optional-dependencies"][EXTRAS[package]])
    assert OF_TESTS.get(package, EXTRAS[package]) == EXTRAS[package]


def test_a_missing_package_is_a_sentence_with_the_extra() -> None:
    with pytest.raises(RopeconvError, match=r"^x needs nothing_like_this, .* pip install 'ropeconv\[meta\]'$"):
        require("nothing_like_this", "x", "meta")
    require("json", "x")
    assert (installed("json"), installed("nothing.like.this")) == (True, False)
    assert str(missing("torch")).endswith("pip install 'ropeconv[validate]'")


def without(package: str, program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A program in a process that cannot import a package."""
    command = [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None\n{program}", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=False, env={"PYTHONPATH": str(ROOT)}
    )


def test_a_release_of_meta_without_torch(tmp_path: Path) -> None:
    release(tmp_path / "Llama", dtype="bfloat16")
    program = "from ropeconv.cli import main; main()"
    done = without("torch", program, tmp_path, "apply", "Llama", "--yarn", "4", "-o", "out")
    assert done.returncode == 1
    assert done.stderr.endswith("needs torch, which is not installed; pip install 'ropeconv[meta]'\n")
    assert [path.name for path in tmp_path.iterdir()] == ["Llama"]
    assert without("torch", program, tmp_path, "inspect", "Llama").returncode == 0


def test_an_import_that_nobody_announced(tmp_path: Path) -> None:
    program = "from ropeconv.cli.errors import run\ndef app(**given): import transformers\nsys.exit(run(app))"
    done = without("transformers", program, tmp_path)
    said = "ropeconv: this needs transformers, which is not installed; pip install 'ropeconv[validate]'\n"
    assert (done.returncode, done.stderr) == (1, said)
