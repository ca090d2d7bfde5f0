"""Requests of a Space that end early: by their visitor, by its limits, and with the Space. Nothing of them stays."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.ui.app import BUSY
from ropeconv.ui.rules import SPACE

from ..support.waiting import until
from .space_hub import SpaceHub
from .space_program import Caller, Space, space, text_of
from .test_stopping import workers

pytestmark = pytest.mark.nightly
MODEL = {"source": "them/llama", "method": "yarn", "value": "4"}
READ = "Who reads it right as it is"
SLOW = "/them/shout/resolve/main/config.json"
SECONDS = 15


@pytest.fixture(scope="module")
def heavy(hub: SpaceHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    """A Space whose owner lets weights through."""
    with space(hub, tmp_path_factory.mktemp("heavy"), "weights=True") as found:
        yield found


@pytest.fixture(scope="module")
def hurried(hub: SpaceHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    """A Space with little time."""
    with space(hub, tmp_path_factory.mktemp("hurried"), f"minutes={SECONDS / 60}") as found:
        yield found


@pytest.fixture
def held(hub: SpaceHub) -> Iterator[SpaceHub]:
    """The Hub, which takes commits only later."""
    hub.committing.clear()
    yield hub
    hub.committing.set()


def begun(found: Space, hub: SpaceHub, repo_id: str, session: str = "") -> Caller:
    """A visitor in the middle of a publication."""
    assert len(found.scratch()) == 1, "that of the Space itself"
    caller = Caller(found, session=session) if session else Caller(found)
    caller.login("anna")
    assert caller.press("bake", "publish", **MODEL, repo_id=repo_id).status_code == 200
    until(lambda: [one for one in hub.asked if one.path.startswith(f"/api/models/{repo_id}/commit")], "the commit")
    assert repo_id in hub.repos
    assert len(found.scratch()) > 1
    assert workers(found.process.pid)
    return caller


def gone(found: Space, hub: SpaceHub, repo_id: str) -> None:
    until(lambda: not workers(found.process.pid), "the end of the process")
    assert (len(found.scratch()), repo_id in hub.repos) == (1, False)


def test_its_visitor_cancels_a_publication_and_nobody_else_does(heavy: Space, held: SpaceHub) -> None:
    caller = begun(heavy, held, "anna/cancelled")
    assert Caller(heavy).press("bake", "cancel").status_code == 200
    assert workers(heavy.process.pid)
    assert Caller(heavy, session=caller.session).press("bake", "cancel").status_code == 200
    assert "cancelled: nothing was kept" in text_of(caller.last())
    gone(heavy, held, "anna/cancelled")
    assert held.deleted == ["anna/cancelled"]
    assert {one.token for one in held.asked if one.method == "DELETE"} == {"hf_anna"}


def test_a_page_that_is_closed_leaves_no_repository(heavy: Space, held: SpaceHub) -> None:
    session = Caller(heavy).session
    with Caller(heavy).http.stream("GET", f"/gradio_api/heartbeat/{session}") as alive:
        beats = alive.iter_lines()  # with it, the connection would end
        assert next(beats) == "data: ALIVE"
        begun(heavy, held, "anna/closed", session)
    gone(heavy, held, "anna/closed")


def test_what_takes_too_long_leaves_no_repository(hurried: Space, held: SpaceHub) -> None:
    caller = begun(hurried, held, "anna/late")
    assert f"this takes longer than the {SECONDS} seconds that it may here" in text_of(caller.last())
    gone(hurried, held, "anna/late")


def test_a_visitor_with_many_slow_pages_leaves_room_for_others(heavy: Space, hub: SpaceHub) -> None:
    hub.drips.add(SLOW)
    network = "2001:db8:1:2"
    pages = [Caller(heavy, network=f"{network}::{number}") for number in range(SPACE.of_visitor or 0)]
    slow = {"source": "them/shout"}
    assert [one.press("", "ask", **slow).status_code for one in pages] == [200] * len(pages)
    refused = Caller(heavy, network=f"{network}::99").press("", "ask", **slow)
    assert (refused.status_code, refused.json()["detail"]) == (503, BUSY % len(pages))
    another = Caller(heavy, network="2001:db8:1:3::1")
    assert another.press("", "ask", source="them/llama").status_code == 200
    hub.drips.clear()
    assert READ in another.last()
    until(lambda: not workers(heavy.process.pid), "the end of the requests")
    assert Caller(heavy, network=f"{network}::99").press("", "ask", source="them/llama").status_code == 200


def test_an_owner_lets_weights_through(heavy: Space, hub: SpaceHub) -> None:
    caller = Caller(heavy)
    caller.login("anna")
    answer = text_of(caller.ask("bake", "publish", **MODEL, encoding="weights", repo_id="anna/heavy"))
    assert "Published" in answer, answer
    assert (hub.repos["anna/heavy"] / "model.safetensors").is_file()


def test_with_the_space_its_requests_end(hub: SpaceHub, held: SpaceHub, tmp_path: Path) -> None:
    with space(hub, tmp_path / "space") as found:
        begun(found, held, "anna/killed")
        running = workers(found.process.pid)
        found.process.send_signal(signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in running), "the end of the process")
        assert "anna/killed" not in hub.repos
        assert len(found.scratch()) == 1, "that of the Space, which the next run of anything removes"
