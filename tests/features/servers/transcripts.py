"""Exchanges with real servers: record them through a proxy, and replay them.

    python -m tests.features.servers.transcripts mlx_lm.server

starts the real server on a tiny output beyond its trained length, asks it as `validate` does, and
writes tests/data/servers/mlx_lm.server.json, with the log-probabilities of transformers beside it.
The programs are found as tests/features/servers/test_live.py finds them.
"""

import json
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "servers"
TOKENIZER = DATA / "tokenizer.json"
"""The tokenizer of the recorded texts."""
LENGTH = 200
PLACES = (20, 63, 100, 150, 190)
"""Positions within and beyond the trained length of 64."""
Answer = tuple[int, str]
"""The status and the body of an answer."""


@contextmanager
def serving(answer: Callable[[str, str], Answer]) -> Iterator[str]:
    """Yield the URL of a server whose answers a function gives, from a path and a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, content = answer(self.path, self.rfile.read(length).decode())
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content.encode())

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def replaying(transcript: dict[str, Any]) -> Iterator[str]:
    """Yield the URL of a server that answers as the recorded one, and 404 to anything else."""
    known = {
        (entry["path"], json.dumps(entry["body"], sort_keys=True)): entry
        for entry in transcript["exchanges"]
    }

    def answer(path: str, body: str) -> Answer:
        key = (path, json.dumps(json.loads(body or "null"), sort_keys=True))
        if key not in known:
            return 404, json.dumps({"error": "it was not asked this"})
        return known[key]["status"], json.dumps(known[key]["answer"])

    with serving(answer) as url:
        yield url


def forwarding(url: str, exchanges: list[dict[str, Any]]) -> Callable[[str, str], Answer]:
    """Return a function that asks a real server, and keeps what it says."""

    def answer(path: str, body: str) -> Answer:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url + path, body.encode() or None, headers)
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                status, content = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read().decode()
        entry = {"path": path, "body": json.loads(body or "null"), "status": status}
        exchanges.append({**entry, "answer": json.loads(content)})
        return status, content

    return answer


def record(name: str) -> None:
    """Write the transcript of a server."""
    import torch

    from ropeconv.engines.transformers.load import load_stock
    from ropeconv.features.servers.completions import Completions
    from ropeconv.features.servers.connection import connect
    from ropeconv.loader import load_tokenizer
    from tests.support.baking import apply, make_plan, recipe_of
    from tests.support.llamacpp import checkpoint

    from .test_live import CONTEXT, SERVERS

    (live,) = (server for server in SERVERS if server.name == name)
    exchanges: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = checkpoint("llama", folder / "source")
        shutil.copy(TOKENIZER, source)
        recipe = recipe_of("yarn", 16.0, context=CONTEXT)
        apply(make_plan(source, recipe, folder / "right"))
        output = folder / f"right{live.ending}"
        if live.ending:
            apply(make_plan(source, recipe, output, to="gguf", outtype="f32"))
        with live.running(output) as url, serving(forwarding(url, exchanges)) as proxy:
            server = connect(proxy)
            assert isinstance(server, Completions)
            server.tokenizer = load_tokenizer(source, False, "")
            ids = server.tokenizer(server.make_text(LENGTH, 0)).input_ids[:LENGTH]
            places = [place for place in PLACES if server.text_of(ids[: place + 1])]
            server.top_log_probs(ids, places)

        model = load_stock(folder / "right", "cpu")
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, places].float()
        top = torch.log_softmax(logits, -1).topk(10)
        reference = [
            dict(zip(map(str, tokens), values, strict=True))
            for tokens, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        text = json.dumps(exchanges).replace(str(output), "MODEL").replace(temporary, "FOLDER")
    document = {
        "ids": ids,
        "places": places,
        "reference": reference,
        "exchanges": json.loads(text),
    }
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    record(sys.argv[1])
