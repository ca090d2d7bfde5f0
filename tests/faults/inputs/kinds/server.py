"""Answers of servers, through the client that `validate --server` uses."""

from __future__ import annotations

import copy
import gzip
import json
import shutil
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

from ..bytes_mutations import damaged
from ..formats import Commands, register
from ..json_mutations import Raw, changed, text_of
from .receipt import outputs, stop_before_forward

LENGTH = 24
ROWS = [{str(token): {"logprob": -float(token), "rank": 1} for token in range(3)} for _ in range(LENGTH - 1)]
TOP_ROWS = [[[-float(token), token, None] for token in range(3)] for _ in range(LENGTH - 1)]
ANSWERS: dict[str, dict[str, Any]] = {
    "vllm": {
        "/version": {"version": "0.32.0"},
        "/v1/completions": {"choices": [{"index": 0, "text": "", "prompt_logprobs": [None, *ROWS]}]},
    },
    "sglang": {
        "/server_info": {"version": "0.5.23", "model_path": ""},
        "/generate": {"text": "", "meta_info": {
            "input_token_logprobs": [[-1.0, 1, None]] * LENGTH, "input_top_logprobs": [None, *TOP_ROWS],
        }},
    },
    "llamacpp": {
        "/props": {"default_generation_settings": {"n_ctx": 64}, "model_path": "", "build_info": "b1"},
        "/tokenize": {"tokens": [3]},
        "/completion": {
            "content": "x", "truncated": False,
            "completion_probabilities": [{"id": 3, "logprob": -1.0, "top_logprobs": [{"id": 4, "logprob": -2.0}]}],
        },
    },
}  # fmt: skip
KEYS = (
    "data id owned_by max_model_len root meta n_vocab n_ctx version model_path choices prompt_logprobs logprob "
    "meta_info input_top_logprobs input_token_logprobs tokens truncated tokens_evaluated completion_probabilities "
    "top_logprobs default_generation_settings build_info error message"
).split()
VALUES = (Raw("NaN"), Raw("-Infinity"), 64, "64", {"1": {"logprob": "x"}}, [[1]], [[0.5, "a"]], {"x": {"logprob": 1}})
BODIES = (b"<!doctype html><title>502</title>" + b"x" * 10_000, b"", b"null", b"\xff\xfe", b"[]", b"3", b'"x"')
STATUSES = (204, 301, 307, 400, 401, 403, 404, 418, 500, 503, 999)
PLACES = ({}, {"Location": "/v1/models"}, {"Location": "http://0.0.0.0:1/"}, {"Location": "::"})
HEADERS = ({"Content-Length": "5"}, {"Content-Length": "99999999"}, {"Content-Type": "text/html; charset=x"})


@cache
def _bomb() -> bytes:
    """An answer of 700 MB in less than one, as a gzip stream of several members."""
    return gzip.compress(b" " * 70_000_000, 9) * 10


class _Handler(BaseHTTPRequestHandler):
    """Gives the answers of `bodies`. odd: the path whose answer has another status and more headers."""

    protocol_version = "HTTP/1.1"
    bodies: dict[str, bytes] = {}
    odd: tuple[str, int, dict[str, str]] = ("", 200, {})

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body, (path, status, headers) = self.bodies.get(self.path, b""), self.odd
        here = self.path == path
        self.send_response(404 if self.path not in self.bodies else status if here else 200)
        for name, value in {"Content-Length": str(len(body)), **(headers if here else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    do_POST = do_GET

    def log_message(self, *given: Any) -> None:
        pass


@cache
def _url() -> str:
    """Starts a server in a thread, and returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


@register("server answers", stop_before_forward)
def write(random: Random, folder: Path) -> Commands:
    for name in ("model", "baked"):
        shutil.copytree(outputs() / name, folder / name)
    owner = random.choice(tuple(ANSWERS))
    entry = {"id": "model", "owned_by": owner, "max_model_len": LENGTH + 1, "meta": {"n_vocab": 8, "n_ctx": LENGTH + 1}}
    found = copy.deepcopy({"/v1/models": {"object": "list", "data": [entry]}, **ANSWERS[owner]})
    path = random.choice((*found, *found, list(found)[-1]))
    bodies = {name: json.dumps(answer).encode() for name, answer in found.items()}
    bodies[path] = text_of(random, changed(random, found[path], KEYS, VALUES))
    status, headers, kind = 200, {}, random.random()
    if kind < 0.05:
        bodies[path] = random.choice(BODIES)
    elif kind < 0.1:
        status, headers = random.choice(STATUSES), random.choice(PLACES)
    elif kind < 0.13:
        headers, bodies[path] = {"Content-Encoding": "gzip"}, random.choice((_bomb(), damaged(random, bodies[path])))
    elif kind < 0.16:
        headers = random.choice(HEADERS)
    _Handler.bodies, _Handler.odd = bodies, (path, status, headers)
    (folder / "answers.txt").write_text(repr((bodies, _Handler.odd)))
    return [["validate", "baked", "--against", "model", "--server", _url(), "-q"]]
