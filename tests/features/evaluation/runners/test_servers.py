"""Rows on running servers lose what their folders lose in transformers; servers of other models are
refused.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.features.evaluation.cases import EVAL
from ropeconv.features.evaluation.evaluation import Sizes, open_evaluation
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.features.servers.sglang import Sglang
from ropeconv.formats.journal import Journal
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import Row

from ....support.llamacpp import checkpoint
from ...servers.stand_in import StandIn, running
from .reading import LENGTH, TRAINED, baked, ids, losses_of

LOSSES = ("vllm", "sglang")
ALL = ("vllm", "sglang", "llamacpp")
SAME = 2e-3
TARGETS = range(1, LENGTH)
Start = Callable[..., tuple[str, ...]]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *servers: tuple(stack.enter_context(running(server)) for server in servers)


def opening(models: Path, *servers: str, **options: Any) -> RunnerRequest:
    return RunnerRequest(
        **{"model": str(models / "source"), "rows": [], "servers": servers, **options}
    )


def refusal(models: Path, *urls: str, **options: Any) -> str:
    try:
        with open_runner(opening(models, *urls, **options)) as (runner, rows):
            for row in rows:
                with runner.engine(row) as engine:
                    engine.token_losses(ids(), [LENGTH - 1])
    except RopeconvError as problem:
        return str(problem)
    return "nothing is refused"


@pytest.mark.parametrize("owner", LOSSES)
def test_two_servers_lose_what_their_folders_lose_in_transformers(
    models: Path, start: Start, owner: str
) -> None:
    url, other = start(StandIn(owner, models / "source"), StandIn(owner, models / "yarn"))
    targets = [1, 2, TRAINED, *range(2 * TRAINED, LENGTH)]
    reference = losses_of(models / "source", "base,yarn:4")
    with open_runner(opening(models, f"base={url}", f"long={other}")) as (runner, rows):
        assert ([row.name for row in rows], runner.trained) == (["base", "long"], TRAINED)
        for row, patched, apart in ((rows[0], "base", "yarn:4"), (rows[1], "yarn:4", "base")):
            with runner.engine(row) as engine:
                losses = engine.token_losses(ids(), targets)
            places = [target - 1 for target in targets]
            assert np.abs(losses.loss - reference[patched][places]).max() < SAME
            assert np.abs(losses.loss - reference[apart][places]).max() > 1


def test_sglang_is_asked_for_as_many_positions_as_fit(
    models: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = StandIn("sglang", models / "source")
    losses = []
    with (
        open_runner(opening(models, *start(server))) as (runner, rows),
        runner.engine(rows[0]) as engine,
    ):
        for piece, targets, largest in (
            (None, TARGETS, LENGTH),
            (50, TARGETS, 51),
            (50, TARGETS[-20:], 21),
        ):
            server.largest = 0
            if piece:
                monkeypatch.setattr(Sglang, "piece", piece)
            losses.append(engine.token_losses(ids(), targets).loss)
            assert server.largest == largest
    assert np.abs(losses[0] - losses[1]).max() < SAME


def test_an_evaluation_on_llama_server_refuses_losses_and_answers_questions(
    models: Path, start: Start, tmp_path: Path
) -> None:
    setup = opening(models, *start(StandIn("llamacpp", models / "yarn")), model="")
    texts = [
        ("a text", " ".join(f"{word} {word[::-1]}" for word in Path(__file__).read_text().split()))
    ]
    sizes = Sizes("growth,passkey", "512", windows=1, depths=1, generate=True)
    with (
        open_evaluation(setup, sizes, texts) as evaluation,
        Journal(tmp_path / "journal", EVAL, "a model") as journal,
    ):
        assert set(evaluation.estimate().costs) == {"passkey"}
        assert evaluation.estimate().seconds > 0
        outcome = evaluation.run(journal)
    assert {observation.measure for observation in outcome.observations["model"]} == {"passkey"}
    (refused,) = outcome.refusals
    assert refused.measure == "growth"
    assert "log-probabilities" in refused.reason


@pytest.mark.parametrize("owner", ALL)
def test_without_a_checkpoint_the_tokenizer_is_that_of_the_server(
    models: Path, start: Start, owner: str
) -> None:
    from tokenizers import Tokenizer

    text = "A wörd, and another."
    tokenizer = Tokenizer.from_file(str(models / "source" / "tokenizer.json"))
    request = opening(models, *start(StandIn(owner, models / "source", length=512)), model="")
    with open_runner(request) as (runner, rows):
        assert ([row.name for row in rows], runner.trained) == (["model"], 511)
        if owner in LOSSES:
            ids = list(range(4, 260)) * 2
            with runner.engine(rows[0]) as engine:
                engine.token_losses(ids[:511], [510])  # a prompt of 1T
                with pytest.raises(RopeconvError, match="accepts 512 tokens"):
                    engine.token_losses(ids[:512], [511])
        tokens = runner.tokenizer.encode(text)
        assert (tokens, runner.tokenizer.decode(tokens)) == (tokenizer.encode(text).ids, text)


@pytest.mark.parametrize("owner", ALL)
def test_a_server_of_another_model_is_refused(
    models: Path, start: Start, tmp_path: Path, owner: str
) -> None:
    other = checkpoint("llama", tmp_path / "other")
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    vocabulary["model"]["merges"] = vocabulary["model"]["merges"][:10]
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    url, same = start(StandIn(owner, other), StandIn(owner, models / "source"))
    assert "tokenizer is not" in refusal(models, url)
    assert "tokenizer is not that of model" in refusal(models, f"a={same}", f"b={url}", model="")


@pytest.mark.parametrize(
    ("loaded", "method", "is_output"),
    [
        ("mine/yarn", "", True),
        ("other/yarn", "yarn:2", False),
        ("other/copy", "yarn:4", True),
        ("elsewhere/yarn", "", True),
        ("elsewhere/other", "", False),
    ],
)
def test_the_result_of_a_server_is_that_of_the_output_that_it_loaded(
    models: Path, start: Start, tmp_path: Path, loaded: str, method: str, is_output: bool
) -> None:
    """A path that is on this disk is compared, and otherwise only its last part is known."""
    output = tmp_path / "mine" / "yarn"
    shutil.copytree(models / "yarn", output)
    if method:
        (tmp_path / loaded).parent.mkdir(exist_ok=True)
        baked(models / "source", method, tmp_path / loaded)
    server = StandIn("vllm", models / "source", path=str(tmp_path / loaded))
    request = opening(models, *start(server), model=str(output))
    with open_runner(request) as (_, [row]):
        assert (row.path, row.receipt) == (
            (output, read_receipt(output)) if is_output else (None, None)
        )


def test_options_that_do_not_go_together_are_refused(models: Path, start: Start) -> None:
    url, short = start(
        StandIn("vllm", models / "source"), StandIn("sglang", models / "source", length=128)
    )
    assert "leave --methods out" in refusal(models, url, rows=[Row("base")])
    assert "second --server" in refusal(models, url, against="there")
    assert "--device" in refusal(models, url, device="cuda")
    assert f"--server long={url}" in refusal(models, url, url)
    assert re.search("128 tokens, .*257", refusal(models, short))
    assert "no model" in refusal(models, model="")
