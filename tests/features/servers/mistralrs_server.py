"""A server of OpenAI's completions around mistral.rs, whose wheel has its engine and no server:
`python mistralrs_server.py MODEL PORT`.

Its log-probabilities are those of chat completions, so the template is only the content.
"""

import json
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import mistralrs

MODEL = sys.argv[1]
with tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False) as template:
    template.write("{{ messages[0]['content'] }}")
RUNNER = mistralrs.Runner(
    which=mistralrs.Which.Plain(model_id=MODEL, dtype=mistralrs.ModelDType.F32),
    prefix_cache_n=0,
    jinja_explicit=template.name,
)


def complete(body: dict[str, Any]) -> dict[str, Any]:
    """Return the completion of a prompt, with the likeliest tokens if they are asked for."""
    request = mistralrs.ChatCompletionRequest(
        messages=[{"role": "user", "content": body["prompt"]}],
        model="default",
        logprobs=bool(body.get("logprobs")),
        top_logprobs=body.get("top_logprobs"),
        max_tokens=body["max_tokens"],
        temperature=body["temperature"],
    )
    answer = RUNNER.send_chat_completion_request(request)
    choice = answer.choices[0]
    record = None
    if choice.logprobs is not None and choice.logprobs.content:
        record = {"content": [likeliest(token) for token in choice.logprobs.content]}
    return {
        "choices": [{"text": choice.message.content, "logprobs": record}],
        "usage": {"prompt_tokens": answer.usage.prompt_tokens},
    }


def likeliest(token: Any) -> dict[str, Any]:
    """Return a generated token, and the likeliest ones in its place by their numbers."""
    top = [{"id": entry.token, "logprob": entry.logprob} for entry in token.top_logprobs]
    return {"token": token.token, "logprob": token.logprob, "top_logprobs": top}


class Handler(BaseHTTPRequestHandler):
    """The two paths that `validate --server` asks."""

    def do_GET(self) -> None:
        self.answer({"object": "list", "data": [{"id": MODEL, "owned_by": "mistral.rs"}]})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.answer(complete(json.loads(self.rfile.read(length))))

    def answer(self, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
