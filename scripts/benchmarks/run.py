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
    """Publishes repositories with another config, kills the run in the middle, and completes it."""
    source = folder / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    sparse_safetensors(
        source / "model.safetensors", {"model.layers.0.self_attn.k_proj.weight": (32, 64)}
    )
    hub = QuickHub(folder / "hub")
    data = (source / "model.safetensors").read_bytes()
    hub.known[hashlib.sha256(data).hexdigest()] = data
    hub.repos = {f"base/m{number:05}": source for number in range(count)}
    listed = ", ".join(f'"{name}"' for name in hub.repos)
    limits = f'[push]\nto = "me/{{name}}-{{recipe}}"\n[limits]\njobs = {jobs}\n'
    (folder / "plan.toml").write_text(
        f'sources = [{listed}]\nrecipes = ["yarn:4"]\ntasks = ["push"]\n{limits}'
    )
    with running(hub, writing(hub)):
        begun = time.perf_counter()
        process = start(folder, hub)
        marks: list[tuple[int, float, int]] = []
        while process.poll() is None:
            done = len(hub.messages)
            if done >= count * (len(marks) + 1) // 10:
                sizes = memory(process.pid)
                marks.append((done, time.perf_counter() - begun, max(sizes.values())))
                print(
                    f"{done:6,} published, {marks[-1][1]:7.1f} s, {len(sizes)} processes, the"
                    f" largest {marks[-1][2] / 1e6:.0f} MB, all {sum(sizes.values()) / 1e6:.0f} MB",
                    flush=True,
                )
                if len(marks) == 5:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                    time.sleep(2)
                    had = sum(1 for _ in (folder / "plan" / "journal.jsonl").open()) - 1
                    print(f"killed; the journal has {had:,}", flush=True)
                    process = start(folder, hub)
            time.sleep(0.05)
        seconds = time.perf_counter() - begun
        lines = (folder / "plan" / "journal.jsonl").read_text().splitlines()[1:]
        keys = [json.loads(line)["key"] for line in lines]
        failed = sum(bool(json.loads(line)["failed"]) for line in lines)
        median = sorted(json.loads(line)["seconds"] for line in lines)[len(lines) // 2]
        print(
            f"{count:,} repositories in {seconds:.0f} s: {count / seconds:.1f} a second,"
            f" {median:.2f} s each with {jobs} at a time; {len(keys):,} lines, {len(set(keys)):,}"
            f" units, {failed} failed, {len(hub.messages):,} commits,"
            f" {hub.received / count / 1e3:.1f} kB and {hub.requests / count:.1f} requests each;"
            f" exit code {process.returncode}"
        )


def checkpoint(folder: Path, shards: int, tensors: int) -> None:
    """A mixture of experts whose weights take no room on the disk."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MOE))
    layers, experts, hidden, width = (
        MOE[k] for k in ("num_hidden_layers", "num_experts", "hidden_size", "moe_intermediate_size")
    )
    names: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (151936, 7168),
        "model.norm.weight": (7168,),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        names |= {
            f"{at}.self_attn.q_proj.weight": (8192, hidden),
            f"{at}.self_attn.k_proj.weight": (512, hidden),
            f"{at}.self_attn.v_proj.weight": (512, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, 8192),
            f"{at}.self_attn.q_norm.weight": (128,),
            f"{at}.self_attn.k_norm.weight": (128,),
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.mlp.gate.weight": (experts, hidden),
        }
        for expert in range(experts):
            for part in ("gate_proj", "up_proj"):
                names[f"{at}.mlp.experts.{expert}.{part}.weight"] = (width, hidden)
            names[f"{at}.mlp.experts.{expert}.down_proj.weight"] = (hidden, width)
    names = dict(list(names.items())[:tensors])
    listed = list(names.items())
    total = 0
    index = {}
    for number in range(shards):
        part = dict(listed[number * len(listed) // shards : (number + 1) * len(listed) // shards])
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        total += sparse_safetensors(folder / name, part)
        index |= dict.fromkeys(part, name)
    text = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text))
    print(
        f"{len(names):,} tensors in {shards:,} shards, {total / 2e12:.2f}T parameters,"
        f" {total / 1e12:.2f} TB"
    )


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
