"""Run packets in an engine, and note what their own tests print.

An engine's program writes logits into files, in a process of its own that may crash; check_rope.py
of each packet judges them. The results of a packet replace its earlier ones; those of another
version of the engine are dropped.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .building import label

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "evidence" / "vectors.json"
ENGINES = {
    "transformers": "model",
    "llama.cpp": "model.gguf",
    "vLLM": "model",
    "mlx-lm": "model",
    "ONNX Runtime": "graph",
    "OpenVINO": "graph",
}
"""By the name of an engine: the part of a packet that it reads. A graph is exported from the
model before the extension, and extended by `ropeconv apply`."""
SECONDS = 14400


def run_engine(folder: Path, engine: str, python: str, kept: Path | None) -> None:
    """Run all packets of a folder in an engine, and write the results.

    Args:
        folder: That `build_all` wrote.
        engine: The name of the engine.
        python: The Python that has it.
        kept: A folder for graphs, which several engines share; None for a temporary one.
    """
    packets = sorted(path.parent for path in folder.glob("*/*/packet.json"))
    if not packets:
        sys.exit(f"{folder} has no packets; write them with `python -m scripts.vectors build`")
    with tempfile.TemporaryDirectory() as work:
        if ENGINES[engine] == "graph":
            from .graphs import export_graphs

            export_graphs(packets, kept or Path(work))
        answers = logits_of(engine, python, packets, Path(work), kept or Path(work))
        results = {}
        for packet in packets:
            name = packet.relative_to(folder).as_posix()
            results[name] = {
                "recipe": recipe_of(packet),
                **judge(packet, answers.get(packet, ""), Path(work)),
            }
            print(f"{name}: {results[name]['sentence']}", flush=True)
    write_results(engine, version_of(engine, python), results)


def program(engine: str) -> Path:
    """Return the program of an engine."""
    module = engine.lower().replace(".", "").replace(" ", "").replace("-", "_")
    return Path(__file__).parent / "engines" / f"{module}_engine.py"


def version_of(engine: str, python: str) -> str:
    """Return the names and versions of an engine, as its program says them."""
    command = [python, str(program(engine)), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def logits_of(
    engine: str, python: str, packets: list[Path], work: Path, graphs: Path
) -> dict[Path, str]:
    """Run the program of an engine, and return the errors by packet.

    The program continues with the next packet after an exception. Where it ends, it is started
    again for the packets that are left.
    """
    errors: dict[Path, str] = {}
    variables = {**os.environ, "GRAPHS": str(graphs)}
    left = list(packets)
    while left:
        command = [python, str(program(engine)), str(work), *map(str, left)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=variables
        )
        finished = []
        for packet in left:
            note = work / f"{label(packet)}.error"
            if note.exists():
                errors[packet] = note.read_text()
            if note.exists() or (work / f"{label(packet)}.npz").exists():
                finished.append(packet)
        left = left[len(finished) :]
        if left and not finished:  # it ends at once, so this packet is the reason
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            errors[left[0]] = f"the process ends with code {done.returncode}: {last}"
            left = left[1:]
    return errors


def recipe_of(packet: Path) -> str:
    """Return the options of a packet's method, such as "--yarn 8"."""
    title: str = json.loads((packet / "packet.json").read_text(encoding="utf-8"))["title"]
    return title.partition(", ")[2]


def judge(packet: Path, error: str, work: Path) -> dict[str, object]:
    """Return what the test of a packet prints about the logits of an engine."""
    if error:
        return {"outcome": "not run", "sentence": " ".join(error.split())[:300]}
    logits = work / f"{label(packet)}.npz"
    command = [sys.executable, "-I", str(packet / "check_rope.py"), "--logits", str(logits)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    if done.returncode == 2 or not done.stdout.startswith("{"):
        words = done.stdout.strip() or done.stderr.strip()
        outcome = "none of these" if done.returncode == 1 else "not run"
        return {"outcome": outcome, "sentence": words[:300]}
    document = json.loads(done.stdout)
    nearest = next(iter(document["distances"]))
    if document["passed"]:
        outcome = "pass"
    else:
        outcome = " or ".join(document["fits"]) or "none of these"
    return {
        "outcome": outcome,
        "distance": float(f"{document['distances'][nearest]:.2g}"),
        "from_method": float(f"{document['distances']['right']:.2g}"),
        "allowed": float(f"{document['allowed']:.2g}"),
        "sentence": document["sentence"],
    }


def write_results(engine: str, version: str, results: dict[str, dict[str, object]]) -> None:
    """Write the results of an engine beside those of the others."""
    document = {}
    if RESULTS.exists():
        document = json.loads(RESULTS.read_text(encoding="utf-8"))
    earlier = document.get(engine, {})
    if earlier.get("version") == version:
        results = {**earlier["results"], **results}
    document[engine] = {
        "version": version,
        "command": f"python -m scripts.vectors run FOLDER {json.dumps(engine)} --python PYTHON",
        "results": results,
    }
    RESULTS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
