"""GGUF: patching against `cp` and `gguf-new-metadata`, exporting against llama.cpp's
convert_hf_to_gguf.py.

Exports and the way back run by one thread too. None waits for the disk to have what was written.
Each command several times, the first left out where there are more; prints medians and the largest
process of each. `--record` also writes the exports to docs/evidence/conversion-cost.json.
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
    """Writes the costs of an export to the record, which keeps those of other models and types."""
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
    """Exports, then patches what was exported (a Llama)."""
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
        return checkpoint(given.make, given.gigabytes, given.model_type)
    work = (given.dir / "bench-work").resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source = work / "model"
    out = work / "out.gguf"
    model = work / "model.gguf"
    # in a process of its own: a child's peak memory counts from what its parent held when it was
    # started
    make = ["--make", source, "--gigabytes", str(given.gigabytes), "--model-type", given.model_type]
    subprocess.run([sys.executable, "-m", "scripts.benchmarks", "gguf", *make], check=True)
    python = sys.executable
    tool = [python, "-m", "ropeconv", "apply"]
    alone = [python, "-c", ALONE, "apply"]
    env = {"PYTHONPATH": str(given.converter.parent / "gguf-py")} if given.converter else {}
    for outtype in given.outtypes:
        ours = [
            str(source),
            "--as-is",
            "--to",
            "gguf",
            "--outtype",
            outtype,
            "--no-fsync",
            "-q",
            "-o",
            str(out),
        ]
        runs = {
            "apply --to gguf": [*tool, *ours],
            "... by one thread": [*alone, *ours],
            "... without checks": [*tool, *ours, "--no-check", "--validate", "off"],
        }
        if given.converter:
            theirs = [
                python,
                str(ROOT / "scripts" / "llamacpp" / "unknown_tokenizer.py"),
                str(given.converter),
                str(source),
            ]
            if outtype in CONVERTED:
                stock = [*theirs, "--outtype", outtype, "--outfile", str(out)]
                runs["convert_hf_to_gguf.py"] = stock
            elif given.quantiser:
                floats = str(work / "floats.gguf")
                first = [*theirs, "--outtype", "bf16", "--outfile", floats]
                second = [str(given.quantiser.absolute()), floats, str(out), outtype]
                both = [python, "-c", IN_TURN, json.dumps([first, second])]
                runs["convert_hf_to_gguf.py and llama-quantize"] = both
        title = f"export of {given.model_type}, {outtype}"
        cold = source if given.cold else None
        medians = compare(title, runs, out, given.rounds, env=env, in_turns=True, cold=cold)
        if given.record:
            record(f"{given.model_type}, {given.gigabytes:g} GB", outtype, medians)
    if given.record:
        return shutil.rmtree(work)
    if given.model_type != "llama":
        return shutil.rmtree(work)
    cost([*tool, str(source), "--as-is", "--to", "gguf", "-q", "-o", str(model)])
    folder = work / "out"
    back = [str(model), "--as-is", "--to", "safetensors", "--no-fsync", "-q", "-o", str(folder)]
    runs = {"apply --to safetensors": [*tool, *back], "... by one thread": [*alone, *back]}
    compare("GGUF to safetensors", runs, folder, given.rounds, in_turns=True)
    new = [
        str(Path(python).with_name("gguf-new-metadata")),
        "--force",
        "--general-name",
        "x",
        str(model),
        str(out),
    ]
    runs = {
        "cp": ["cp", str(model), str(out)],
        "apply": [*tool, str(model), "--yarn", "4", "--no-fsync", "-q", "-o", str(out)],
        "gguf-new-metadata": new,
        "apply --in-place": [*tool, str(model), "--yarn", "4", "--replace", "--in-place", "-q"],
    }
    compare(f"patch, {model.stat().st_size / 1e9:.1f} GB", runs, out, max(3, given.rounds))
    shutil.rmtree(work)
