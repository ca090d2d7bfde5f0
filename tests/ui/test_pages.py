"""The pages in a real browser: what they answer, what they keep, and how they are read."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from ..conftest import hashes, run_in
from ..support.waiting import until
from .conftest import Site
from .visitor import OtherServer, Visitor

FORMS = {
    "": {"source": "model"},
    "compare": {"source": "model", "context": "256"},
    "runtimes": {"family": "llama", "runtime": "vllm"},
    "bake": {"source": "model", "method": "yarn", "value": "4"},
    "results": {"source": "baked"},
}
ASK = """
const [address, options, done] = arguments;
fetch(address, options).then(async (one) => done(`${one.status} ${await one.text()}`), (error) => done(`${error}`));
"""
JOIN = '{"fn_index": 0, "data": [], "session_hash": "x"}'
CUT = "const one = document.querySelector('#answer .answer'); return one.scrollWidth > one.clientWidth"
"""Whether a part of an answer is wider than it, which Gradio cuts off."""
OF_GRADIO = ("an id stands twice", "there is a script", "a svg has no name")
"""What Gradio's own elements have, and our answers do not: a test below looks at these alone."""


@pytest.fixture(scope="module", autouse=True)
def baked(site: Site) -> None:
    done = run_in(site.folder, "apply", "model", "--yarn", "4", "-o", "baked", "-q")
    assert done.returncode == 0, done.stderr
    done = run_in(site.folder, "validate", "baked", "--against", "model", "--quick")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def other() -> Iterator[OtherServer]:
    with OtherServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_inspect_answers_a_name_by_keyboard_and_keeps_it(visitor: Visitor) -> None:
    visitor.open("")
    visitor.type("source", "model\n")
    said = visitor.answer()
    assert "rope_theta is absent" in said or "default, theta" in said
    assert "Who reads it right as it is" in said
    assert visitor.address() == {"source": "model"}
    visitor.open("", source="model")
    assert visitor.answer() == said
    assert visitor.field("source").get_attribute("value") == "model"


def test_inspect_reads_the_hub_and_says_errors_in_a_sentence(visitor: Visitor) -> None:
    visitor.open("", source="them/llama")
    assert "them/llama" in visitor.answer()
    visitor.open("", source="them/nothing")
    assert visitor.answer() == ("there is no such repository, or it is private: check the id, then `hf auth login`.")
    assert visitor.all("#answer [role=alert]")


def test_compare_leads_to_the_plan_of_a_method(visitor: Visitor) -> None:
    visitor.open("compare")
    visitor.type("source", "model")
    visitor.type("context", "4")
    said = visitor.ask("ask")
    assert "model at 256 tokens" in said  # four times the trained 64
    assert len(visitor.all("#answer figure svg")) == 4
    assert visitor.address() == {"source": "model", "context": "4"}
    next(one for one in visitor.all("#answer .ways a") if one.text == "--by-parts 4").click()
    said = visitor.answer()
    assert "model -> model-by-parts4" in said
    assert "ropeconv apply model --by-parts 4" in said


def test_runtimes_shows_letters_and_with_a_family_every_cell_with_its_evidence(visitor: Visitor) -> None:
    visitor.open("runtimes")
    assert "T a new base" in visitor.answer()
    visitor.choose("family", "qwen3")
    visitor.choose("runtime", "vllm")
    until(lambda: "What runtimes compute of qwen3" in visitor.all("#answer")[0].text, "the family")
    until(lambda: visitor.address() == {"family": "qwen3", "runtime": "vllm"}, "the address")
    text = "return [...document.querySelectorAll('#answer tbody tr')].map((e) => e.textContent)"
    rows = until(lambda: [one for one in visitor.driver.execute_script(text) if "0.33" in one], "the runtime")
    assert any("run 0.33" in row and "exact" in row for row in rows)
    assert all("vLLM" in row for row in visitor.driver.execute_script(text))


def test_a_bake_writes_what_its_command_line_writes(visitor: Visitor, site: Site) -> None:
    visitor.open("bake", source="model", method="mixed", value="4", out="by-page")
    said = visitor.answer()
    assert "model -> by-page" in said
    assert not (site.folder / "by-page").exists()
    said = visitor.ask("write")
    assert "Wrote by-page" in said
    command = next(one.text for one in visitor.all("#answer pre") if one.text.startswith("ropeconv apply"))
    words = shlex.split(command)[1:]
    assert words == ["apply", "model", "--mixed", "4", "-o", "by-page"]
    assert run_in(site.folder, *words[:-1], "by-command").returncode == 0
    ours, theirs = hashes(site.folder / "by-page"), hashes(site.folder / "by-command")
    assert ours == theirs


