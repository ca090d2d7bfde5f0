"""Where ropeconv keeps what belongs to a user: caches, settings, and where sources are."""

from pathlib import Path

import pytest

from ropeconv.engines.probe import ProbeCache
from ropeconv.environment import user_folder
from ropeconv.formats.journal import default_path
from ropeconv.inspection.receipts.places import state_folder
from ropeconv.models.registry import package_families, user_families
from ropeconv.rope.errors import RopeconvError

from .conftest import CONFIGS
from .support.in_process import command

VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home, as an id of a container that has no name."""
    for name in ("HOME", "ROPECONV_FAMILIES", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)


# https://specifications.freedesktop.org/basedir-spec/latest/: a relative path is to be ignored
@pytest.mark.parametrize("value", [None, "", "relative/path"])
def test_the_folders_are_those_of_the_desktop(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert user_folder("cache") == tmp_path / ".cache" / "ropeconv"
    assert user_folder("config") == tmp_path / ".config" / "ropeconv"
    assert user_folder("data") == tmp_path / ".local" / "share" / "ropeconv"
    assert default_path("a") == tmp_path / ".cache" / "ropeconv" / "eval" / "a.jsonl"
    assert ProbeCache().folder == tmp_path / ".cache" / "ropeconv" / "checks"
    assert state_folder() == tmp_path / ".local" / "state" / "ropeconv" / "sources"


def test_the_variables_name_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, str(tmp_path / name))
    assert user_folder("cache") == tmp_path / "XDG_CACHE_HOME" / "ropeconv"
    assert user_folder("config") == tmp_path / "XDG_CONFIG_HOME" / "ropeconv"
    assert user_folder("data") == tmp_path / "XDG_DATA_HOME" / "ropeconv"
    assert user_folder("state") == tmp_path / "XDG_STATE_HOME" / "ropeconv"


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_kept_and_models_are_still_read(tmp_path: Path) -> None:
    assert user_families(package_families()) == ()
    cache = ProbeCache()
    cache.put("a", {"modules": {}})
    assert cache.get("a") is None
    for folder in (state_folder, lambda: default_path("a")):
        with pytest.raises(RopeconvError, match="HOME"):
            folder()
    command(tmp_path, "inspect", LLAMA_2, code=0)
    assert list(tmp_path.iterdir()) == []
