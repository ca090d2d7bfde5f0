"""`ropeconv inspect`, `advise` and `compare`: the RoPE of a model, what extends it, and how two
models differ.
"""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from ...formats.files import expand_home
from ...formats.kind import is_graph
from ...models.reference import names_gguf
from ...options import GENERAL, LENGTH, OUTPUT
from ..command import expand_options
from ..options import OR_GRAPH, ExplainOption, FamilyOption, SourceArgument
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
    family: FamilyOption = "",
    explain: ExplainOption = False,
) -> None:
    """Show the RoPE of a model, the runtimes that support it, and problems with their fixes."""
    if is_graph(source):
        from ..graphs import inspect_graphs

        inspect_graphs(source, family, explain, screen)
        return
    from ...bake.warnings import repairs
    from ...inspection.adapter import read_adapter
    from ...models.open import open_source
    from ...verbs.opened import inspect_opened
    from ...views.inspection import show_adapter, show_inspection

    opened = open_source(source, family)
    adapter = read_adapter(opened)
    if adapter is not None:
        screen.data(adapter.to_dict()) if screen.as_json else show_adapter(adapter, screen)
        return
    inspection = inspect_opened(opened)
    problems = list(repairs(opened, inspection))
    if screen.as_json:
        screen.data(inspection.to_dict(problems))
    else:
        show_inspection(inspection, screen, problems, explain)


ADVISE_EXAMPLES = """
ropeconv advise meta-llama/Llama-2-7b-hf --context 32k
ropeconv advise Qwen/Qwen3-8B --context 128k --explain
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
) -> None:
    """Compare the methods that reach a context length, with the command for each."""
    from ...evaluate.ranking import advised
    from ...models.open import open_source
    from ...rope.lengths import parse_tokens
    from ...views.advice import show_advice, show_methods

    advice = advised(open_source(source, family), parse_tokens(context), measured)
    if screen.as_json:
        screen.note(advice.note and f"Note: {advice.note}")
        screen.data(advice.to_dict())
        return
    show_advice(advice, screen)
    if explain:
        screen.say("")
        show_methods(advice, screen)
    else:
        screen.say("More:    --explain")


COMPARE_EXAMPLES = """
ropeconv compare Qwen/Qwen3-8B ./Qwen3-8B-yarn4
ropeconv compare ./Qwen3-8B-yarn4 model-Q4_K_M.gguf
ropeconv compare ./Llama-3.2-1B-onnx/model.onnx meta-llama/Llama-3.2-1B
ropeconv compare a/config.json b/config.json --exit-code
ropeconv compare merge.yaml
ropeconv compare ./Qwen3-8B-yarn4 ./my-lora
"""


@app.command("compare", cls=Command, epilog=COMPARE_EXAMPLES)
@expand_options
def compare_command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B", help=f"{OR_GRAPH} Or a PEFT adapter, or a YAML file of mergekit."
        ),
    ],
    screen: Screen,
    family: FamilyOption = "",
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Say whether mergekit can merge A and B, as of three models.",
            rich_help_panel=GENERAL,
        ),
    ] = False,
    explain: ExplainOption = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit with 3 where they differ, or do not fit.",
            rich_help_panel=GENERAL,
        ),
    ] = False,
) -> None:
    """Show how the RoPE of two models differs, or whether models and adapters fit together."""
    if family and all(map(names_gguf, models)):
        raise UsageError(
            "--family goes with checkpoints, and GGUF files name their architecture themselves;"
            " leave it out"
        )
    if any(map(is_graph, models)):
        from ..graphs import compare_graphs

        if (
            not compare_graphs(models, family, {"--merge": merge, "--explain": explain}, screen)
            and exit_code
        ):
            raise SystemExit(3)
        return
    from ...inspection.compatibility import compatibility, open_models
    from ...inspection.side_by_side import side_by_side
    from ...views.inspection import show_comparison, show_compatibility

    sources, adapters, file = open_models(models, family)
    if merge or file or adapters or len(sources) > 2:
        compared = compatibility(sources, adapters, file)
        screen.data(compared.to_dict()) if screen.as_json else show_compatibility(compared, screen)
        if exit_code and not compared.fits:
            raise SystemExit(3)
        return
    difference = side_by_side(*sources)
    for side in (difference.first, difference.second):
        screen.note(side.inspection.assumption)
    if screen.as_json:
        screen.data(difference.to_dict())
    else:
        show_comparison(difference, screen, explain)
    if exit_code and not difference.same:
        raise SystemExit(3)
