"""What a Space refuses, spoken to without a browser: files of its machine, weights, and what is too large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ropeconv.ui.asked import Asked
from ropeconv.ui.bodies import FULL, Uploads, visitor_of
from ropeconv.ui.forms import BakeForm
from ropeconv.ui.job import Job
from ropeconv.ui.messages import Answer
from ropeconv.ui.rules import LOCAL, SPACE

from ..support.extent import sample
from ..support.tiny_gguf import make
from .space_hub import OWNER, SpaceHub
from .space_program import Caller, Space, temporary, text_of

MODEL = {"source": "them/llama", "method": "yarn", "value": "4"}
PLACES = [
    "/etc/passwd", "/etc", "../..", "..", ".", "~", "~root/x.gguf", "Modelfile", "./Modelfile", "app.py",
    "file:///etc/passwd", "file://localhost/etc", "them/../../etc/passwd.gguf", "them/llama@../../etc",
    "https://huggingface.co/them/llama/resolve/main/%2e%2e/%2e%2e/x.gguf", "https://elsewhere.test/them/llama",
    "hf://../../etc", "/proc/self/environ", "them/llama\n/etc/passwd",
]  # fmt: skip
FILES = {
    "upload": ("", "ask", {}),
    "A recipe in place of the method": ("bake", "plan", {"source": "them/llama"}),
    "The file of `ropeconv eval -o`": ("compare", "ask", {"source": "them/llama", "context": "4"}),
}
"""The fields that take a file, with a page, a button and what is typed."""
NO_ID = "is no repository of the Hub"
READ = "Who reads it right as it is"
SECRETS = ("root:x:", OWNER, "serve_space")
"""What is in /etc/passwd, in the stored login and in the program."""


@pytest.fixture
def caller(running: Space) -> Caller:
    """Somebody who is not signed in."""
    return Caller(running)


def config(llama: Path, **changed: Any) -> bytes:
    return json.dumps(json.loads((llama / "config.json").read_text()) | changed).encode()


@pytest.mark.parametrize("place", sample(PLACES, 3))
def test_no_path_is_a_model_in_public(place: str, caller: Caller) -> None:
    answer = text_of(caller.ask("", "ask", source=place))
    assert f"{NO_ID}; write owner/name" in answer, answer
    assert not any(secret in answer for secret in SECRETS)


def test_a_folder_in_an_address_says_nothing_of_the_machine(llama: Path) -> None:
    form = BakeForm(upload=str(llama / "config.json"), method="yarn", value="4", out="~/here")
    for rules, named in ((LOCAL, f"-&gt; {Path.home()}"), (SPACE, "-&gt; config-yarn4")):
        *_, answer = Job(Asked("plan", form, rules), 60).messages()
        assert isinstance(answer, Answer)
        text = text_of(answer.html)
        assert (named in text, str(Path.home()) in text) == (True, rules is LOCAL)


@pytest.mark.parametrize("name", FILES)
def test_a_forged_file_is_not_read(name: str, caller: Caller, running: Space, hub: SpaceHub, llama: Path) -> None:
    page, button, typed = FILES[name]
    before = len(hub.asked)
    paths = (
        "/etc/passwd", str(running.folder / "app.py"), "app.py", str(running.folder / "home" / "token"), "~/x.json",
        "../../etc/passwd", "file:///etc/passwd", f"{hub.url}/them/llama/resolve/main/config.json",
        str(llama / "config.json"),
    )  # fmt: skip
    meta = {"meta": {"_type": "gradio.FileData"}}
    every = [
        forged
        for path in paths
        for forged in ({"path": path, **meta}, {"path": path}, {"path": "x", "url": path, **meta}, path, [path])
    ]
    for forged in sample(every, 6):
        answer = caller.ask(page, button, **typed, **{name: forged})
        assert answer.startswith("problem:") or 'class="problem"' in answer, f"{forged}: {text_of(answer)}"
        assert not any(secret in answer for secret in SECRETS), f"{forged}: {text_of(answer)}"
    assert not [one for one in hub.asked[before:] if one.path.endswith("config.json") and "llama" not in one.path]


def test_a_dropped_file_is_read(caller: Caller, llama: Path) -> None:
    dropped = caller.dropped("config.json", config(llama))
    assert READ in caller.ask("", "ask", upload=dropped)
    recipe = caller.dropped("recipe.json", b'{"method": "yarn", "parameters": {"factor": 4}}')
    answer = text_of(caller.ask("bake", "plan", upload=dropped, **{"A recipe in place of the method": recipe}))
    assert ("config.json -&gt; config-yarn4" in answer, "/tmp" in answer) == (True, False), answer


@pytest.mark.nightly
def test_no_function_writes_to_the_disk(caller: Caller, running: Space) -> None:
    def there() -> set[Path]:
        return {path for path in running.folder.rglob("*") if "ropeconv-" not in str(path)}

    caller.login("anna")
    before, page = there(), caller.config("bake")
    names = {one["id"]: one["props"].get("elem_id") for one in page["components"]}
    assert "out" not in names.values()
    (plan,) = [
        one
        for one in page["dependencies"]
        if one["outputs"] and "plan" in [names.get(key) for key, _ in one["targets"]]
    ]
    typed: dict[str, Any] = MODEL | {"out": str(running.folder / "out"), "repo_id": "", "runtimes": [], "to": ""}
    data = [typed.get(names[number]) for number in plan["inputs"]]
    assert "llama-yarn4" in caller.answer(caller.join(plan["id"], data))
    places = ("", "compare", "runtimes", "bake", "results")
    known = {one["id"]: one["inputs"] for place in places for one in caller.config(place)["dependencies"]}
    for number in range(max(known) + 3):
        if len(known.get(number, data)) == len(data):  # also numbers of functions that no page has
            assert "Wrote" not in caller.answer(caller.join(number, data))
    assert there() == before


def test_weights_do_not_go_through_and_of_a_gguf_file_the_header_alone(
    caller: Caller, hub: SpaceHub, tmp_path: Path
) -> None:
    caller.login("anna")
    hub.repos["them/gguf"] = tmp_path
    small, before = make("llama", tmp_path / "small.gguf"), hub.sent.get("model.safetensors", 0)
    for changed in ({"encoding": "weights"}, {"source": "them/gguf/small.gguf"}):
        answer = text_of(caller.ask("bake", "publish", **MODEL | changed, repo_id="anna/heavy"))
        assert "of weights would go through this page, which moves none" in answer
    assert "anna/through" not in hub.repos
    moved = hub.sent.get("model.safetensors", 0) - before
    assert moved < (hub.repos["them/llama"] / "model.safetensors").stat().st_size
    (tmp_path / "large.gguf").write_bytes(small.read_bytes() + bytes(2 << 20))
    assert "llama (GGUF, unnamed)" in text_of(caller.ask("", "ask", source="them/gguf/large.gguf"))
    assert "is not an output of ropeconv" in text_of(caller.ask("results", "ask", source="them/gguf/large.gguf"))
    assert 0 < hub.sent["large.gguf"] <= 1 << 20


@pytest.mark.parametrize("field", sample(["source", "value", "settings", "repo_id"], 1))
def test_a_field_of_a_megabyte_is_an_answer(field: str, caller: Caller) -> None:
    answer = caller.ask("bake", "plan", **(MODEL | {field: "9" * 900_000}))
    assert len(answer) < 100_000
    assert 'class="problem"' in answer


def test_hostile_configs_are_an_answer(caller: Caller, llama: Path) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    every = [
        deep, b"[" * 500_000, config(llama, head_dim=400_000), config(llama, num_hidden_layers=10**9),
        config(llama, max_position_embeddings=10**18), config(llama, rope_theta="1e400"), b"\xff\xfe", b"null", b"",
        config(llama, head_dim=-2, rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 100_000}),
    ]  # fmt: skip
    for content in sample(every, 3):
        answer = caller.ask("", "ask", upload=caller.dropped("config.json", content))
        assert [words for words in ("ended without an answer", "unexpected") if words in answer] == [], text_of(answer)
        assert "problem" in answer or "Who reads it" in answer, text_of(answer)
    assert READ in caller.ask("", "ask", upload=caller.dropped("config.json", config(llama)))


def test_what_is_too_large_is_refused_before_it_is_kept(caller: Caller, running: Space) -> None:
    def kept() -> int:
        return sum(path.stat().st_size for path in temporary(running.folder).rglob("*") if path.is_file())

    before = kept()
    assert caller.upload("recipe.json", bytes((2 << 20) + 200_000)).status_code == 413
    files = [("files", (f"{number}.json", bytes(1_900_000))) for number in range(3)]
    assert caller.http.post("/gradio_api/upload", files=files).status_code == 413
    form = {"fn_index": 0, "data": ["9" * (3 << 20)], "session_hash": "x"}
    assert caller.http.post("/gradio_api/queue/join", json=form).status_code == 413
    assert kept() - before < 10_000
    assert _streamed(caller, 40) >= 400
    assert kept() - before < 2_200_000
    assert _streamed(caller, 1) == 200
    before = kept()
    assert caller.upload("recipe.json", bytes(1_900_000)).status_code == 200
    assert kept() - before >= 1_900_000


def test_the_dropped_files_of_one_visitor_have_a_limit_together(caller: Caller, running: Space) -> None:
    sent = [caller.upload(f"{number}.json", bytes(1_900_000) + bytes([number])).status_code for number in range(6)]
    assert sent == [200] * 4 + [429] * 2
    again = Caller(running, network=caller.network).upload("another-page.json", bytes(1_900_000))
    assert (again.status_code, again.text) == (429, FULL)
    assert Caller(running).upload("another-visitor.json", bytes(1_900_000)).status_code == 200


def test_dropped_files_of_all_visitors_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, uploads = [0.0], Uploads(of_one=400_000, of_all=1_000_000, seconds=100)
    monkeypatch.setattr("ropeconv.ui.bodies.time.monotonic", lambda: now[0])

    def accepted(second: float, visitor: str, size: int) -> bool:
        now[0] = second
        return uploads.begin(visitor, size) is not None

    assert accepted(0, "a", 300_000)
    assert not accepted(0, "a", 200_000), "that visitor has as much"
    assert accepted(50, "b", 400_000)
    assert not accepted(50, "c", 400_000), "all have as much"
    assert sum(accepted(50, f"{number}", 1) for number in range(10)) == 4, "a small file takes room too"
    assert not accepted(99, "c", 300_000)
    assert accepted(101, "c", 300_000), "files are removed after a time"


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ("", "10.0.0.1"), ("203.0.113.7", "203.0.113.7"), ("203.0.113.7, 10.0.0.9", "203.0.113.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"), ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"), ("x" * 10_000, "x" * 64),
    ],
)  # fmt: skip
def test_a_visitor_is_a_network_as_the_proxy_states_it(stated: str, named: str) -> None:
    headers = [(b"x-forwarded-for", stated.encode())] if stated else []
    assert visitor_of({"headers": headers, "client": ("10.0.0.1", 1)}) == named


def _streamed(caller: Caller, parts: int) -> int:
    """The status of an upload that does not announce its length. parts: of 100,000 bytes."""
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="streamed.json"\r\n\r\n'
    content = iter([head, *[bytes(100_000)] * parts, b"\r\n--x--\r\n"])
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    try:
        return caller.http.post("/gradio_api/upload", content=content, headers=headers).status_code
    except httpx.TransportError:  # it does not wait for the end
        return 400


def test_no_file_of_the_machine_or_of_another_visitor_is_served(caller: Caller, running: Space, llama: Path) -> None:
    mine = caller.dropped("config.json", config(llama, secret="SECRET"))["path"]
    served = caller.get(f"/gradio_api/file={mine}")
    assert (served.status_code, "SECRET" in served.text) == (200, True)
    folder = Path(mine).parent
    assert len(folder.name) >= 32, "nobody guesses it"
    others = (
        "/etc/passwd", "app.py", str(running.folder / "app.py"), str(running.folder / "home/token"), "home/token",
        str(folder), str(folder.parent), str(folder.parent.parent), f"{folder}/../../../../etc/passwd", "~/x",
        "/proc/self/environ", f"{running.hub.url}/them/llama/resolve/main/config.json", "file:///etc/passwd",
    )  # fmt: skip
    for place in others:
        ways = ["/gradio_api/file=", "/file=", "/gradio_api/file/", "/gradio_api/proxy=", "/static/", "/assets/"]
        for way in sample(ways, 2):
            found = caller.get(f"{way}{place}")
            assert not any(secret in found.text for secret in (*SECRETS, "SECRET")), (way, place)
            assert found.status_code >= 300, (way, place, found.status_code)
        kept = caller.get("/config", params={"deep_link": place}).text
        assert not any(secret in kept for secret in (*SECRETS, "SECRET")), place


def test_a_dropped_page_is_no_page_of_the_space(caller: Caller) -> None:
    for name in ("x.html", "x.svg", "x.js"):
        answer = caller.upload(name, b"<script>alert(1)</script>")
        if answer.status_code == 200:
            found = caller.get(f"/gradio_api/file={answer.json()[0]}")
            assert found.headers["content-disposition"].startswith("attachment")


def test_a_name_that_is_a_path_as_well_is_one_of_the_hub(caller: Caller, running: Space) -> None:
    assert (running.folder / "home" / "token").is_file()
    answer = text_of(caller.ask("", "ask", source="home/token"))
    for words in ("there is no such repository, or it is private", "sign in on the page Bake"):
        assert words in answer
    assert "hf auth login" not in answer
