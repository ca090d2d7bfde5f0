"""Running inference servers as engines: one file per protocol."""

import os

from ropeconv.environment import require
from ropeconv.rope.errors import RopeconvError

from .completions import Completions
from .llama_server import LlamaServer
from .protocol import ModelEntry, ModelList, Server, ask
from .sglang import Sglang
from .vllm import Vllm

PROTOCOLS: tuple[type[Server], ...] = (Vllm, Sglang, LlamaServer)


def connect(url: str, model: str = "", prefer: str = "") -> Server:
    """Return the server at a URL: a vLLM, SGLang or llama-server that gives log-probabilities.

    Args:
        url: The URL of its OpenAI-compatible API, with or without /v1.
        model: One of several models that it runs; empty for the only one.
        prefer: The same, without an error where the server does not run it.

    Raises:
        RopeconvError: Nothing answers, the server does not run `model`, or it gives no
            log-probabilities.
    """
    require("httpx2", "--server")
    import httpx2 as httpx

    # users paste the URL that they give to the OpenAI client, which ends with /v1
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

    # each of them names itself as the owner of its models: "vllm", "sglang", "llamacpp"; any other
    # may have log-probabilities in OpenAI's completions
    models = ask(client, "/v1/models", ModelList).data or []
    entry = _choose(models, model, prefer, base)
    for protocol in PROTOCOLS:
        if protocol.owner == entry.owned_by:
            return protocol(client, entry)
    return Completions(client, entry)


def _choose(entries: list[ModelEntry], model: str, prefer: str, base: str) -> ModelEntry:
    """Return the model that is asked for, else the preferred one, else the only one.

    Args:
        entries: The models that the server runs.
        model: The name of the model that it must run, or empty.
        prefer: The name of a model that it may run, or empty.
        base: The URL of the server, for messages.

    Raises:
        RopeconvError: It does not run the model, or it runs several and none is named.
    """
    if not entries:
        raise RopeconvError(
            f"the server at {base} lists no models; give the base URL of an OpenAI-compatible API"
        )
    by_name: dict[str, ModelEntry] = {}
    for entry in entries:
        by_name.setdefault(entry.id, entry)  # the first of two with one name
    names = ", ".join(entry.id for entry in entries)[:300]
    if model and model not in by_name:
        raise RopeconvError(f"the server at {base} does not run {model}; it runs {names}")
    if model:
        return by_name[model]
    if prefer in by_name:
        return by_name[prefer]
    if len(entries) > 1:
        raise RopeconvError(
            f"the server at {base} runs several models; name one with --model (of `eval`: --server"
            f" NAME={base}): {names}"
        )
    return entries[0]
