"""Checks validate, eval and tune on one device, and writes what they gave and cost as JSON.

    python -m scripts.gpu_check [validate] [eval] [tune]

The model has the shape of Llama 2 7B and random weights, so nothing is downloaded or installed.
`--keep FOLDER` keeps it for the next part. `--small --device cpu` runs the same on a small model
anywhere.
"""

import argparse
import contextlib
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers

import ropeconv
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec, advice_on_memory, load_stock
from ropeconv.engines.transformers.memory import release
from ropeconv.features.evaluation.tune.tuning import open_tuning
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.lengths import parse_tokens
from ropeconv.validate.sampling import synthetic

from .benchmarks.evaluation import text, write_tokenizer

ROOT = Path(__file__).parents[1]
LARGE = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 128,
}
FACTOR = 16
SPREAD = 1.28
"""Standard deviation of weights times the square root of the width. Larger ones multiply every
rounding error.
"""
SAME = 1e-4
"""The largest difference of a loss in nats between two ways to compute the same."""
MOST_FORWARDS = 1.15
"""The most time of both forward passes over that of two bare ones."""
WITHIN = 1.5
"""The factor between the estimate of a search and its time, either way."""
MOST_ABOVE = 1 << 30
"""The most memory above that of a bare forward pass, in bytes."""
BEYOND = "1M"
"""A context for which the memory of no device is enough."""


