"""Running inference servers as engines: one file per protocol."""

import os

from ...environment import require
from ...rope.errors import RopeconvError
from .llama_server import LlamaServer
from .protocol import ModelEntry, ModelList, Server, ask
from .sglang import Sglang
from .vllm import Vllm

PROTOCOLS: tuple[type[Server], ...] = (Vllm, Sglang, LlamaServer)


def connect(url: str, model: str = "", prefer: str = "") -> Server:
    """The server at a URL as an engine.

    url: of its OpenAI-compatible API, with or without /v1. model: one of several models that it
    runs, empty for the only one. prefer: the same, without an error where it does not run it.
    Raises RopeconvError where nothing answers, it does not run `model`, or it is not a known
    server.
    """
    require("httpx2", "--server")
    import httpx2 as httpx

    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise RopeconvError(f"--server {url} is not a URL; give one such as http://localhost:8000")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        client = httpx.Client(base_url=base, headers=headers)
    except (httpx.InvalidURL, ValueError) as problem:
        raise RopeconvError(
            f"--server {url} is not a URL ({problem}); give one such as http://localhost:8000"
        ) from None
    entry = _choose(ask(client, "/v1/models", ModelList).data or [], model, prefer, base)
    for protocol in PROTOCOLS:
        if protocol.owner == entry.owned_by:
            return protocol(client, entry)
    raise RopeconvError(
        f"the server at {base} ({entry.owned_by or 'unnamed'}) is not supported; run vLLM, SGLang"
        " or llama-server"
    )


def _choose(entries: list[ModelEntry], model: str, prefer: str, base: str) -> ModelEntry:
    if not entries:
        raise RopeconvError(
            f"the server at {base} lists no models; give the base URL of an OpenAI-compatible API"
        )
    names = [entry.id for entry in entries]
    if model and model not in names:
        raise RopeconvError(
            f"the server at {base} does not run {model}; it runs {', '.join(names)[:300]}"
        )
    name = model or (prefer if prefer in names else "")
    if not name and len(entries) > 1:
        raise RopeconvError(
            f"the server at {base} runs several models; name one with --model (of `eval`: --server"
            f" NAME={base}): {', '.join(names)[:300]}"
        )
    return entries[names.index(name) if name else 0]
