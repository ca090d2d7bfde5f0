"""A package beside ropeconv adds a method, an encoding, a measure, a command, a runtime, a family."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.rope.features import load_features

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


@pytest.mark.parametrize("name", load_features())
def test_without_the_folder_of_a_feature_the_rest_works(name: str, tmp_path: Path) -> None:
    tree = without_feature(name, tmp_path / "tree")
    removed = {name, *(other for other, one in load_features().items() if name in one.requires)}
    help_text = run(tmp_path, str(tree), "--help").stdout
    listed = set(re.findall(r"^  ([a-z-]+) {2,}", help_text, re.MULTILINE))
    for other, feature in load_features().items():
        # "evidence add" is in the group "evidence"
        commands = {command.partition(" ")[0] for command in feature.commands}
        assert listed.isdisjoint(commands) or other not in removed
        assert listed >= commands or other in removed
    config = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
    done = run(tmp_path, str(tree), "apply", config, "--yarn", 4, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("evaluation", ("advise", "MODEL", "--context", "16k", "--measured", "r.json")),
        ("graphs", ("inspect", "model.onnx")),
    ],
)
def test_what_needs_a_removed_feature_says_so(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    tree = without_feature(name, tmp_path / "tree")
    config = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
    (tmp_path / "model.onnx").write_bytes(b"")
    done = run(tmp_path, str(tree), *(str(config) if word == "MODEL" else word for word in words))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "feature" in done.stderr


def without_feature(name: str, tree: Path) -> Path:
    """Make a tree of links to the files of ropeconv, without the folder of a feature."""
    features = tree / "ropeconv" / "features"
    features.mkdir(parents=True)
    (tree / "templates").symlink_to(ROOT / "templates")
    for entry in (ROOT / "ropeconv").iterdir():
        if entry.name != "features":
            (tree / "ropeconv" / entry.name).symlink_to(entry)
    for entry in (ROOT / "ropeconv" / "features").iterdir():
        if entry.name != name:
            (features / entry.name).symlink_to(entry)
    return tree


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
