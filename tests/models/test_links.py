"""Links and special files in a source: nothing of the machine gets into an output, and nothing is
waited for.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.models.folder import FOLLOW
from ropeconv.models.open import open_source
from ropeconv.models.source import Source

from ..faults.inputs.folders import write_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint, beside a secret."""
    (tmp_path / "secret").write_text("a key")
    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def snapshot(model: Path, tmp_path: Path) -> Path:
    """The folder of a commit in the Hub's cache, whose files are links into the blobs of that
    repository.
    """
    repository = tmp_path / "hub" / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    commit = repository / "snapshots" / "0123abcd"
    commit.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        file.rename(repository / "blobs" / str(number))
        (commit / file.name).symlink_to(f"../../blobs/{number}")
    return commit


def opened(folder: Path) -> Source:
    source = open_source(str(folder))
    assert isinstance(source, Source)
    return source


def names(folder: Path) -> list[str]:
    return [file.name for file in opened(folder).files()]


@pytest.mark.parametrize("target", ["../secret", "{absolute}", "through another link"])
def test_a_link_out_of_the_folder_is_refused_unless_it_is_to_be_followed(
    target: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "through another link").symlink_to("../secret")
    (model / "notes.txt").symlink_to(target.format(absolute=model.parent / "secret"))
    with pytest.raises(
        BadSource,
        match=r" leads to .*secret, outside",
    ):
        names(model)
    monkeypatch.setenv(FOLLOW, "1")
    assert "notes.txt" in names(model)


def test_links_within_the_folder_and_to_it_are_followed(model: Path, tmp_path: Path) -> None:
    (model / "weights").mkdir()
    (model / "model.safetensors").rename(model / "weights" / "model.safetensors")
    (model / "model.safetensors").symlink_to("weights/model.safetensors")
    (tmp_path / "link").symlink_to(model)
    assert "model.safetensors" in names(model)
    assert names(tmp_path / "link") == names(model)


def test_links_of_the_hubs_cache_into_its_own_blobs_are_followed(snapshot: Path) -> None:
    assert "model.safetensors" in names(snapshot)
    assert opened(snapshot).config()["model_type"] == "llama"
    assert opened(snapshot).name == "name"
    assert len(opened(snapshot).tensors) == 21


@pytest.mark.parametrize(
    "target", ["../../../secret", "../../refs/main", "../../../models--a--b/blobs/0"]
)
def test_other_links_in_the_hubs_cache_are_refused(snapshot: Path, target: str) -> None:
    place = snapshot / target
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("a key")
    (snapshot / "notes.txt").symlink_to(target)
    with pytest.raises(BadSource, match="outside the checkpoint"):
        names(snapshot)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(path.name)


@pytest.mark.parametrize(
    ("name", "kind", "make"),
    [
        ("config.json", "FIFO", os.mkfifo),
        ("model.safetensors", "FIFO", os.mkfifo),
        ("notes.txt", "socket", _socket),
    ],
)
def test_special_files_are_refused_and_not_waited_for(
    name: str, kind: str, make: Callable[[Path], None], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    (model / name).unlink(missing_ok=True)
    make(model / name)
    with pytest.raises(BadSource, match=f"{name} is a {kind}, "):
        names(model)
