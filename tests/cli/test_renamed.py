"""Files with other names than they have by habit: every command reads what they are."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ..conftest import Run, hashes
from ..support.gguf_files import write

DIGEST = f"sha256-{'0123456789abcdef' * 4}"


@pytest.fixture
def blob(tmp_path: Path) -> str:
    """A GGUF file without the ending, and the same one with it."""
    (tmp_path / DIGEST).write_bytes(write(tmp_path / "m.gguf").read_bytes())
    return DIGEST


@pytest.mark.parametrize(
    "name", [DIGEST, "m.bin", "m.safetensors", "M.GGUF", "config.json", "m.onnx"]
)
def test_a_gguf_file_of_another_name(name: str, blob: str, run: Run, tmp_path: Path) -> None:
    if not (tmp_path / name).exists():
        (tmp_path / blob).rename(tmp_path / name)
    expected, said = (
        json.loads(run("inspect", each, "--json").stdout) for each in ("m.gguf", name)
    )
    assert said.pop("source") == {**expected.pop("source"), "reference": name}
    assert said == expected
    assert run("compare", name, "m.gguf", "--exit-code").returncode == 0
    assert run("apply", name, "--yarn", "4", "-o", "out.gguf", "-q").returncode == 0
    assert run("apply", "m.gguf", "--yarn", "4", "-o", "named.gguf", "-q").returncode == 0
    assert run("compare", "out.gguf", "named.gguf", "--exit-code").returncode == 0
    refused = run("inspect", name, "--family", "llama")
    assert (refused.returncode, "--family" in refused.stderr) == (2, True)


def test_an_output_of_another_name(blob: str, run: Run, tmp_path: Path) -> None:
    assert run("apply", blob, "--yarn", "4", "-o", "out.gguf", "-q").returncode == 0
    (tmp_path / "out.gguf").rename(tmp_path / "out")
    assert "yarn" in run("inspect", "out").stdout
    assert run("restore", "out", "-o", "back.gguf", "-q").returncode == 0
    assert (tmp_path / "back.gguf").read_bytes() == (tmp_path / blob).read_bytes()
    assert (
        run("apply", blob, "--yarn", "2", "-o", "out", "--force", "-q").returncode == 0
    )  # in its place
    assert "factor 2" in run("inspect", "out").stdout
    assert run("restore", "out", "--in-place", "-q").returncode == 0
    assert run("compare", "out", blob, "--exit-code").returncode == 0
    pushed = run("push", "out.gguf", "me/x", "--dry-run")
    assert (pushed.returncode, "does not exist" in pushed.stderr) == (1, True)


def test_a_renamed_output_is_pushed_with_the_ending(blob: str, run: Run, tmp_path: Path) -> None:
    from ropeconv.hub.upload_set import from_gguf

    run("apply", blob, "--yarn", "4", "-o", "out.gguf", "-q")
    (tmp_path / "out.gguf").rename(tmp_path / "out")
    (name,) = from_gguf(tmp_path / "out").adds
    assert (name[:3], name[-5:]) == ("out", ".gguf")


def test_a_draft_of_another_name(blob: str, run: Run, tmp_path: Path) -> None:
    done = run("apply", "m.gguf", "--yarn", "4", "--draft", blob, "-o", "out.gguf", "--dry-run")
    assert (done.returncode, "out-draft.gguf" in done.stdout) == (0, True), done.stderr


def test_a_plan_of_run_with_a_file_of_another_name(blob: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        f'sources = ["{blob}"]\nrecipes = ["yarn:4"]\ntasks = ["apply"]\nout = "runs"\n', "utf-8"
    )
    done = run("run", "plan.toml")
    assert (done.returncode, "1 done" in done.stdout) == (0, True), done.stderr
    (made,) = tmp_path.glob("runs/*.gguf")
    assert made.name.startswith("sha256-0123")


def test_a_config_of_another_name(run: Run, tmp_path: Path, llama: Path) -> None:
    (tmp_path / DIGEST).write_bytes((llama / "config.json").read_bytes())
    named, other = (
        json.loads(run("inspect", path, "--json").stdout)
        for path in (llama / "config.json", DIGEST)
    )
    assert other["rope"] == named["rope"]
    assert run("inspect", DIGEST, "--family", "llama").returncode == 0


def test_a_graph_of_another_name(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from ..support.graphs import rotating

    frequencies = 10000.0 ** -(np.arange(8) / 8)
    rotating(tmp_path / "model.onnx", frequencies)
    (tmp_path / DIGEST).write_bytes((tmp_path / "model.onnx").read_bytes())
    named, other = (
        json.loads(run("inspect", name, "--json").stdout) for name in ("model.onnx", DIGEST)
    )
    assert other["ropes"][0]["inv_freq"] == named["ropes"][0]["inv_freq"]


def beside(path: Path) -> None:
    path.with_name("config.json").write_text("{}")
    save_file({"a": np.ones(2)}, path)


def of_torch(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\0.")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights alone": (
        lambda path: save_file({"a": np.ones(2)}, path),
        "give the folder of the checkpoint",
    ),
    "weights of a folder": (beside, "give its folder"),
    "a file of torch": (of_torch, "a file of torch.save"),
    "a legacy pickle": (
        lambda path: path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),
        "a Python pickle",
    ),
    "an array": (lambda path: np.save(path.open("wb"), np.ones(2)), "an array of numpy"),
    "a web page": (lambda path: path.write_text("<!doctype html><html>"), "a web page"),
    "a pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "git lfs pull",
    ),
    "an archive": (lambda path: path.write_bytes(b"\x1f\x8b\x08\0"), "unpack it"),
    "a text": (lambda path: path.write_text("hello"), "a text file"),
    "nothing": (lambda path: path.touch(), "download it again"),
    "a FIFO": (lambda path: os.mkfifo(path), "regular file"),
    "bytes": (lambda path: path.write_bytes(b"\0\1\2\xff"), "does not know"),
}
COMMANDS = (
    "inspect {}",
    "advise {} --context 256",
    "compare {} m.gguf",
    "apply {} --yarn 4",
    "apply m.gguf --yarn 4 --draft {}",
    "apply {} --yarn 4 --to overrides",
    "restore {}",
    "plot {} --yarn 4",
    "bound {}",
)


@pytest.mark.parametrize("kind", list(REFUSED))
@pytest.mark.parametrize("name", [DIGEST, "model.safetensors"])
def test_what_is_no_model_gets_one_sentence(kind: str, name: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    write(tmp_path / "m.gguf")
    make, words = REFUSED[kind]
    make(folder / name)
    kept = {path for path in tmp_path.rglob("*") if not path.is_fifo()}
    for command in COMMANDS:
        done = run(*command.format(f"there/{name}").split())
        assert (done.returncode in (1, 2), done.stderr.count("\n"), words in done.stderr) == (
            True,
            1,
            True,
        ), (
            command,
            done.stderr,
        )
    assert {path for path in tmp_path.rglob("*") if not path.is_fifo()} == kept
    assert hashes(folder) == hashes(folder)


@pytest.mark.parametrize(
    "kind", [kind for kind in REFUSED if kind not in ("weights of a folder", "bytes", "a text")]
)
def test_what_is_no_gguf_file_in_spite_of_its_name(kind: str, run: Run, tmp_path: Path) -> None:
    REFUSED[kind][0](tmp_path / "m.gguf")
    for command in (
        "inspect m.gguf",
        "apply m.gguf --yarn 4",
        "apply m.gguf --yarn 4 --in-place",
        "restore m.gguf",
    ):
        done = run(*command.split())
        assert (done.returncode in (1, 2), done.stderr.count("\n")) == (True, 1), (
            command,
            done.stderr,
        )
        assert "m.gguf" in done.stderr or "--in-place" in command
