"""The pages in a real browser, at night: what they answer, what they keep, and how they are read."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

import httpx
import pytest

from ..conftest import hashes, run_in
from ..support.in_process import command
from ..support.waiting import until
from .conftest import Site
from .visitor import OtherServer, Visitor

pytestmark = pytest.mark.nightly
FORMS = {
    "": {"source": "model"},
    "compare": {"source": "model", "context": "256"},
    "runtimes": {"family": "llama", "runtime": "vllm"},
    "bake": {"source": "model", "method": "yarn", "value": "4"},
    "results": {"source": "baked"},
}
CUT = "const one = document.querySelector('#answer .answer'); return one.scrollWidth > one.clientWidth"
"""Whether a part of an answer is wider than it, which Gradio cuts off."""
ASKED = "return performance.getEntriesByType('resource').map((e) => e.name)"
IDS = "return [...document.querySelectorAll('#answer [id]')].map((e) => e.id)"
ROWS = "return [...document.querySelectorAll('#answer tbody tr')].map((e) => e.textContent)"
OF_GRADIO = ("an id stands twice", "there is a script", "a svg has no name")
"""What Gradio's own elements have, and our answers do not: a test below looks at these alone."""


@pytest.fixture(scope="module", autouse=True)
def baked(site: Site) -> None:
    command(site.folder, "apply", "model", "--yarn", "4", "-o", "baked", "-q", code=0)
    command(site.folder, "validate", "baked", "--against", "model", "--quick", code=0)


def test_inspect_reads_the_hub_and_says_errors_in_a_sentence(visitor: Visitor) -> None:
    visitor.open("", source="them/llama")
    assert "them/llama" in visitor.answer()
    visitor.open("", source="them/nothing")
    assert visitor.answer() == "there is no such repository, or it is private: check the id, then `hf auth login`."
    assert visitor.all("#answer [role=alert]")


def test_compare_leads_to_the_plan_of_a_method(visitor: Visitor) -> None:
    visitor.open("compare")
    visitor.type("source", "model")
    visitor.type("context", "4")
    assert "model at 256 tokens" in visitor.ask("ask")  # four times the trained 64
    assert len(visitor.all("#answer figure svg")) == 4
    assert visitor.address() == {"source": "model", "context": "4"}
    next(one for one in visitor.all("#answer .ways a") if one.text == "--by-parts 4").click()
    said = visitor.answer()
    assert ("model -> model-by-parts4" in said, "ropeconv apply model --by-parts 4" in said) == (True, True)


def test_runtimes_shows_letters_and_with_a_family_every_cell_with_its_evidence(visitor: Visitor) -> None:
    visitor.open("runtimes")
    assert "T a new base" in visitor.answer()
    visitor.choose("family", "qwen3")
    visitor.choose("runtime", "vllm")
    until(lambda: "What runtimes compute of qwen3" in visitor.first("#answer").text, "the family")
    until(lambda: visitor.address() == {"family": "qwen3", "runtime": "vllm"}, "the address")
    rows = until(lambda: [one for one in visitor.driver.execute_script(ROWS) if "0.33" in one], "the runtime")
    assert any("run 0.33" in row and "exact" in row for row in rows)
    assert all("vLLM" in row for row in visitor.driver.execute_script(ROWS))


def test_a_bake_writes_what_its_command_line_writes(visitor: Visitor, site: Site) -> None:
    visitor.open("bake", source="model", method="mixed", value="4", out="by-page")
    assert "model -> by-page" in visitor.answer()
    assert not (site.folder / "by-page").exists()
    assert "Wrote by-page" in visitor.ask("write")
    words = shlex.split(next(one.text for one in visitor.all("#answer pre") if one.text.startswith("ropeconv apply")))
    assert words[1:] == ["apply", "model", "--mixed", "4", "-o", "by-page"]
    assert run_in(site.folder, *words[1:-1], "by-command").returncode == 0
    assert hashes(site.folder / "by-page") == hashes(site.folder / "by-command")


def test_a_refused_recipe_is_a_sentence_and_writes_nothing(visitor: Visitor, site: Site) -> None:
    for typed, sentence in (
        ({"method": "yarn", "value": "0.5"}, "must be a number of at least 1"),
        ({"method": "yarn", "value": "4", "settings": "log_n=full", "runtimes": "vllm"}, "cannot be baked"),
        ({"method": "", "value": "4"}, "no method is chosen"),
    ):
        visitor.open("bake", source="model", out="refused", **typed)
        if typed["method"]:
            visitor.answer()  # its plan, at once
        assert sentence in visitor.ask("write"), typed
    assert not list(site.folder.glob("*refused*"))


def test_a_publication_is_planned_and_then_made(visitor: Visitor, site: Site) -> None:
    visitor.open("bake", source="them/llama", method="yarn", value="4", repo_id="me/llama-yarn")
    said = visitor.answer()
    assert ("Repository me/llama-yarn (new, public)" in said, "copied from them/llama" in said) == (True, True)
    assert "me/llama-yarn" not in site.hub.repos
    said = visitor.ask("publish")
    assert f"Published: {site.hub.url}/me/llama-yarn/commit/" in said
    assert "--push me/llama-yarn" in said
    assert visitor.first("#answer a[target=_blank]").get_attribute("rel") == "noopener noreferrer"
    assert '"yarn"' in (site.hub.repos["me/llama-yarn"] / "config.json").read_text()
    assert site.hub.sent.get("model.safetensors", 0) < 100_000  # headers alone


