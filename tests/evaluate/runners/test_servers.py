"""Rows on running servers lose what their folders lose in transformers; servers of other models are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from ropeconv.engines.servers import sglang
from ropeconv.errors import RopeconvError, UsageError
from ropeconv.evaluate.case import EVAL
from ropeconv.evaluate.opening import Sizes, open_evaluation
from ropeconv.evaluate.row import Row, parse_rows
from ropeconv.evaluate.runners import Opening, open_runner
from ropeconv.formats.journal import Journal

from ...support.baking import apply, make_plan
from ...support.llamacpp import checkpoint
from ...validate.servers.stand_in import StandIn, running
from .reading import LENGTH, TRAINED, distance, ids, losses_of

LOSSES, ALL = ("vllm", "sglang"), ("vllm", "sglang", "llamacpp")
SAME = 2e-3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source and an output of it."""
    folder = tmp_path_factory.mktemp("servers")
    source, recipe = checkpoint("llama", folder / "source"), parse_rows("yarn:4")[0].recipe
    assert recipe is not None
    apply(make_plan(source, recipe, folder / "yarn"))
    return folder


@pytest.fixture
def start() -> Iterator[Any]:
    """Starts stand-ins; gives their URLs."""
    with ExitStack() as stack:
        yield lambda *servers: tuple(stack.enter_context(running(server)) for server in servers)


def opening(made: Path, *servers: str, **options: Any) -> Opening:
    return Opening(**{"model": str(made / "source"), "rows": [], "servers": servers, **options})


@pytest.mark.parametrize("owner", LOSSES)
def test_two_servers_lose_what_their_folders_lose_in_transformers(made: Path, start: Any, owner: str) -> None:
    one, other = start(StandIn(owner, made / "source"), StandIn(owner, made / "yarn"))
    text, targets = ids(), [1, 2, TRAINED, *range(2 * TRAINED, LENGTH)]
    wanted = losses_of(made / "source", "base,yarn:4")
    with open_runner(opening(made, f"base={one}", f"long={other}")) as (runner, rows):
        assert [row.name for row in rows] == ["base", "long"]
        assert runner.trained == TRAINED
        for row, patched, apart in ((rows[0], "base", "yarn:4"), (rows[1], "yarn:4", "base")):
            with runner.engine(row) as engine:
                found = engine.token_losses(text, targets)
            places = [target - 1 for target in targets]
            assert np.abs(found.loss - wanted[patched][places]).max() < SAME
            assert np.abs(found.loss - wanted[apart][places]).max() > 1


@pytest.mark.parametrize("owner", LOSSES)
def test_right_is_whether_the_token_was_the_likeliest(made: Path, start: Any, owner: str) -> None:
    (url,) = start(StandIn(owner, made / "source"))
    text = ids(40)
    with open_runner(opening(made, url)) as (runner, rows), runner.engine(rows[0]) as engine:
        text += engine.generate(text, 5)
        found = engine.token_losses(text, list(range(1, len(text))))
    assert found.right[39:].all()
    assert found.right[:39].mean() < 0.3


