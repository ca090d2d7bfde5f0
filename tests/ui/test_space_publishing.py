"""`ropeconv ui --space` against a Hub on localhost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from ropeconv.ui.server import FILES, serve_space
from ropeconv.version import __version__

from ..support.hub_server import talk_to
from ..support.in_process import Done, command
from .provider import SCOPES
from .space_hub import OWNER, SpaceHub, serving_visitors

Publish = Callable[..., Done]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[SpaceHub]:
    with serving_visitors(tmp_path / "hub") as found:
        yield found


@pytest.fixture
def publish(hub: SpaceHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """The command with its arguments, which ends with `code`. token: of the login, empty for none."""
    talk_to(hub, tmp_path / "home" / "hub", monkeypatch)

    def published(*words: str, code: int = 0, token: str = OWNER) -> Done:
        monkeypatch.setenv("HF_TOKEN", token)
        return command(tmp_path, "ui", "--space", *words, code=code)

    return published


def test_a_space_is_made_in_one_commit_with_the_metadata_that_it_needs(publish: Publish, hub: SpaceHub) -> None:
    assert publish("me/ropeconv", "--private").stdout.strip() == f"{hub.url}/spaces/me/ropeconv"
    assert (hub.spaces["me/ropeconv"]["sdk"], hub.private) == ("gradio", {"me/ropeconv"})
    assert len([one for one in hub.writes() if "/commit/" in one.path]) == 1
    assert hub.messages == [f"ropeconv {__version__}"]
    assert {one.token for one in hub.asked} <= {OWNER}
    made = {path.name: path.read_text() for path in hub.repos["me/ropeconv"].iterdir()}
    assert made.keys() == {*FILES, ".gitattributes"}
    assert made["requirements.txt"].split() == [f"ropeconv[ui]=={__version__}"]
    said = yaml.safe_load(made["README.md"].split("---\n")[1])
    assert (said["sdk"], said["sdk_version"], said["app_file"]) == ("gradio", version("gradio"), "app.py")
    assert said["hf_oauth"] is True
    assert said["hf_oauth_scopes"] == SCOPES.split()[2:], "openid and profile are always among them"
    assert (isinstance(said["python_version"], str), len(said["short_description"]) <= 60) == (True, True)
    compile(made["app.py"], "app.py", "exec")
    assert serve_space.__name__ in made["app.py"]


def test_a_second_publication_brings_it_up_to_date(publish: Publish, hub: SpaceHub) -> None:
    publish("me/ropeconv")
    place = hub.repos["me/ropeconv"]
    fresh = (place / "requirements.txt").read_text()
    (place / "requirements.txt").write_text("ropeconv[ui]==0.0.1\n")
    (place / "notes.md").write_text("my own")
    publish("me/ropeconv")
    assert ((place / "requirements.txt").read_text(), (place / "notes.md").read_text()) == (fresh, "my own")
    assert len([one for one in hub.asked if one.path == "/api/repos/create"]) == 1
    assert "me/ropeconv exists and is public" in publish("me/ropeconv", "--private", code=1).stderr


@pytest.mark.parametrize("program", ["print('mine')\n", None])
def test_a_space_with_another_program_stays(program: str | None, publish: Publish, hub: SpaceHub) -> None:
    place = hub.repos["me/theirs"] = hub.root / "theirs"
    place.mkdir(parents=True)
    (place / "README.md").write_text("# Mine\n")
    if program:
        (place / "app.py").write_text(program)
    said = publish("me/theirs", code=1).stderr
    assert "me/theirs is a Space with another program; choose another name" in said
    assert (place / "README.md").read_text() == "# Mine\n"
    assert not [one for one in hub.writes() if "/commit/" in one.path]


@pytest.mark.parametrize("name", "ropeconv|me/|me/a/b|../x|me/..||me/a b|https://hf.co/spaces/me/x".split("|"))
def test_a_name_that_is_none_is_refused(name: str, publish: Publish, hub: SpaceHub) -> None:
    publish(name, "--private", code=2)
    assert hub.asked == []


@pytest.mark.parametrize(("name", "token"), [("me/ropeconv", ""), ("anna/ropeconv", OWNER)])
def test_nothing_is_made_without_a_login_that_may(name: str, token: str, publish: Publish, hub: SpaceHub) -> None:
    assert "login" in publish(name, token=token, code=1).stderr
    assert (hub.spaces, hub.messages) == ({}, [])