@pytest.mark.parametrize("page", FORMS)
def test_pages_are_read_at_both_widths_in_both_schemes(visitor: Visitor, page: str) -> None:
    for width, scheme in ((1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")):
        visitor.look(width, scheme)
        visitor.open(page, **FORMS[page])
        visitor.answer()
        found = [one for one in visitor.browser.problems() if one not in OF_GRADIO]
        assert (found, visitor.driver.execute_script(CUT)) == ([], False), (width, scheme)
        contrast, where = visitor.browser.contrast()
        assert contrast >= 4.5, (width, scheme, where)
    visitor.look()


def test_the_checks_of_pages_see_what_is_wrong(visitor: Visitor) -> None:
    visitor.look(400, "light")
    visitor.open("", source="model")
    visitor.answer()
    wrong = "<div style='width: 900px'>wide</div><p style='font-size: 8px; color: #ccc'>faint</p><h6>deep</h6>"
    visitor.driver.execute_script("document.querySelector('#answer .answer').innerHTML += arguments[0]", wrong)
    said = "\n".join(visitor.browser.problems())
    assert visitor.driver.execute_script(CUT)
    assert ('"faint" is 8.0 px' in said, "is of level 6" in said) == (True, True)
    assert visitor.browser.contrast()[0] < 2
    visitor.look()


def test_answers_have_unique_names_and_no_scripts_and_ask_no_other_server(visitor: Visitor) -> None:
    visitor.open("compare", source="model", context="256")
    visitor.answer()
    ids = visitor.driver.execute_script(IDS)
    assert len(ids) == len(set(ids))
    assert visitor.all("#answer script") == []
    names = [one.get_attribute("aria-labelledby") for one in visitor.all("#answer svg")]
    assert all(visitor.first(f'[id="{name}"]').get_attribute("textContent") for name in names)
    asked = visitor.driver.execute_script(ASKED)
    assert asked
    assert [one for one in asked if not one.startswith((f"{visitor.origin}/", "data:"))] == []


def test_a_command_is_copied(visitor: Visitor) -> None:
    granted = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": visitor.origin}
    visitor.driver.execute_cdp_cmd("Browser.grantPermissions", granted)
    visitor.open("bake", source="model", method="yarn", value="4")
    visitor.answer()
    visitor.all("#answer button.copy")[-1].click()
    until(lambda: visitor.all("#answer button.copy")[-1].text == "Copied", "the word")
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done)"
    assert visitor.driver.execute_async_script(read) == "ropeconv apply model --yarn 4"


def test_a_server_on_another_port_receives_no_cookie(visitor: Visitor, other: OtherServer) -> None:
    visitor.open("", source="model")
    visitor.answer()
    for host in ("127.0.0.1", "localhost"):
        for path in ("", "gradio_api/queue/data"):
            visitor.driver.get(f"http://{host}:{other.server_port}/{path}")
    visitor.open("")  # the browser still has the cookie
    visitor.driver.execute_script("window.location = arguments[0]", f"http://127.0.0.1:{other.server_port}/by-a-link")
    until(lambda: [one for one in other.asked if one[0] == "/by-a-link"], "the request")
    cookies = [cookie for _, cookie, _ in other.asked]
    assert "of=another-program" in cookies, "cookies of this host are sent to every port of it"
    assert not [one for one in cookies if "ropeconv" in one], other.asked
    assert {referrer for path, _, referrer in other.asked if path == "/by-a-link"} == {""}
    assert any(referrer for _, _, referrer in other.asked), "pages without that policy tell it"


FORGED = (
    {"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example:{port}"}, {"Origin": "null"}, {"Origin": "file://"},
    {"Origin": "http://localhost:{port}"}, {"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
)  # fmt: skip
ROUTES = [
    *(("GET", path) for path in ("", "bake", "config", "gradio_api/info", "theme.css", "gradio_api/queue/data")),
    *(("POST", f"gradio_api/{path}") for path in ("queue/join", "upload", "run/predict", "cancel", "reset")),
]


def test_with_the_cookie_too_other_hosts_and_origins_are_refused_on_every_route(visitor: Visitor, site: Site) -> None:
    visitor.open("")
    (kept,) = [one for one in visitor.driver.get_cookies() if one["name"].startswith("ropeconv-")]
    port = urlsplit(visitor.site).port
    assert kept["name"] == f"ropeconv-{port}"
    assert (kept["httpOnly"], kept["sameSite"], kept["path"]) == (True, "Strict", urlsplit(visitor.site).path)
    assert kept["value"] not in site.address, "the cookie is unlike the key"
    with httpx.Client(timeout=60) as http:
        for method, path in ROUTES:
            own = {"Origin": visitor.origin} if method == "POST" else {}
            place, known = f"{visitor.site}/{path}", own | {"Cookie": f"{kept['name']}={kept['value']}"}
            assert http.request(method, place, headers=known).status_code not in (401, 403), path
            assert http.request(method, place, headers=own).status_code == 401, path
            assert http.request(method, f"{visitor.origin}/{path}", headers=known).status_code == 401, path
            for forged in FORGED:
                sent = known | {name: text.format(port=port) for name, text in forged.items()}
                for verb, more in ((method, {}), ("OPTIONS", {"Access-Control-Request-Method": method})):
                    found = http.request(verb, place, headers=sent | more)
                    allowed = [name for name in found.headers if name.startswith("access-control")]
                    assert (found.status_code, allowed) == (403, []), (verb, path, forged)
