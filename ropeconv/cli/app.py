"""`ropeconv` with all its commands, which are imported when they are needed."""

from __future__ import annotations

import click

from ..version import __version__
from .command import Group

SUMMARIES = {
    "inspect": "Show the RoPE of a model, the runtimes that support it, and problems with their fixes.",
    "advise": "Compare the methods that reach a context length, with the command for each.",
    "apply": "Write a checkpoint or GGUF file with a longer context.",
    "profiles": "Write one model for several contexts, with its weights stored once.",
    "validate": "Check that a runtime computes the method: compare logits with the source, scaled at run time.",
    "compare": "Show how the RoPE of two models differs, or whether models can be merged and adapters applied.",
    "restore": "Undo: recreate the original model from an output.",
    "push": "Publish an output on the Hub; files that the source repository has are copied there, not uploaded.",
    "train-config": "Print a training config for Axolotl, LLaMA-Factory, Megatron-LM, NeMo, TRL or Unsloth.",
    "eval": "Measure loss and retrieval of a model with several methods, before anything is written.",
    "tune": "Search for frequencies that beat the built-in methods on your text, and write them as a recipe.",
    "run": "Run apply, validate, eval and push for many models, as a plan file says (docs/running.md).",
    "ui": "Open the browser page, to inspect, extend and publish models without a command line.",
    "plot": "Show the frequencies of one or several methods: a table, or a picture with -o.",
    "bound": "Find the smallest rope_theta for a context length, or the longest distance that a model supports.",
}
LISTS = {
    "methods": "List the methods, or show one with its formula, settings and paper.",
    "families": "List the model families, with their rope types and GGUF architectures.",
    "archs": "List the GGUF architectures, with the rope tensors and keys that llama.cpp supports for each.",
    "runtimes": "List the runtimes, and how many model families each was tested with.",
}
"""The first sentences of the commands, in the order of the help, which imports none of them."""
MODULES = {"advise": "inspect", "compare": "inspect", "train-config": "push", **dict.fromkeys(LISTS, "list")}
"""The module in `commands` of each command whose module has another name."""
COMMANDS = (*SUMMARIES, *(f"list {name}" for name in LISTS))
"""The names of all commands."""


app = Group(
    "ropeconv", "Extend the context of models with RoPE, and verify that runtimes compute the extension.", SUMMARIES,
    MODULES,
)  # fmt: skip
click.version_option(
    __version__, "-V", "--version", message="ropeconv %(version)s", help="Print the version and exit."
)(app)
app.add_command(Group("list", "List methods, model families, GGUF architectures or runtimes.", LISTS, MODULES))


def find(name: str) -> click.Command:
    """Return the command of a name, such as `list methods`."""
    command: click.Command = app
    for word in name.split():
        assert isinstance(command, Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, name
        command = found
    return command
