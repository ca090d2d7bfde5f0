"""GGUF: patching against `cp` and `gguf-new-metadata`, exporting against llama.cpp's convert_hf_to_gguf.py.

None of them waits for the disk. Each command several times in a row, the first time left out where there are more;
prints medians and the largest process of each.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ropeconv.formats.safetensors import header_bytes

HIDDEN, MLP, HEADS, VOCABULARY = 4096, 11008, 32, 32000
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": MLP,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def checkpoint(folder: Path, gigabytes: float) -> None:
    """A Llama of real width in bf16, as many layers as fit, one shard a layer, with weights like a trained model's."""
    folder.mkdir()
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * MLP
    layers = max(1, round((gigabytes * 1e9 / 2 - 2 * VOCABULARY * HIDDEN) / layer))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}, indent=2))
    tokenizer(folder)
    weights = np.random.default_rng(0).standard_normal(VOCABULARY * HIDDEN, dtype=np.float32) * np.float32(0.02)
    data = (weights.view(np.uint32) >> 16).astype(np.uint16)
    names = [("model.embed_tokens.weight", (VOCABULARY, HIDDEN)), ("model.norm.weight", (HIDDEN,))]
    shards = [[*names, ("lm_head.weight", (VOCABULARY, HIDDEN))]]
    for index in range(layers):
        shapes = {f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {"mlp.gate_proj": (MLP, HIDDEN), "mlp.up_proj": (MLP, HIDDEN), "mlp.down_proj": (HIDDEN, MLP)}
        shapes |= {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}
        shards.append([(f"model.layers.{index}.{name}.weight", shape) for name, shape in shapes.items()])
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / name).open("wb") as file:
            file.write(header_bytes([(tensor, "BF16", shape) for tensor, shape in tensors], {"format": "pt"}))
            for tensor, shape in tensors:
                file.write(data[: int(np.prod(shape))].data)
                weight_map[tensor] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def tokenizer(folder: Path) -> None:
    """Byte-level BPE, which the converter is told to call gpt-2."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator((path.read_text() for path in Path("ropeconv").rglob("*.py")), trainer)
    made.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def timed(command: list[str], env: dict[str, str] | None = None) -> tuple[float, float]:
    """Seconds of wall time, and the megabytes of the process."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    assert process.stderr is not None
    words = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{words.decode()[-2000:]}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1000


def measure(title: str, runs: dict[str, list[str]], out: Path, rounds: int, base: str, env: dict[str, str]) -> None:
    """One table. Not interleaved, as in scripts/bench.py, and for its reason."""
    found = {}
    for name, command in runs.items():
        seconds, megabytes = [], 0.0
        for _ in range(rounds + (rounds > 1)):
            took, peak = timed(command, env)
            seconds.append(took)
            megabytes = max(megabytes, peak)
            out.unlink(missing_ok=True)
        found[name] = (statistics.median(seconds[1:] or seconds), megabytes)
    print(title)
    for name, (middle, megabytes) in found.items():
        ratio = middle / found[base][0] if base in found else 1.0
        print(f"  {name:24} {middle:7.2f} s   {ratio:6.2f} x {base}   {megabytes:6.0f} MB")


def main() -> None:
    """Exports, then patches what was exported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=7)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--converter", type=Path, help="llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        return checkpoint(given.make, given.gigabytes)
    work = (given.dir / "bench-work").resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source, out, model = work / "model", work / "out.gguf", work / "model.gguf"
    # in a process of its own: a child's peak memory counts from what its parent held when it was started
    subprocess.run([sys.executable, __file__, "--make", source, "--gigabytes", str(given.gigabytes)], check=True)
    tool, python = [sys.executable, "-m", "ropeconv", "apply"], sys.executable
    env = {"PYTHONPATH": str(given.converter.parent / "gguf-py")} if given.converter else {}
    here = Path(__file__)
    for outtype in ("bf16", "f16", "q8_0"):
        ours = [
            *tool,
            str(source),
            "--yarn",
            "4",
            "--to",
            "gguf",
            "--outtype",
            outtype,
            "--no-fsync",
            "-q",
            "-o",
            str(out),
        ]
        runs = {"apply --to gguf": ours}
        if given.converter:
            theirs = [python, str(here.with_name("bench_converter.py")), str(given.converter), str(source)]
            runs["convert_hf_to_gguf.py"] = [*theirs, "--outtype", outtype, "--outfile", str(out)]
        measure(f"export, {outtype}", runs, out, given.rounds, "apply --to gguf", env)
    timed([*tool, str(source), "--as-is", "--to", "gguf", "-q", "-o", str(model)])
    new = [str(Path(python).with_name("gguf-new-metadata")), "--force", "--general-name", "x", str(model), str(out)]
    runs = {
        "cp": ["cp", str(model), str(out)],
        "apply": [*tool, str(model), "--yarn", "4", "--no-fsync", "-q", "-o", str(out)],
        "gguf-new-metadata": new,
        "apply --in-place": [*tool, str(model), "--yarn", "4", "--replace", "--in-place", "-q"],
    }
    measure(f"patch, {model.stat().st_size / 1e9:.1f} GB", runs, out, max(3, given.rounds), "cp", {})
    shutil.rmtree(work)


main()
