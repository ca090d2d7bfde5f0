"""`ropeconv run` on many repositories, and plans of very large checkpoints: time and memory."""

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.hub_server import running
from tests.support.hub_writing import WritingHub, writing

from .measure import ROOT, cost, sparse_safetensors

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 7168,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 352,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


class QuickHub(WritingHub):
    """A Hub that looks files up by their sha256 without reading all of them."""

    def by_sha(self, digest: str) -> bytes | None:
        return self.known.get(digest)

    known: dict[str, bytes] = {}


def memory(pid: int) -> dict[int, int]:
    """Return the resident bytes of a process and of those that it started, by process id."""
    sizes = {}
    left = [pid]
    while left:
        process = left.pop()
        try:
            # the second number of statm is the resident size in pages
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        except (OSError, IndexError):  # the process has ended
            continue
        sizes[process] = pages * resource.getpagesize()
        left += [int(child) for child in children]
    return sizes


def start(folder: Path, hub: QuickHub) -> subprocess.Popen[bytes]:
    env = {
        **os.environ,
        **hub.environment(folder / "home"),
        "HF_TOKEN": "hf_x",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "ropeconv", "run", "plan.toml", "-q"]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)


def push(folder: Path, count: int, jobs: int) -> None:
    """Publish repositories with another config, kill the run in the middle, and complete it.

    Args:
        folder: An empty folder for the run.
        count: How many repositories.
        jobs: How many are published at a time.
    """
    hub = _hub_of(folder, count)
    listed = ", ".join(f'"{name}"' for name in hub.repos)
    limits = f'[push]\nto = "me/{{name}}-{{recipe}}"\n[limits]\njobs = {jobs}\n'
    (folder / "plan.toml").write_text(
        f'sources = [{listed}]\nrecipes = ["yarn:4"]\ntasks = ["push"]\n{limits}'
    )
    journal = folder / "plan" / "journal.jsonl"
    with running(hub, writing(hub)):
        begun = time.perf_counter()
        process = start(folder, hub)
        tenths = 0  # of the repositories, which are printed as they are published
        while process.poll() is None:
            done = len(hub.messages)
            if done >= count * (tenths + 1) // 10:
                tenths += 1
                _print_progress(done, time.perf_counter() - begun, memory(process.pid))
                if tenths == 5:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                    time.sleep(2)
                    in_journal = len(journal.read_text().splitlines()) - 1  # without its head
                    print(f"killed; the journal has {in_journal:,}", flush=True)
                    process = start(folder, hub)
            time.sleep(0.05)
        seconds = time.perf_counter() - begun

        lines = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
        units = {line["key"] for line in lines}
        failed = sum(bool(line["failed"]) for line in lines)
        median = sorted(line["seconds"] for line in lines)[len(lines) // 2]
        print(
            f"{count:,} repositories in {seconds:.0f} s: {count / seconds:.1f} a second,"
            f" {median:.2f} s each with {jobs} at a time; {len(lines):,} lines, {len(units):,}"
            f" units, {failed} failed, {len(hub.messages):,} commits,"
            f" {hub.received / count / 1e3:.1f} kB and {hub.requests / count:.1f} requests each;"
            f" exit code {process.returncode}"
        )


def _hub_of(folder: Path, count: int) -> QuickHub:
    """Return a Hub with as many repositories of one small model.

    Args:
        folder: Where the model and the files of the Hub are written.
        count: How many repositories.
    """
    source = folder / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    weights = source / "model.safetensors"
    sparse_safetensors(weights, {"model.layers.0.self_attn.k_proj.weight": (32, 64)})
    hub = QuickHub(folder / "hub")
    data = weights.read_bytes()
    hub.known[hashlib.sha256(data).hexdigest()] = data
    hub.repos = {f"base/m{number:05}": source for number in range(count)}
    return hub


def _print_progress(done: int, seconds: float, sizes: dict[int, int]) -> None:
    """Print how many repositories are published, and the memory of the run.

    Args:
        done: How many are.
        seconds: The time since the begin.
        sizes: The resident bytes of each process, as `memory` returns them.
    """
    largest = max(sizes.values()) / 1e6
    total = sum(sizes.values()) / 1e6
    print(
        f"{done:6,} published, {seconds:7.1f} s, {len(sizes)} processes, the"
        f" largest {largest:.0f} MB, all {total:.0f} MB",
        flush=True,
    )


def checkpoint(folder: Path, shards: int, tensors: int) -> None:
    """Write a mixture of experts whose weights take no space on the disk.

    Args:
        folder: Where it is written.
        shards: How many shards it has.
        tensors: How many tensors; those of the last layers are left out.
    """
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MOE))
    shapes = dict(list(_tensors_of_moe().items())[:tensors])
    names = list(shapes)
    total = 0
    index = {}
    for number in range(shards):
        begin = number * len(names) // shards
        end = (number + 1) * len(names) // shards
        part = {name: shapes[name] for name in names[begin:end]}
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        total += sparse_safetensors(folder / file, part)
        index |= dict.fromkeys(part, file)
    text = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text))
    print(
        f"{len(names):,} tensors in {shards:,} shards, {total / 2e12:.2f}T parameters,"
        f" {total / 1e12:.2f} TB"
    )


def _tensors_of_moe() -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a model with the config MOE, by name."""
    hidden = int(MOE["hidden_size"])
    width = int(MOE["moe_intermediate_size"])
    experts = int(MOE["num_experts"])
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (151936, 7168),
        "model.norm.weight": (7168,),
    }
    for layer in range(int(MOE["num_hidden_layers"])):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": (8192, hidden),
            f"{prefix}.self_attn.k_proj.weight": (512, hidden),
            f"{prefix}.self_attn.v_proj.weight": (512, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, 8192),
            f"{prefix}.self_attn.q_norm.weight": (128,),
            f"{prefix}.self_attn.k_norm.weight": (128,),
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.mlp.gate.weight": (experts, hidden),
        }
        for expert in range(experts):
            for part in ("gate_proj", "up_proj"):
                shapes[f"{prefix}.mlp.experts.{expert}.{part}.weight"] = (width, hidden)
            shapes[f"{prefix}.mlp.experts.{expert}.down_proj.weight"] = (hidden, width)
    return shapes


def plans(folder: Path, shards: int, tensors: int) -> None:
    """The plans of a mixture of experts, each in a process of its own."""
    checkpoint(folder / "moe", shards, tensors)
    for given in (("--yarn", "4"), ("--mixed", "4"), ("--yarn", "4", "--encoding", "weights")):
        command = [sys.executable, "-m", "ropeconv", "apply", "moe", *given, "--dry-run", "--json"]
        try:
            plan = cost(command, {"PYTHONPATH": str(ROOT)}, folder)
        except RuntimeError as problem:
            print(" ".join(given), "is refused:", str(problem).splitlines()[1])
            continue
        print(f"{' '.join(given)}: {plan.seconds:.1f} s, peak {plan.megabytes:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repositories", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--only", choices=["push", "plan"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if given.only != "push":
            plans(Path(name), given.shards, given.tensors)
        if given.only != "plan":
            push(Path(name), given.repositories, given.jobs)