def test_a_refused_recipe_is_a_sentence_and_writes_nothing(visitor: Visitor, site: Site) -> None:
    for typed, sentence in (
        ({"method": "yarn", "value": "0.5"}, "must be a number of at least 1"),
        ({"method": "yarn", "value": "4", "settings": "beta_quick=1"}, "beta_quick, which yarn does not take"),
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
    assert "Repository me/llama-yarn (new, public)" in said
    assert "copied from them/llama" in said
    assert "me/llama-yarn" not in site.hub.repos
    said = visitor.ask("publish")
    assert f"Published: {site.hub.url}/me/llama-yarn/commit/" in said
    assert "--push me/llama-yarn" in said
    link = visitor.all("#answer a[target=_blank]")[0]
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert '"yarn"' in (site.hub.repos["me/llama-yarn"] / "config.json").read_text()
    assert site.hub.sent.get("model.safetensors", 0) < 100_000  # headers alone


def test_results_show_receipt_validation_and_pictures(visitor: Visitor) -> None:
    visitor.open("results", source="baked")
    said = visitor.answer()
    assert "ropeconv apply model --yarn 4" in said
    assert "agrees" in said.lower()
    assert len(visitor.all("#answer figure svg")) >= 3
    visitor.open("results", source="model")
    assert "model has no ropeconv.json, so it is not an output of ropeconv" in visitor.answer()


def test_a_dropped_config_is_inspected_under_its_own_name(visitor: Visitor, site: Site) -> None:
    visitor.open("")
    visitor.all("button.label-wrap")[0].click()
    visitor.driver.find_element("css selector", "#upload input[type=file]").send_keys(
        str(site.folder / "model" / "config.json")
    )
    until(lambda: "config.json" in visitor.all("#upload")[0].text, "the upload")
    said = visitor.ask("ask")
    assert said.splitlines()[0] == "config.json"
    assert str(site.folder) not in said


@pytest.mark.parametrize("page", FORMS)
def test_pages_are_read_at_both_widths_in_both_schemes(visitor: Visitor, page: str) -> None:
    for width in (1280, 400):
        for scheme in ("light", "dark"):
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
    assert '"faint" is 8.0 px' in said
    assert "is of level 6" in said
    assert visitor.browser.contrast()[0] < 2
    visitor.look()


def test_answers_have_unique_names_and_no_scripts(visitor: Visitor) -> None:
    visitor.open("compare", source="model", context="256")
    visitor.answer()
    counted = "const ids = [...document.querySelectorAll('#answer [id]')].map((e) => e.id);"
    assert visitor.driver.execute_script(f"{counted} return ids.length - new Set(ids).size;") == 0
    assert visitor.all("#answer script") == []
    names = visitor.driver.execute_script(
        "return [...document.querySelectorAll('#answer svg')].map((e) => "
        "document.getElementById(e.getAttribute('aria-labelledby')).textContent)"
    )
    assert all(names)


def test_nothing_is_asked_of_another_server(visitor: Visitor) -> None:
    visitor.open("compare", source="model", context="256")
    visitor.answer()
    asked = visitor.driver.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert asked
    assert [one for one in asked if not one.startswith((f"{visitor.origin}/", "data:"))] == []


def test_a_command_is_copied(visitor: Visitor) -> None:
    visitor.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": visitor.origin},
    )
    visitor.open("bake", source="model", method="yarn", value="4")
    visitor.answer()
    visitor.all("#answer button.copy")[-1].click()
    until(lambda: visitor.all("#answer button.copy")[-1].text == "Copied", "the word")
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done)"
    assert visitor.driver.execute_async_script(read) == "ropeconv apply model --yarn 4"


def test_without_the_key_nothing_is_shown(site: Site, tmp_path: Path) -> None:
    import urllib.error
    import urllib.request

    bare = site.address.split("?")[0]
    paths = ("", "bake", "config", "gradio_api/info", "gradio_api/upload", "?key=wrong", "manifest.json")
    for path in paths:
        with pytest.raises(urllib.error.HTTPError) as answered:
            urllib.request.urlopen(bare + path)
        assert answered.value.code == 401


