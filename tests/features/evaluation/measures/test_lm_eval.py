"""lm-eval:TASK hands the loaded and patched model over to lm_eval, and pairs rows by document."""

import json
import logging
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ropeconv.errors import UsageError
from ropeconv.features.evaluation.cases import EVAL, EvaluationSizes, Observation
from ropeconv.features.evaluation.evaluation import Evaluation, parse_measures
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.formats.journal import Journal
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import parse_rows

from ....support.in_process import command
from ..engines import prose

ASKED = EvaluationSizes((96,), 64, windows=3, seed=5)
Run = Callable[..., dict[str, list[Observation]]]


class Standin:
    """lm_eval's two names that are used: each document is a sequence of tokens, and `score` its
    loss in the model.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.tokens: list[list[int]] = []
        """What the tokenizer that lm_eval is pointed at makes of a sentence."""

    def HFLM(self, **given: Any) -> dict[str, Any]:
        return given

    def TaskManager(self, include_path: str) -> str:
        return f"tasks of {include_path}"

    def simple_evaluate(
        self, ready: dict[str, Any], tasks: list[str], limit: int, **given: Any
    ) -> dict[str, Any]:
        import torch

        self.asked.append({**ready, "tasks": tasks, "limit": limit, **given})
        logging.getLogger("lm_eval").warning("a warning of lm_eval")
        print("100%|####| a bar of lm_eval", file=sys.stderr)
        if tasks == ["unknown"]:
            raise KeyError("unknown")
        if tasks == ["ruler_fwe"] and not given.get("metadata"):
            # as lm_eval/tasks/ruler/common_utils.py does without a tokenizer
            raise AssertionError("No tokenizer or pretrained provided.")
        metadata = given.get("metadata")
        if metadata:
            return {"samples": {tasks[0]: self.made_of_a_length(metadata, limit)}}

        def loss(number: int) -> float:
            ids = torch.randint(4, 320, (1, 96), generator=torch.Generator().manual_seed(number))
            with torch.no_grad():
                return float(ready["pretrained"](input_ids=ids, labels=ids).loss)

        same = {"filter": "strict", "metrics": ["score", "pair"], "pair": (1, 2), "other": 1.0}
        return {
            "samples": {tasks[0]: [{"doc_id": n, "score": loss(n), **same} for n in range(limit)]}
        }

    def made_of_a_length(self, metadata: dict[str, Any], limit: int) -> list[dict[str, Any]]:
        """Samples as RULER has them: a metric for each length, -1 for those of other prompts."""
        from transformers import AutoTokenizer

        (length,) = metadata["max_seq_lengths"]
        tokenizer = AutoTokenizer.from_pretrained(metadata["tokenizer"])
        self.tokens.append(tokenizer("a sentence of words")["input_ids"])
        scores = {str(known): -1.0 for known in (4096, 8192)}
        scores[str(length)] = 0.5
        metrics = {"filter": "none", "metrics": list(scores), **scores}
        return [{"doc_id": number, **metrics} for number in range(limit)]


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Standin:
    stub = Standin()
    for name in ("lm_eval", "lm_eval.models", "lm_eval.models.huggingface", "lm_eval.tasks"):
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.HFLM = stub.HFLM
        module.simple_evaluate = stub.simple_evaluate
        module.TaskManager = stub.TaskManager
        monkeypatch.setitem(sys.modules, name, module)
    return stub


@pytest.fixture
def run(tiny_llama: Path, tmp_path: Path) -> Run:
    """What is measured of a tiny model by the name of a row."""

    def measured(
        task: str,
        rows: str = "base,linear:4",
        times: int = 1,
        asked: EvaluationSizes = ASKED,
    ) -> Any:
        (measure,) = parse_measures(f"lm-eval:{task}")
        with open_runner(RunnerRequest(str(tiny_llama), [], device="cpu")) as (runner, _):
            for _ in range(times):
                evaluation = Evaluation(
                    parse_rows(rows), [measure], prose(runner.tokenizer), asked, runner
                )
                with Journal(tmp_path / "journal.jsonl", EVAL, runner.source) as journal:
                    observations = evaluation.run(journal).observations
        return observations

    return measured


def test_a_task_runs_on_the_patched_model_without_another_load(standin: Standin, run: Run) -> None:
    observations = run("some_task", times=2)
    first, second = standin.asked  # by row; the second time both were in the journal
    assert first["pretrained"] is second["pretrained"]
    for call in standin.asked:
        assert (call["tasks"], call["limit"], call["max_length"], call["random_seed"]) == (
            ["some_task"],
            3,
            96,
            5,
        )
    base = observations["base"]
    linear = observations["linear:4"]
    assert [observation.pair for observation in base] == [
        observation.pair for observation in linear
    ]
    assert [(item.metric, item.column, item.document) for item in base] == [
        ("score,strict", 96, n) for n in range(3)
    ]
    assert all(abs(a.value - b.value) > 1e-3 for a, b in zip(base, linear, strict=True))


def test_a_task_of_a_persons_own_file_runs_and_nothing_of_lm_eval_is_on_the_screen(
    standin: Standin, run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("dataset_path: json\ntask: my_task\n")
    capfd.readouterr()
    observations = run(str(path))
    assert (standin.asked[0]["tasks"], standin.asked[0]["task_manager"]) == (
        ["my_task"],
        f"tasks of {tmp_path}",
    )
    assert {o.measure for o in observations["base"]} == {"lm-eval:my_task"}
    path.write_text("dataset_path: json\ntask: my_task\nfewshot: 2\n")
    run(str(path))
    assert len(standin.asked) == 4, "a changed task is run again"
    questions = tmp_path / "questions.jsonl"
    named = "dataset_path: json\ntask: my_task\ndataset_kwargs: {data_files: 'questions.jsonl'}\n"
    for number, text in enumerate(("one", "one", "three"), 1):
        path.write_text(named)
        if not questions.exists() or questions.read_text() != text:
            questions.write_text(text)
        run(str(path))
        asked = {1: 6, 2: 6, 3: 8}[number]
        assert len(standin.asked) == asked, "other questions are asked again, the same are not"
    assert "of lm_eval" not in capfd.readouterr().err
    path.write_text("dataset_path: json\n")
    for name, words in (
        (path, "has no line with `task:`"),
        (tmp_path / "none.yaml", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=words):
            parse_measures(f"lm-eval:{name}")


def test_a_task_that_lm_eval_does_not_run_is_a_sentence(standin: Standin, run: Run) -> None:
    with pytest.raises(RopeconvError, match="task unknown .*`lm_eval ls tasks`"):
        run("unknown", "base")


def test_a_task_of_ruler_gets_the_tokenizer_and_is_run_at_each_length(
    standin: Standin, run: Run, tiny_llama: Path
) -> None:
    from transformers import AutoTokenizer

    observations = run("ruler_fwe", "base", asked=EvaluationSizes((4096, 8192), 64, windows=3))
    assert [call["metadata"]["max_seq_lengths"] for call in standin.asked] == [[4096], [8192]]
    # with room for the answer behind a prompt of the length
    assert [call["max_length"] for call in standin.asked] == [4096 + 128, 8192 + 128]
    scores = [(item.metric, item.column, item.value) for item in observations["base"]]
    assert scores == [("accuracy", length, 0.5) for length in (4096, 8192) for _ in range(3)]

    # the tokenizer of the model, and none of its code: the folder is gone afterwards
    own = AutoTokenizer.from_pretrained(tiny_llama)("a sentence of words")["input_ids"]
    assert standin.tokens == [own, own]
    folders = [Path(call["metadata"]["tokenizer"]) for call in standin.asked]
    assert not any(folder.exists() for folder in folders)


def test_lengths_for_which_ruler_has_no_score_are_refused(standin: Standin, run: Run) -> None:
    with pytest.raises(UsageError, match="no score at 96 tokens; give --lengths some of 4k,8k"):
        run("niah_multikey_1")
    assert standin.asked == []


def test_a_task_needs_no_text_and_other_measures_do(
    standin: Standin, tiny_llama: Path, tmp_path: Path
) -> None:
    """lm_eval has the prompts of its tasks; the loss of `growth` is that of a text."""
    asked = ("--methods", "base", "--lengths", "64", "--windows", "3", "--journal", "journal.jsonl")
    words = ("eval", tiny_llama, *asked)
    alone = command(tmp_path, *words, "--measure", "lm-eval:some_task", "--json", code=0)
    assert len(json.loads(alone.stdout)["items"]) == 3
    beside = command(tmp_path, *words, "--measure", "growth,lm-eval:some_task", code=2)
    assert "no text is given" in beside.stderr
