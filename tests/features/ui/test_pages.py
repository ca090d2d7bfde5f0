"""The pages in a real browser, at night: what they answer, what they keep, and how they are
read.
"""

import shlex
from urllib.parse import urlsplit

import httpx
import pytest

from ...conftest import hashes, run_in
from ...support.in_process import command
from ...support.waiting import until
from .conftest import Site
from .visitor import Visitor

pytestmark = pytest.mark.nightly
FORMS = {
    "": {"source": "model", "context": "4"},
    "inspect": {"source": "model"},
    "compare": {"source": "model", "context": "256"},
    "runtimes": {"family": "llama", "runtime": "vllm"},
    "results": {"source": "baked"},
}
CUT = (
    "const one = document.querySelector('#answer .answer'); return one.scrollWidth >"
    " one.clientWidth"
)
"""Whether a part of an answer is wider than it, which Gradio cuts off."""
OF_GRADIO = ("an id stands twice", "there is a script", "a svg has no name")
"""What Gradio's own elements have, and our answers do not: a test below looks at these alone."""


@pytest.fixture(scope="module", autouse=True)
def baked(site: Site) -> None:
    command(site.folder, "apply", "model", "--yarn", "4", "-o", "baked", "-q", code=0)
    command(site.folder, "validate", "baked", "--against", "model", "--quick", code=0)


def test_inspect_reads_the_hub_and_says_errors_in_a_sentence(visitor: Visitor) -> None:
    visitor.open("inspect", source="them/llama")
    assert "them/llama" in visitor.answer()
    visitor.open("inspect", source="them/nothing")
    assert (
        visitor.answer()
        == "The repository does not exist, or it is private: check the id, then `hf auth login`."
    )
    assert visitor.all("#answer [role=alert]")


def test_compare_leads_to_the_plan_of_a_method(visitor: Visitor) -> None:
    visitor.open("compare")
    visitor.type("source", "model")
    visitor.type("context", "4")
    assert "model: 64 -> 256 tokens" in visitor.ask("ask")  # four times the trained 64
    assert len(visitor.all("#answer figure svg")) == 4
    assert visitor.address() == {"source": "model", "context": "4"}
    next(link for link in visitor.all("#answer .ways a") if link.text == "--by-parts 4").click()
    answer = visitor.answer()
    assert ("with --by-parts 4" in answer, "ropeconv apply model --by-parts 4" in answer) == (
        True,
        True,
    )


def test_a_bake_writes_what_its_command_line_writes(visitor: Visitor, site: Site) -> None:
    visitor.open("", source="model", method="mixed", value="4", out="by-page")
    assert f"{site.folder}/by-page" in visitor.answer()
    assert not (site.folder / "by-page").exists()
    assert f"Wrote {site.folder}/by-page" in visitor.ask("write")
    assert "The plan" in visitor.first("#answer").text
    words = shlex.split(
        next(
            pre.text for pre in visitor.all("#answer pre") if pre.text.startswith("ropeconv apply")
        )
    )
    assert words[1:] == ["apply", "model", "--mixed", "4", "-o", "by-page"]
    assert run_in(site.folder, *words[1:-1], "by-command").returncode == 0
    assert hashes(site.folder / "by-page") == hashes(site.folder / "by-command")
    assert "PASS" in visitor.ask("validate")


def test_a_preset_fills_in_the_memory_the_runtime_and_the_format(visitor: Visitor) -> None:
    visitor.open("", source="model", context="4")
    visitor.press("mac")
    until(lambda: visitor.field("memory").get_attribute("value") == "24GB", "the preset")
    answer = visitor.ask("plan")
    assert "--runtime mlx-lm --memory 24GB" in answer
    assert "of 24.0 GiB in mlx-lm" in answer


def test_a_publication_is_planned_and_then_made(visitor: Visitor, site: Site) -> None:
    visitor.open("", source="them/llama", method="yarn", value="4", repo_id="me/llama-yarn")
    answer = visitor.answer()
    assert (
        "Repository me/llama-yarn (new, public)" in answer,
        "copied from them/llama" in answer,
    ) == (True, True)
    assert "me/llama-yarn" not in site.hub.repos
    answer = visitor.ask("publish")
    assert f"Published: {site.hub.url}/me/llama-yarn/commit/" in answer
    assert "--push me/llama-yarn" in answer
    assert visitor.first("#answer a[target=_blank]").get_attribute("rel") == "noopener noreferrer"
    assert '"yarn"' in (site.hub.repos["me/llama-yarn"] / "config.json").read_text()
    assert site.hub.sent.get("model.safetensors", 0) < 100_000  # headers alone


@pytest.mark.parametrize("page", FORMS)
def test_pages_are_read_at_both_widths_in_both_schemes(visitor: Visitor, page: str) -> None:
    for width, scheme in ((1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")):
        visitor.look(width, scheme)
        visitor.open(page, **FORMS[page])
        visitor.answer()
        problems = [problem for problem in visitor.browser.problems() if problem not in OF_GRADIO]
        assert (problems, visitor.driver.execute_script(CUT)) == ([], False), (width, scheme)
        contrast, where = visitor.browser.contrast()
        assert contrast >= 4.5, (width, scheme, where)
    visitor.look()


FORGED = (
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example:{port}"},
    {"Origin": "null"},
    {"Origin": "file://"},
    {"Origin": "http://localhost:{port}"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
)
ROUTES = [
    *(
        ("GET", path)
        for path in (
            "",
            "inspect",
            "config",
            "gradio_api/info",
            "theme.css",
            "gradio_api/queue/data",
        )
    ),
    *(
        ("POST", f"gradio_api/{path}")
        for path in ("queue/join", "upload", "run/predict", "cancel", "reset")
    ),
]


def test_with_the_cookie_too_other_hosts_and_origins_are_refused_on_every_route(
    visitor: Visitor, site: Site
) -> None:
    visitor.open("")
    (kept,) = [
        cookie for cookie in visitor.driver.get_cookies() if cookie["name"].startswith("ropeconv-")
    ]
    port = urlsplit(visitor.site).port
    assert kept["name"] == f"ropeconv-{port}"
    assert (kept["httpOnly"], kept["sameSite"], kept["path"]) == (
        True,
        "Strict",
        urlsplit(visitor.site).path,
    )
    assert kept["value"] not in site.address, "the cookie is unlike the key"
    with httpx.Client(timeout=60) as http:
        for method, path in ROUTES:
            headers = {"Origin": visitor.origin} if method == "POST" else {}
            place = f"{visitor.site}/{path}"
            known = headers | {"Cookie": f"{kept['name']}={kept['value']}"}
            assert http.request(method, place, headers=known).status_code not in (401, 403), path
            assert http.request(method, place, headers=headers).status_code == 401, path
            assert (
                http.request(method, f"{visitor.origin}/{path}", headers=known).status_code == 401
            ), path
            for forged in FORGED:
                sent = known | {name: text.format(port=port) for name, text in forged.items()}
                for verb, more in (
                    (method, {}),
                    ("OPTIONS", {"Access-Control-Request-Method": method}),
                ):
                    response = http.request(verb, place, headers=sent | more)
                    allowed = [
                        name for name in response.headers if name.startswith("access-control")
                    ]
                    assert (response.status_code, allowed) == (403, []), (verb, path, forged)
