"""`ropeconv inspect` and `advise`: the RoPE of a model, and the methods that extend it."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from ...formats.files import expand_home
from ...formats.kind import is_graph
from ...options import LENGTH, OUTPUT, RUNTIMES, MachineOptions
from ...rope.features import hook
from ..command import expand_options
from ..options import OR_GRAPH, ExplainOption, FamilyOption, PythonOption, SourceArgument
from ..screen import Screen
from ..typer_classes import Command

app = typer.Typer(add_completion=False)

INSPECT_EXAMPLES = """
ropeconv inspect Qwen/Qwen3-8B
ropeconv inspect ./Llama-2-7b-hf/config.json --json
ropeconv inspect model-Q4_K_M.gguf
ropeconv inspect ./Llama-3.2-1B-onnx/model.onnx
ropeconv inspect ./DeepSeek-V3-renamed --family deepseek_v3
"""


@app.command("inspect", cls=Command, epilog=INSPECT_EXAMPLES)
@expand_options
def inspect_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=OR_GRAPH)],
    screen: Screen,
    machine: MachineOptions,
    family: FamilyOption = "",
    python: PythonOption = "",
    explain: ExplainOption = False,
) -> None:
    """Show the RoPE of a model, the runtimes that support it, and problems with their fixes.

    vLLM, mlx-lm and exllamav3 are asked what they compute from the config where they are
    installed.

    docs/troubleshooting.md leads from a symptom or a message of an engine to its cause.
    """
    if is_graph(source):
        _inspect_graph(source, screen, machine, family, python, explain)
        return

    # imported here, so that the help needs none of them
    from ...bake.warnings import repairs
    from ...inspection.adapter import read_adapter
    from ...inspection.memory.fit import check_machine
    from ...models.gguf import GgufSource
    from ...models.open import open_source
    from ...verbs.asking import asking_installed
    from ...verbs.opened import inspect_opened
    from ...views.inspection import show_adapter, show_inspection

    check_machine(machine)
    opened = open_source(source, family)
    adapter = read_adapter(opened)  # None for a whole model
    if adapter is not None:
        if screen.as_json:
            screen.data(adapter.to_dict())
        else:
            show_adapter(adapter, screen)
        return

    # runtimes that can be asked what they compute from the config are asked, if they are installed
    # here or in the environment of --python
    if python and isinstance(opened, GgufSource):
        raise UsageError("--python does not go with a GGUF file; leave it out")
    with asking_installed(names=None, python=python, tell=screen.note):  # None: all of them
        inspection = inspect_opened(opened)
        problems = list(repairs(opened, inspection))
    if screen.as_json:
        screen.data(inspection.to_dict(problems, machine))
    else:
        show_inspection(inspection, screen, problems, explain, machine)


def _inspect_graph(
    source: str, screen: Screen, machine: MachineOptions, family: str, python: str, explain: bool
) -> None:
    """Show the RoPE of a compiled graph, such as model.onnx, for `inspect_command`."""
    if python:
        raise UsageError("--python does not go with a compiled graph; leave it out")
    if machine.memory or machine.cache_type:
        flag = "--memory" if machine.memory else "--cache-type"
        raise UsageError(f"{flag} does not go with a compiled graph; leave it out")

    # the feature for graphs, a plugin of this package, has a function of that name
    inspect_graphs = hook("inspect_graphs")
    inspect_graphs(source, family, explain, screen)


ADVISE_EXAMPLES = """
ropeconv advise meta-llama/Llama-2-7b-hf --context 32k
ropeconv advise Qwen/Qwen3-8B --context 128k --explain
ropeconv advise Qwen/Qwen3-8B --context 128k --runtime vllm --memory 80GB
ropeconv advise model-Q4_K_M.gguf --context 128k --json
ropeconv advise Qwen/Qwen3-8B --context 128k --measured result.json
"""


@app.command("advise", cls=Command, epilog=ADVISE_EXAMPLES)
@expand_options
def advise_command(
    source: SourceArgument,
    context: Annotated[
        str,
        typer.Option(
            "--context",
            help="The context to declare, such as 128k.",
            rich_help_panel=LENGTH,
            metavar="TOKENS",
        ),
    ],
    screen: Screen,
    machine: MachineOptions,
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            "--runtime",
            help="Only forms that this runtime supports: vllm, ollama, ...; repeatable.",
            rich_help_panel=RUNTIMES,
            metavar="NAME",
        ),
    ] = None,
    explain: ExplainOption = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            help="Sort by this result of `ropeconv eval -o`.",
            rich_help_panel=OUTPUT,
            metavar="FILE",
            parser=expand_home,
        ),
    ] = None,
    family: FamilyOption = "",
    python: PythonOption = "",
) -> None:
    """Compare the methods that reach a context length, with the command for each."""
    from ...bake.ranked import advised
    from ...inspection.memory.fit import check_machine
    from ...models.gguf import GgufSource
    from ...models.open import open_source
    from ...rope.lengths import parse_tokens
    from ...verbs.asking import asking_installed
    from ...views.advice import show_advice, show_methods
    from ...views.memory import advice_document, advised_fit, show_memory

    check_machine(machine)
    named = tuple(runtime or ())
    opened = open_source(source, family)
    if python and isinstance(opened, GgufSource):
        raise UsageError("--python does not go with a GGUF file; leave it out")
    with asking_installed(None, python, screen.note):
        advice = advised(opened, parse_tokens(context), measured, runtimes=named)
    if screen.as_json:
        if advice.note:
            screen.note(f"Note: {advice.note}")
        screen.data(advice_document(advice, machine, named))
        return
    # refuses a cache type that the runtime cannot have, so it comes before anything is shown
    fit = advised_fit(advice, machine, named)
    show_advice(advice, screen, fit)
    show_memory(fit, screen)
    if explain:
        screen.say("")
        show_methods(advice, screen)
    else:
        screen.say("More:    --explain")
