"""Speed and memory of `ropeconv eval` beside the same work done otherwise, on a model made here or a given one."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ropeconv.bake import Target, apply, make_plan
from ropeconv.evaluate.case import EVAL
from ropeconv.evaluate.evaluation import Evaluation
from ropeconv.evaluate.opening import Sizes, open_evaluation
from ropeconv.evaluate.row import parse_rows
from ropeconv.evaluate.runners import Opening
from ropeconv.formats.journal import Journal
from ropeconv.sources import open_source

from .measure import seconds

ROWS = "base,linear:4,yarn:4,mixed:4,ntk:4,ntk-fixed:4,by-parts:4,theta:1e6"
TRAINED = 2048
LM_EVAL_TASK = """task: same_tokens
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
"""


def text() -> str:
    """The manual of Python, as it comes with every CPython."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def checkpoint(folder: Path, hidden: int = 512, layers: int = 8, vocabulary: int = 8192) -> Path:
    """A Llama of random weights, and a tokenizer for `text`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=8192, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator([text()], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64, head_dim=64, vocab_size=vocabulary, max_position_embeddings=TRAINED,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def opened(model: Path, rows: str, **sizes: Any) -> Iterator[Evaluation]:
    asked = Opening(str(model), parse_rows(rows), device="cpu", dtype="float32")
    with open_evaluation(asked, Sizes(**sizes), [("manual", text())]) as found:
        yield found


def command(model: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "ropeconv", "eval", str(model), "--device", "cpu", "--dtype", "float32", *more]


def swap(model: Path, folder: Path) -> dict[str, Any]:
    """The time to put the frequencies of another row into the loaded model, and back."""
    with opened(model, ROWS, lengths=str(TRAINED), windows=1) as found:
        times = {}
        for row in found.rows:
            taken = []
            for _ in range(20):
                begin = time.perf_counter()
                with found.runner.engine(row):
                    taken.append(time.perf_counter() - begin)
            times[row.name] = 1000 * statistics.median(taken)
    return {"worst row, ms": max(times.values()), "all rows, ms": times}


def estimate(model: Path, folder: Path) -> dict[str, Any]:
    """The estimate before a run, and what the run took."""
    with opened(model, "base,yarn:4", lengths="1/4T,1T,2T", windows=3) as found:
        said = found.estimate().seconds
        with Journal(folder / "estimate", EVAL, "a") as journal:
            taken = seconds(lambda: found.run(journal))
    return {"estimate, s": said, "run, s": taken, "ratio": said / taken}


def memory(model: Path, folder: Path) -> dict[str, Any]:
    """Peak memory at 32k tokens with a vocabulary of 150,000, above weights, keys and values."""
    wide = checkpoint(folder / "wide", hidden=128, layers=2, vocabulary=150_000)
    code = (
        "import sys\n"
        "from ropeconv.evaluate.runners import Opening, open_runner\n"
        "from ropeconv.evaluate.row import parse_rows\n"
        "with open_runner(Opening(sys.argv[1], parse_rows('base'), device='cpu', dtype='float32')) as (runner, rows):\n"
        "    with runner.engine(rows[0]) as engine:\n"
        "        ids = [number % 8000 for number in range(int(sys.argv[2]))]\n"
        "        engine.token_losses(ids[:64], [63])\n"
        "        status = lambda: dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "        memory = lambda name: int(status()[name].split()[0])\n"
        "        before = memory('VmRSS')\n"
        "        open('/proc/self/clear_refs', 'w').write('5')  # the peak so far is that of loading\n"
        "        engine.token_losses(ids, list(range(1, len(ids))))\n"
        "        print(before * 1024, memory('VmHWM') * 1024)\n"
    )
    found = subprocess.run([sys.executable, "-c", code, wide, "32768"], check=True, capture_output=True)
    before, peak = map(int, found.stdout.split())
    cache = 2 * 2 * 128 * 4 * 32768  # layers, keys and values, numbers of a token, bytes
    return {
        "loaded, MB": before / 1e6,
        "peak, MB": peak / 1e6,
        "keys and values, MB": cache / 1e6,
        "above, MB": (peak - before - cache) / 1e6,
    }


def kills(model: Path, folder: Path) -> dict[str, Any]:
    """Ten runs killed at random times, and one to the end: cases lost or run twice, and whether the end is the same."""
    (folder / "text").write_text(text())
    more = (
        "--text",
        str(folder / "text"),
        "--methods",
        "base,yarn:4",
        "--lengths",
        "64,128,256",
        "--windows",
        "60",
        "--json",
    )
    whole = subprocess.run(
        [*command(model, *more), "--journal", str(folder / "whole")], check=True, capture_output=True, text=True
    )
    journal, draw, finished = folder / "killed", np.random.default_rng(0), [0]
    for _ in range(10):
        wanted = finished[-1] + int(draw.integers(5, 30))
        with subprocess.Popen(
            [*command(model, *more), "--journal", str(journal)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as running:
            while running.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < wanted):
                time.sleep(0.01)
            running.send_signal(signal.SIGKILL)
        finished.append(journal.read_bytes().count(b"\n") - 1)
    last = subprocess.run(
        [*command(model, *more), "--journal", str(journal)], check=True, capture_output=True, text=True
    )
    keys = [json.loads(line)["key"] for line in journal.read_bytes().splitlines()[1:]]
    one, other = (json.loads(found.stdout) for found in (whole, last))
    return {
        "kills": len(finished) - 1, "cases": len(keys), "lost": sum(b < a for a, b in pairwise(finished)),
        "run twice": len(keys) - len(set(keys)), "same result": one["cells"] == other["cells"],
    }  # fmt: skip


def lm_eval(model: Path, folder: Path, program: str, documents: int) -> dict[str, Any]:
    """Eight rows in one `ropeconv eval`, and eight baked outputs in a process of lm_eval each, on the same tokens.

    documents: number of texts of TRAINED tokens.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ids = tokenizer.encode(text(), add_special_tokens=False)
    most = TRAINED - 1
    texts = [tokenizer.decode(ids[start : start + most]) for start in range(0, documents * most, most)]
    length = min(len(tokenizer.encode(one, add_special_tokens=False)) for one in texts)
    for number, one in enumerate(texts):
        (folder / f"document{number}.txt").write_text(one)
    (folder / "data.json").write_text("\n".join(json.dumps({"text": one}) for one in texts))
    (folder / "same_tokens.yaml").write_text(LM_EVAL_TASK.format(data=folder / "data.json"))
    outs = []
    for number, row in enumerate(parse_rows(ROWS)):
        out = folder / f"row{number}"
        if row.recipe is None:
            shutil.copytree(model, out)
        else:
            apply(make_plan(open_source(str(model)), row.recipe, Target(out=out)), fsync=False)
        outs.append(out)
    ours = seconds(lambda: subprocess.run(
        [*command(model, "--text", str(folder / "document*.txt"), "--methods", ROWS, "--measure", "position",
                  "--lengths", str(length), "--windows", str(documents), "--fresh", "--journal", str(folder / "j"))],
        check=True, stdout=subprocess.DEVNULL,
    ))  # fmt: skip
    env = {**os.environ, "HF_HOME": str(folder / "home")}

    def theirs() -> None:
        for out in outs:
            subprocess.run(
                [program, "--model", "hf", "--model_args", f"pretrained={out},dtype=float32,max_length={TRAINED}",
                 "--tasks", "same_tokens", "--include_path", str(folder), "--device", "cpu", "--batch_size", "1"],
                check=True, stdout=subprocess.DEVNULL, env=env,
            )  # fmt: skip

    other = seconds(theirs)
    return {
        "documents": documents, "tokens of each": length,
        "ropeconv eval, s": ours, "eight lm_eval, s": other, "times as fast": other / ours,
    }  # fmt: skip


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "swap": swap, "estimate": estimate, "memory": memory, "kills": kills,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint with its tokenizer (default: one made here)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run")
    parser.add_argument("--lm-eval", default="", metavar="PROGRAM", help="the lm_eval command, to compare with")
    parser.add_argument("--documents", type=int, default=8, help="texts of 2,048 tokens for lm_eval")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = given.model or checkpoint(folder / "model")
        for part in filter(None, given.only.split(",")):
            print(part, json.dumps(rounded(PARTS[part](model, folder))), flush=True)
        if given.lm_eval:
            print("lm_eval", json.dumps(rounded(lm_eval(model, folder, given.lm_eval, given.documents))), flush=True)


def rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    return round(found, 3) if isinstance(found, float) else found
