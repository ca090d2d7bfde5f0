"""The commands that faults strike, one entry each, and the folders they run in. Add a command to CASES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import scenes

Command = tuple[str, ...]


def ropeconv(text: str) -> Command:
    """A command line as people type it."""
    return ("ropeconv", *text.split())


@dataclass(frozen=True)
class Case:
    """A command.

    scene: fills the folder that it runs in. command: what a fault strikes. output: names of what it writes, the one
    that makes the rest loadable first. before: commands that run before it, without a fault. killed: where the same
    command has been killed before, as a part of its calls; 0 for not at all. in_place: whether the output is the
    source, and a journal may be beside it.
    """

    scene: Callable[[Path], None]
    command: Command
    output: tuple[str, ...]
    before: tuple[Command, ...] = ()
    killed: float = 0
    in_place: bool = False


APPLY = "apply model -o out --yarn 4"
SPLIT = ("out-00001-of-00002.gguf", "out-00002-of-00002.gguf")
FIRST = "model-00001-of-00002.gguf"

CASES: dict[str, Case] = {
    "apply": Case(scenes.checkpoint, ropeconv(APPLY), ("out",)),
    "apply --checksum": Case(scenes.checkpoint, ropeconv(f"{APPLY} --checksum"), ("out",)),
    "apply, weights": Case(scenes.checkpoint, ropeconv(f"{APPLY} --encoding weights"), ("out",)),
    "apply, buffers": Case(scenes.checkpoint, ropeconv(f"{APPLY} --encoding buffers"), ("out",)),
    "apply --link": Case(scenes.checkpoint, ropeconv(f"{APPLY} --link"), ("out",)),
    "apply --force": Case(
        scenes.checkpoint, ropeconv(f"{APPLY} --force"), ("out",), before=(ropeconv("apply model -o out --linear 2"),)
    ),
    "apply, killed before": Case(scenes.checkpoint, ropeconv(APPLY), ("out",), killed=0.5),
    "apply --to gguf": Case(scenes.checkpoint, ropeconv("apply model --to gguf -o out.gguf --mixed 4"), ("out.gguf",)),
    "apply, GGUF": Case(scenes.gguf_file, ropeconv("apply model.gguf -o out.gguf --mixed 4"), ("out.gguf",)),
    "apply --force, GGUF": Case(
        scenes.gguf_file,
        ropeconv("apply model.gguf -o out.gguf --mixed 4 --force"),
        ("out.gguf",),
        before=(ropeconv("apply model.gguf -o out.gguf --linear 2"),),
    ),
    "apply --force, GGUF in shards": Case(
        scenes.two_gguf_models,
        ropeconv(f"apply {FIRST} -o out.gguf --mixed 4 --force"),
        SPLIT,
        before=(ropeconv("apply other-00001-of-00002.gguf -o out.gguf --linear 2"),),
    ),
    "apply, GGUF in shards": Case(scenes.gguf_shards, ropeconv(f"apply {FIRST} -o out.gguf --mixed 4"), SPLIT),
    "restore": Case(
        scenes.checkpoint, ropeconv("restore baked -o out"), ("out",), (ropeconv("apply model -o baked --yarn 4"),),
    ),
    "restore, GGUF": Case(
        scenes.gguf_file, ropeconv("restore baked.gguf -o out.gguf"), ("out.gguf",),
        (ropeconv("apply model.gguf -o baked.gguf --mixed 4"),),
    ),
    "--in-place, room inserted": Case(
        scenes.gguf_file, ropeconv("apply model.gguf --mixed 4 --in-place"), ("model.gguf",), in_place=True
    ),
    "--in-place, within the reserve": Case(
        scenes.gguf_file,
        ropeconv("apply model.gguf --yarn 4 --in-place --replace"),
        ("model.gguf",),
        (ropeconv("apply model.gguf --linear 2 --in-place"),),
        in_place=True,
    ),
    "--in-place, tensors change": Case(
        scenes.reordered_gguf, ropeconv("apply model.gguf --mixed 4 --in-place"), ("model.gguf",), in_place=True
    ),
    "restore --in-place": Case(
        scenes.reordered_gguf,
        ropeconv("restore model.gguf --in-place"),
        ("model.gguf",),
        (ropeconv("apply model.gguf --mixed 4 --in-place"),),
        in_place=True,
    ),
    "--in-place, killed before": Case(
        scenes.reordered_gguf, ropeconv("apply model.gguf --mixed 4 --in-place"), ("model.gguf",), killed=0.8,
        in_place=True,
    ),
    "restore --in-place, killed before": Case(
        scenes.reordered_gguf, ropeconv("restore model.gguf --in-place"), ("model.gguf",),
        (ropeconv("apply model.gguf --mixed 4 --in-place"),), killed=0.8, in_place=True,
    ),
    "record a validation": Case(
        scenes.checkpoint, ("record-validation", "out"), ("out",), (ropeconv(APPLY),),
    ),
    "record a validation, GGUF": Case(
        scenes.gguf_file, ("record-validation", "model.gguf"), ("model.gguf.validation.json",),
        (ropeconv("apply model.gguf --yarn 4 --in-place"),),
    ),
}  # fmt: skip
