"""All 13 tasks of RULER beside lm_eval's own run of the same model.

Six tasks make their text. The others download essays or questions, in whose place they get texts of
Python's manual here, in both runs. A tiny model answers nothing right, so that all scores are 0:
prompts and generated tokens are compared too, and another row must generate others.
"""

import re
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.features.evaluation.cases import EvaluationSizes
from ropeconv.features.evaluation.measures.lm_eval import RULER, LmEval
from ropeconv.features.evaluation.runners.checkpoint import CheckpointRunner
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.features.evaluation.texts import CheckpointTokenizer
from ropeconv.verbs.rows import parse_rows

from ....support.extent import sample
from ..engines import prose

LENGTH = 4096
QUESTIONS = 500
"""The questions that lm_eval makes of a set."""
Answers = list[tuple[str, Any, float]]


@pytest.fixture(autouse=True)
def texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give RULER's tasks texts for their downloads, and a rule for nltk's model of sentences."""
    for name in ("lm_eval", "nltk", "wonderwords"):
        pytest.importorskip(name, reason="pip install 'ropeconv[lm-eval]' 'lm-eval[ruler]'")
    import requests
    from lm_eval.tasks.ruler import prepare_niah

    words = " ".join(topics.values()).split()
    paragraphs = [" ".join(words[50 * number :][:50]) for number in range(QUESTIONS)]
    essays = SimpleNamespace(load_dataset=lambda *_, **__: {"text": paragraphs})
    monkeypatch.setattr(prepare_niah, "datasets", essays)
    monkeypatch.setattr(prepare_niah, "sent_tokenize", lambda text: re.split(r"(?<=\.) ", text))

    sets = {"SQuAD": squad(paragraphs), "hotpot": hotpot(paragraphs)}

    def get(url: str, timeout: float) -> SimpleNamespace:
        (found,) = [questions for name, questions in sets.items() if name in url]
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: found)

    monkeypatch.setattr(requests, "get", get)


def squad(paragraphs: list[str]) -> dict[str, Any]:
    """Questions in the form of SQuAD 2."""
    asked = []
    for number, text in enumerate(paragraphs):
        answer = {"text": text.split()[7]}
        question = {
            "question": f"The eighth word of {number}?",
            "is_impossible": False,
            "answers": [answer],
        }
        asked.append({"context": f"{number}: {text}", "qas": [question]})
    return {"data": [{"paragraphs": asked}]}


def hotpot(paragraphs: list[str]) -> list[dict[str, Any]]:
    """Questions in the form of HotpotQA."""
    asked = []
    for number, text in enumerate(paragraphs):
        context = [[f"Text {number}", [text]]]
        question = f"The eighth word of text {number}?"
        asked.append({"question": question, "answer": text.split()[7], "context": context})
    return asked


def answers(samples: list[dict[str, Any]]) -> Answers:
    """The prompt, the generated text and the score of each document, by its number."""
    ordered = sorted(samples, key=lambda one: int(one["doc_id"]))
    return [(one["doc"]["input"], one["filtered_resps"], one[str(LENGTH)]) for one in ordered]


def by_ropeconv(model: Path, task: str, row: str) -> Answers:
    """The answers of `ropeconv eval --measure lm-eval:TASK`."""
    measure = LmEval(task)
    (wanted,) = parse_rows(row)
    with open_runner(RunnerRequest(str(model), [wanted], device="cpu")) as (runner, _):
        assert isinstance(runner, CheckpointRunner)
        assert isinstance(runner.tokenizer, CheckpointTokenizer)
        sizes = EvaluationSizes((LENGTH,), 64, windows=2)
        (case,) = measure.cases(prose(runner.tokenizer), sizes)
        with runner.engine(wanted):
            samples = measure._samples(runner.loaded.model, runner.tokenizer.tokenizer, case)
    return answers(samples[task])


def by_lm_eval(model: Path, task: str) -> Answers:
    """The answers of lm_eval, which loads the model and its tokenizer from the folder."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    loaded = HFLM(pretrained=str(model), max_length=LENGTH, device="cpu", batch_size=1)
    metadata = {"tokenizer": str(model), "max_seq_lengths": [LENGTH]}
    results = lm_eval.simple_evaluate(
        loaded, tasks=[task], limit=2, bootstrap_iters=0, random_seed=0, metadata=metadata
    )
    assert results is not None
    return answers(results["samples"][task])


@pytest.mark.parametrize("task", sample(RULER, 3))
def test_a_task_gives_what_lm_eval_gives(task: str, tiny_llama: Path) -> None:
    own = by_lm_eval(tiny_llama, task)
    assert by_ropeconv(tiny_llama, task, "base") == own
    assert len({prompt for prompt, _, _ in own}) == 2

    other = by_ropeconv(tiny_llama, task, "linear:4")
    assert [prompt for prompt, _, _ in other] == [prompt for prompt, _, _ in own]
    assert [text for _, text, _ in other] != [text for _, text, _ in own]
