"""lm-eval:TASK hands the loaded and patched model over to lm_eval, and pairs rows by document."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ropeconv.errors import RopeconvError, UsageError
from ropeconv.evaluate.asked import Asked
from ropeconv.evaluate.case import EVAL
from ropeconv.evaluate.evaluation import Evaluation, parse_measures
from ropeconv.evaluate.outcome import Outcome
from ropeconv.evaluate.row import Row, parse_rows
from ropeconv.evaluate.runners import Opening, Runner, open_runner
from ropeconv.formats.journal import Journal

from ..engines import ByHand, numbered
from ..reading import prose

ASKED = Asked((96,), 64, windows=3, seed=5)


class Standin:
    """lm_eval's two names that are used: each document is a sequence of tokens, and `score` its loss in the model."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def HFLM(self, **given: Any) -> dict[str, Any]:
        return given

    def simple_evaluate(self, ready: dict[str, Any], tasks: list[str], limit: int, **given: Any) -> dict[str, Any]:
        self.asked.append({**ready, "tasks": tasks, "limit": limit, **given})
        if tasks == ["unknown"]:
            raise KeyError("unknown")

        def loss(number: int) -> float:
            ids = torch.randint(4, 320, (1, 96), generator=torch.Generator().manual_seed(number))
            with torch.no_grad():
                return float(ready["pretrained"](input_ids=ids, labels=ids).loss)

        metrics = ["pair"] if tasks == ["of pairs"] else ["score", "pair"]
        filters = ["strict", "loose"] if tasks == ["two filters"] else ["none"]
        samples = [
            {"doc_id": n, "metrics": metrics, "filter": kept, "score": loss(n), "pair": (1, 2), "other": 1.0}
            for kept in filters
            for n in range(limit)
        ]
        return {"samples": {tasks[0]: samples}}


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Standin:
    found = Standin()
    for name in ("lm_eval", "lm_eval.models", "lm_eval.models.huggingface"):
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.HFLM, module.simple_evaluate = found.HFLM, found.simple_evaluate
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ...support.llamacpp import checkpoint

    return checkpoint("llama", tmp_path_factory.mktemp("model") / "tiny")


def run(runner: Runner, folder: Path, task: str, rows: str = "base,linear:4") -> Outcome:
    measures, stride = parse_measures(f"lm-eval:{task}")
    assert stride == 0
    asked = Evaluation(parse_rows(rows), measures, prose(runner.tokenizer), ASKED, runner)
    with Journal(folder / "journal.jsonl", EVAL, runner.source) as journal:
        return asked.run(journal)


def test_a_task_runs_on_the_patched_model_without_another_load(
    standin: Standin, tiny_llama: Path, tmp_path: Path
) -> None:
    with open_runner(Opening(str(tiny_llama), [], device="cpu")) as (runner, _):
        found = run(runner, tmp_path, "some_task").observations
        again = run(runner, tmp_path, "some_task").observations
    assert [one["tasks"] for one in standin.asked] == [["some_task"]] * 2  # the second run was in the journal
    assert standin.asked[0]["pretrained"] is standin.asked[1]["pretrained"]
    assert {(one["limit"], one["max_length"], one["random_seed"]) for one in standin.asked} == {(3, 96, 5)}
    assert again == found
    pairs = {row: [one.pair for one in seen] for row, seen in found.items()}
    assert pairs["base"] == pairs["linear:4"]
    assert [(one.metric, one.column, one.document) for one in found["base"]] == [("score", 96, n) for n in range(3)]
    assert all(abs(a.value - b.value) > 1e-3 for a, b in zip(found["base"], found["linear:4"], strict=True))


def test_another_seed_is_run_again(standin: Standin, tiny_llama: Path, tmp_path: Path) -> None:
    (measure,), _ = parse_measures("lm-eval:task")
    texts = numbered(200)
    digests = {next(iter(measure.cases(texts, replace(ASKED, seed=seed)))).digest for seed in (0, 5, 5)}
    assert len(digests) == 2


