"""Stand-ins for vLLM, SGLang and llama-server: their answers, as the real ones were seen to give
them, over logits that transformers computes from a folder.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from ropeconv.engines.transformers.load import load_stock


@dataclass
class StandIn:
    """One that runs a folder. path: what it says of its files. fail: status and body that every
    request gets.
    """

    owner: str
    folder: Path
    names: tuple[str, ...] = ("model",)
    length: int = 1024
    path: str = ""
    key: str = ""
    allowed: int = 20
    half_characters: int = 0  # tokens that llama-server reports no probabilities of, alone
    fail: tuple[int, str] | None = None
    largest: int = 0  # positions that one request asked log-probabilities of
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = load_stock(self.folder, "cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.read: list[int] = []

    def logs(self, ids: list[int]) -> Any:
        """Log-probabilities after every token that was not read before, [tokens, vocabulary]."""
        if self.owner != "llamacpp":
            self.read = []
        if not self.read or ids[: len(self.read)] != self.read or len(ids) == len(self.read):
            self.read = []
            self.cache = None
        with torch.no_grad():
            out = self.model(
                torch.tensor([ids[len(self.read) :]]), past_key_values=self.cache, use_cache=True
            )
        self.read, self.cache = ids, out.past_key_values
        return torch.log_softmax(out.logits[0].float(), -1)

    def get(self, path: str) -> Any:
        if path == "/v1/models":
            meta = {"n_vocab": 320, "n_ctx": self.length}
            extra = {"max_model_len": self.length, "root": self.path}
            extra = {"meta": meta} if self.owner == "llamacpp" else extra
            return {
                "object": "list",
                "data": [{"id": name, "owned_by": self.owner, **extra} for name in self.names],
            }
        if (self.owner, path) == ("vllm", "/version"):
            return {"version": "0.32.0"}
        if (self.owner, path) == ("sglang", "/server_info"):
            return {"version": "0.5.23", "model_path": self.path}
        if (self.owner, path) == ("llamacpp", "/props"):
            settings = {"n_ctx": self.length}
            return {
                "default_generation_settings": settings,
                "model_path": self.path,
                "build_info": "b1",
            }
        return None

    def tokenized(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def greedy(self, ids: list[int], count: int) -> list[int]:
        tokens = list(ids)
        for _ in range(count):
            tokens.append(int(self.logs(tokens)[-1].argmax()))
        return tokens[len(ids) :]

    def post(self, path: str, body: Any) -> Any:
        if path == "/tokenize" and self.half_characters:
            return {"tokens": [200]}
        if path == "/tokenize":
            return {
                "tokens": self.tokenized(body["content" if self.owner == "llamacpp" else "prompt"])
            }
        if path == "/detokenize":
            key = {"vllm": "prompt", "sglang": "text", "llamacpp": "content"}[self.owner]
            return {key: self.tokenizer.decode(body["tokens"])}
        if (self.owner, path) == ("vllm", "/v1/completions"):
            return self.vllm(body)
        if (self.owner, path) == ("sglang", "/generate"):
            return self.sglang(body)
        if (self.owner, path) == ("llamacpp", "/completion"):
            return self.llama_server(body)
        return None

    def vllm(self, body: Any) -> Any:
        if len(body["prompt"]) + body["max_tokens"] > self.length:
            return 400, {
                "error": {"message": f"This model's maximum context length is {self.length} tokens"}
            }
        if "prompt_logprobs" not in body:
            return {
                "choices": [
                    {"text": "", "token_ids": self.greedy(body["prompt"], body["max_tokens"])}
                ]
            }
        if body["prompt_logprobs"] > self.allowed:
            message = (
                f"Requested prompt logprobs of {body['prompt_logprobs']}, which is greater than max"
                " allowed"
            )
            return 400, {"error": {"message": message, "code": 400}}
        ids = body["prompt"]
        rows = [None]
        for row, token in zip(self.logs(ids), ids[1:], strict=False):
            likely = row.topk(body["prompt_logprobs"]).indices.tolist()
            rows.append(
                {str(t): {"logprob": row[t].item(), "decoded_token": "x"} for t in [token, *likely]}
            )
        return {"choices": [{"index": 0, "text": "", "prompt_logprobs": rows}]}

    def sglang(self, body: Any) -> Any:
        if not body.get("return_logprob"):
            tokens = self.greedy(body["input_ids"], body["sampling_params"]["max_new_tokens"])
            return {"text": "", "output_ids": tokens, "meta_info": {}}
        ids = body["input_ids"]
        first = body["logprob_start_len"]
        self.largest = max(self.largest, len(ids) - first)
        logprobs = [[None, ids[first], None]]
        top = [None]
        for row, token in list(zip(self.logs(ids), ids[1:], strict=False))[first:]:
            logprobs.append([row[token].item(), token, None])
            top.append(
                [
                    [row[t].item(), t, None]
                    for t in row.topk(body["top_logprobs_num"]).indices.tolist()
                ]
            )
        return {
            "text": "",
            "meta_info": {"input_token_logprobs": logprobs, "input_top_logprobs": top},
        }

    def llama_server(self, body: Any) -> Any:
        if "logit_bias" not in body:
            tokens = self.greedy(body["prompt"], body["n_predict"])
            return {
                "content": "x",
                "truncated": False,
                "tokens_evaluated": len(body["prompt"]),
                "tokens": tokens,
            }
        token = body["logit_bias"][0][0]
        row = self.logs(body["prompt"])[-1]
        answer = {"content": "x", "truncated": False, "tokens_evaluated": len(body["prompt"])}
        if token < self.half_characters:
            return answer
        likely = [
            {"id": t, "logprob": row[t].item()} for t in row.topk(body["n_probs"]).indices.tolist()
        ]
        completion = {"id": token, "logprob": row[token].item(), "top_logprobs": likely}
        return answer | {"completion_probabilities": [completion]}


@contextmanager
def running(server: StandIn) -> Iterator[str]:
    """Its URL, while it runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(server.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(self.path)
            self._answer(server.post(self.path, body))

        def _answer(self, answer: Any) -> None:
            status, answer = (
                answer if isinstance(answer, tuple) else (404 if answer is None else 200, answer)
            )
            data = json.dumps(answer).encode()
            if server.key and self.headers["Authorization"] != f"Bearer {server.key}":
                status, data = 401, b'{"error": "Unauthorized"}'
            if server.fail:
                status = server.fail[0]
                data = server.fail[1].encode("utf-8", "surrogateescape")
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
