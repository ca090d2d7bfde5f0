"""A package beside ropeconv adds a method, an encoding, a measure, a command, a runtime, a family."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import CONFIGS
from .support.llamacpp import tokenizer_json

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "data" / "feature"
Ropeconv = Callable[..., subprocess.CompletedProcess[str]]

pytest.importorskip("hatchling", reason="hatchling is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "feature"
    shutil.copytree(EXAMPLE, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(source)],
        check=True,
    )
    return folder


@pytest.fixture
def ropeconv(site: Path, tmp_path: Path) -> Ropeconv:
    """The command line where the example is installed."""
    return lambda *words: run(tmp_path, f"{site}{os.pathsep}{ROOT}", *words)


def run(folder: Path, path: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ropeconv", *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_its_command_is_in_the_help_and_runs(ropeconv: Ropeconv, llama: Path) -> None:
    assert "Greet a model" in ropeconv("--help").stdout
    done = ropeconv("hello", llama)
    assert (done.returncode, "of 64 tokens" in done.stdout) == (0, True), done.stderr


def test_its_method_has_a_flag_and_is_computed(ropeconv: Ropeconv) -> None:
    config = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
    done = ropeconv("apply", config, "--halfway", 4, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    schedule = json.loads(done.stdout)["schedule"]
    assert schedule["inv_freq"][:2] == pytest.approx([1 / 2, 10000 ** (-2 / 128) / 2])
    assert "halfway" in ropeconv("list", "methods").stdout


def test_its_encoding_is_written(ropeconv: Ropeconv, llama: Path, tmp_path: Path) -> None:
    done = ropeconv("apply", llama, "--linear", 4, "--encoding", "plain", "-o", "out")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    rope = config.get("rope_parameters") or config["rope_scaling"]
    assert (rope["rope_type"], rope["factor"]) == ("linear", 4.0)


def test_its_measure_is_taken(ropeconv: Ropeconv, llama: Path, tmp_path: Path) -> None:
    (llama / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "book.txt").write_text("the cat sat on the mat " * 400)
    options = ("--measure", "last", "--lengths", "1T", "--windows", 2, "--json")
    done = ropeconv("eval", llama, "--methods", "base", "--text", "book.txt", *options)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    assert (cell["measure"], cell["value"] > 0) == ("last", True)


def test_its_runtime_and_its_family_are_listed(ropeconv: Ropeconv) -> None:
    assert "Nimble 1.0" in ropeconv("list", "runtimes", "--runtime", "nimble").stdout
    names = [
        row["name"] for row in json.loads(ropeconv("list", "families", "--json").stdout)["families"]
    ]
    assert "nimble" in names


def test_without_it_nothing_of_it_is_there(tmp_path: Path) -> None:
    done = run(tmp_path, str(ROOT), "hello", "model")
    assert (done.returncode, "no command" in done.stderr) == (2, True)
    assert "Greet" not in run(tmp_path, str(ROOT), "--help").stdout


def test_one_that_cannot_be_loaded_is_named_with_the_way_out(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    (broken / "ropeconv_nimble" / "__init__.py").write_text("import a_module_that_is_gone\n")
    done = run(tmp_path, f"{broken}{os.pathsep}{ROOT}", "list", "methods")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "pip uninstall ropeconv-nimble" in done.stderr
    assert "Traceback" not in done.stderr
