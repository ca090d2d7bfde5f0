"""Time and memory of `ropeconv apply` as ratios to `cp -r`, on a checkpoint made here."""

import argparse
import json
import os
import resource
import shlex
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


def timed(command: list[str], out: Path) -> float:
    """Seconds of wall time of a command, whose output is removed afterwards."""
    os.sync()  # what was written before is not part of it
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    shutil.rmtree(out)
    return seconds


def measure(runs: dict[str, list[str]], out: Path, rounds: int, in_turns: bool) -> None:
    """Runs every command once, and then `rounds` times; prints medians, and ratios to the first.

    in_turns: one of each after the other, for commands that wait for the disk, whose speed changes with time. Else each
    several times in a row: which pages a copy is given depends on what the command before it gave back, and in turns
    one command would always be given the slow ones.
    """
    first = {name: timed(command, out) for name, command in runs.items()} if in_turns else {}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name in list(runs) * rounds if in_turns else [name for name in runs for _ in range(rounds + 1)]:
        found = timed(runs[name], out)
        if name in first:
            seconds[name].append(found)
        first.setdefault(name, found)
    base = next(iter(runs))
    for name, values in seconds.items():
        middle, each = statistics.median(values), [round(value, 2) for value in values]
        ratio = middle / statistics.median(seconds[base])
        print(f"{name:18} {middle:6.2f} s   {ratio:5.2f} x {base}   {each}, the first {first[name]:.2f}")


def main() -> None:
    """Without waiting for the disk on both sides, and then with an fsync of every file on both sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=7)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["cached", "synced"])
    given = parser.parse_args()
    work = given.dir / "bench-work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source, out = work / "model", work / "out"
    checkpoint(source, given.gigabytes)
    apply = [sys.executable, "-m", "ropeconv", "apply", str(source), "--yarn", "16", "-q", "-o", str(out)]
    copy = f"cp -r {shlex.quote(str(source))} {shlex.quote(str(out))}"
    cached = {
        "cp -r": shlex.split(copy),
        "apply --no-fsync": [*apply, "--no-fsync"],
        "... --link": [*apply, "--no-fsync", "--link"],
        "... folded": [*apply, "--no-fsync", "--encoding", "weights"],
    }
    synced = {
        "cp -r, sync": ["sh", "-c", f"{copy} && sync {shlex.quote(str(out))}/* {shlex.quote(str(out))}"],
        "apply": apply,
        "apply, folded": [*apply, "--encoding", "weights"],
    }
    if given.only != "synced":
        measure(cached, out, given.rounds, in_turns=False)
    if given.only != "cached":
        measure(synced, out, given.rounds, in_turns=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    print(f"largest process: {peak:.0f} MB")
    shutil.rmtree(work)


main()
