"""Validates a 7B-shaped checkpoint over a long context, and measures what that costs beside bare forward passes."""

import argparse
import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import ropeconv
from ropeconv.engines.transformers.backbone import hidden_states
from ropeconv.engines.transformers.load import device_spec, load_stock
from ropeconv.validate.sampling import synthetic

LARGE = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32,
    "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4,
    "num_hidden_layers": 4, "vocab_size": 2000, "max_position_embeddings": 256,
}  # fmt: skip


def checkpoint(folder: Path, shape: dict[str, int], dtype: torch.dtype) -> None:
    """A Llama of random weights; wide enough at its start for attention to depend on positions."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**shape, rms_norm_eps=1e-5, initializer_range=0.02)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(before)
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.mul_(2.0 * (4096 / config.hidden_size) ** 0.5)
    model.save_pretrained(folder)


def peak(device: str) -> int:
    """The most memory in use so far, in bytes."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bare(folder: Path, length: int, chunk: int, at: Any, vocabulary: int) -> dict[str, float]:
    """Seconds and memory of one forward pass in chunks, and nothing else."""
    model = load_stock(folder, at)
    ids = synthetic(length, vocabulary, 0)
    hidden_states(model, ids[:chunk], list(range(chunk)), [0], chunk)
    if at.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    hidden_states(model, ids, list(range(length)), [length - 1], chunk)
    return {"seconds": time.perf_counter() - begin, "peak_bytes": peak(at.device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a model of some megabytes and a context of 4,096")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--length", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    given = parser.parse_args()
    shape = SMALL if given.small else LARGE
    at = device_spec(given.device, "auto", stored="bfloat16")
    length, chunk = given.length or 16 * shape["max_position_embeddings"], given.chunk or (512 if given.small else 4096)
    work = given.dir / "gpu-check-work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    source = work / "model"
    print(f"making {source} ...", flush=True)
    checkpoint(source, shape, torch.bfloat16)
    device = torch.cuda.get_device_name() if at.device.startswith("cuda") else "cpu"
    found: dict[str, Any] = {
        "device": device, "torch": torch.__version__, "transformers": transformers.__version__, "dtype": at.dtype,
        "shape": shape, "length": length, "chunk": chunk, "runs": {},
    }  # fmt: skip
    found["bare"] = bare(source, length, chunk, at, shape["vocab_size"])
    once = found["bare"]["seconds"]
    print(f"bare forward: {once:.1f} s, {length / once:,.0f} tokens/s", flush=True)
    for name in ("yarn", "mixed"):
        recipe = ropeconv.Recipe(ropeconv.METHODS[name](16.0))
        target = ropeconv.Target(out=work / name)
        done = ropeconv.apply(ropeconv.make_plan(ropeconv.open_source(str(source)), recipe, target), link=True)
        if at.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        settings = ropeconv.Settings(device=given.device, dtype=at.dtype, length=length, chunk=chunk)
        result = ropeconv.validate_checkpoint(ropeconv.Comparison.open(done.path, str(source)), settings)
        seconds = time.perf_counter() - begin
        forwards = sum(length / speed for speed in result.speed.values())
        found["runs"][name] = {
            "agrees": result.agrees, "sentence": result.sentence, "seconds": round(seconds, 1), "spread": result.tokens,
            "tokens_per_second": result.speed, "of_two_bare_forwards": round(forwards / (2 * once), 3),
            "peak_bytes": peak(at.device), "above_bare_bytes": peak(at.device) - found["bare"]["peak_bytes"],
            "buckets": [
                {"run": b.run, "name": b.name, "kl_95": b.kl_95, "tolerance": b.tolerance, "control_kl": b.control_kl}
                for b in result.buckets
            ],
        }  # fmt: skip
        run = found["runs"][name]
        print(f"{name} 16: {run['sentence']} {seconds:.1f} s; forwards {run['of_two_bare_forwards']} x two bare ones; "
              f"{run['above_bare_bytes'] / 2**30:.2f} GiB above", flush=True)  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    shutil.rmtree(work)
    print(f"wrote {given.out}")


main()