def test_filters_of_a_task_are_metrics_of_their_own(standin: Standin, tiny_llama: Path, tmp_path: Path) -> None:
    with open_runner(Opening(str(tiny_llama), parse_rows("base"), device="cpu")) as (runner, _):
        found = run(runner, tmp_path, "two filters", "base").observations["base"]
    assert [(one.metric, one.document) for one in found] == [
        (f"score,{kept}", n) for kept in ("strict", "loose") for n in range(3)
    ]


def test_a_task_without_numbers_for_each_document_is_a_sentence(
    standin: Standin, tiny_llama: Path, tmp_path: Path
) -> None:
    with (
        open_runner(Opening(str(tiny_llama), [], device="cpu")) as (runner, _),
        pytest.raises(RopeconvError, match="the task of pairs gives no number for each document; choose one"),
    ):
        run(runner, tmp_path, "of pairs", "base")


def test_a_task_that_is_not_known_is_a_sentence(standin: Standin, tiny_llama: Path, tmp_path: Path) -> None:
    with (
        open_runner(Opening(str(tiny_llama), [], device="cpu")) as (runner, _),
        pytest.raises(RopeconvError, match="lm_eval does not run the task unknown .*`lm_eval ls tasks` lists"),
    ):
        run(runner, tmp_path, "unknown", "base")


def test_models_outside_transformers_are_refused(standin: Standin, tmp_path: Path) -> None:
    asked = Evaluation(
        [Row("base")], parse_measures("lm-eval:task")[0], numbered(200), ASKED, ByHand({"base": lambda ids, at: 1.0})
    )
    with (
        Journal(tmp_path / "journal", EVAL, "source") as journal,
        pytest.raises(RopeconvError, match="lm-eval:task runs models in transformers, and not in by hand; leave"),
    ):
        asked.run(journal)


def test_the_name_of_a_task_is_needed_and_given_once(standin: Standin) -> None:
    with pytest.raises(UsageError, match="needs the name of a task"):
        parse_measures("growth,lm-eval")
    with pytest.raises(UsageError, match="has lm-eval:a twice"):
        parse_measures("lm-eval:a,lm-eval:a")
    assert [one.name for one in parse_measures("lm-eval:a,growth,lm-eval:b")[0]] == ["lm-eval:a", "growth", "lm-eval:b"]


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm_eval is installed")
def test_without_lm_eval_the_extra_is_named() -> None:
    with pytest.raises(RopeconvError, match=r"lm-eval:task needs lm_eval, .*pip install 'ropeconv\[lm-eval\]'"):
        parse_measures("lm-eval:task")


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="pip install 'ropeconv[lm-eval]'")
def test_lm_eval_itself_runs_a_task_of_two_choices(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"q": f"{n} and", "choices": [" one", " two"], "gold": n % 2} for n in range(6)]
    (tmp_path / "data.json").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    task: Any = {
        "task": "two", "dataset_path": "json", "dataset_kwargs": {"data_files": str(tmp_path / "data.json")},
        "test_split": "train", "output_type": "multiple_choice", "doc_to_text": "{{q}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    (measure,), _ = parse_measures("lm-eval:two")
    monkeypatch.setattr(measure, "task", task)
    with open_runner(Opening(str(tiny_llama), [], device="cpu")) as (runner, _):
        asked = Evaluation(parse_rows("base,linear:4"), [measure], prose(runner.tokenizer), ASKED, runner)
        with Journal(tmp_path / "journal.jsonl", EVAL, runner.source) as journal:
            found = asked.run(journal).observations
    for seen in found.values():
        assert [(one.metric, one.document) for one in seen] == [("acc", 0), ("acc", 1), ("acc", 2)]
        assert {one.value for one in seen} <= {0.0, 1.0}
