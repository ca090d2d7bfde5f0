"""A visitor of a Space with many slow pages: others are answered all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ropeconv.ui.app import BUSY
from ropeconv.ui.rules import SPACE

from ..support.waiting import until
from .space_hub import SpaceHub
from .space_program import Caller, Space, space
from .test_stopping import workers

pytestmark = pytest.mark.nightly
READ = "supported"
SLOW = "/them/slow/resolve/main/config.json"


@pytest.fixture(scope="module")
def heavy(hub: SpaceHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    """A Space whose owner lets weights through."""
    with space(hub, tmp_path_factory.mktemp("heavy"), "weights=True") as found:
        yield found


def test_a_visitor_with_many_slow_pages_leaves_room_for_others(heavy: Space, hub: SpaceHub) -> None:
    hub.drips.add(SLOW)
    network = "2001:db8:1:2"
    pages = [Caller(heavy, network=f"{network}::{number}") for number in range(SPACE.of_visitor or 0)]
    slow = {"source": "them/slow"}
    assert [one.press("inspect", "ask", **slow).status_code for one in pages] == [200] * len(pages)
    refused = Caller(heavy, network=f"{network}::99").press("inspect", "ask", **slow)
    assert (refused.status_code, refused.json()["detail"]) == (503, BUSY % len(pages))
    another = Caller(heavy, network="2001:db8:1:3::1")
    assert another.press("inspect", "ask", source="them/llama").status_code == 200
    hub.drips.clear()
    assert READ in another.last()
    until(lambda: not workers(heavy.process.pid), "the end of the requests")
    assert Caller(heavy, network=f"{network}::99").press("inspect", "ask", source="them/llama").status_code == 200
