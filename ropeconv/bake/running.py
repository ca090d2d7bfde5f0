"""How an output is run: commands with its context, and the Modelfile that Ollama takes it from."""

from __future__ import annotations

import shlex
from pathlib import Path

from ..errors import RopeconvError, UsageError
from ..formats.regular import read_text
from ..formats.template import render
from ..runtimes.rules import RUNS
from ..sources import GgufSource
from ..sources.length_limits import limits_in, modelfile_limits, raised
from ..sources.reference import FROM
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


def modelfile_notes(source: GgufSource, context: int) -> tuple[str, ...]:
    """What the Modelfile of a source limits below the context of an output; empty for others. context: in tokens."""
    low = [limit for limit in modelfile_limits(source) if limit.tokens < context]
    return tuple(
        f"{source.modelfile} has {limit.key} {limit.tokens}; --ollama writes a Modelfile with {context} for the output"
        for limit in low
    )


def _text(plan: Plan) -> str:
    """The Modelfile of an output: that of the source with the output and its context, else a new one."""
    path, context = f"./{plan.out.name}", plan.schedule.context
    if plan.source.modelfile is None:
        return render("Modelfile.jinja", path=path, context=context)
    content = read_text(plan.source.modelfile, plan.source.modelfile.name).encode()
    limits = limits_in("Modelfile", (content,))
    low = [limit for limit in limits if limit.tokens < context]
    if low:
        content = b"".join(raised(low, context, content[low[0].start : low[-1].stop]).applied((content,)))
    text = FROM.sub(lambda line: line[0].replace(line[1], path), content.decode(), count=1)
    return text if limits else f"{text.rstrip()}\nPARAMETER num_ctx {context}\n"
