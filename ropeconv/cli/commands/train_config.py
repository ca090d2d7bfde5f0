"""`ropeconv train-config`: the file that trains a baked checkpoint in a trainer."""

from __future__ import annotations

from typing import Annotated

import typer

from ...views.sheet import sentence
from ..command import RUNNING, TrainerName
from ..options import FamilyOption, JsonOption, QuietOption
from ..output import Output

EXAMPLES = """Examples:

ropeconv train-config ./Qwen3-8B-yarn4 --for axolotl > axolotl.yml

ropeconv train-config ./Qwen3-8B-yarn4 --for llama-factory --model me/Qwen3-8B-128k
"""


def train_config_command(
    baked: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="A folder that `ropeconv apply` wrote, or its name on the Hub.")
    ],
    trainer: Annotated[
        TrainerName, typer.Option("--for", help="The trainer.", rich_help_panel=RUNNING, show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="PATH_OR_ID",
            help="The path or Hub id that the trainer loads, if that is not OUTPUT.",
            rich_help_panel=RUNNING,
            show_default=False,
        ),
    ] = "",
    family: FamilyOption = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print a training config for Axolotl, LLaMA-Factory, TRL or Unsloth.

    It trains at the whole context, and does not scale RoPE a second time.
    """
    from ...hub.training import baked_output, find_trainer, make_snippet
    from ...models.open import open_source

    output = Output(as_json, quiet)
    snippet = make_snippet(find_trainer(trainer), baked_output(open_source(baked, family), model))
    for note in snippet.notes:
        output.note(f"Note: {sentence(note)}")
    if as_json:
        output.data(snippet.to_dict())
    else:
        output.copyable(snippet.text.rstrip("\n"))
