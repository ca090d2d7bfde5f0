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
from ropeconv.engines.transformers.load import DeviceSpec, load_stock, out_of_memory
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
    """A model, where it runs, and the folder for outputs. small: a model of some megabytes."""

    folder: Path
    at: DeviceSpec
    small: bool

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
        """Makes the model, unless an earlier run has left it."""
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
    """A forward pass over every position and nothing else: its time, memory and attention
    kernels.
    """
    model = load_stock(bench.model, bench.at)
    ids = synthetic(bench.length, bench.shape["vocab_size"], 0)
    result: dict[str, Any] = {}

    def run(count: int) -> None:
        TransformersEngine(model, bench.chunk).hidden_states(ids[:count], range(count), [count - 1])

    used = kernels(lambda: run(2 * bench.chunk), bench.at)
    with measured(result):
        run(len(ids))
    return {**result, "kernels": used}


def check_validate(bench: Bench) -> dict[str, Any]:
    """yarn 16 over its whole context: time and memory beside bare forward passes, a right and a
    wrong output.
    """
    bare = _bare(bench)
    recipe = ropeconv.Recipe(ropeconv.METHODS["yarn"](float(FACTOR)))
    target = ropeconv.Target(out=bench.folder / "yarn")
    plan = ropeconv.make_plan(ropeconv.open_source(str(bench.model)), recipe, target)
    out = ropeconv.apply(plan, force=True).path
    comparison = ropeconv.Comparison.open(out, str(bench.model))
    settings = ropeconv.Settings(
        device=bench.at.device, dtype=bench.at.dtype, length=bench.length, chunk=bench.chunk
    )
    costs: dict[str, Any] = {}
    with measured(costs):
        right = ropeconv.validate_checkpoint(comparison, settings)
    shard = next(iter(sorted(out.glob("*.safetensors"))))
    tensors = safetensors.torch.load_file(shard)
    name = next(name for name in tensors if "k_proj" in name)
    safetensors.torch.save_file({**tensors, name: tensors[name] * 1.25}, shard, {"format": "pt"})
    wrong = ropeconv.validate_checkpoint(
        comparison, ropeconv.Settings(device=bench.at.device, dtype=bench.at.dtype)
    )
    forwards = sum(bench.length / speed for speed in right.speed.values()) / (2 * bare["seconds"])
    above = costs["peak_bytes"] - bare["peak_bytes"]
    return {
        "bare": bare,
        "validation": costs,
        "of_two_bare_forwards": round(forwards, 3),
        "above_bare_bytes": above,
        "sentence": right.sentence,
        "wrong": wrong.sentence,
        "buckets": [
            {
                "run": b.run,
                "name": b.name,
                "kl_95": b.kl_95,
                "tolerance": b.tolerance,
                "control_kl": b.control_kl,
            }
            for b in right.buckets
        ],
        "passed": {
            "the output agrees": right.agrees,
            "a wrong output disagrees": not wrong.agrees,
            "time": forwards <= MOST_FORWARDS,
            "memory": above <= MOST_ABOVE,
        },
    }


def check_eval(bench: Bench) -> dict[str, Any]:
    """Losses on the CPU and on the device in float32, twice in its own precision, and in chunks of
    two sizes.
    """
    book = bench.folder / "book.txt"
    book.write_text(text(), "utf-8")
    lengths = f"{bench.shape['max_position_embeddings'] // 4}"

    def losses(name: str, device: str, dtype: str, chunk: int) -> list[float]:
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

    device, dtype = bench.at.device, "bfloat16"
    first = losses("first", device, dtype, 4096)
    host = losses("host", "cpu", "float32", 4096)
    wide = losses("wide", device, "float32", 4096)
    again = losses("again", device, dtype, 4096)
    chunks = losses("chunks", device, "float32", 32)

    def apart(left: list[float], right: list[float]) -> float:
        return max(abs(loss - other) for loss, other in zip(left, right, strict=True))

    return {
        "cpu_to_device": apart(host, wide),
        "chunks": apart(wide, chunks),
        "precision": apart(wide, first),
        "passed": {
            "CPU and device": apart(host, wide) < SAME,
            "chunk 32 and 4096": apart(wide, chunks) < SAME,
            "twice": first == again,
        },
    }


def check_tune(bench: Bench) -> dict[str, Any]:
    """Two searches with one seed, the estimate of their time, and a context that is beyond the
    memory.
    """
    book = bench.folder / "book.txt"
    book.write_text(text(), "utf-8")

    def tuned(number: int) -> dict[str, Any]:
        settings = ropeconv.SearchSettings(
            str(2 * bench.shape["max_position_embeddings"]),
            windows=2,
            held_windows=6,
            targets=16,
            steps=2,
        )
        journal = bench.folder / f"tune{number}.jsonl"
        files = [(str(book), book.read_text("utf-8"))]
        with open_tuning(
            str(bench.model),
            files,
            settings,
            None,
            journal,
            True,
            device=bench.at.device,
            dtype=bench.at.dtype,
        ) as tuning:
            estimate = tuning.estimate().seconds
            begin = time.perf_counter()
            result = tuning.run()
            actual = time.perf_counter() - begin
        return {
            "divisors": result.divisors,
            "trace": result.trace,
            "times": {"estimate": estimate, "actual": actual},
        }

    costs: dict[str, Any] = {}
    with measured(costs):
        first = tuned(1)
    second = tuned(2)
    times = (
        first.pop("times"),
        second.pop("times"),
    )  # the first search is also the first use of every kernel
    ratio = times[1]["estimate"] / times[1]["actual"]
    passed = {"twice with one seed": first == second, "estimate": 1 / WITHIN <= ratio <= WITHIN}
    result = {**costs, "trace": first["trace"], "times": times, "passed": passed}
    if not bench.small:
        book.write_text(
            " the" * 7 * parse_tokens(BEYOND), "utf-8"
        )  # a token a word, and more than six windows
        settings = ropeconv.SearchSettings(BEYOND, windows=2, held_windows=6, targets=16, steps=1)
        result["beyond"] = ""
        try:
            out_of_memory(
                lambda: ropeconv.tune_model(bench.model, [book], settings, device=bench.at.device)
            )
        except RopeconvError as problem:
            result["beyond"] = str(problem)
        passed[f"{BEYOND} tokens end in a sentence on memory"] = "are free on" in result["beyond"]
    return result


PARTS = {"validate": check_validate, "eval": check_eval, "tune": check_tune}


def main() -> None:
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
