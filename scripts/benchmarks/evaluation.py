"""Time and memory of `ropeconv eval`, on a model made here or a given one."""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ropeconv.engines.llamacpp import threads
from ropeconv.features.evaluation.cases import EVAL
from ropeconv.features.evaluation.evaluation import Evaluation, Sizes, open_evaluation
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.formats.journal import Journal
from ropeconv.verbs.rows import parse_rows

from .measure import seconds

ROWS = "base,linear:4,yarn:4,mixed:4,ntk:4,ntk-fixed:4,by-parts:4,theta:1e6"
TRAINED = 2048

PEAK = """
import sys
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.verbs.rows import parse_rows


def memory(name):
    for line in open("/proc/self/status"):
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024


request = RunnerRequest(sys.argv[1], parse_rows("base"), device="cpu", dtype="float32")
with open_runner(request) as (runner, rows), runner.engine(rows[0]) as engine:
    ids = [number % 8000 for number in range(int(sys.argv[2]))]
    engine.token_losses(ids[:64], [63])
    before = memory("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # the peak so far is that of loading
    engine.token_losses(ids, list(range(1, len(ids))))
    print(before, memory("VmHWM"))
"""
"""Prints the bytes of a process that has loaded a model, and their peak in a pass."""


def text() -> str:
    """The manual of Python, as it comes with every CPython."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of 8,192 tokens for `text`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=8192, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator([text()], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>"
    ).save_pretrained(folder)


def checkpoint(folder: Path, hidden: int = 512, layers: int = 8, vocabulary: int = 8192) -> Path:
    """Write a Llama of random weights and a tokenizer for `text`, and return the folder.

    Args:
        folder: The folder.
        hidden: The hidden size; heads have 64 dimensions.
        layers: The number of layers.
        vocabulary: The number of tokens.
    """
    write_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        head_dim=64,
        vocab_size=vocabulary,
        max_position_embeddings=TRAINED,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def opened(model: Path, rows: str, dtype: str = "float32", **sizes: Any) -> Iterator[Evaluation]:
    request = RunnerRequest(str(model), parse_rows(rows), device="cpu", dtype=dtype)
    with open_evaluation(request, Sizes(**sizes), [("manual", text())]) as evaluation:
        yield evaluation


def swap(model: Path, folder: Path) -> dict[str, Any]:
    """The time to put the frequencies of another row into the loaded model, and back."""
    with opened(model, ROWS, lengths=str(TRAINED), windows=1) as evaluation:
        times = {}
        for row in evaluation.rows:
            taken = []
            for _ in range(20):
                begin = time.perf_counter()
                with evaluation.runner.engine(row):
                    taken.append(time.perf_counter() - begin)
            times[row.name] = 1000 * statistics.median(taken)
    return {"worst row, ms": max(times.values()), "all rows, ms": times}


def estimate(model: Path, folder: Path) -> dict[str, Any]:
    """The estimate before a run, and what the run took."""
    with (
        opened(model, "base,yarn:4", lengths="1/4T,1T,2T", windows=3) as evaluation,
        Journal(folder / "estimate", EVAL, "a") as journal,
    ):
        estimated = evaluation.estimate(journal).seconds
        taken = seconds(lambda: evaluation.run(journal))
    return {"estimate, s": estimated, "run, s": taken, "ratio": estimated / taken}


def memory(model: Path, folder: Path) -> dict[str, Any]:
    """Return the peak memory at 32k tokens with a vocabulary of 150,000, in megabytes.

    "above" is what the peak has beside weights, keys and values.

    Args:
        model: Not used; every measurement is called with it.
        folder: Where a model with that vocabulary is made.
    """
    tokens = 32768
    wide = checkpoint(folder / "wide", hidden=128, layers=2, vocabulary=150_000)
    completed = subprocess.run(
        [sys.executable, "-c", PEAK, wide, str(tokens)], check=True, capture_output=True
    )
    before, peak = map(int, completed.stdout.split())
    layers = 2
    keys_and_values = 2
    numbers = 128  # of a token
    cache = layers * keys_and_values * numbers * 4 * tokens  # in float32
    return {
        "loaded, MB": before / 1e6,
        "peak, MB": peak / 1e6,
        "keys and values, MB": cache / 1e6,
        "above, MB": (peak - before - cache) / 1e6,
    }


PLAIN = """
import json, sys, time
import llama_cpp as llama
import numpy as np
path, threads, cases = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
settings = llama.llama_model_default_params()
settings.n_gpu_layers = 0
model = llama.llama_model_load_from_file(path.encode(), settings)
width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
times = []
for ids, first in cases:
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = len(ids), 512, 512
    settings.n_threads = settings.n_threads_batch = threads
    context = llama.llama_init_from_model(model, settings)
    losses = []
    batch = llama.llama_batch_init(512, 0, 1)
    begin = time.perf_counter()
    for start in range(0, len(ids), 512):
        batch.n_tokens = len(ids[start : start + 512])
        for index in range(batch.n_tokens):
            batch.token[index], batch.pos[index] = ids[start + index], start + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = first - 1 <= start + index < len(ids) - 1
        llama.llama_decode(context, batch)
        for index in range(batch.n_tokens):
            if batch.logits[index]:
                logits = llama.llama_get_logits_ith(context, index)
                row = np.ctypeslib.as_array(logits, (width,)).astype(float)
                log_sum = np.log(np.exp(row - row.max()).sum()) + row.max()
                losses.append(log_sum - row[ids[start + index + 1]])
    times.append(time.perf_counter() - begin)
    llama.llama_free(context)
print(sum(times))
"""
"""A loop over llama.cpp as a person writes it: losses of the tokens from `first` on."""


def gguf(model: Path, folder: Path) -> dict[str, Any]:
    """Return the seconds of a row of a GGUF file, and of a plain loop of llama.cpp over the same.

    Args:
        model: The checkpoint, which is converted.
        folder: Where the file and the journal are written.
    """
    import ropeconv

    path = folder / "model.gguf"
    ropeconv.apply(model, as_is=True, to="gguf", out=path)
    with (
        opened(path, "base", dtype="auto", lengths="256,768,2048", windows=4) as evaluation,
        Journal(folder / "gguf", EVAL, evaluation.runner.source) as journal,
    ):
        # the tokens of each sequence, and its first token that is predicted
        cases = []
        for unit in evaluation.units:
            cases.append((unit.case.ids.tolist(), int(unit.case.targets[0])))
        taken = seconds(lambda: evaluation.run(journal))

    command = [sys.executable, "-c", PLAIN, str(path), str(threads())]
    done = subprocess.run(
        command, input=json.dumps(cases), check=True, capture_output=True, text=True
    )
    plain = float(done.stdout)
    return {"row, s": taken, "plain loop, s": plain, "ratio": taken / plain}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "swap": swap,
    "estimate": estimate,
    "memory": memory,
    "gguf": gguf,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="a checkpoint with its tokenizer (default: one made here)"
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = given.model or checkpoint(folder / "model")
        for part in filter(None, given.only.split(",")):
            print(part, json.dumps(rounded(PARTS[part](model, folder))), flush=True)


def rounded(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    return round(content, 3) if isinstance(content, float) else content
