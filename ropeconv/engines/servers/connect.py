"""connect: from the URL of a server to the engine of its protocol."""

from __future__ import annotations

import os
from typing import Any

from ...errors import RopeconvError
from .llama_server import LlamaServer
from .protocol import Server, answer
from .sglang import Sglang
from .vllm import Vllm

PROTOCOLS: tuple[type[Server], ...] = (Vllm, Sglang, LlamaServer)
TIMEOUT = 3600.0  # seconds for one answer: a long prompt is read before the first byte comes


def connect(url: str, model: str = "") -> Server:
    """The server at a URL as an engine.

    url: of its OpenAI-compatible API, with or without /v1. model: which of several that it runs, empty for the only
    one. Raises RopeconvError where nothing answers there, it does not run `model`, or it is none of the known servers.
    """
    import httpx2 as httpx

    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise RopeconvError(f"--server {url} is no URL; give one such as http://localhost:8000")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = httpx.Client(base_url=base, headers=headers, timeout=httpx.Timeout(TIMEOUT, connect=10))
    entries = answer(lambda: client.get("/v1/models"), base)
    entry = _choose(entries.get("data") if isinstance(entries, dict) else None, model, base)
    owner = str(entry.get("owned_by", ""))
    for protocol in PROTOCOLS:
        if protocol.owner == owner:
            return protocol(client, entry)
    raise RopeconvError(
        f"the server at {base} ({owner or 'unnamed'}) gives no log-probabilities of a prompt by token id, as far as is "
        "known here; run vLLM, SGLang or llama-server"
    )


def _choose(entries: Any, model: str, base: str) -> dict[str, Any]:
    if not isinstance(entries, list) or not entries:
        raise RopeconvError(f"the server at {base} lists no models; give the base URL of an OpenAI-compatible API")
    names = [str(entry.get("id")) for entry in entries]
    if model and model not in names:
        raise RopeconvError(f"the server at {base} does not run {model}; it runs {', '.join(names)}")
    if not model and len(entries) > 1:
        raise RopeconvError(f"the server at {base} runs several models; name one with --model: {', '.join(names)}")
    found: dict[str, Any] = entries[names.index(model) if model else 0]
    return found
