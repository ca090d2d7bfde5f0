"""`ropeconv compare`: how the RoPE of two models differs, and whether models fit together."""

from typing import Annotated

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.options import OR_GRAPH, ExplainOption, FamilyOption
from ropeconv.cli.screen import Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import UsageError
from ropeconv.formats.kind import is_graph
from ropeconv.models.reference import names_gguf
from ropeconv.options import GENERAL
from ropeconv.rope.features import hook

app = typer.Typer(add_completion=False)


EXAMPLES = """
ropeconv compare Qwen/Qwen3-8B ./Qwen3-8B-yarn4
ropeconv compare ./Qwen3-8B-yarn4 model-Q4_K_M.gguf
ropeconv compare ./Llama-3.2-1B-onnx/model.onnx meta-llama/Llama-3.2-1B
ropeconv compare a/config.json b/config.json --exit-code
ropeconv compare merge.yaml
ropeconv compare ./Qwen3-8B-yarn4 ./my-lora
"""


@app.command("compare", cls=Command, epilog=EXAMPLES)
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
    if family and all(names_gguf(model) for model in models):
        raise UsageError(
            "--family goes with checkpoints, and GGUF files name their architecture themselves;"
            " leave it out"
        )
    # compiled graphs (ONNX, OpenVINO) are a feature of its own, which has no such options
    if any(is_graph(model) for model in models):
        others = {"--merge": merge, "--explain": explain}
        same = hook("compare_graphs")(models, family, others, screen)
    else:
        same = _compare(models, family, merge, explain, screen)
    if exit_code and not same:
        raise SystemExit(3)


def _compare(models: list[str], family: str, merge: bool, explain: bool, screen: Screen) -> bool:
    """Show how two models differ, or whether several fit together.

    Args:
        models: Models, adapters, or a file of mergekit.
        family: The family of the checkpoints; empty to find it.
        merge: Whether two models are compared for a merge.
        explain: Whether everything is shown.
        screen: Where it is shown.

    Returns:
        Whether two models have the same RoPE, or whether all fit together.
    """
    from .compatibility import compatibility, open_models
    from .side_by_side import side_by_side
    from .views import show_comparison, show_compatibility

    # whether a merge or adapters fit: of a file of mergekit, of adapters, or of more than two models
    sources, adapters, file = open_models(models, family)
    can_be_side_by_side = len(sources) == 2 and not adapters and file is None
    if merge or not can_be_side_by_side:
        compared = compatibility(sources, adapters, file)
        if screen.as_json:
            screen.data(compared.to_dict())
        else:
            show_compatibility(compared, screen)
        return compared.fits

    # how two models differ
    first, second = sources
    difference = side_by_side(first, second)
    for side in (difference.first, difference.second):
        screen.note(side.inspection.assumption)
    if screen.as_json:
        screen.data(difference.to_dict())
    else:
        show_comparison(difference, screen, explain)
    return difference.same
