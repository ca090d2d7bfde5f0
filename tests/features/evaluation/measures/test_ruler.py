"""All 13 tasks of RULER beside lm_eval's own run of the same model.

Six tasks make their text. The others download essays or questions, in whose place they get texts of
Python's manual here, in both runs. A tiny model answers nothing right, so that all scores are 0:
prompts and generated tokens are compared too, and another row must generate others. lm_eval runs as its users
run it: with the length of the model's config, and each task from the start of its random numbers.
"""

import json
import random
import re
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.features.evaluation.cases import EvaluationSizes
from ropeconv.features.evaluation.measures.lm_eval import LmEval
from ropeconv.features.evaluation.measures.ruler import RULER, check_tokenizer, fresh_words
from ropeconv.features.evaluation.runners.checkpoint import CheckpointRunner
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.features.evaluation.texts import CheckpointTokenizer
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import parse_rows

from ....support.extent import sample
from ....support.in_process import command
from ....support.llamacpp import checkpoint
from ..engines import prose

LENGTH = 4096
QUESTIONS = 500
"""The questions that lm_eval makes of a set."""
VOCABULARY = 4096
"""Tokens with which the shortest prompts of all tasks fit, as those of published models do."""
Answers = list[tuple[str, Any, float]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that reads words: that of other tests has a token for each or two letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("words")
    checkpoint("llama", folder, vocab_size=VOCABULARY, max_position_embeddings=2 * LENGTH)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<unk>", "<s>", "</s>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


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
            samples = measure._run_task(runner.loaded.model, runner.tokenizer.tokenizer, case)
    return answers(samples[task])


def by_lm_eval(model: Path, task: str) -> Answers:
    """The answers of lm_eval, which loads the model and its tokenizer from the folder."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    loaded = HFLM(pretrained=str(model), device="cpu", batch_size=1)
    metadata = {"tokenizer": str(model), "max_seq_lengths": [LENGTH]}
    with fresh_words():  # as in a process of its own
        results = lm_eval.simple_evaluate(
            loaded, tasks=[task], limit=2, bootstrap_iters=0, random_seed=0, metadata=metadata
        )
    assert results is not None
    return answers(results["samples"][task])


@pytest.mark.parametrize("task", sample(RULER, 3))
def test_a_task_gives_what_lm_eval_gives(task: str, model: Path) -> None:
    own = by_lm_eval(model, task)
    assert by_ropeconv(model, task, "base") == own
    assert len({prompt for prompt, _, _ in own}) == 2

    other = by_ropeconv(model, task, "linear:4")
    assert [prompt for prompt, _, _ in other] == [prompt for prompt, _, _ in own]
    assert [text for _, text, _ in other] != [text for _, text, _ in own]


@pytest.mark.parametrize(
    ("task", "least"), [("ruler_vt", 700), ("ruler_cwe", 5000), ("ruler", 700)]
)
def test_a_tokenizer_without_room_for_a_prompt_is_refused(
    task: str, least: int, tiny_llama: Path, model: Path
) -> None:
    from transformers import AutoTokenizer

    letters = AutoTokenizer.from_pretrained(tiny_llama)
    with pytest.raises(RopeconvError) as refused:
        check_tokenizer(task, letters, LENGTH)
    numbers = re.findall(r"about ([\d,]+)", str(refused.value))
    assert int(numbers[0].replace(",", "")) > least

    check_tokenizer(task, AutoTokenizer.from_pretrained(model), LENGTH)
    check_tokenizer("ruler_fwe", letters, LENGTH)
    check_tokenizer("ruler_cwe", letters, 2 * LENGTH)


def test_lm_eval_has_no_prompt_for_such_a_tokenizer(
    tiny_llama: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.tasks.ruler import cwe_utils, vt_utils
    from transformers import AutoTokenizer

    letters = AutoTokenizer.from_pretrained(tiny_llama)
    words = AutoTokenizer.from_pretrained(model)
    make = vt_utils.generate_input_output
    noises = list[int]()

    def draw(count: int, *given: Any, **options: Any) -> Any:
        noises.append(count)
        if len(noises) == 100:  # nothing else ends the loop of lm_eval
            return "a short text", []
        return make(count, *given, **options)

    # after one draw of five sentences it tries none, for ever
    monkeypatch.setattr(vt_utils, "generate_input_output", draw)
    example = {"num_samples": 1, "max_seq_length": 500, "incremental": 5}
    vt_utils.sys_vartrack_w_noise_random(letters, **example)
    assert noises == [5, *[0] * 99]
    noises.clear()
    vt_utils.sys_vartrack_w_noise_random(words, **example)
    assert len(noises) < 10

    # the list of common words is empty, and so is the answer
    for tokenizer, count in ((letters, 0), (words, 10)):
        (made,) = cwe_utils.sys_word_pair_random(1, LENGTH, tokenizer)
        assert len(made["outputs"]) == count


def test_each_run_has_the_same_common_words() -> None:
    def words() -> Any:
        random.seed(1)
        return import_module("lm_eval.tasks.ruler.cwe_utils").get_example(20)

    with fresh_words():
        first = words()
        assert words() != first, "lm_eval seeds its generator; fresh_words can go"
    with fresh_words():
        assert words() == first


@pytest.mark.nightly
def test_all_tasks_run_in_one_command(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(topics.values()))
    words = ["eval", model, "--methods", "base", "--text", "text.txt", "--device", "cpu"]
    words += ["--measure", "lm-eval:ruler", "--lengths", "4k", "--windows", "1"]
    done = command(tmp_path, *words, "--journal", "journal", "-o", "result.json", "--json", code=0)
    json.loads(done.stdout)  # lm_eval prints to standard output

    items = json.loads((tmp_path / "result.json").read_text())["items"]
    assert [item["window"] for item in items] == list(range(len(RULER)))
