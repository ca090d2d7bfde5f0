"""How an output is run: commands with its context, and the Modelfile that Ollama takes it from."""

from __future__ import annotations

import shlex
from pathlib import Path

from ..errors import RopeconvError, UsageError
from ..formats.template import render
from ..runtimes.rules import RUNS
from .plan import GgufOutput, Plan


def run_commands(plan: Plan, path: Path, modelfile: Path | None = None) -> list[str]:
    """The commands that run an output with its context.

    None for a folder without weights, and for one that no verdict says vLLM computes.

    plan: of the output. path: of the output. modelfile: for Ollama, None where none was written.
    """
    computed = any(verdict.runtime.startswith("vllm@") and verdict.status in RUNS for verdict in plan.result.verdicts)
    vllm = computed and plan.source.kind != "config"
    text = render(
        "run.jinja", gguf=isinstance(plan, GgufOutput), vllm=vllm, path=shlex.quote(str(path)), model=path.stem.lower(),
        context=plan.schedule.context, modelfile=modelfile and shlex.quote(str(modelfile)),
    )  # fmt: skip
    return text.splitlines()


def modelfile_of(plan: Plan) -> Path:
    """The path of the Modelfile of an output. Raises UsageError for folders, RopeconvError where one is there."""
    if not isinstance(plan, GgufOutput):
        raise UsageError("--ollama goes with a GGUF file as output; add --to gguf, or leave it out")
    path = plan.out.with_name(f"{plan.out.stem}.Modelfile")
    if path.exists() and path.read_text(errors="replace") != _text(plan):
        raise RopeconvError(f"{path} is there and is another one; move it away, or leave --ollama out")
    return path


def write_modelfile(plan: Plan) -> Path:
    """Writes the Modelfile of an output beside it, and returns its path. Raises as `modelfile_of` does."""
    path = modelfile_of(plan)
    path.write_text(_text(plan))
    return path


def _text(plan: Plan) -> str:
    return render("Modelfile.jinja", path=f"./{plan.out.name}", context=plan.schedule.context)
