"""Measures the memory of models in transformers, llama.cpp and vLLM, beside what is predicted.

`SHAPES` are ten small models with random weights. Each is built as a checkpoint, converted to GGUF,
and run in its own process: `measure_transformers` reads the allocator of torch, `measure_llamacpp`
the buffers that llama.cpp logs, and `measure_vllm` the key-value blocks of vLLM's CPU build and the
allocator of torch.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ropeconv.formats.drafts import write_file
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.memory.fit import MemoryNeed, needed
from ropeconv.inspection.memory.machine import Machine
from ropeconv.inspection.memory.runtime import MEMORY
from ropeconv.models.open import open_source

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "evidence" / "memory.json"
COMMON: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CPU = Machine(kind="ram", name="RAM", bytes=16 << 30)
"""The machine of the predictions: every runtime is measured on a CPU."""


@dataclass(frozen=True)
class BenchmarkShape:
    """A model that is measured."""

    what: str
    """Why it is among them."""

    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    """Config keys beside COMMON."""

    without: tuple[str, ...] = ()
    """Keys of COMMON that the class does not have."""


SHAPES = {
    "llama-gqa": BenchmarkShape("grouped queries", "llama"),
    "llama-mha": BenchmarkShape(
        "a key head for each query head", "llama", {"num_key_value_heads": 16, "vocab_size": 20000}
    ),
    "qwen2": BenchmarkShape("few key heads", "qwen2", {"num_key_value_heads": 2}),
    "qwen3": BenchmarkShape(
        "heads wider than hidden / heads, tied embeddings",
        "qwen3",
        {"head_dim": 128, "tie_word_embeddings": True},
    ),
    "gemma3": BenchmarkShape(
        "five layers in six with a window",
        "gemma3_text",
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "query_pre_attn_scalar": 128,
            "tie_word_embeddings": True,
            "sliding_window": 512,
            "vocab_size": 64000,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
        },
    ),
    "phi3-window": BenchmarkShape(
        "a window in every layer, gate and up in one matrix", "phi3", {"sliding_window": 2048}
    ),
    "gpt-oss": BenchmarkShape(
        "experts, sinks, a window in every second layer",
        "gpt_oss",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 1024,
            "sliding_window": 128,
            # vLLM's class loads no model without these keys
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ),
    "qwen3-moe": BenchmarkShape(
        "experts",
        "qwen3_moe",
        {
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 384,
            "norm_topk_prob": True,
        },
    ),
    "deepseek": BenchmarkShape(
        "multi-head latent attention, experts",
        "deepseek_v2",
        {
            "q_lora_rank": 384,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_key_value_heads": 16,
            "moe_intermediate_size": 352,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
        },
        without=("head_dim",),
    ),
    "gpt-neox": BenchmarkShape(
        "a quarter of each head rotates, an MLP without a gate",
        "gpt_neox",
        {
            "num_key_value_heads": 16,
            "intermediate_size": 4096,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25},
        },
    ),
}


def build(name: str, folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Write the checkpoint of a shape in bfloat16, and return its folder.

    Args:
        name: A key of SHAPES.
        folder: Where it is written.
        changes: Config keys that differ from the shape.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from ropeconv.features.vectors.tokenizer import tokenizer_files

    shape = SHAPES[name]
    settings = {**COMMON, "rope_parameters": ROPE, **shape.changes, **(changes or {})}
    for key in shape.without:
        del settings[key]
    logging.disable_progress_bar()
    config = AutoConfig.for_model(shape.model_type, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    target = folder / name
    model.save_pretrained(target)
    for file, text in tokenizer_files(settings["vocab_size"]).items():
        write_file(target / file, text)
    return target


def convert(checkpoint: Path) -> Path:
    """Write the GGUF file of a checkpoint beside it, and return its path."""
    target = checkpoint.with_suffix(".gguf")
    words = ["apply", str(checkpoint), "--as-is", "--to", "gguf", "--outtype", "bf16"]
    command = [sys.executable, "-m", "ropeconv", *words, "--no-check", "-q", "-o", str(target)]
    environment = {**os.environ, "ROPECONV_VALIDATE": "off"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return target


ALLOCATED = """
def allocated(profile):
    # the allocator of torch reports each allocation and release with its bytes
    events = profile.profiler.kineto_results.events()
    events = [event for event in events if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    now = most = 0
    for event in events:
        now += event.nbytes()
        most = max(most, now)
    return most

def stored(tensors):
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
"""
TRANSFORMERS = (
    ALLOCATED
    + """
import json, sys
import torch
from transformers import AutoModelForCausalLM
path, tokens = json.loads(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(path).eval()
prompt = torch.randint(5, 1000, (1, tokens))
cpu = [torch.profiler.ProfilerActivity.CPU]
with torch.no_grad(), torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
    done = model.generate(prompt, max_new_tokens=2, do_sample=False, return_dict_in_generate=True)
cache = []
for layer in done.past_key_values.layers:
    cache += [layer.keys, layer.values]
weights = stored([*model.parameters(), *model.buffers()])
kept = stored(cache)
print(json.dumps({"weights": weights, "cache": kept, "activations": allocated(profile) - kept}))
"""
)
LLAMACPP = """
import json, sys
import llama_cpp
path, tokens, kind = json.loads(sys.argv[1])
model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
settings = llama_cpp.llama_context_default_params()
settings.n_ctx = tokens
settings.n_batch = 2048
settings.n_ubatch = 512
settings.n_seq_max = 4
settings.kv_unified = True
settings.swa_full = False
settings.type_k = settings.type_v = kind
assert llama_cpp.llama_init_from_model(model, settings)
"""
GGML_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
VLLM = (
    ALLOCATED
    + """
import json, os, sys
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_CI_ENV="1",
)
import torch
import vllm.model_executor.model_loader.base_loader as loader
import vllm.v1.core.kv_cache_utils as blocks
import vllm.v1.engine.core as core
from vllm import LLM, SamplingParams
path, tokens = json.loads(sys.argv[1])
seen = {}
first_configs = blocks.get_kv_cache_configs
def configs(config, specs, available):
    # what a request of max_model_len needs, with the block that is never used
    made = first_configs(config, specs, available)
    groups = made[0].kv_cache_groups
    block = blocks._pool_bytes_per_block(config, groups)
    seen["cache"] = blocks._max_memory_usage_bytes_from_groups(config, groups) + block
    assert made[0].num_blocks * block <= available[0] < (made[0].num_blocks + 1) * block
    return made
core.get_kv_cache_configs = configs
first_process = loader.process_weights_after_loading
def process(model, *rest, **more):
    # the CPU build packs the weights afterwards into buffers that torch does not list
    seen["weights"] = stored([*model.parameters(), *model.buffers()])
    return first_process(model, *rest, **more)
loader.process_weights_after_loading = process
llm = LLM(
    path, dtype="bfloat16", max_model_len=tokens, enforce_eager=True, max_num_seqs=8,
    kv_cache_memory_bytes=400 << 20, max_num_batched_tokens=2048,
)
def run(first):
    prompt = {"prompt_token_ids": [first + number % 250 for number in range(min(tokens - 1, 2048))]}
    llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
run(5)
cpu = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
    run(7)
seen["activations"] = allocated(profile)
print(json.dumps(seen), flush=True)
os._exit(0)
"""
)


def measure_transformers(checkpoint: Path, tokens: int) -> dict[str, int]:
    """Return the bytes that torch allocates for a prompt and one more token.

    Args:
        checkpoint: The folder.
        tokens: The length of the prompt.
    """
    return _run_python(sys.executable, TRANSFORMERS, [str(checkpoint), tokens])


def measure_vllm(checkpoint: Path, tokens: int, python: str) -> dict[str, int]:
    """Return the bytes of weights, blocks and activations in vLLM's CPU build.

    Args:
        checkpoint: The folder.
        tokens: max_model_len.
        python: The Python with vLLM.
    """
    return _run_python(python, VLLM, [str(checkpoint), tokens])


def measure_llamacpp(path: Path, tokens: int, cache_type: str) -> dict[str, int]:
    """Return the bytes of the buffers that llama.cpp logs, with the options of llama-server.

    Args:
        path: The GGUF file.
        tokens: n_ctx.
        cache_type: A key of GGML_TYPES.
    """
    arguments = json.dumps([str(path), tokens, GGML_TYPES[cache_type]])
    done = subprocess.run(
        [sys.executable, "-c", LLAMACPP, arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = {}
    names = {"weights": "model", "cache": "KV", "activations": "compute"}
    for part, name in names.items():
        sizes = re.findall(rf"{name} buffer size = +([\d.]+) MiB", done.stderr)
        found[part] = round(sum(map(float, sizes)) * 2**20)
    return found


def _run_python(python: str, program: str, arguments: list[object]) -> dict[str, int]:
    """Run a program, and return the JSON object in the last line that has one.

    Args:
        python: The Python that runs it.
        program: Its source.
        arguments: Its arguments, which it gets as one, in JSON.

    Raises:
        RuntimeError: It prints none; the message has the end of what it printed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [python, "-c", program, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    found: dict[str, int] = json.loads(lines[-1])
    return found


def predict(runtime: str, path: Path, tokens: int, cache_type: str = "") -> MemoryNeed:
    """Return what ropeconv predicts for a model on a CPU."""
    shape = inspect_source(open_source(str(path))).shape
    assert shape is not None
    return needed(MEMORY[runtime], shape, tokens, CPU, cache_type)


def compare(measured: dict[str, int], need: MemoryNeed) -> dict[str, Any]:
    """Return a row of the record: what was measured and predicted, and the error of the sum."""
    predicted = {
        "weights": need.weights or 0,
        "cache": need.cache,
        "activations": need.activations,
    }
    total = sum(measured.values())
    error = sum(predicted.values()) / total - 1
    ordered = {part: measured[part] for part in predicted}
    return {"measured": ordered, "predicted": predicted, "error": round(error, 4)}


RUNS = {
    "transformers": ((2560, ""),),
    "llama-cpp": ((16384, "f16"), (16384, "q8_0")),
    "vllm": ((6000, ""),),
}
"""Lengths and types of the cache that are measured in each runtime."""


def main() -> None:
    """Measure, print a row for each measurement, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", default="", help="a Python with vLLM's CPU build; empty: none")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names with commas")
    parser.add_argument("--runtimes", default=",".join(RUNS), help="names with commas")
    parser.add_argument("-o", "--out", type=Path, default=RECORD)
    options = parser.parse_args()

    versions = {
        "transformers": version("transformers"),
        "torch": version("torch"),
        "llama-cpp-python": version("llama-cpp-python"),
    }
    runtimes = options.runtimes.split(",")
    if options.vllm:
        program = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
        asked = subprocess.run([options.vllm, "-c", program], capture_output=True, text=True)
        versions["vllm"] = asked.stdout.strip()
    else:
        runtimes = [name for name in runtimes if name != "vllm"]

    command = "scripts/bench memory --vllm PYTHON" if options.vllm else "scripts/bench memory"
    record: dict[str, Any] = {
        "command": command,
        "versions": versions,
        "common": COMMON,
        "shapes": {
            name: {"what": shape.what, "model_type": shape.model_type, "config": shape.changes}
            for name, shape in SHAPES.items()
        },
        "rows": [],
    }
    rows = record["rows"]
    for name in options.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = build(name, Path(folder))
            for runtime in runtimes:
                rows += measure_shape(name, checkpoint, runtime, options.vllm)
        write_file(options.out, json.dumps(record, indent=1) + "\n")

    worst = max(rows, key=lambda row: abs(row["error"]))
    print(f"{len(rows)} rows; the largest error is {worst['error']:+.1%}: {worst['shape']}")


def measure_shape(
    name: str, checkpoint: Path, runtime: str, vllm_python: str
) -> list[dict[str, Any]]:
    """Measure a shape in a runtime, and return the rows of the record.

    Args:
        name: The name of the shape.
        checkpoint: Its folder.
        runtime: A key of RUNS.
        vllm_python: The Python with vLLM.
    """
    path = convert(checkpoint) if runtime == "llama-cpp" else checkpoint
    rows = []
    for tokens, cache_type in RUNS[runtime]:
        if runtime == "llama-cpp":
            measured = measure_llamacpp(path, tokens, cache_type)
        elif runtime == "vllm":
            measured = measure_vllm(path, tokens, vllm_python)
        else:
            measured = measure_transformers(path, tokens)
        row = compare(measured, predict(runtime, path, tokens, cache_type))
        about = {"shape": name, "runtime": runtime, "tokens": tokens, "cache_type": cache_type}
        rows.append({**about, **row})
        print(json.dumps(rows[-1]), flush=True)
    return rows
