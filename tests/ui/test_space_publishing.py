"""`ropeconv ui --space` against a Hub on localhost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from ropeconv.ui import serve_space
from ropeconv.ui.space import FILES
from ropeconv.version import __version__

from ..conftest import Run
from .provider import SCOPES
from .space_hub import OWNER, SpaceHub, serving_visitors

Publish = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[SpaceHub]:
    with serving_visitors(tmp_path / "hub") as found:
        yield found


@pytest.fixture
def publish(run: Run, hub: SpaceHub, tmp_path: Path) -> Publish:
    """The command with its arguments. token: of the login, empty for none."""

    def published(*arguments: str, token: str = OWNER) -> CompletedProcess[str]:
        env = {**hub.environment(tmp_path / "home"), "HF_TOKEN": token}
        return run("ui", "--space", *arguments, env=env)

    return published


def metadata(text: str) -> dict[str, object]:
    return dict(yaml.safe_load(text.split("---\n")[1]))


def test_a_space_is_made_in_one_commit(publish: Publish, hub: SpaceHub) -> None:
    done = publish("me/ropeconv", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.url}/spaces/me/ropeconv"
    assert (hub.spaces["me/ropeconv"]["sdk"], hub.private) == ("gradio", {"me/ropeconv"})
    assert len([one for one in hub.writes() if "/commit/" in one.path]) == 1
    assert hub.messages == [f"ropeconv {__version__}"]
    made = {path.name: path.read_text() for path in hub.repos["me/ropeconv"].iterdir()}
    assert made.keys() == {*FILES, ".gitattributes"}
    assert made["requirements.txt"].split() == [f"ropeconv[ui]=={__version__}"]
    assert {one.token for one in hub.asked} <= {OWNER}


def test_its_metadata_is_what_a_space_needs(publish: Publish, hub: SpaceHub) -> None:
    assert publish("me/ropeconv").returncode == 0
    assert hub.private == set()
    said = metadata((hub.repos["me/ropeconv"] / "README.md").read_text())
    assert (said["sdk"], said["sdk_version"], said["app_file"]) == ("gradio", version("gradio"), "app.py")
    assert said["hf_oauth"] is True
    assert said["hf_oauth_scopes"] == SCOPES.split()[2:], "openid and profile are always among them"
    assert isinstance(said["python_version"], str)
    assert len(str(said["short_description"])) <= 60
    program = (hub.repos["me/ropeconv"] / "app.py").read_text()
    compile(program, "app.py", "exec")
    assert serve_space.__name__ in program


def test_a_second_publication_brings_it_up_to_date(publish: Publish, hub: SpaceHub) -> None:
    assert publish("me/ropeconv").returncode == 0
    place = hub.repos["me/ropeconv"]
    fresh = (place / "requirements.txt").read_text()
    (place / "requirements.txt").write_text("ropeconv[ui]==0.0.1\n")
    (place / "notes.md").write_text("my own")
    assert publish("me/ropeconv").returncode == 0
    assert (place / "requirements.txt").read_text() == fresh
    assert (place / "notes.md").read_text() == "my own"
    assert len([one for one in hub.asked if one.path == "/api/repos/create"]) == 1


@pytest.mark.parametrize("program", ["print('mine')\n", None])
def test_a_space_with_another_program_stays(program: str | None, publish: Publish, hub: SpaceHub) -> None:
    place = hub.repos["me/theirs"] = hub.root / "theirs"
    place.mkdir(parents=True)
    (place / "README.md").write_text("# Mine\n")
    if program:
        (place / "app.py").write_text(program)
    done = publish("me/theirs")
    assert done.returncode != 0
    assert "me/theirs is a Space with another program; choose another name" in done.stderr
    assert (place / "README.md").read_text() == "# Mine\n"
    assert not [one for one in hub.writes() if "/commit/" in one.path]


@pytest.mark.parametrize(
    "name", ["ropeconv", "me/", "me/a/b", "../x", "me/..", "", "me/a b", "https://hf.co/spaces/me/x"]
)
def test_a_name_that_is_none_is_refused(name: str, publish: Publish, hub: SpaceHub) -> None:
    done = publish(name, "--private")
    assert done.returncode == 2, done.stderr
    assert hub.asked == []


@pytest.mark.parametrize(("name", "token"), [("me/ropeconv", ""), ("anna/ropeconv", OWNER)])
def test_nothing_is_made_without_a_login_that_may(name: str, token: str, publish: Publish, hub: SpaceHub) -> None:
    done = publish(name, token=token)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert (hub.spaces, hub.messages) == ({}, [])
    assert "login" in done.stderr, done.stderr


def test_options_of_the_page_on_this_machine_do_not_go_with_it(publish: Publish, run: Run, hub: SpaceHub) -> None:
    for options in (("me/ropeconv", "--port", "8000"), ("me/ropeconv", "--no-browser")):
        done = publish(*options)
        assert done.returncode == 2
        assert "leave them out with --space" in done.stderr
    assert run("ui", "--private").returncode == 2
    assert json.dumps(hub.asked) == "[]"


def test_a_publication_that_was_stopped_is_completed(publish: Publish, hub: SpaceHub) -> None:
    hub.faults["commit"] = 1
    assert publish("me/half").returncode == 1
    assert {path.name for path in hub.repos["me/half"].iterdir()} == {".gitattributes"}
    done = publish("me/half")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in hub.repos["me/half"].iterdir()} == {*FILES, ".gitattributes"}


def test_a_public_space_does_not_become_private_unseen(publish: Publish) -> None:
    assert publish("me/open").returncode == 0
    done = publish("me/open", "--private")
    assert done.returncode == 1
    assert "me/open is there and public" in done.stderr
