"""What a Space refuses, spoken to without a browser: files of its machine, weights, and what is too large."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ropeconv.ui.asked import Asked
from ropeconv.ui.bodies import FULL, HEADERS, UPLOAD, BodyMiddleware, Uploads, visitor_of
from ropeconv.ui.forms import BakeForm, Form, InspectForm
from ropeconv.ui.job import Job
from ropeconv.ui.messages import Answer
from ropeconv.ui.rules import LOCAL, SPACE, Rules

from ..support.tiny_gguf import make
from .space_fixtures import caller, hub, running
from .space_hub import OWNER, SpaceHub
from .space_program import Caller, Space, temporary, text_of

__all__ = ["caller", "hub", "running"]
MODEL = {"source": "them/llama", "method": "yarn", "value": "4"}
PLACES = (
    "/etc/passwd", "/etc", "../..", "..", ".", "~", "~root/x.gguf", "Modelfile", "./Modelfile", "app.py",
    "file:///etc/passwd", "file://localhost/etc", "them/../../etc/passwd.gguf", "them/llama@../../etc",
    "https://huggingface.co/them/llama/resolve/main/%2e%2e/%2e%2e/x.gguf", "https://elsewhere.test/them/llama",
    "hf://../../etc", "/proc/self/environ", "them/llama\n/etc/passwd",
)  # fmt: skip
FORGED = ("upload", "recipe", "measured")
SECRETS = ("root:x:", OWNER, "serve_space")
"""What is in /etc/passwd, in the stored login and in the program."""


def said(task: str, form: Form, rules: Rules) -> str:
    *_, last = Job(Asked(task, form, rules), 60).messages()
    assert isinstance(last, Answer)
    return text_of(last.html)


def config(llama: Path, **changed: Any) -> bytes:
    return json.dumps(json.loads((llama / "config.json").read_text()) | changed).encode()


@pytest.mark.parametrize("place", PLACES)
def test_no_path_is_a_model_in_public(place: str, caller: Caller) -> None:
    answer = text_of(caller.ask("", "ask", source=place))
    assert "is no repository of the Hub; write owner/name" in answer, answer
    assert not any(secret in answer for secret in SECRETS)


def test_no_page_takes_a_path_and_ones_own_machine_does(caller: Caller, llama: Path) -> None:
    place = str(llama)
    for page, button, typed in (
        ("compare", "ask", {"context": "4"}),
        ("results", "ask", {}),
        ("bake", "plan", {"method": "yarn", "value": "4"}),
    ):
        assert "is no repository of the Hub" in caller.ask(page, button, source=place, **typed)
    caller.login("anna")
    typed = {"source": place, "method": "yarn", "value": "4", "repo_id": "anna/path"}
    assert "is no repository of the Hub" in caller.ask("bake", "publish", **typed)
    assert "is no repository of the Hub" in said("inspect", InspectForm(source=place), SPACE)
    assert "Who reads it right as it is" in said("inspect", InspectForm(source=place), LOCAL)


def test_a_folder_in_an_address_says_nothing_of_the_machine(caller: Caller, llama: Path) -> None:
    form = BakeForm(upload=str(llama / "config.json"), method="yarn", value="4", out="~/here")
    assert f"-&gt; {Path.home()}" in said("plan", form, LOCAL)
    answer = said("plan", form, SPACE)
    assert "-&gt; config-yarn4" in answer
    assert str(Path.home()) not in answer


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_is_not_read(kind: str, caller: Caller, running: Space, hub: SpaceHub, llama: Path) -> None:
    page = {"upload": "", "recipe": "bake", "measured": "compare"}[kind]
    name = {
        "upload": "upload",
        "recipe": "A recipe in place of the method",
        "measured": "The file of `ropeconv eval -o`",
    }
    button = "plan" if page == "bake" else "ask"
    typed: dict[str, Any] = (
        {} if kind == "upload" else {"source": "them/llama"} | ({"context": "4"} if page == "compare" else {})
    )
    before = len(hub.asked)
    paths = (
        "/etc/passwd", str(running.folder / "app.py"), "app.py", str(running.folder / "home" / "token"), "~/x.json",
        "../../etc/passwd", "file:///etc/passwd", f"{hub.url}/them/llama/resolve/main/config.json",
        str(llama / "config.json"),
    )  # fmt: skip
    for path in paths:
        meta = {"meta": {"_type": "gradio.FileData"}}
        for forged in (
            {"path": path, **meta},
            {"path": path},
            {"path": "x", "url": path, **meta},
            path,
            [path],
            [{"path": path, **meta}],
        ):
            answer = caller.ask(page, button, **typed, **{name[kind]: forged})
            refused = answer.startswith("problem:") or 'class="problem"' in answer
            assert refused, f"{forged}: {text_of(answer)}"
            assert not any(secret in answer for secret in SECRETS), f"{forged}: {text_of(answer)}"
    assert not [one for one in hub.asked[before:] if one.path.endswith("config.json") and "llama" not in one.path]


def test_a_dropped_file_is_read(caller: Caller, llama: Path) -> None:
    dropped = caller.dropped("config.json", config(llama))
    assert "Who reads it right as it is" in caller.ask("", "ask", upload=dropped)
    recipe = caller.dropped("recipe.json", b'{"method": "yarn", "parameters": {"factor": 4}}')
    answer = text_of(caller.ask("bake", "plan", upload=dropped, **{"A recipe in place of the method": recipe}))
    assert "yarn" in answer, answer
    assert "config.json -&gt; config-yarn4" in answer, answer
    assert "/tmp" not in answer


def test_no_function_writes_to_the_disk(caller: Caller, running: Space) -> None:
    def there() -> set[Path]:
        return {path for path in running.folder.rglob("*") if "ropeconv-" not in str(path)}

    caller.login("anna")
    page = caller.config("bake")
    assert not [one for one in page["components"] if one["props"].get("elem_id") == "out"]
    before = there()
    (plan,) = [one for one in page["dependencies"] if "plan" in _triggers(page, one) and one["outputs"]]
    names = {one["id"]: one["props"].get("elem_id") for one in page["components"]}
    typed: dict[str | None, Any] = {
        **MODEL,
        "out": str(running.folder / "out"),
        "repo_id": "",
        "runtimes": [],
        "to": "",
    }
    data = [typed.get(names[number]) for number in plan["inputs"]]
    numbers = {
        one["id"]
        for place in ("", "compare", "runtimes", "bake", "results")
        for one in caller.config(place)["dependencies"]
    }
    assert plan["id"] in numbers
    assert "llama-yarn4" in caller.call(plan["id"], data)
    for number in range(max(numbers) + 3):
        if number not in numbers or len(_inputs(caller, number)) == len(data):
            answer = caller.call(number, data)
            assert "Wrote" not in answer
    assert there() == before


def _triggers(page: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    names = {one["id"]: one["props"].get("elem_id") for one in page["components"]}
    return [names.get(number, "") or "" for number, _ in asked["targets"]]


def _inputs(caller: Caller, number: int) -> list[int]:
    pages = (caller.config(place) for place in ("", "compare", "runtimes", "bake", "results"))
    return next(one["inputs"] for page in pages for one in page["dependencies"] if one["id"] == number)


def test_weights_do_not_go_through(caller: Caller, hub: SpaceHub, tmp_path: Path) -> None:
    caller.login("anna")
    before = dict(hub.sent)
    folder = hub.repos["them/gguf"] = tmp_path / "gguf"
    folder.mkdir()
    make("llama", folder / "small.gguf")
    for changed in ({"encoding": "weights"}, {"source": "them/gguf/small.gguf"}):
        typed = MODEL | changed
        assert "-yarn4" in text_of(caller.ask("bake", "plan", **typed))
        answer = text_of(caller.ask("bake", "publish", **typed, repo_id="anna/heavy"))
        assert "of weights would go through this page, which moves none" in answer
    assert "anna/heavy" not in hub.repos
    moved = hub.sent.get("model.safetensors", 0) - before.get("model.safetensors", 0)
    assert moved < (hub.repos["them/llama"] / "model.safetensors").stat().st_size


def test_of_a_large_gguf_file_the_header_is_read_alone(caller: Caller, hub: SpaceHub, tmp_path: Path) -> None:
    hub.repos["them/gguf"] = tmp_path
    small = make("llama", tmp_path / "small.gguf")
    (tmp_path / "large.gguf").write_bytes(small.read_bytes() + bytes(2 << 20))
    assert "llama (GGUF, unnamed)" in text_of(caller.ask("", "ask", source="them/gguf/large.gguf"))
    assert "is not an output of ropeconv" in text_of(caller.ask("results", "ask", source="them/gguf/large.gguf"))
    assert 0 < hub.sent["large.gguf"] <= 1 << 20


@pytest.mark.parametrize("field", ["source", "value", "settings", "repo_id"])
def test_a_field_of_a_megabyte_is_an_answer(field: str, caller: Caller) -> None:
    answer = caller.ask("bake", "plan", **(MODEL | {field: "9" * 900_000}))
    assert len(answer) < 100_000
    assert 'class="problem"' in answer


def test_hostile_configs_are_an_answer(caller: Caller, llama: Path) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    for content in (
        deep, b"[" * 500_000, config(llama, head_dim=400_000), config(llama, num_hidden_layers=10**9),
        config(llama, max_position_embeddings=10**18), config(llama, rope_theta="1e400"), b"\xff\xfe", b"null", b"",
        config(llama, head_dim=-2, rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 100_000}),
    ):  # fmt: skip
        answer = caller.ask("", "ask", upload=caller.dropped("config.json", content))
        assert "ended without an answer" not in answer
        assert "unexpected" not in answer, text_of(answer)
        assert "problem" in answer or "Who reads it" in answer, text_of(answer)
    assert "Who reads it right as it is" in caller.ask("", "ask", upload=caller.dropped("config.json", config(llama)))


def test_what_is_too_large_is_refused_before_it_is_kept(caller: Caller, running: Space) -> None:
    def kept() -> int:
        return sum(path.stat().st_size for path in temporary(running.folder).rglob("*") if path.is_file())

    before = kept()
    assert caller.upload("recipe.json", bytes(100 << 20)).status_code == 413
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
    assert uploads.begin("a", 300_000)
    assert not uploads.begin("a", 200_000), "that visitor has as much"
    now[0] = 50
    assert uploads.begin("b", 400_000)
    assert not uploads.begin("c", 400_000), "all have as much"
    small = [uploads.begin(f"{number}", 1) for number in range(10)]
    assert sum(one is not None for one in small) == 4, "a small file takes room too"
    now[0] = 99
    assert not uploads.begin("c", 300_000)
    now[0] = 101
    assert uploads.begin("c", 300_000), "files are removed after a time"


def test_an_upload_is_counted_by_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Uploads(of_one=5_000_000, of_all=5_000_000, seconds=100)
    middleware = BodyMiddleware(_reading, 2_000_000, uploads)
    assert _upload(middleware, [100_000] * 3) == 200
    (kept,) = uploads._kept
    assert kept.size == 300_000, "and not by the most that it might have been"
    assert _upload(middleware, [100_000] * 30) == 400
    assert uploads._kept[-1].size == 2_000_000 + HEADERS
    assert _upload(middleware, [100_000] * 3) == 200
    assert _upload(middleware, [100_000] * 3, announced=2_000_000) == 200
    assert [_upload(middleware, [100_000] * 15, announced=1_500_000) for _ in range(3)] == [200, 429, 429]


async def _reading(scope: Any, receive: Any, send: Any) -> None:
    status, more = 200, True
    while more:
        message = await receive()
        status = 400 if message["type"] == "http.disconnect" else status
        more = status == 200 and message["more_body"]
    await send({"type": "http.response.start", "status": status, "headers": []})


def _upload(middleware: BodyMiddleware, parts: list[int], announced: int | None = None) -> int:
    """The status of an upload. announced: its length, None where it is not stated."""
    statuses, left = [], list(parts)

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(left.pop(0)), "more_body": bool(left)}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = [] if announced is None else [(b"content-length", str(announced).encode())]
    scope = {"type": "http", "method": "POST", "path": UPLOAD, "headers": headers, "client": ("10.0.0.1", 1)}
    asyncio.run(middleware(scope, receive, send))  # type: ignore[arg-type]
    return int(statuses[0])


def test_a_visitor_is_a_network_as_the_proxy_states_it() -> None:
    def named(stated: str, client: str = "10.0.0.1") -> str:
        headers = [(b"x-forwarded-for", stated.encode())] if stated else []
        return visitor_of({"headers": headers, "client": (client, 1)})

    assert named("") == "10.0.0.1"
    assert named("203.0.113.7") == named("203.0.113.7, 10.0.0.9") == "203.0.113.7"
    assert named("2001:db8:1:2::1") == named("2001:db8:1:2:ffff::9") != named("2001:db8:1:3::1")
    assert len(named("x" * 10_000)) == 64


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
        for way in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/gradio_api/proxy=", "/static/", "/assets/"):
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


def test_other_pages_do_not_use_the_login_of_a_visitor(caller: Caller, running: Space) -> None:
    caller.login("anna")  # by a cookie that the browser also sends for other pages, since a Space stands in a frame
    own = {"Cookie": caller.cookie, "Origin": running.address}
    assert caller.http.get("/config", headers=own).status_code == 200
    for origin, site in (("https://evil.example", "cross-site"), ("null", "cross-site"), ("https://evil.example", "")):
        forged = own | {"Origin": origin} | ({"Sec-Fetch-Site": site} if site else {})
        for method, path in (("GET", "/config"), ("POST", "/gradio_api/queue/join"), ("POST", "/gradio_api/upload")):
            asked = {"Access-Control-Request-Method": method}
            for found in (
                caller.http.request(method, path, headers=forged),
                caller.http.request("OPTIONS", path, headers=forged | asked),
            ):
                assert found.status_code == 403, (path, forged)
                assert not [name for name in found.headers if name.startswith("access-control")], (path, forged)


def test_results_of_the_hub_are_named_alone(caller: Caller) -> None:
    assert "has no ropeconv.json" in caller.ask("results", "ask", source="them/llama")


def test_a_name_that_is_a_path_as_well_is_one_of_the_hub(caller: Caller, running: Space) -> None:
    assert (running.folder / "home" / "token").is_file()
    answer = text_of(caller.ask("", "ask", source="home/token"))
    assert "there is no such repository, or it is private" in answer
    assert "sign in on the page Bake" in answer
    assert "hf auth login" not in answer
