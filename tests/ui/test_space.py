"""The published program as a Space, with two visitors in browsers of their own, and an owner whose login is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropeconv.ui.pages.login import SIGN_IN

from ..conftest import hashes
from ..support.browser import browser
from ..support.waiting import until
from .space_fixtures import SHOUT, hub, running
from .space_hub import TOKENS, SpaceHub
from .space_program import Space, environment
from .visitor import Visitor

__all__ = ["hub", "running"]
MODEL = {"source": "them/llama", "method": "yarn", "value": "4"}
WEIGHTS = "model.safetensors"


def signed_in(space: Space, profile: Path, name: str) -> Iterator[Visitor]:
    with browser(profile) as opened:
        visitor = Visitor(opened, f"{space.address}/?")
        visitor.open("bake")
        sign_in(visitor, name)
        yield visitor


def sign_in(visitor: Visitor, name: str) -> None:
    press(visitor, SIGN_IN)
    until(lambda: visitor.all(f"a#{name}"), "the page of the provider")[0].click()
    see(visitor, f"Sign out ({name})")


PRESS = """
const found = [...document.querySelectorAll("button")].find((one) => one.textContent.includes(arguments[0]));
if (found && arguments[1]) found.click();
return Boolean(found);
"""


def press(visitor: Visitor, words: str) -> None:
    """Presses a button by its words, as soon as it has them."""
    until(lambda: visitor.driver.execute_script(PRESS, words, True), words)


def see(visitor: Visitor, words: str) -> None:
    """Waits for the words of a button."""
    until(lambda: visitor.driver.execute_script(PRESS, words, False), words)


@pytest.fixture(scope="module")
def anna(running: Space, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    yield from signed_in(running, tmp_path_factory.mktemp("anna"), "anna")


@pytest.fixture(scope="module")
def bert(running: Space, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    yield from signed_in(running, tmp_path_factory.mktemp("bert"), "bert")


def test_two_visitors_publish_with_their_own_logins_at_the_same_time(
    anna: Visitor, bert: Visitor, hub: SpaceHub, tiny: Callable[[str], Path]
) -> None:
    both = {"anna": anna, "bert": bert}
    for name, visitor in both.items():
        visitor.open("bake", **MODEL, repo_id=f"{name}/long")
        assert f"{name}/long" in visitor.answer()
    begun = len(hub.asked)
    for visitor in both.values():
        visitor.press("publish")
    for name, visitor in both.items():
        assert f"Published: {hub.url}/{name}/long/commit/" in visitor.answer()
        other = next(one for one in both if one != name)
        assert f"{other}/long" not in visitor.driver.page_source
    source = hashes(tiny("llama"))[WEIGHTS]
    for name in both:
        assert hashes(hub.repos[f"{name}/long"])[WEIGHTS] == source
        writes = [one for one in hub.writes() if f"/{name}/long" in one.path]
        assert {one.token for one in writes} == {TOKENS[name]}
        assert [one.path for one in writes if one.path.endswith("/commit/main")]
    made = [one.token for one in hub.asked[begun:] if one.path == "/api/repos/create"]
    assert sorted(made) == [TOKENS["anna"], TOKENS["bert"]]
    assert (hub.sent.get(WEIGHTS, 0), hub.stored) == (0, {})
    assert hub.received < 200_000


def test_what_one_visitor_may_read_no_other_sees(anna: Visitor, bert: Visitor, hub: SpaceHub) -> None:
    anna.open("", source="closed/llama")
    assert "closed/llama" in anna.answer()
    begun = len(hub.asked)
    bert.open("", source="closed/llama")
    assert (
        bert.answer() == "the repository is gated: accept its terms on the Hub, then sign in on "
        "the page Bake with a login that may do it."
    )
    anna.open("bake", source="closed/llama", method="yarn", value="4")
    assert "llama-yarn4" in anna.answer()
    bert.open("bake", source="closed/llama", method="yarn", value="4")
    assert "repository is gated" in bert.answer()
    asked = [one for one in hub.asked[begun:] if "closed/llama" in one.path]
    assert {one.token for one in asked} == {TOKENS["anna"], TOKENS["bert"]}


def test_a_visitor_publishes_nowhere_but_at_home(bert: Visitor, hub: SpaceHub) -> None:
    before = hashes(hub.repos["anna/long"]) if "anna/long" in hub.repos else {}
    for place in ("anna/other", "anna/long"):
        bert.open("bake", **MODEL, repo_id=place)
        bert.answer()
        assert "Published" not in bert.ask("publish")
    assert "anna/other" not in hub.repos
    assert (hashes(hub.repos["anna/long"]) if "anna/long" in hub.repos else {}) == before


def test_markup_of_a_model_is_text(anna: Visitor, bert: Visitor, hub: SpaceHub) -> None:
    from urllib.parse import urlencode

    pages = [
        ("", {"source": SHOUT}), ("", {"source": "them/shout"}), ("compare", {"source": "them/shout", "context": "4"}),
        ("compare", {"source": "them/llama", "context": SHOUT}), ("results", {"source": SHOUT}),
        ("bake", {"source": "them/shout", "method": "yarn", "value": SHOUT}),
        ("bake", {"source": "them/shout", "method": "yarn", "value": "4", "settings": SHOUT, "encoding": SHOUT}),
        ("bake", {"source": "them/shout", "method": "yarn", "value": "4", "repo_id": "anna/shout"}),
        ("bake", {"source": "them/shout", "method": "yarn", "value": "4", "repo_id": SHOUT}),
    ]  # fmt: skip
    said = []
    for page, typed in pages:
        anna.driver.get(f"{anna.site}/{page}?{urlencode(typed)}")
        said.append(anna.answer())
        assert not anna.all("#answer img, #answer script"), (page, typed)
        assert anna.driver.title == "ropeconv", (page, typed)
    assert sum("<img" in one for one in said) >= 5
    assert "<img" in said[7], "the card is shown with the licence of the source"
    anna.driver.execute_script("document.querySelector('#answer').innerHTML = arguments[0]", SHOUT)
    until(lambda: anna.driver.title == "executed", "what a page that took it for markup would do")


def test_a_visitor_who_signs_out_is_nobody_and_keeps_what_was_typed(bert: Visitor, hub: SpaceHub) -> None:
    typed = {**MODEL, "repo_id": "bert/out"}
    bert.open("bake", **typed)
    bert.answer()
    press(bert, "Sign out (bert)")
    see(bert, SIGN_IN)
    bert.answer()
    assert bert.address() == typed
    assert bert.ask("publish").startswith("nobody is signed in; sign in with Hugging Face first")
    assert "bert/out" not in hub.repos
    sign_in(bert, "bert")
    assert bert.address() == typed
    assert "bert/out" in bert.answer()


def test_the_owners_login_is_there_and_never_used(
    anna: Visitor, bert: Visitor, running: Space, hub: SpaceHub, tmp_path: Path
) -> None:
    for visitor in (anna, bert):
        visitor.open("", source="closed/llama")
        visitor.answer()
    seen = {one.token for one in hub.asked if not one.token.startswith("Basic ")}
    assert seen == {"", TOKENS["anna"], TOKENS["bert"]}
    assert not [token for token in TOKENS.values() if token in running.log]
    for name in ("HF_TOKEN", ""):  # by its variable, and as it is stored
        folder = tmp_path / (name or "stored")
        folder.mkdir()
        known = {key: value for key, value in environment(hub, folder, 0).items() if name or key != "HF_TOKEN"}
        call = [sys.executable, "-c", "import huggingface_hub as hub; print(hub.whoami()['name'])"]
        done = subprocess.run(call, env=known, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "me"
