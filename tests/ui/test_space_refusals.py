"""What a Space refuses, spoken to without a browser: files of its machine, weights, and what is too large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.ui.access import FULL

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
    "upload": ("inspect", "ask", {}),
    "A recipe instead of the method": ("", "plan", {"source": "them/llama"}),
    "The file of `ropeconv eval -o`": ("compare", "ask", {"source": "them/llama", "context": "4"}),
}
"""The fields that take a file, with a page, a button and what is typed."""
NO_ID = "is not a repository on the Hub"
READ = "supported"
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
    answer = text_of(caller.ask("inspect", "ask", source=place))
    assert f"{NO_ID}; write owner/name" in answer, answer
    assert not any(secret in answer for secret in SECRETS)


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
    assert READ in caller.ask("inspect", "ask", upload=dropped)
    recipe = caller.dropped("recipe.json", b'{"method": "yarn", "parameters": {"factor": 4}}')
    answer = text_of(caller.ask("", "plan", upload=dropped, **{"A recipe instead of the method": recipe}))
    assert ("with --yarn 4" in answer, "/tmp" in answer) == (True, False), answer


def test_weights_do_not_go_through_and_of_a_gguf_file_the_header_alone(
    caller: Caller, hub: SpaceHub, tmp_path: Path
) -> None:
    caller.login("anna")
    hub.repos["them/gguf"] = tmp_path
    small, before = make("llama", tmp_path / "small.gguf"), hub.sent.get("model.safetensors", 0)
    for changed in ({"encoding": "weights"}, {"source": "them/gguf/small.gguf"}):
        answer = text_of(caller.ask("", "publish", **MODEL | changed, repo_id="anna/heavy"))
        assert "of weights would go through this page, which does not move weights" in answer
    assert "anna/through" not in hub.repos
    moved = hub.sent.get("model.safetensors", 0) - before
    assert moved < (hub.repos["them/llama"] / "model.safetensors").stat().st_size
    (tmp_path / "large.gguf").write_bytes(small.read_bytes() + bytes(2 << 20))
    assert "llama (GGUF, unnamed)" in text_of(caller.ask("inspect", "ask", source="them/gguf/large.gguf"))
    assert "is not an output of ropeconv" in text_of(caller.ask("results", "ask", source="them/gguf/large.gguf"))
    assert 0 < hub.sent["large.gguf"] <= 1 << 20


def test_hostile_configs_are_an_answer(caller: Caller, llama: Path) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    every = [
        deep, b"[" * 500_000, config(llama, head_dim=400_000), config(llama, num_hidden_layers=10**9),
        config(llama, max_position_embeddings=10**18), config(llama, rope_theta="1e400"), b"\xff\xfe", b"null", b"",
        config(llama, head_dim=-2, rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 100_000}),
    ]  # fmt: skip
    for content in sample(every, 3):
        answer = caller.ask("inspect", "ask", upload=caller.dropped("config.json", content))
        assert [words for words in ("ended without an answer", "unexpected") if words in answer] == [], text_of(answer)
        assert "problem" in answer or READ in answer, text_of(answer)
    assert READ in caller.ask("inspect", "ask", upload=caller.dropped("config.json", config(llama)))


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
    before = kept()
    assert caller.upload("recipe.json", bytes(1_900_000)).status_code == 200
    assert kept() - before >= 1_900_000


def test_the_dropped_files_of_one_visitor_have_a_limit_together(caller: Caller, running: Space) -> None:
    sent = [caller.upload(f"{number}.json", bytes(1_900_000) + bytes([number])).status_code for number in range(6)]
    assert sent == [200] * 4 + [429] * 2
    again = Caller(running, network=caller.network).upload("another-page.json", bytes(1_900_000))
    assert (again.status_code, again.text) == (429, FULL)
    assert Caller(running).upload("another-visitor.json", bytes(1_900_000)).status_code == 200


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
