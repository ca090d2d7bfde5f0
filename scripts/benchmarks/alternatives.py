"""What people do instead of `ropeconv apply`: bytes written, time, who computes it, proof, undo.

    scripts/bench alternatives [--gigabytes 0.7] [-o docs/evidence/alternatives.json]

A Llama with the width of 7B is extended four times by YaRN in each way. Times are seconds of the
processor, since those of a clock depend on what else the machine does. "Computed by" counts the
newest versions of runtimes that load such a checkpoint, by the records of ropeconv's lab; what
flags do in llama.cpp is run here, on a tiny file. README.md has the table, and
tests/docs/test_alternatives.py compares it with the record.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import ropeconv

from .checkpoints import checkpoint
from .measure import ROOT, cost

RECORD = ROOT / "docs" / "evidence" / "alternatives.json"
FACTOR = 4
TRAINED = 4096
TINY = 64
"""Trained tokens of the tiny file."""
BY_HAND = {
    "rope_scaling": {
        "type": "yarn",
        "factor": float(FACTOR),
        "original_max_position_embeddings": TRAINED,
    }
}
"""The edit of the model cards of Qwen 2.5, with the trained length of this model."""


def main() -> None:
    """Measure every way and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=0.7)
    parser.add_argument("-o", type=Path, default=RECORD)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        checkpoint(work / "model", given.gigabytes, "llama")
        tiny(work)
        ways = {
            "apply": with_links(work),
            "apply-gguf": in_place(work),
            "by-hand": by_hand(work),
            "hf-overrides": overrides(work),
            "llama-flags": llama_flags(work),
            "gguf-set-metadata": set_metadata(work),
        }
        size = size_of(work / "model")
    record = {
        "what": (__doc__ or "").splitlines()[0],
        "command": "scripts/bench alternatives",
        "model": {"family": "llama", "bytes": size, "trained": TRAINED, "factor": FACTOR},
        "ropeconv": ropeconv.__version__,
        "ways": ways,
    }
    given.o.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for title, way in ways.items():
        print(title, {key: value for key, value in way.items() if key != "computed_by"})


def tiny(work: Path) -> None:
    """Make the GGUF file of the model of `scripts/demo`, which was trained with 64 tokens."""
    program = ROOT / "scripts" / "make_demo_model.py"
    subprocess.run([sys.executable, program, work / "tiny"], check=True, capture_output=True)
    run("apply", work / "tiny", "--as-is", "--to", "gguf", "-q", "-o", work / "tiny.gguf")


def run(*words: object) -> float:
    """Run ropeconv and return its seconds of processor time."""
    return cost([sys.executable, "-m", "ropeconv", *map(str, words)]).processor


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def with_links(work: Path) -> dict[str, Any]:
    """Extend the folder; files that did not change are hard links."""
    command = ("apply", work / "model", "--yarn", FACTOR, "--link", "-q")
    seconds = run(*command, "-o", work / "out")
    unchecked = run(*command, "--no-check", "-o", work / "unchecked")

    # a hard link has the same bytes as its source, so only the other files were written
    written = [path for path in (work / "out").iterdir() if path.stat().st_nlink == 1]
    return {
        "bytes": sum(path.stat().st_size for path in written),
        "seconds": round(seconds, 1),
        "seconds_unchecked": round(unchecked, 1),
        **computed_by(work / "out"),
    }


def in_place(work: Path) -> dict[str, Any]:
    """Convert the folder to GGUF, and extend the file where it is."""
    path = work / "model.gguf"
    to_gguf = ("--as-is", "--to", "gguf", "--outtype", "bf16", "--pre", "gpt-2", "--no-check")
    run("apply", work / "model", *to_gguf, "-q", "-o", path)

    # once without the checks and once with them
    unchecked = run("apply", path, "--yarn", FACTOR, "--in-place", "-q", "--no-check")
    run("restore", path, "--in-place", "-q")
    seconds = run("apply", path, "--yarn", FACTOR, "--in-place", "-q")

    inspection = ropeconv.inspect(str(path))
    return {
        "bytes": int(gguf.GGUFReader(path).data_offset),  # the header; the weights stay
        "seconds": round(seconds, 1),
        "seconds_unchecked": round(unchecked, 1),
        "size": path.stat().st_size,
        "declared": inspection.spec.context,
        "scaled": inspection.spec.attention_factor != 1,
    }