@dataclass
class Bench:
    """A model, where it runs, and the folder for outputs."""

    folder: Path
    at: DeviceSpec
    small: bool
    """Whether the model has some megabytes only."""

    @property
    def model(self) -> Path:
        return self.folder / ("small" if self.small else "large")

    @property
    def shape(self) -> dict[str, int]:
        return SMALL if self.small else LARGE

    @property
    def length(self) -> int:
        return FACTOR * self.shape["max_position_embeddings"]

    @property
    def chunk(self) -> int:
        return 512 if self.small else 4096

    def make(self) -> None:
        """Make the model, unless an earlier run has left it."""
        if (self.model / "config.json").exists():
            return
        print(f"Making {self.model} ...", flush=True)
        write_tokenizer(self.model)
        torch.manual_seed(0)
        spread = SPREAD / self.shape["hidden_size"] ** 0.5
        config = transformers.LlamaConfig(
            **self.shape, rms_norm_eps=1e-5, initializer_range=spread, dtype="bfloat16"
        )
        with torch.device(self.at.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(self.model)


def peak() -> int:
    """The most memory in use since `measured` began, in bytes."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def measured(result: dict[str, Any]) -> Iterator[None]:
    """Adds the seconds and the peak of memory of what runs inside to a result."""
    release()
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    yield
    result |= {"seconds": round(time.perf_counter() - begin, 2), "peak_bytes": peak()}


def kernels(run: Callable[[], object], at: DeviceSpec) -> list[str]:
    """The names of the attention kernels that a run uses."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if at.device != "cpu" else []
    with torch.profiler.profile(activities=kinds) as profile:
        run()
    names = {event.key for event in profile.key_averages()}
    return sorted(name for name in names if "attention" in name.lower() or "flash" in name.lower())


def _bare(bench: Bench) -> dict[str, Any]:
    """Run a forward pass over every position, and nothing else.

    Returns:
        seconds, peak_bytes: its time and memory. kernels: the attention kernels that it uses.
    """
    model = load_stock(bench.model, bench.at)
    engine = TransformersEngine(model, bench.chunk)
    ids = synthetic(bench.length, bench.shape["vocab_size"], 0)

    def run(count: int) -> None:
        """Read the first tokens, and keep the states of the last one."""
        engine.hidden_states(ids[:count], range(count), [count - 1])

    # two chunks are enough to see the kernels, and warm up
    used = kernels(lambda: run(2 * bench.chunk), bench.at)
    result: dict[str, Any] = {}
    with measured(result):
        run(len(ids))
    return {**result, "kernels": used}


def check_validate(bench: Bench) -> dict[str, Any]:
    """Validate `--yarn 16` over its whole context: a right output, and one with a wrong tensor.

    Returns:
        The time and memory of the right one, beside those of bare forward passes; how far each
        group of positions is apart; and under "passed" whether each of four checks passed.
    """
    bare = _bare(bench)

    # the right output, whose validation is measured
    recipe = ropeconv.Recipe(ropeconv.METHODS["yarn"](float(FACTOR)))
    target = ropeconv.Target(out=bench.folder / "yarn")
    plan = ropeconv.make_plan(ropeconv.open_source(str(bench.model)), recipe, target)
    out = ropeconv.apply(plan, force=True).path
    comparison = ropeconv.Comparison.open(out, str(bench.model))
    device = bench.at.device
    dtype = bench.at.dtype
    settings = ropeconv.Settings(device=device, dtype=dtype, length=bench.length, chunk=bench.chunk)
    costs: dict[str, Any] = {}
    with measured(costs):
        right = ropeconv.validate_checkpoint(comparison, settings)

    # the wrong one: the first keys of its first shard are multiplied
    shard = min(out.glob("*.safetensors"))
    tensors = safetensors.torch.load_file(shard)
    name = next(name for name in tensors if "k_proj" in name)
    tensors[name] = tensors[name] * 1.25
    safetensors.torch.save_file(tensors, shard, {"format": "pt"})
    wrong = ropeconv.validate_checkpoint(comparison, ropeconv.Settings(device=device, dtype=dtype))

    # a validation runs the source and the output, each in a forward pass
    forward_seconds = sum(bench.length / speed for speed in right.speed.values())
    forwards = forward_seconds / (2 * bare["seconds"])
    above = costs["peak_bytes"] - bare["peak_bytes"]
    buckets = []
    for bucket in right.buckets:
        buckets.append(
            {
                "run": bucket.run,
                "name": bucket.name,
                "kl_95": bucket.kl_95,
                "tolerance": bucket.tolerance,
                "control_kl": bucket.control_kl,
            }
        )
    return {
        "bare": bare,
        "validation": costs,
        "of_two_bare_forwards": round(forwards, 3),
        "above_bare_bytes": above,
        "sentence": right.sentence,
        "wrong": wrong.sentence,
        "buckets": buckets,
        "passed": {
            "the output agrees": right.agrees,
            "a wrong output disagrees": not wrong.agrees,
            "time": forwards <= MOST_FORWARDS,
            "memory": above <= MOST_ABOVE,
        },
    }


def check_eval(bench: Bench) -> dict[str, Any]:
    """Compare losses that must be the same: by two devices, in two chunk sizes, and run twice.

    Returns:
        The largest differences in nats, and under "passed" whether each check passed.
    """
    book = bench.folder / "book.txt"
    book.write_text(text(), "utf-8")
    lengths = f"{bench.shape['max_position_embeddings'] // 4}"

    def losses(name: str, device: str, dtype: str, chunk: int) -> list[float]:
        """Evaluate the model and YaRN; `name` is that of the journal."""
        journal = bench.folder / f"{name}.jsonl"
        journal.unlink(missing_ok=True)
        result = ropeconv.evaluate(
            bench.model,
            "base,yarn:4",
            book,
            lengths=lengths,
            windows=2,
            targets=16,
            device=device,
            dtype=dtype,
            chunk=chunk,
            journal=journal,
        )
        return [cell.value for cell in result.cells]

    device = bench.at.device
    first = losses("first", device, "bfloat16", 4096)
    on_cpu = losses("host", "cpu", "float32", 4096)
    on_device = losses("wide", device, "float32", 4096)
    again = losses("again", device, "bfloat16", 4096)
    in_chunks = losses("chunks", device, "float32", 32)

    def largest_difference(left: list[float], right: list[float]) -> float:
        return max(abs(loss - other) for loss, other in zip(left, right, strict=True))

    cpu_to_device = largest_difference(on_cpu, on_device)
    chunks = largest_difference(on_device, in_chunks)
    return {
        "cpu_to_device": cpu_to_device,
        "chunks": chunks,
        "precision": largest_difference(on_device, first),
        "passed": {
            "CPU and device": cpu_to_device < SAME,
            "chunk 32 and 4096": chunks < SAME,
            "twice": first == again,
        },
    }


def check_tune(bench: Bench) -> dict[str, Any]:
    """Search twice with one seed, compare the estimated time, and try a context that is too long.

    Returns:
        The cost and the trace of the first search, the times of both, and under "passed" whether
        each check passed.
    """
    book = bench.folder / "book.txt"
    book.write_text(text() * 2, "utf-8")  # its last third has six windows of 8,192 tokens
    first_cost: dict[str, Any] = {}
    with measured(first_cost):
        first, first_times = _tuned(bench, book, 1)
    second, second_times = _tuned(bench, book, 2)

    # the first search is also the first use of every kernel, so the time of the second counts
    ratio = second_times["estimate"] / second_times["actual"]
    passed = {"twice with one seed": first == second, "estimate": 1 / WITHIN <= ratio <= WITHIN}
    result = {
        **first_cost,
        "trace": first["trace"],
        "times": (first_times, second_times),
        "passed": passed,
    }
    if not bench.small:
        # a token a word, and more than six windows
        book.write_text(" the" * 7 * parse_tokens(BEYOND), "utf-8")
        result["beyond"] = _refusal_beyond_memory(bench, book)
        passed[f"{BEYOND} tokens end in a sentence on memory"] = "are free on" in result["beyond"]
    return result


def _tuned(bench: Bench, book: Path, number: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Search for better frequencies in two steps, to twice the trained length.

    Args:
        bench: The model.
        book: The text.
        number: That of the search, for its journal.

    Returns:
        The result, and the estimated and actual seconds.
    """
    context = str(2 * bench.shape["max_position_embeddings"])
    settings = ropeconv.SearchSettings(context, windows=2, held_windows=6, targets=16, steps=2)
    with open_tuning(
        str(bench.model),
        [(str(book), book.read_text("utf-8"))],
        settings,
        None,
        bench.folder / f"tune{number}.jsonl",
        True,
        device=bench.at.device,
        dtype=bench.at.dtype,
    ) as tuning:
        estimate = tuning.estimate().seconds
        begin = time.perf_counter()
        result = tuning.run()
        actual = time.perf_counter() - begin
    found = {"divisors": result.divisors, "trace": result.trace}
    return found, {"estimate": estimate, "actual": actual}


def _refusal_beyond_memory(bench: Bench, book: Path) -> str:
    """Return the message of a search for which no device has the memory; empty if it runs."""
    settings = ropeconv.SearchSettings(BEYOND, windows=2, held_windows=6, targets=16, steps=1)
    try:
        with advice_on_memory():
            ropeconv.tune_model(bench.model, [book], settings, device=bench.at.device)
    except RopeconvError as problem:
        return str(problem)
    return ""


PARTS = {"validate": check_validate, "eval": check_eval, "tune": check_tune}


def main() -> None:
    """Run the checks that the command line names, and write their results as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="what to check (default: everything)"
    )
    parser.add_argument(
        "--small", action="store_true", help="a model of some megabytes and a context of 2,048"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the model and the outputs, which stay there"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu.json")
    given = parser.parse_args()
    at = DeviceSpec(given.device, "auto").resolve("bfloat16")
    name = torch.cuda.get_device_name() if at.device.startswith("cuda") else "cpu"
    results: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": at.dtype,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory()
    ) as folder:
        bench = Bench(Path(folder), at, given.small)
        bench.folder.mkdir(parents=True, exist_ok=True)
        bench.make()
        results |= {"shape": bench.shape, "length": bench.length, "chunk": bench.chunk}
        for part in given.parts or PARTS:
            results[part] = PARTS[part](bench)
            for check, passed in results[part]["passed"].items():
                print(f"{part}: {check}: {'passed' if passed else 'FAILED'}", flush=True)
            given.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"Wrote {given.out}.")


if __name__ == "__main__":
    main()
