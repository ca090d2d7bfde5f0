"""The commands that faults strike, one entry each, and the folders they run in. Add a command to
CASES.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import scenes

Command = tuple[str, ...]
Scene = Callable[[Path], None]


def ropeconv(text: str) -> Command:
    return ("ropeconv", *text.split())


@dataclass(frozen=True)
class Case:
    """A command.

    scene: fills the folder that it runs in. command: what a fault strikes. output: names of what it
    writes, the one that makes the rest loadable first. before: commands that run before it, without
    a fault. killed: where the same command has been killed before, as a part of its calls; 0 for
    not at all. in_place: whether the output is the source, and a journal may be beside it. apart:
    whether each name of `output` is an output that is complete without the others.
    """

    scene: Scene
    command: Command
    output: tuple[str, ...]
    before: tuple[Command, ...] = ()
    killed: float = 0
    in_place: bool = False
    apart: bool = False


APPLY = "apply model -o out --yarn 4"
SPLIT = ("out-00001-of-00002.gguf", "out-00002-of-00002.gguf")
FIRST = "model-00001-of-00002.gguf"
GGUF = "apply model.gguf -o out.gguf --mixed 4"
IN_PLACE, BACK = "apply model.gguf --mixed 4 --in-place", "restore model.gguf --in-place"


def folder(command: str, *before: str, killed: float = 0) -> Case:
    """A command that makes the folder `out` of a checkpoint."""
    return Case(
        scenes.checkpoint, ropeconv(command), ("out",), tuple(map(ropeconv, before)), killed
    )


def file(
    command: str,
    *before: str,
    output: tuple[str, ...] = ("out.gguf",),
    scene: Scene = scenes.gguf_file,
) -> Case:
    """A command that makes a GGUF file of another one."""
    return Case(scene, ropeconv(command), output, tuple(map(ropeconv, before)))


def in_place(
    command: str, *before: str, killed: float = 0, scene: Scene = scenes.reordered_gguf
) -> Case:
    return Case(
        scene, ropeconv(command), ("model.gguf",), tuple(map(ropeconv, before)), killed, True
    )


CASES: dict[str, Case] = {
    "apply": folder(APPLY),
    "apply --checksum": folder(f"{APPLY} --checksum"),
    "apply, weights": folder(f"{APPLY} --encoding weights"),
    "apply, buffers": folder(f"{APPLY} --encoding buffers"),
    "apply --link": folder(f"{APPLY} --link"),
    "apply --force": folder(f"{APPLY} --force", "apply model -o out --linear 2"),
    "apply, killed before": folder(APPLY, killed=0.5),
    "apply --to gguf": file("apply model --to gguf -o out.gguf --mixed 4", scene=scenes.checkpoint),
    "apply, GGUF": file(GGUF),
    "apply --force, GGUF": file(f"{GGUF} --force", "apply model.gguf -o out.gguf --linear 2"),
    "apply --force, GGUF in shards": file(
        f"apply {FIRST} -o out.gguf --mixed 4 --force",
        "apply other-00001-of-00002.gguf -o out.gguf --linear 2",
        output=SPLIT,
        scene=scenes.gguf_shards,
    ),
    "apply, GGUF in shards": file(
        f"apply {FIRST} -o out.gguf --mixed 4", output=SPLIT, scene=scenes.gguf_shards
    ),
    "restore": folder("restore baked -o out", "apply model -o baked --yarn 4"),
    "restore, GGUF": file(
        "restore baked.gguf -o out.gguf", "apply model.gguf -o baked.gguf --mixed 4"
    ),
    "--in-place, room inserted": in_place(IN_PLACE, scene=scenes.gguf_file),
    "--in-place, within the reserve": in_place(
        "apply model.gguf --yarn 4 --in-place --replace",
        "apply model.gguf --linear 2 --in-place",
        scene=scenes.gguf_file,
    ),
    "--in-place, tensors change": in_place(IN_PLACE),
    "restore --in-place": in_place(BACK, IN_PLACE),
    "--in-place, killed before": in_place(IN_PLACE, killed=0.8),
    "restore --in-place, killed before": in_place(BACK, IN_PLACE, killed=0.8),
    "apply --ollama": file(
        "apply model.gguf -o out.gguf --yarn 4 --ollama",
        output=("out.Modelfile", "out.gguf"),
    ),
    "apply, two formats": Case(
        scenes.checkpoint,
        ropeconv("apply model --yarn 4 --to safetensors --to gguf -o out"),
        ("out/model-yarn4", "out/Model-255K-yarn4-F16.gguf"),
        apart=True,
    ),
    "apply, two sources": Case(
        scenes.two_checkpoints,
        ropeconv("apply model second --yarn 4 -o out"),
        ("out/model-yarn4", "out/second-yarn4"),
        apart=True,
    ),
    "apply --adapter": Case(
        scenes.checkpoint_with_adapter,
        ropeconv("apply model --yarn 4 --adapter adapter -o out"),
        ("out", "out-adapter"),
        apart=True,
    ),
    "apply, graph": Case(
        scenes.compiled_graph, ropeconv("apply graph/model.onnx --linear 4 -o out"), ("out",)
    ),
    "profiles": folder("profiles model base,yarn:4,linear:2 -o out"),
    "profiles --copy": folder("profiles model base,yarn:4 --copy -o out"),
    "profiles, GGUF": Case(
        scenes.gguf_file, ropeconv("profiles model.gguf yarn:4,linear:2 -o out"), ("out",)
    ),
    "plot": file("plot model.gguf --yarn 4 -o out.svg", output=("out.svg",)),
    "record a validation": Case(
        scenes.checkpoint, ("record-validation", "out"), ("out",), (ropeconv(APPLY),)
    ),
    "record a validation, GGUF": Case(
        scenes.gguf_file,
        ("record-validation", "model.gguf"),
        ("model.gguf.validation.json",),
        (ropeconv("apply model.gguf --yarn 4 --in-place"),),
    ),
}
