"""Time and memory of `ropeconv apply` as ratios to `cp -r`, on a checkpoint made here."""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ropeconv.formats.safetensors import header_bytes

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "torch_dtype": "float16",
}  # fmt: skip


LAYERS, WIDTH = 32, 4096


def checkpoint(folder: Path, gigabytes: float) -> None:
    """Two shards of bfloat16: the keys of 32 layers in their right size, and one filling tensor in each layer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    numbers = np.random.default_rng(0).standard_normal(WIDTH * WIDTH, np.float32) * np.float32(0.02)
    block = (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()
    filling = max(1, round(gigabytes * 1e9 / LAYERS / len(block)) - 1)
    weight_map = {}
    for shard in (1, 2):
        name = f"model-0000{shard}-of-00002.safetensors"
        layers = range((shard - 1) * LAYERS // 2, shard * LAYERS // 2)
        tensors = []
        for layer in layers:
            tensors += [
                (f"model.layers.{layer}.self_attn.k_proj.weight", "BF16", (WIDTH, WIDTH)),
                (f"model.layers.{layer}.rest", "BF16", (filling * WIDTH, WIDTH)),
            ]
        weight_map |= {tensor: name for tensor, _, _ in tensors}
        with (folder / name).open("wb") as file:
            file.write(header_bytes(tensors, {"format": "pt"}))
            for _ in range(len(layers) * (1 + filling)):
                file.write(block)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def timed(command: list[str]) -> float:
    """Seconds of wall time."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    """Each command several times in a row, the first time left out; prints medians.

    Not interleaved: which pages a copy is given depends on what the command before it gave back, and in turns one
    command would always be given the slow ones.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=7)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    work = given.dir / "bench-work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source, out = work / "model", work / "out"
    checkpoint(source, given.gigabytes)
    apply = [sys.executable, "-m", "ropeconv", "apply", str(source), "--yarn", "16", "-q", "-o", str(out)]
    runs = {
        "cp -r": ["cp", "-r", str(source), str(out)],
        "apply": apply,
        "apply --link": [*apply, "--link"],
        "apply, folded": [*apply, "--encoding", "weights"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name, command in runs.items():
        for _ in range(given.rounds + 1):
            seconds[name].append(timed(command))
            shutil.rmtree(out)
    first = {name: values.pop(0) for name, values in seconds.items()}
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    base = statistics.median(seconds["cp -r"])
    for name, values in seconds.items():
        middle = statistics.median(values)
        rounds = [round(value, 2) for value in values]
        print(f"{name:14} {middle:6.2f} s   {middle / base:5.2f} x cp -r   {rounds}, the first {first[name]:.2f}")
    print(f"largest process: {peak:.0f} MB")
    shutil.rmtree(work)


main()
