"""`ropeconv validate` beside two bare forward passes over the same tokens.

A bare pass loads a checkpoint with transformers, reads the tokens, and computes the logits of the
compared positions. Two of them, of the source and of the output, are the least that a comparison of
logits needs. Each side runs in a process of its own, with one thread of torch.

    scripts/bench validate --record llama-60M
    scripts/bench validate --source SmolLM2-135M-Instruct --record SmolLM2-135M
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .measure import cost

CHILD = "scripts.benchmarks.validate"
RECORD = Path(__file__).parents[2] / "docs/evidence/validation-cost.json"


def bare(source: Path, out: Path, length: int) -> None:
    """Run the source and the output over the tokens of a comparison, and print CPU seconds."""
    import ropeconv
    from ropeconv.engines.transformers.engine import TransformersEngine
    from ropeconv.validate.sampling import token_runs

    comparison = ropeconv.Comparison.open(out, str(source))
    settings = ropeconv.Settings(device="cpu", length=length)
    begin = time.process_time()
    for folder in (source, out):
        engine = TransformersEngine.load(folder, settings.place())
        for run in token_runs(settings, comparison.schedule, engine.vocabulary, folder):
            hidden = engine.hidden_states(run.ids, run.positions, run.kept)
            for rows in hidden.split(256):
                engine.head(rows)
    print(time.process_time() - begin)


def compare(source: Path, out: Path, length: int) -> None:
    """Compare the logits of the output, and print CPU seconds, without importing."""
    import transformers

    import ropeconv

    comparison = ropeconv.Comparison.open(out, str(source))
    settings = ropeconv.Settings(device="cpu", length=length)
    assert transformers.AutoModelForCausalLM  # imported lazily
    begin = time.process_time()
    result = ropeconv.validate_checkpoint(comparison, settings)
    seconds = time.process_time() - begin
    assert result.agrees, result.sentence
    print(seconds)


def make_source(folder: Path) -> Path:
    """Write a Llama of 60M random weights, trained with 2,048 tokens."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=2048,
        initializer_range=0.06,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def in_child(part: str, source: Path, out: Path, length: int) -> float:
    """Return the CPU seconds that a part of this module prints in a process of its own."""
    words = [part, "--source", str(source), "--out", str(out), "--length", str(length)]
    command = [sys.executable, "-m", CHILD, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def measure(source: Path, out: Path, length: int, rounds: int) -> dict[str, float]:
    """Return the medians of CPU seconds: two bare passes, the comparison, the whole commands."""
    words = ["--source", str(source), "--out", str(out), "--length", str(length)]
    bare_command = [sys.executable, "-m", CHILD, "bare", *words]
    command = [sys.executable, "-m", "ropeconv", "validate", str(out), "--against", str(source)]
    command += ["--device", "cpu", "-q"]
    if length:
        command += ["--length", str(length)]

    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):  # in turns, since the speed of a machine changes with time
        found = {
            "two bare passes": in_child("bare", source, out, length),
            "comparison of logits": in_child("compare", source, out, length),
            "two bare passes, with imports": cost(bare_command).processor,
            "whole command": cost(command).processor,
        }
        for name, value in found.items():
            seconds.setdefault(name, []).append(value)
    return {name: round(statistics.median(values), 2) for name, values in seconds.items()}


def write_record(name: str, source: str, seconds: dict[str, float]) -> None:
    """Put the result of a model into the record, with the versions and the command.

    Args:
        name: The name of the model in the record.
        source: The name of its folder; empty for the model that is made here.
        seconds: The result.
    """
    import torch
    import transformers

    document = {}
    if RECORD.exists():
        document = json.loads(RECORD.read_text("utf-8"))
    command = f"scripts/bench validate --record {name}"
    if source:
        command += f" --source {source}"
    document[name] = {
        "command": command,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "cpu_seconds": seconds,
    }
    from ropeconv.formats.drafts import write_file

    write_file(RECORD, json.dumps(document, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Measure, or run the part that a measuring process asks for."""
    parser = argparse.ArgumentParser(prog="scripts/bench validate", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("bare", "compare"), help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help="a checkpoint (default: one of 60M weights)")
    parser.add_argument("--out", type=Path, help="its output, if it exists already")
    parser.add_argument("--length", type=int, default=0, help="as for `ropeconv validate`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", default="", help="the name of the model in the record")
    given = parser.parse_args()
    if given.part:
        {"bare": bare, "compare": compare}[given.part](given.source, given.out, given.length)
        return

    os.environ["OMP_NUM_THREADS"] = "1"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source = given.source or make_source(folder / "source")
        out = given.out or folder / "out"
        if not out.exists():
            words = ["apply", str(source), "--yarn", "4", "-q", "--validate", "off", "-o", str(out)]
            subprocess.run([sys.executable, "-m", "ropeconv", *words], check=True)
        seconds = measure(source, out, given.length, given.rounds)
    seconds["ratio of the comparison"] = round(
        seconds["comparison of logits"] / seconds["two bare passes"], 2
    )
    seconds["ratio of the command"] = round(
        seconds["whole command"] / seconds["two bare passes, with imports"], 2
    )
    print(json.dumps(seconds, indent=1))
    if given.record:
        write_record(given.record, given.source.name if given.source else "", seconds)


if __name__ == "__main__":
    main()
