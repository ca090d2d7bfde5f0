"""Servers with OpenAI's completions: what real ones were seen to answer, replayed.

tests/features/servers/transcripts.py recorded the exchanges, with the log-probabilities that
transformers gave for the same text. test_live.py asks the real servers.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ropeconv.features.identify.observing import ServerObserver
from ropeconv.features.servers.completions import Completions
from ropeconv.features.servers.connection import connect
from ropeconv.loader import load_tokenizer
from ropeconv.rope.errors import RopeconvError

from ...support.llamacpp import checkpoint
from .transcripts import DATA, TOKENIZER, replaying, serving

NEARNESS = {"mlx_lm.server": 1e-3, "llama-cpp-python": 0.1}
"""Largest difference from transformers; the cache of llama.cpp has 16 bits."""


def transcript_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return content


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with the tokenizer of the day on which the exchanges were recorded."""
    folder = checkpoint("llama", tmp_path_factory.mktemp("completions") / "source")
    shutil.copy(TOKENIZER, folder)
    return folder


def connected(url: str, source: Path) -> Completions:
    server = connect(url)
    assert isinstance(server, Completions)
    server.tokenizer = load_tokenizer(source, False, "")
    return server


@pytest.mark.parametrize("name", sorted(NEARNESS))
def test_the_answers_are_the_log_probabilities_of_transformers(name: str, source: Path) -> None:
    transcript = transcript_of(name)
    with replaying(transcript) as url:
        server = connected(url, source)
        rows = server.top_log_probs(transcript["ids"], transcript["places"])
    assert transcript["places"][-1] > 64, "beyond the trained length"
    for row, reference in zip(rows, transcript["reference"], strict=True):
        shared = [token for token in row if str(token) in reference]
        assert len(shared) >= 3  # llama-cpp-python names tokens by text, and several have none
        off = [abs(row[token] - reference[str(token)]) for token in shared]
        assert max(off) < NEARNESS[name]
        # the control: the numbers are not those of other tokens
        moved = [abs(row[a] - reference[str(b)]) for a, b in pairwise(shared)]
        assert max(moved) > 0.1


@pytest.mark.parametrize("name", sorted(NEARNESS))
def test_one_of_two_forms_is_found(name: str, source: Path) -> None:
    with replaying(transcript_of(name)) as url:
        form = connected(url, source).form
    expected: dict[str, Any] = {"logprobs": 10}
    if name == "mlx_lm.server":
        expected = {"logprobs": True, "top_logprobs": 10}
    assert form == expected


def test_a_server_without_log_probabilities_is_refused() -> None:
    """As transformers serve 5.24, which has `logprobs` among its unused fields."""
    models = {"object": "list", "data": [{"id": "m", "owned_by": "other"}]}
    completion = {"choices": [{"text": "x", "logprobs": None}]}

    def answer(path: str, body: str) -> tuple[int, str]:
        return 200, json.dumps(models if path == "/v1/models" else completion)

    with serving(answer) as url, pytest.raises(RopeconvError, match="no log-probabilities"):
        connect(url)


def test_a_server_with_another_tokenizer_is_refused(source: Path) -> None:
    transcript = transcript_of("mlx_lm.server")
    for entry in transcript["exchanges"]:
        if "usage" in entry["answer"]:
            entry["answer"]["usage"]["prompt_tokens"] += 1
    with replaying(transcript) as url, pytest.raises(RopeconvError, match="makes .* tokens"):
        connected(url, source).top_log_probs(transcript["ids"], transcript["places"])


def test_only_places_that_a_text_reaches_are_asked(source: Path) -> None:
    with replaying(transcript_of("mlx_lm.server")) as url:
        server = connected(url, source)
    ids = list(server.tokenizer("ab cd ef").input_ids)
    assert server.text_of(ids)
    # a byte that begins a character is no text
    assert server.text_of([*ids, server.tokenizer.convert_tokens_to_ids("ð")]) == ""


def test_identify_says_that_it_sends_tokens() -> None:
    with (
        replaying(transcript_of("mlx_lm.server")) as url,
        pytest.raises(RopeconvError, match="reads text"),
    ):
        ServerObserver(url, "")
