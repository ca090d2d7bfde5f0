"""GGUF: patching against `cp` and `gguf-new-metadata`, exporting against llama.cpp's
convert_hf_to_gguf.py.

Exports, and conversions from GGUF, run by one thread too. None waits until the disk has the files.
Each command runs several times, and the first run is left out where there are more. It prints
medians and the largest process of each. `--record` also writes the exports to
docs/evidence/conversion-cost.json.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .checkpoints import CONFIGS, checkpoint
from .measure import ROOT, Cost, compare, cost

TOOL = [sys.executable, "-m", "ropeconv", "apply"]
RECORD = ROOT / "docs" / "evidence" / "conversion-cost.json"

ALONE = (
    "import os; os.sched_getaffinity = lambda process: {0}; from ropeconv.cli import main; main()"
)
"""ropeconv, which takes the machine for one with a single core."""
IN_TURN = (
    "import json, subprocess, sys;"
    " [subprocess.run(words, check=True) for words in json.loads(sys.argv[1])]"
)
"""Several commands, one after another."""
CONVERTED = ("f32", "f16", "bf16", "q8_0", "tq1_0", "tq2_0")
"""The types of convert_hf_to_gguf.py."""


def record(model: str, outtype: str, medians: dict[str, Cost]) -> None:
    """Write the costs of an export to the record, which keeps those of other models and types.

    Args:
        model: The name of the model in the record, such as "llama, 7 GB".
        outtype: The type of numbers, such as q8_0.
        medians: The costs by the name of the command.
    """
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {"exports": {}}
    costs = {}
    for name, middle in medians.items():
        rounded = {key: round(value, 2) for key, value in middle._asdict().items()}
        costs[name] = rounded
    kept["exports"].setdefault(model, {})[outtype] = costs
    kept["cores"] = os.cpu_count()
    kept["load before the last export"] = round(os.getloadavg()[1], 1)
    kept["llama_cpp"] = importlib.metadata.version("llama-cpp-python")
    from ropeconv.formats.drafts import write_file

    write_file(RECORD, json.dumps(kept, indent=1) + "\n")


def main() -> None:
    """Measure exports to GGUF, and for a Llama also its conversion back and patches of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=7)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--converter", type=Path, help="llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument(
        "--quantiser", type=Path, help="llama-quantize, for types that the converter does not have"
    )
    parser.add_argument("--model-type", choices=CONFIGS, default="llama")
    parser.add_argument("--outtypes", nargs="+", default=["bf16", "f16", "q8_0"])
    parser.add_argument(
        "--cold", action="store_true", help="exports read their source from the disk"
    )
    parser.add_argument("--record", action="store_true", help="write the exports to the record")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        checkpoint(given.make, given.gigabytes, given.model_type)
        return

    work = (given.dir / "bench-work").resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source = work / "model"
    # in a process of its own: a child's peak memory counts from what its parent held when it was
    # started
    make = ["--make", source, "--gigabytes", str(given.gigabytes), "--model-type", given.model_type]
    subprocess.run([sys.executable, "-m", "scripts.benchmarks", "gguf", *make], check=True)

    measure_exports(source, work, given)
    if not given.record and given.model_type == "llama":
        measure_changes(source, work, given.rounds)
    shutil.rmtree(work)


def measure_exports(source: Path, work: Path, given: argparse.Namespace) -> None:
    """Compare exports by ropeconv with those of llama.cpp, for each type of numbers.

    Args:
        source: The checkpoint.
        work: A folder for the file, which is removed after each run.
        given: The options of the command line.
    """
    out = work / "out.gguf"
    env = {}
    if given.converter:
        env["PYTHONPATH"] = str(given.converter.parent / "gguf-py")
    for outtype in given.outtypes:
        words = [str(source), "--as-is", "--to", "gguf", "--outtype", outtype]
        words += ["--no-fsync", "-q", "-o", str(out)]
        runs = {
            "apply --to gguf": [*TOOL, *words],
            "... by one thread": [sys.executable, "-c", ALONE, "apply", *words],
            "... without checks": [*TOOL, *words, "--no-check", "--validate", "off"],
        }
        if given.converter:
            runs |= converter_runs(source, work, outtype, given.converter, given.quantiser)
        title = f"export of {given.model_type}, {outtype}"
        cold = source if given.cold else None
        medians = compare(title, runs, out, given.rounds, env=env, in_turns=True, cold=cold)
        if given.record:
            record(f"{given.model_type}, {given.gigabytes:g} GB", outtype, medians)


def converter_runs(
    source: Path, work: Path, outtype: str, converter: Path, quantiser: Path | None
) -> dict[str, list[str]]:
    """Return the command of llama.cpp for an export, by its name; empty where it has none.

    Args:
        source: The checkpoint.
        work: The folder for the file, and for one with floats before it is quantised.
        outtype: The type of numbers, such as q8_0.
        converter: convert_hf_to_gguf.py.
        quantiser: llama-quantize; None without it.
    """
    out = work / "out.gguf"
    wrapper = ROOT / "scripts" / "llamacpp" / "unknown_tokenizer.py"
    convert = [sys.executable, str(wrapper), str(converter), str(source)]
    if outtype in CONVERTED:
        stock = [*convert, "--outtype", outtype, "--outfile", str(out)]
        return {"convert_hf_to_gguf.py": stock}
    if quantiser is None:
        return {}
    floats = str(work / "floats.gguf")
    first = [*convert, "--outtype", "bf16", "--outfile", floats]
    second = [str(quantiser.absolute()), floats, str(out), outtype]
    both = [sys.executable, "-c", IN_TURN, json.dumps([first, second])]
    return {"convert_hf_to_gguf.py and llama-quantize": both}


def measure_changes(source: Path, work: Path, rounds: int) -> None:
    """Measure what can be done with a GGUF file: conversion to safetensors, and patches.

    Args:
        source: The checkpoint, which is exported first.
        work: A folder for the files.
        rounds: How often each command runs.
    """
    model = work / "model.gguf"
    cost([*TOOL, str(source), "--as-is", "--to", "gguf", "-q", "-o", str(model)])

    folder = work / "out"
    back = [str(model), "--as-is", "--to", "safetensors", "--no-fsync", "-q", "-o", str(folder)]
    alone = [sys.executable, "-c", ALONE, "apply"]
    runs = {"apply --to safetensors": [*TOOL, *back], "... by one thread": [*alone, *back]}
    compare("GGUF to safetensors", runs, folder, rounds, in_turns=True)

    out = str(work / "out.gguf")
    new_metadata = str(Path(sys.executable).with_name("gguf-new-metadata"))
    yarn = [*TOOL, str(model), "--yarn", "4"]
    runs = {
        "cp": ["cp", str(model), out],
        "apply": [*yarn, "--no-fsync", "-q", "-o", out],
        "gguf-new-metadata": [new_metadata, "--force", "--general-name", "x", str(model), out],
        "apply --in-place": [*yarn, "--replace", "--in-place", "-q"],
    }
    size = model.stat().st_size / 1e9
    compare(f"patch, {size:.1f} GB", runs, Path(out), max(3, rounds))