def test_a_server_on_another_port_receives_no_cookie(visitor: Visitor, other: OtherServer) -> None:
    visitor.open("", source="model")
    visitor.answer()
    for host in ("127.0.0.1", "localhost"):
        for path in ("", "compare", "gradio_api/queue/data", "config"):
            visitor.driver.get(f"http://{host}:{other.server_port}/{path}")
    visitor.open("")
    assert visitor.all("main"), "the browser still has the cookie"
    visitor.driver.execute_script("window.location = arguments[0]", f"http://127.0.0.1:{other.server_port}/by-a-link")
    until(lambda: [one for one in other.asked if one[0] == "/by-a-link"], "the request")
    cookies = [cookie for _, cookie, _ in other.asked]
    assert "of=another-program" in cookies, "cookies of this host are sent to every port of it"
    assert not [one for one in cookies if "ropeconv" in one], other.asked
    assert {referrer for path, _, referrer in other.asked if path == "/by-a-link"} == {""}
    assert any(referrer for _, _, referrer in other.asked), "pages without that policy tell it"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_on_another_port_reads_nothing_even_where_it_knows_the_address(
    host: str, visitor: Visitor, other: OtherServer
) -> None:
    requests = [
        ("config", {"credentials": "include"}),
        ("gradio_api/info", {"credentials": "include", "headers": {"X-Forwarded-Host": "a"}}),
        ("gradio_api/queue/join", {"method": "POST", "credentials": "include", "body": JOIN,
                                   "headers": {"Content-Type": "application/json"}}),
        ("gradio_api/upload", {"method": "POST", "credentials": "include", "body": "x"}),
    ]  # fmt: skip
    ask = visitor.driver.execute_async_script
    visitor.open("")
    assert ask(ASK, f"{visitor.site}/config", {"credentials": "include"}).startswith("200 {"), "as the page itself"
    visitor.driver.get(f"http://{host}:{other.server_port}/")
    for path, options in requests:
        assert ask(ASK, f"{visitor.site}/{path}", options) == "TypeError: Failed to fetch", path


FORGED = (
    {"Host": "evil.example"}, {"Host": "evil.example:{port}"}, {"Host": "127.0.0.1.evil.example:{port}"},
    {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Origin": "http://localhost:{port}"},
    {"Origin": "http://127.0.0.1:1"}, {"Origin": "file://"}, {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
)  # fmt: skip


def test_with_the_cookie_too_other_hosts_and_origins_are_refused_on_every_route(visitor: Visitor, site: Site) -> None:
    visitor.open("")
    (kept,) = [one for one in visitor.driver.get_cookies() if one["name"].startswith("ropeconv-")]
    port = urlsplit(visitor.site).port
    cookie = {"Cookie": f"{kept['name']}={kept['value']}"}
    assert kept["name"] == f"ropeconv-{port}"
    assert (kept["httpOnly"], kept["sameSite"], kept["path"]) == (True, "Strict", urlsplit(visitor.site).path)
    assert kept["value"] not in site.address, "the cookie is unlike the key"
    own = {"Origin": visitor.origin}
    routes = [
        ("GET", path, {}) for path in ("", "bake", "config", "gradio_api/info", "theme.css", "gradio_api/queue/data")
    ]
    routes += [
        ("POST", f"gradio_api/{path}", own) for path in ("queue/join", "upload", "run/predict", "cancel", "reset")
    ]
    with httpx.Client(timeout=60) as http:
        for method, path, headers in routes:
            place, known = f"{visitor.site}/{path}", cookie | headers
            assert http.request(method, place, headers=known).status_code not in (401, 403), path
            assert http.request(method, place, headers=headers).status_code == 401, path
            assert http.request(method, f"{visitor.origin}/{path}", headers=known).status_code == 401, path
            for forged in FORGED:
                sent = known | {name: text.format(port=port) for name, text in forged.items()}
                preflight = sent | {"Access-Control-Request-Method": method}
                for found in (
                    http.request(method, place, headers=sent),
                    http.request("OPTIONS", place, headers=preflight),
                ):
                    assert found.status_code == 403, (path, forged)
                    assert not [name for name in found.headers if name.startswith("access-control")], (path, forged)
    assert httpx.post(f"{visitor.site}/gradio_api/queue/join", headers=cookie).status_code == 403, "without an origin"