def by_hand(work: Path) -> dict[str, Any]:
    """Write the scaling into a copy of config.json, as a person does in an editor."""
    folder = work / "by-hand"
    folder.mkdir()
    document = json.loads((work / "model" / "config.json").read_text()) | BY_HAND
    (folder / "config.json").write_text(json.dumps(document, indent=2))
    return {"bytes": size_of(folder), "seconds": None, **computed_by(folder)}


def computed_by(folder: Path) -> dict[str, Any]:
    """Count the runtimes whose newest version computes a folder exactly, of those that load it.

    Args:
        folder: With a config.json.

    Returns:
        declared: the context in tokens. exact, loading: the numbers of runtimes. computed_by: the
        status of each one that loads it, such as {"vllm": "exact", "sglang": "ignored"}.
    """
    inspection = ropeconv.inspect(str(folder)).to_dict()

    # the versions of a runtime, such as vllm@0.33.0, are in their order, so the newest one stays
    newest: dict[str, str] = {}
    for verdict in inspection["runtimes"]:
        name, _, _ = verdict["runtime"].partition("@")
        newest[name] = verdict["status"]

    loading = {name: status for name, status in newest.items() if status != "unsupported"}
    exact = [name for name, status in loading.items() if status in ("exact", "rounded")]
    return {
        "declared": inspection["context"],
        "exact": len(exact),
        "loading": len(loading),
        "computed_by": loading,
    }


def overrides(work: Path) -> dict[str, Any]:
    """Print the same changes for a server; nothing is written."""
    seconds = run("apply", work / "model", "--yarn", FACTOR, "--to", "overrides", "-q")
    return {"bytes": 0, "seconds": round(seconds, 1), "each_start": True}


def llama_flags(work: Path) -> dict[str, Any]:
    """Compare logits of llama.cpp with flags and of the extended file, and with one flag missing.

    Returns:
        The largest differences of a log-probability, in nats.
    """
    run("apply", work / "tiny.gguf", "--yarn", FACTOR, "-q", "-o", work / "tiny-yarn.gguf")
    expected = logits(work / "tiny-yarn.gguf")

    # llama.cpp multiplies positions by rope_freq_scale; without --rope-scaling yarn (type 2) it
    # does no more than that
    scale = 1 / FACTOR
    right = logits(
        work / "tiny.gguf", rope_scaling_type=2, rope_freq_scale=scale, yarn_orig_ctx=TINY
    )
    linear = logits(work / "tiny.gguf", rope_freq_scale=scale)
    return {
        "bytes": 0,
        "seconds": None,
        "each_start": True,
        "all_flags": float(np.abs(right - expected).max()),
        "without_rope_scaling": float(np.abs(linear - expected).max()),
    }


def logits(path: Path, **options: Any) -> np.ndarray:
    """The log-probabilities that llama.cpp computes for some tokens, [tokens, vocabulary]."""
    import llama_cpp

    length = FACTOR * TINY
    model = llama_cpp.Llama(
        str(path), n_ctx=length, logits_all=True, verbose=False, n_threads=1, **options
    )
    model.eval([index % 200 for index in range(length)])
    scores = np.array(model.scores[:length], dtype=np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True)))


def set_metadata(work: Path) -> dict[str, Any]:
    """Set keys of the file with the program of gguf-py: those that are there, and those of YaRN."""
    path = work / "set.gguf"
    shutil.copyfile(work / "tiny.gguf", path)
    context = gguf_set(path, "llama.context_length", str(FACTOR * TINY))
    scaling = gguf_set(path, "llama.rope.scaling.type", "yarn")  # a key that the file does not have

    dry_run = [*SET, str(path), "llama.context_length", "1", "--dry-run"]
    seconds = cost(dry_run).processor
    inspection = ropeconv.inspect(str(path))
    return {
        "bytes": 4,  # of the number that is replaced
        "seconds": round(seconds, 1),
        "context_length": context,
        "rope_scaling_type": scaling,
        "declared": inspection.spec.context,
        "scaled": inspection.spec.attention_factor != 1,
    }


SET = (sys.executable, "-m", "gguf.scripts.gguf_set_metadata")


def gguf_set(path: Path, key: str, value: str) -> str:
    """Set one key with the program of gguf-py; return "set", or the last line of its error."""
    words = [*SET, str(path), key, value, "--force"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "set" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


if __name__ == "__main__":
    main()
