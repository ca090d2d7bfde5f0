"""Links and special files in a source: nothing of the machine gets into an output, and nothing is waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.regular import open_regular
from ropeconv.sources import open_source
from ropeconv.sources.links import FOLLOW
from ropeconv.sources.source import Source

from ..faults.inputs.folders import write_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("a key")
    return tmp_path / "secret"


def names(folder: Path) -> list[str]:
    source = open_source(str(folder))
    assert isinstance(source, Source)
    return [file.name for file in source.files()]


def test_a_link_out_of_the_folder_is_refused(model: Path, secret: Path) -> None:
    (model / "notes.txt").symlink_to(secret)
    with pytest.raises(
        BadSource, match=r"notes.txt leads to .*secret, outside the checkpoint.*put the file there itself"
    ):
        names(model)


def test_so_is_a_relative_one_and_one_through_another_link(model: Path, secret: Path) -> None:
    (model / "first").symlink_to("second")
    (model / "second").symlink_to("../secret")
    with pytest.raises(BadSource, match="outside the checkpoint"):
        names(model)


def test_a_link_that_appears_after_the_listing_is_refused(model: Path, secret: Path) -> None:
    source = open_source(str(model))
    assert isinstance(source, Source)
    source.files()
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer_config.json").symlink_to(secret)
    with pytest.raises(BadSource, match="outside the checkpoint"):
        source.text("tokenizer_config.json")


def test_a_file_below_a_linked_folder_is_not_seen(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "key").write_text("a key")
    (model / "sub").symlink_to(tmp_path / "other")
    assert not any("key" in name for name in names(model))
    source = open_source(str(model))
    assert isinstance(source, Source)
    with pytest.raises(BadSource, match="outside the checkpoint"):
        source.path("sub/key")


def test_a_link_within_the_folder_is_followed(model: Path) -> None:
    (model / "weights").mkdir()
    (model / "model.safetensors").rename(model / "weights" / "model.safetensors")
    (model / "model.safetensors").symlink_to("weights/model.safetensors")
    assert "model.safetensors" in names(model)


def test_the_source_itself_may_be_a_link(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    assert names(tmp_path / "link") == names(model)


def test_whoever_made_a_link_can_have_it_followed(model: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "notes.txt").symlink_to(secret)
    monkeypatch.setenv(FOLLOW, "1")
    assert "notes.txt" in names(model)


@pytest.fixture
def snapshot(model: Path, tmp_path: Path) -> Path:
    """The folder of a commit in the Hub's cache, whose files are links into the blobs of that repository."""
    repository = tmp_path / "hub" / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    commit = repository / "snapshots" / "0123abcd"
    commit.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        file.rename(repository / "blobs" / str(number))
        (commit / file.name).symlink_to(f"../../blobs/{number}")
    return commit


def test_links_of_the_hubs_cache_into_its_own_blobs_are_followed(snapshot: Path) -> None:
    assert "model.safetensors" in names(snapshot)
    source = open_source(str(snapshot))
    assert isinstance(source, Source)
    assert source.config()["model_type"] == "llama"
    assert len(source.tensors) == 21


@pytest.mark.parametrize("target", ["../../../secret", "../../refs/main", "../../../models--a--b/blobs/0"])
def test_other_links_in_the_hubs_cache_are_refused(snapshot: Path, target: str) -> None:
    place = snapshot / target
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("a key")
    (snapshot / "notes.txt").symlink_to(target)
    with pytest.raises(BadSource, match="outside the checkpoint"):
        names(snapshot)


def test_a_folder_that_only_looks_like_the_cache_gets_nothing_of_it(model: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0").write_text("a key")
    (tmp_path / "snapshots").mkdir()
    moved = model.rename(tmp_path / "snapshots" / "model")
    (moved / "notes.txt").symlink_to("../../blobs/0")
    with pytest.raises(BadSource, match="outside the checkpoint"):
        names(moved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "notes.txt"])
def test_a_fifo_is_refused_and_not_waited_for(model: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(BadSource, match=f"{name} is a FIFO, and a regular file is needed there"):
        names(model)


def test_so_are_sockets(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        with pytest.raises(BadSource, match="s is a socket"):
            names(model)


def test_what_becomes_a_fifo_or_device_before_it_is_opened_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadSource, match="is a FIFO"):
        open_regular(tmp_path / "fifo")
    with pytest.raises(BadSource, match="is a device"):
        open_regular(Path("/dev/zero"))
    (tmp_path / "file").write_bytes(b"12")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"12"
