"""The published program as a Space, with two visitors who have logins, and an owner whose login is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import hashes
from .space_hub import TOKENS, SpaceHub
from .space_program import Caller, Space, environment, text_of

MODEL = {"source": "them/llama", "method": "yarn", "value": "4"}
CLOSED = MODEL | {"source": "closed/llama"}
WEIGHTS = "model.safetensors"


@pytest.fixture
def both(running: Space) -> dict[str, Caller]:
    """anna and bert, signed in."""
    found = {name: Caller(running) for name in ("anna", "bert")}
    for name, caller in found.items():
        caller.login(name)
    return found


def test_two_visitors_publish_with_their_own_logins_at_the_same_time(
    both: dict[str, Caller], hub: SpaceHub, tiny: Callable[[str], Path]
) -> None:
    begun = len(hub.asked)
    for name, caller in both.items():
        assert caller.press("", "publish", **MODEL, repo_id=f"{name}/long").status_code == 200
    for name, caller in both.items():
        assert f"Published: {hub.url}/{name}/long/commit/" in text_of(caller.last())
        assert hashes(hub.repos[f"{name}/long"])[WEIGHTS] == hashes(tiny("llama"))[WEIGHTS]
        writes = [one for one in hub.writes() if f"/{name}/long" in one.path]
        assert {one.token for one in writes} == {TOKENS[name]}
        assert [one.path for one in writes if one.path.endswith("/commit/main")]
    made = [one.token for one in hub.asked[begun:] if one.path == "/api/repos/create"]
    assert sorted(made) == [TOKENS["anna"], TOKENS["bert"]]
    assert (hub.sent.get(WEIGHTS, 0), hub.stored, hub.received < 200_000) == (0, {}, True)


def test_what_one_visitor_may_read_no_other_sees_and_the_owners_login_is_never_used(
    both: dict[str, Caller], running: Space, hub: SpaceHub
) -> None:
    begun = len(hub.asked)
    for name, said in (("anna", "with --yarn 4"), ("bert", "The repository is gated: accept its terms on the Hub")):
        assert said in text_of(both[name].ask("", "plan", **CLOSED))
    assert "it is private" in text_of(Caller(running).ask("inspect", "ask", source="closed/llama"))
    asked = [one for one in hub.asked[begun:] if "closed/llama" in one.path]
    assert {one.token for one in asked} == {TOKENS["anna"], TOKENS["bert"], ""}
    assert not [token for token in TOKENS.values() if token in running.log]


@pytest.mark.parametrize("name", ["HF_TOKEN", ""], ids=["by its variable", "as it is stored"])
def test_the_owners_login_is_there(name: str, hub: SpaceHub, tmp_path: Path) -> None:
    known = {key: value for key, value in environment(hub, tmp_path, 0).items() if name or key != "HF_TOKEN"}
    call = [sys.executable, "-c", "import huggingface_hub as hub; print(hub.whoami()['name'])"]
    assert subprocess.run(call, env=known, capture_output=True, text=True, check=True).stdout.strip() == "me"


def test_a_visitor_publishes_nowhere_but_at_home(both: dict[str, Caller], hub: SpaceHub) -> None:
    assert "Published" in text_of(both["anna"].ask("", "publish", **MODEL, repo_id="anna/mine"))
    before = hashes(hub.repos["anna/mine"])
    for place in ("anna/other", "anna/mine"):
        assert "Published" not in text_of(both["bert"].ask("", "publish", **MODEL, repo_id=place))
    assert ("anna/other" in hub.repos, hashes(hub.repos["anna/mine"])) == (False, before)
