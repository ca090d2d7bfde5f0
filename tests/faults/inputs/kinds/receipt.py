"""Receipts, in ropeconv.json of folders and in a key of GGUF files, and answers of servers to `validate --server`."""

from __future__ import annotations

import copy
import gzip
import json
import shutil
import tempfile
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import msgspec

from ropeconv.errors import RopeconvError
from ropeconv.receipts.receipt import Receipt
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from tests.support.baking import apply, make_plan
from tests.support.gguf_files import write as write_gguf

from ..folders import write_checkpoint
from ..formats import Commands, commands, register
from ..json_mutations import Raw, changed, damaged, text_of
from .gguf import STRING, taken_apart, text

ON_OUTPUT = """
inspect {baked}; inspect {baked} --json; restore {baked} -o {out}; restore {baked} --dry-run;
apply {baked} --linear 8 --replace -o {out}; apply {baked} --yarn 2 --on-top -o {out};
validate {baked} --against {model} -q; compare {baked} {model}
"""
ON_FOLDER = commands(
    ON_OUTPUT.format(baked="baked", model="model", out="out") + "; apply baked --yarn 8 --replace --to gguf -o out.gguf"
)
ON_GGUF = commands(ON_OUTPUT.format(baked="b.gguf", model="a.gguf", out="out.gguf") + "; restore b.gguf")
VALUES = (
    "config.json", "../config.json", "ropeconv.json", ".hidden", "model.safetensors", "x/y.safetensors", "\x1b[2J\n",
    "\u202ex", 1 << 62, -1, [[0, 1 << 62]], [[-1, 4]], [["a", 1]], "AAAA", "A", "====", "0" * 64, Raw("1e999"),
    [{"tensor": "model.norm.weight", "factor": 2.0, "spans": [[0, 4]]}],
    {"name": "x", "kind": "hub", "reference": "a/b\x1b[31m", "commit": "c"}, {"kind": 8, "raw": "", "spaces": 1 << 40},
    {"kind": 9, "raw": "BAAAAP////////9/"}, {"method": "yarn", "factor": 4.0}, {"method": "inv-freq", "inv_freq": [0]},
    "rope_freqs.weight", "blk.0.attn_q.weight", "general.architecture", "general.alignment",
)  # fmt: skip
OLD = sorted((Path(__file__).parents[3] / "data" / "receipts").glob("*.json"))


def names_in(kind: Any) -> set[str]:
    """Every name of a field in a struct and in those within it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return {field.name for field in fields}.union(*(names_in(field.type) for field in fields))
    return set().union(*map(names_in, getattr(kind, "__args__", ())))


KEYS = tuple(sorted(names_in(Receipt) | {"steps", "verdict", "because", "method", "factor", "modifiers"}))


def stop_before_forward() -> None:
    """Lets `validate` begin in this process, and end where it would load a model or ask transformers."""
    import torch  # noqa: F401

    from ropeconv.engines.llamacpp import llamacpp_engine
    from ropeconv.engines.probe.client import Probe
    from ropeconv.engines.transformers import TransformersEngine

    def stop(*given: Any, **named: Any) -> NoReturn:
        raise RopeconvError("this would load a model; nothing is wrong so far")

    Probe.available = staticmethod(lambda: True)  # type: ignore[method-assign]
    Probe.ask = TransformersEngine.load = llamacpp_engine.Process = stop  # type: ignore[method-assign,assignment,misc]


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="ropeconv-outputs-")


@cache
def outputs() -> Path:
    """A folder with a small checkpoint and a GGUF file, and an output of each."""
    folder = Path(_kept().name)
    write_checkpoint(folder / "model")
    write_gguf(folder / "a.gguf")
    for source, out in (("model", "baked"), ("a.gguf", "b.gguf")):
        apply(make_plan(folder / source, Recipe(REGISTRY["yarn"](4.0)), folder / out))
    return folder


def _changed(random: Random, seed: dict[str, Any]) -> bytes:
    """A receipt with changes, often within one of its records."""
    seed = json.loads(random.choice(OLD).read_text()) if random.random() < 0.1 else copy.deepcopy(seed)
    inner = seed
    while random.random() < 0.6:
        records = [value for value in inner.values() if isinstance(value, dict) and value]
        if not records:
            break
        inner = random.choice(records)
    made = changed(random, inner, KEYS if random.random() < 0.5 else (), VALUES)
    if inner is seed or not isinstance(made, dict):
        return text_of(random, made)
    inner.clear()
    inner.update(made)
    return text_of(random, seed)


@register("receipt", stop_before_forward)
def write(random: Random, folder: Path) -> Commands:
    for name in ("model", "baked"):
        shutil.copytree(outputs() / name, folder / name)
    path = folder / "baked" / "ropeconv.json"
    path.write_bytes(_changed(random, json.loads(path.read_text())))
    return random.sample(ON_FOLDER, 2)


@register("receipt in gguf", stop_before_forward)
def write_in_gguf(random: Random, folder: Path) -> Commands:
    shutil.copy(outputs() / "a.gguf", folder)
    parts = taken_apart(outputs() / "b.gguf")
    for place, (name, _, raw) in enumerate(parts.keys):
        if name == b"ropeconv.json":
            parts.keys[place] = (name, STRING, text(_changed(random, json.loads(raw[8:]))))
    (folder / "b.gguf").write_bytes(parts.joined())
    if random.random() < 0.2:
        size = (folder / "b.gguf").stat().st_size
        seed = {"schema": 2, "size": size, "validation": {"agrees": True}, "servers": {"vLLM": {"agrees": True}}}
        (folder / "b.gguf.validation.json").write_bytes(text_of(random, changed(random, seed, ("schema", "third_kl"))))
    return random.sample(ON_GGUF, 2)


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
ANSWER_KEYS = (
    "data id owned_by max_model_len root meta n_vocab n_ctx version model_path choices prompt_logprobs logprob "
    "meta_info input_top_logprobs input_token_logprobs tokens truncated tokens_evaluated completion_probabilities "
    "top_logprobs default_generation_settings build_info error message"
).split()
ANSWER_VALUES = (
    Raw("NaN"),
    Raw("-Infinity"),
    64,
    "64",
    {"1": {"logprob": "x"}},
    [[1]],
    [[0.5, "a"]],
    {"x": {"logprob": 1}},
)
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
def write_answers(random: Random, folder: Path) -> Commands:
    for name in ("model", "baked"):
        shutil.copytree(outputs() / name, folder / name)
    owner = random.choice(tuple(ANSWERS))
    entry = {"id": "model", "owned_by": owner, "max_model_len": LENGTH + 1, "meta": {"n_vocab": 8, "n_ctx": LENGTH + 1}}
    found = copy.deepcopy({"/v1/models": {"object": "list", "data": [entry]}, **ANSWERS[owner]})
    path = random.choice((*found, *found, list(found)[-1]))
    bodies = {name: json.dumps(answer).encode() for name, answer in found.items()}
    bodies[path] = text_of(random, changed(random, found[path], ANSWER_KEYS, ANSWER_VALUES))
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
