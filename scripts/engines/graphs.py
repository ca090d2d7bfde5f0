"""ONNX Runtime GenAI, which runs a graph of its own model builder. It has no server.

The builder leaves the scaling of a config out, so the graph of an extended checkpoint is the wrong
output here, and the right one is the graph of the source, extended by `apply`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropeconv.engines.transformers.load import load_stock
from scripts.laboratory.environment import ROOT, NotInstallable, installed
from tests.features.servers.test_live import CONTEXT

from .models import NEW_TOKENS, make_models
from .session import Session, same_text

PACKAGE = "onnxruntime-genai==0.18.0"
BUILD = """
import runpy, sys
sys.argv[1:] = ["-i", sys.argv[1], "-o", sys.argv[2], "-p", "fp32", "-e", "cpu", "-c", "cache"]
runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
"""
RUN = """
import json, sys
import numpy as np
import onnxruntime_genai as genai

ids, count = json.loads(sys.stdin.read())
model = genai.Model(sys.argv[1])
settings = genai.GeneratorParams(model)
settings.set_search_options(max_length=len(ids) + count, do_sample=False)
generator = genai.Generator(model, settings)
generator.append_tokens(np.array([ids], dtype=np.int32))
np.save("logits.npy", generator.get_output("logits")[0])
for _ in range(count):
    generator.generate_next_token()
print("ANSWER" + json.dumps([int(token) for token in generator.get_sequence(0)][len(ids):]))
"""
ALLOWED = 1e-3
"""The largest difference of logits, as a share of the largest logit: both are float32."""


def onnxruntime_genai(session: Session) -> bool:
    """Run the right and the wrong graph, and note what happens in the session.

    The right one is the graph of the source, which `ropeconv apply` extends. The wrong one is built
    from the extended checkpoint, whose scaling the builder leaves out.

    Returns:
        Whether `ropeconv compare`, the logits and the continuation of a prompt tell the two apart.
    """
    try:
        packages = installed(ROOT / f"exporter-{PACKAGE}", PACKAGE, requirements=False)
    except NotInstallable as problem:
        pytest.skip(str(problem))
    session.variables = {"PYTHONPATH": f"{packages}:{os.environ.get('PYTHONPATH', '')}"}
    models = make_models(session, "yarn")
    ids = models.ids
    reference = reference_logits(session.folder / "hf-right", ids)
    largest = np.abs(reference).max()

    build(session, "source", "graph")
    build(session, "right", "wrong-graph")
    code = session.ropeconv(*f"apply graph --yarn 16 --context {CONTEXT} -o right-graph".split())
    outcomes = [code == 0]
    for graph, is_right in (("right-graph", True), ("wrong-graph", False)):
        # the lines that this command adds to the session
        begin = len(session.lines)
        session.ropeconv("compare", graph, "right")
        has_same_rope = "They have the same RoPE." in session.lines[begin:]
        outcomes.append(has_same_rope is is_right)

        logits, tokens = run(session, graph, ids)
        difference = float(np.abs(logits - reference).max() / largest)
        session.note(
            f"onnxruntime_genai, a prompt of {len(ids)} of {CONTEXT} tokens and {NEW_TOKENS} more:"
            f" its logits are within {difference:.1e} of those of transformers with the method, as"
            f" a share of the largest ({ALLOWED:g} is allowed)."
        )
        text = models.text_of(tokens)
        session.answers(text, models.continued)
        outcomes.append((difference < ALLOWED) is is_right)
        outcomes.append(same_text(text, models.continued["method"]) is is_right)
    return all(outcomes)


def build(session: Session, checkpoint: str, graph: str) -> None:
    """Let the model builder write a graph of a checkpoint."""
    session.say(
        f"python -m onnxruntime_genai.models.builder -i {checkpoint} -o {graph} -p fp32 -e cpu"
    )
    run_program(session, BUILD, checkpoint, graph)
    place = session.folder / graph
    if not (place / "config.json").exists():
        config = (session.folder / checkpoint / "config.json").read_text(encoding="utf-8")
        (place / "config.json").write_text(config, encoding="utf-8")
        session.say(f"cp {checkpoint}/config.json {graph}")


def run(session: Session, graph: str, ids: list[int]) -> tuple[Any, list[int]]:
    """Return the logits of a prompt, and the tokens that are generated after it."""
    printed = run_program(session, RUN, graph, given=json.dumps([ids, NEW_TOKENS]))
    tokens = json.loads(printed.partition("ANSWER")[2].splitlines()[0])
    return np.load(session.folder / "logits.npy"), tokens


def run_program(session: Session, program: str, *words: str, given: str = "") -> str:
    """Run a program in the folder of the session, with the packages of the engine."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *words],
        cwd=session.folder,
        env={**os.environ, **session.variables},
        input=given,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def reference_logits(folder: Path, ids: list[int]) -> Any:
    """Return the logits of transformers."""
    with torch.no_grad():
        return load_stock(folder, "cpu")(torch.tensor([ids])).logits[0].float().numpy()