def test_sglang_is_asked_for_as_many_positions_as_fit(made: Path, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = StandIn("sglang", made / "source")
    (url,) = start(server)
    text, targets = ids(), list(range(1, LENGTH))
    with open_runner(opening(made, url)) as (runner, rows), runner.engine(rows[0]) as engine:
        whole = engine.token_losses(text, targets)
        assert server.largest == LENGTH
        server.largest = 0
        monkeypatch.setattr(sglang, "PIECE", 50)
        pieces = engine.token_losses(text, targets)
        assert server.largest == 51
        assert np.abs(whole.loss - pieces.loss).max() < SAME
        server.largest = 0
        engine.token_losses(text, targets[-20:])
        assert server.largest == 21


def test_llama_server_gives_no_losses_and_generates(made: Path, start: Any) -> None:
    urls = start(*(StandIn(owner, made / "yarn") for owner in ALL))
    text, made_by = ids(2 * TRAINED), []
    for url in urls:
        with open_runner(opening(made, url)) as (runner, rows), runner.engine(rows[0]) as engine:
            made_by.append(engine.generate(text, 6))
            if url == urls[-1]:
                with pytest.raises(RopeconvError, match="no log-probabilities of prompts.*passkey with --generate"):
                    engine.token_losses(text, [5])
    assert made_by[0] == made_by[1] == made_by[2]
    assert len(made_by[0]) == 6


def test_an_evaluation_on_llama_server_refuses_losses_and_answers_questions(
    made: Path, start: Any, tmp_path: Path
) -> None:
    (url,) = start(StandIn("llamacpp", made / "yarn"))
    text = " ".join(f"{word} {word[::-1]}" for word in Path(__file__).read_text().split())
    sizes = Sizes("growth,passkey", "768", windows=1, depths=2, generate=True)
    with (
        open_evaluation(opening(made, url, model=""), sizes, [("a text", text)]) as (found),
        Journal(tmp_path / "journal", EVAL, found.runner.source) as journal,
    ):
        assert set(found.costs()) == {True}
        assert found.estimate().seconds > 0
        outcome = found.run(journal)
    assert {one.measure for one in outcome.observations["model"]} == {"passkey"}
    (refusal,) = outcome.refusals
    assert refusal.measure == "growth"
    assert "gives no log-probabilities of prompts" in refusal.reason
    alone = Sizes("growth", "768", windows=1)
    with (
        open_evaluation(opening(made, url, model=""), alone, [("a text", text)]) as (found),
        pytest.raises(UsageError, match="no row can be run: .*no log-probabilities of prompts.*measure passkey"),
    ):
        found.units  # noqa: B018


@pytest.mark.parametrize("owner", ALL)
def test_without_a_checkpoint_the_tokenizer_is_that_of_the_server(made: Path, start: Any, owner: str) -> None:
    (url,) = start(StandIn(owner, made / "source", length=512))
    text = "A wörd, and another."
    with open_runner(opening(made, url, model="")) as (runner, rows):
        assert [row.name for row in rows] == ["model"]
        assert runner.tokenizer.decode(runner.tokenizer.encode(text)) == text
        assert (
            runner.tokenizer.encode(text)
            == Tokenizer.from_file(str(made / "source" / "tokenizer.json")).encode(text).ids
        )
        assert runner.trained == 512


def words(made: Path, *urls: str, **options: Any) -> str:
    def run() -> None:
        with open_runner(opening(made, *urls, **options)) as (runner, rows):
            for row in rows:
                with runner.engine(row) as engine:
                    engine.token_losses(ids(), [LENGTH - 1])

    with pytest.raises(RopeconvError) as caught:
        run()
    return str(caught.value)


@pytest.mark.parametrize("owner", ALL)
def test_a_server_of_another_model_is_refused(made: Path, start: Any, tmp_path: Path, owner: str) -> None:
    other = checkpoint("llama", tmp_path / "other")
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    vocabulary["model"]["merges"] = vocabulary["model"]["merges"][:10]
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    url, same = start(StandIn(owner, other), StandIn(owner, made / "source"))
    assert "whose tokenizer is not that of" in words(made, url)
    assert "whose tokenizer is not that of model" in words(made, f"a={same}", f"b={url}", model="")


def test_what_does_not_go_together_is_said(made: Path, start: Any) -> None:
    url, short, silent = start(
        StandIn("vllm", made / "source"),
        StandIn("sglang", made / "source", length=128),
        StandIn("vllm", made / "source", length=0, no_tokenizer=True),
    )
    assert "leave --methods out" in words(made, url, rows=[Row("base")])
    assert "start a second --server with the source" in words(made, url, against="there")
    assert "give them to the server" in words(made, url, device="cuda")
    assert f"two servers have the name model; name each, as in --server long={url}" in words(made, url, url)
    assert "takes 128 tokens, and 257 are needed" in words(made, short)
    assert "refuses (404)" in words(made, silent, model="")
    assert "no model is named" in words(made, model="")
    assert "does not answer" in words(made, "http://127.0.0.1:9")


def test_a_row_is_known_by_what_its_server_says_of_itself(made: Path, start: Any) -> None:
    first = start(StandIn("vllm", made / "source"), StandIn("vllm", made / "source", length=777))
    with open_runner(opening(made, f"a={first[0]}", f"b={first[1]}")) as (runner, rows):
        assert runner.digest(rows[0]) != runner.digest(rows[1])
        assert runner.runtime == "vLLM 0.32.0"
        assert runner.schedule(rows[0]) is None


def test_a_row_is_an_output_where_the_server_says_that_it_runs_it(made: Path, start: Any) -> None:
    one, other = start(StandIn("vllm", made / "yarn", path="/models/yarn"), StandIn("vllm", made / "source"))
    for folder, wanted in ((made / "yarn", [made / "yarn", None]), (made / "source", [None, None])):
        with open_runner(opening(made, f"a={one}", f"b={other}", model=str(folder))) as (_, rows):
            assert [row.path for row in rows] == wanted


def test_losses_are_those_of_the_folder_whatever_runs_beside_it(made: Path, start: Any) -> None:
    (url,) = start(StandIn("vllm", made / "yarn"))
    with open_runner(opening(made, url)) as (runner, rows), runner.engine(rows[0]) as engine:
        found = engine.token_losses(ids(), list(range(1, LENGTH))).loss
    assert max(distance(found, losses_of(made / "yarn", "base")["base"])) < SAME
