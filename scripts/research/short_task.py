"""Writes a task of short questions for `eval`, which measures what a method costs there.

    python -m scripts.research.short_task FOLDER
    ropeconv eval MODEL --methods base,yarn:4 --measure lm-eval:FOLDER/short_questions.yaml \
        --windows 282 -o items.jsonl.gz

The questions are the 282 worked examples of the 57 subjects of MMLU (Hendrycks et al. 2021,
arXiv 2009.03300), which are a file of the package lm_eval, so that nothing is downloaded.
Models below a billion parameters do not answer with a letter, so each choice is an answer in words
(the cloze form), and the likeliest one by characters counts (`acc_norm`). `right_log_prob`, the
log-probability of the right answer for each of its characters, tells methods apart by far fewer
questions.

`read_questions` is the function to read first.
"""

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from ropeconv.formats.drafts import write_file

SOURCE = "tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"
"""The file of lm_eval: for each subject, a text with its examples."""
EXAMPLE = re.compile(
    r"Q: (?P<question>.*?)\n\(A\) (?P<choices>.*?)\nA: .*?\((?P<letter>[A-E])\)\.?", re.DOTALL
)
TASK = """\
task: short_questions
dataset_path: json
dataset_kwargs:
  data_files:
    test: QUESTIONS
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
process_results: !function short_metrics.metrics_of_question
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
  - metric: right_log_prob
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
METRICS = '''\
"""The metrics of a question: whether the right answer is the likeliest, and its log-probability."""


def metrics_of_question(doc, results):
    """results: the log-likelihood of each choice, and whether it would be generated."""
    log_likelihoods = [log_likelihood for log_likelihood, _ in results]
    by_character = [
        log_likelihood / len(choice)
        for log_likelihood, choice in zip(log_likelihoods, doc["choices"])
    ]
    right = doc["answer"]
    return {
        "acc": float(log_likelihoods[right] == max(log_likelihoods)),
        "acc_norm": float(by_character[right] == max(by_character)),
        "right_log_prob": by_character[right],
    }
'''


def read_questions(prompts: dict[str, str]) -> list[dict[str, Any]]:
    """Return the questions of all subjects, each with its choices and the index of the right one.

    Args:
        prompts: By subject, a text of examples, each of which is
            "Q: QUESTION\\n(A) ... (B) ... (C) ... (D) ...\\nA: REASONS The answer is (B).".

    Raises:
        ValueError: An example has another form.
    """
    questions = []
    for subject, text in prompts.items():
        _, *examples = re.split(r"\n\n(?=Q: )", text)
        for example in examples:
            found = EXAMPLE.fullmatch(example.strip())
            if found is None:
                raise ValueError(f"an example of {subject} has another form: {example[:80]!r}")
            choices = re.split(r"\s*\([B-E]\) ", found["choices"])
            questions.append(
                {
                    "subject": subject,
                    "question": found["question"].strip(),
                    "choices": [choice.strip() for choice in choices],
                    "answer": "ABCDE".index(found["letter"]),
                }
            )
    return questions


def main(folder: str) -> None:
    """Write the questions, the description of the task, and its metrics into a folder."""
    prompts = json.loads(files("lm_eval").joinpath(SOURCE).read_text("utf-8"))
    questions = read_questions(prompts)
    place = Path(folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(question, ensure_ascii=False) + "\n" for question in questions]
    write_file(place / "questions.jsonl", "".join(lines))
    write_file(place / "short_metrics.py", METRICS)
    task = TASK.replace("QUESTIONS", json.dumps(str(place / "questions.jsonl")))
    write_file(place / "short_questions.yaml", task)
    print(f"{place / 'short_questions.yaml'}: {len(questions)} questions")


if __name__ == "__main__":
    main(*sys.argv[1:])
