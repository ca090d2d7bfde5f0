"""Numbers and words on the command line, for every option of every command that takes a value."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from ..folders import small_config, write_checkpoint
from ..formats import Commands, register

VALUES = (
    "0 -0 -1 1 2 3 4 0.5 1.5 -4 nan NaN inf -inf Infinity 1e308 -1e308 1e-308 5e-324 1e999 1e18 1e400 0x10 1_000 "
    "9223372036854775807 9223372036854775808 18446744073709551616 65 128k 1M 0k 4k 999999999M 3000000000000k 128K 1.5k "
    "four ntk:2 yarn:1e9 linear:4 yarn:0.5 8@4 8@0 8@99999999999999999999 128k@4 1@1 @ : -- . .. / ~ transformers "
    "transformers@4.0 transformers@x vllm llama-cpp @ f32 q8_0 x@y"
).split()
LONG = (
    "9" * 400,
    "9" * 5000,
    "9" * 400 + "k",
    "1" + "0" * 400 + "@4",
    "ntk:" + "9" * 400,
    "x" * 5000,
    "",
    " ",
    "\udcff",
    "a\nb",
)
LEAVE_OUT = {"push", "validate", "certificate", "out", "in_place", "staged", "help", "serve", "report"}
BASES: Commands = [
    ["apply", "config.json", "--dry-run"], ["apply", "config.json", "--yarn", "4", "--dry-run"],
    ["apply", "config.json", "--yarn", "4", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--to", "gguf", "--dry-run"],
    ["schedule"], ["schedule", "--yarn", "4"], ["schedule", "--mixed", "4", "--head-dim", "64"],
    ["bound"], ["bound", "4k"], ["bound", "config.json"], ["advise", "config.json"],
    ["advise", "config.json", "--context", "256"],
    ["compare", "config.json"], ["inspect"], ["restore"], ["plot", "config.json", "--yarn", "4", "-o", "p.png"],
    ["families"], ["methods"], ["archs"],
]  # fmt: skip


@cache
def options(command: str) -> tuple[str, ...]:
    """The options of a command that take a value, from the application itself."""
    import typer

    from ropeconv.cli.app import app

    group: Any = typer.main.get_command(app)
    found = [param for param in group.commands[command].params if param.param_type_name == "option"]
    return tuple(param.opts[0] for param in found if not param.is_flag and param.name not in LEAVE_OUT)


@register("command line")
def write(random: Random, folder: Path) -> Commands:
    (folder / "config.json").write_text(json.dumps(small_config()))
    base = list(random.choice(BASES))
    if "model" in base:
        write_checkpoint(folder / "model")
    known = options(base[0])
    for _ in range(random.choice((1, 1, 2, 3)) if known else 0):
        base += [random.choice(known), random.choice(VALUES) if random.random() < 0.85 else random.choice(LONG)]
    if not known or random.random() < 0.1:
        base.insert(random.randrange(1, len(base) + 1), random.choice(VALUES))
    return [base]
