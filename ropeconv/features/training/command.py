"""`ropeconv train-config`: a training config for an output."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.options import FamilyOption, check_place
from ropeconv.cli.screen import ProgressScreen
from ropeconv.cli.typer_classes import Command
from ropeconv.formats.files import expand_home
from ropeconv.options import LENGTH, OUTPUT, RUNNING, Writes

app = typer.Typer(add_completion=False)


TRAINERS = Path(__file__).parent / "trainers"


def trainer_names() -> tuple[str, ...]:
    """Return the values of `--for`, from the file names of the trainers."""
    return tuple(sorted(path.stem for path in TRAINERS.glob("*.toml")))


if TYPE_CHECKING:
    TrainerName = str
else:
    TrainerName = Literal.__getitem__(trainer_names())

EXAMPLES = """
ropeconv train-config ./Qwen3-8B-yarn4 --for axolotl > axolotl.yml
ropeconv train-config ./Qwen3-8B-yarn4 --for axolotl --memory 80GB --gpus 8
ropeconv train-config ./Qwen3-8B-yarn4 --for llama-factory --model me/Qwen3-8B-128k
"""


@app.command("train-config", cls=Command, epilog=EXAMPLES)
@expand_options
def train_config_command(
    baked: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT", help="A folder that `ropeconv apply` wrote, or its name on the Hub."
        ),
    ],
    trainer: Annotated[
        TrainerName,
        typer.Option(
            "--for", help="The trainer.", rich_help_panel=RUNNING, metavar="|".join(trainer_names())
        ),
    ],
    screen: ProgressScreen,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The path or Hub id that the trainer loads, if that is not OUTPUT.",
            rich_help_panel=RUNNING,
            metavar="PATH_OR_ID",
        ),
    ] = "",
    context: Annotated[
        str,
        typer.Option(
            "--context",
            help="Train on sequences of this length (default: the whole context).",
            rich_help_panel=LENGTH,
            metavar="TOKENS",
        ),
    ] = "",
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            help="Memory of one GPU that the training must fit, such as 80GB.",
            rich_help_panel=RUNNING,
            metavar="SIZE",
        ),
    ] = "",
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            help="GPUs that train, with --memory (default: 1).",
            rich_help_panel=RUNNING,
            min=1,
            metavar="N",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the config there instead of printing it.",
            rich_help_panel=OUTPUT,
            metavar="FILE",
            parser=expand_home,
        ),
        Writes(),
    ] = None,
    family: FamilyOption = "",
) -> None:
    """Print a training config for Axolotl, LLaMA-Factory, Megatron-LM, NeMo, TRL or Unsloth.

    It trains at the whole context, and does not scale RoPE a second time. With `--memory` and
    `--gpus` it sets what makes the training fit.
    """
    from ropeconv.formats.drafts import write_file
    from ropeconv.inspection.memory.machine import given_memory
    from ropeconv.models.open import open_source
    from ropeconv.rope.lengths import parse_tokens
    from ropeconv.views.sheet import sentence

    from .training import baked_output, make_snippet, trainers

    check_place(out)
    facts = baked_output(open_source(baked, family), model)
    if context:
        facts = facts.with_context(parse_tokens(context))
    limit = given_memory(memory).bytes if memory else 0
    snippet = make_snippet(trainers()[trainer], facts, gpus or 0, limit)
    for note in snippet.notes:
        screen.note(f"Note: {sentence(note)}")
    if out is not None:
        write_file(out, snippet.text.rstrip("\n") + "\n")
    if screen.as_json:
        screen.data(snippet.to_dict())
    elif out is None:
        screen.copyable(snippet.text.rstrip("\n"))
    else:
        screen.copyable(str(out) if screen.quiet else f"Wrote {out}")
