"""`ropeconv train-config`: the file that trains a baked checkpoint in a trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from ...views.sheet import sentence
from ..command import RUNNING, TrainerName
from ..options import FamilyOption, JsonOption, QuietOption, SourceArgument, build_recipe, with_recipe
from ..output import Output
from ..output_options import build_target, split, with_target

if TYPE_CHECKING:
    from ...hub.training import TrainingFacts

EXAMPLES = """Examples:

ropeconv train-config ./Qwen3-8B-yarn4 --for axolotl > axolotl.yml

ropeconv train-config Qwen/Qwen3-8B --yarn 4 --for trl

ropeconv train-config ./Qwen3-8B-yarn4 --for llama-factory --model me/Qwen3-8B-128k
"""


@with_recipe(dict)
@with_target
def train_config_command(
    source: SourceArgument,
    recipe: dict[str, Any],
    target: dict[str, Any],
    trainer: Annotated[
        TrainerName, typer.Option("--for", help="The trainer.", rich_help_panel=RUNNING, show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="PATH_OR_ID",
            help="What the trainer loads, where that is not the output itself: a copy, or its id on the Hub.",
            rich_help_panel=RUNNING,
            show_default=False,
        ),
    ] = "",
    family: FamilyOption = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print what trains an output of `apply` at its whole context, without scaling RoPE again.

    SOURCE is an output of ropeconv, or a source with the method and the options that `apply` gets.
    """
    from ...hub.training import find_trainer, make_snippet

    output = Output(as_json, quiet)
    baked, absent = _baked(source, recipe, target, model, family)
    made = make_snippet(find_trainer(trainer), baked)
    if absent:
        output.note(f"Note: {absent}.")
    for note in made.notes:
        output.note(f"Note: {sentence(note)}")
    if as_json:
        output.data(made.to_dict())
    else:
        output.copyable(made.text.rstrip("\n"))


def _baked(
    source: str, recipe: dict[str, Any], target: dict[str, Any], model: str, family: str
) -> tuple[TrainingFacts, str]:
    """The checkpoint that a command line names: an output, or what `apply` with these options would write.

    All are values of options. The second value says where that is not written yet. Raises UsageError for a GGUF file
    as output.
    """
    from ...bake.apply import make_plan
    from ...hub.training import NO_GGUF, TO_GGUF, baked_output, baked_plan
    from ...models.open import open_source

    opened = open_source(source, family)
    if not any(value not in (None, False, "auto") for value in (*recipe.values(), *target.values())):
        return baked_output(opened, model), ""
    outputs = [build_target(one) for one in split(target, opened.kind == "gguf")]
    if opened.kind == "gguf" and all(one.to is None for one in outputs):
        raise UsageError(f"{NO_GGUF}; add --to safetensors, which makes a checkpoint of it")
    wanted = next((one for one in outputs if one.to != "gguf"), None)
    if wanted is None:
        raise UsageError(TO_GGUF)
    plan = make_plan(opened, build_recipe(recipe), wanted)
    baked = baked_plan(plan, model)
    there = model or plan.out.exists()
    return baked, "" if there else f"{plan.out} is not there yet: `ropeconv apply` with the same options writes it"
