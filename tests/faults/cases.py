"""The commands that faults strike, one entry each, and the folders they run in.

Each command is in CASES, or among the READERS, which write nothing; so is each option that changes
what is written, or it has a reason in NOT_STRUCK. `test_matrix.py` compares this with the command
line itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    whether each name of `output` is an output that is complete without the others. timed: files
    that say how long something took, whose numbers are not compared. torch: whether it runs a
    model. fsync: whether it waits for the disk. more:
    names of which every run leaves another one, which are not compared. grows: journals and
    reports of what was done so far, which are right only at the end.
    """

    scene: Scene
    command: Command
    output: tuple[str, ...]
    before: tuple[Command, ...] = ()
    killed: float = 0
    in_place: bool = False
    apart: bool = False
    timed: tuple[str, ...] = ()
    torch: bool = False
    fsync: bool = True
    more: tuple[str, ...] = ()
    grows: tuple[str, ...] = ()


APPLY = "apply model -o out --yarn 4"
SPLIT = ("out-00001-of-00002.gguf", "out-00002-of-00002.gguf")
FIRST = "model-00001-of-00002.gguf"
GGUF = "apply model.gguf -o out.gguf --mixed 4"
RUN_FILES = ("plan/report.html", "plan/journal.jsonl")
RUN_OUTPUT = "plan/model-yarn4"
SIZES = "--text text.txt --lengths 1T --windows 2 --targets 8 --journal j.jsonl"
EVAL = f"eval model yarn:4 {SIZES} -o result.json --report page.html --plot plot.svg"
EVAL_FRESH = f"eval model yarn:4 {SIZES} --fresh"
EVAL_OUTPUT = f"eval out --against model {SIZES}"
TUNE = (
    "tune model --text text.txt --context 256 --windows 2 --held-windows 6 --targets 8 --steps 2 --journal j.jsonl"
    " -o tuned.json --plot plot.svg"
)
VALIDATE = "validate out --against model --report page.html --plot plot.svg"
VECTORS = "vectors llama --linear 2 -o packet"
PACKET = tuple(
    f"packet/{name}"
    for name in (
        "packet.json",
        "expected.npz",
        "check_rope.py",
        "README.md",
        "model.gguf",
        "model/config.json",
        "model/generation_config.json",
        "model/model.safetensors",
        "model/ropeconv.json",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
    )
)
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
    "apply --split-max-size": file(
        "apply model --to gguf -o out.gguf --mixed 4 --split-max-size 400K",
        output=SPLIT,
        scene=scenes.checkpoint,
    ),
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
    "apply --ollama --force": Case(
        scenes.gguf_file,
        ropeconv("apply model.gguf -o out.gguf --yarn 4 --ollama --force"),
        ("out.Modelfile", "out.gguf"),
        (ropeconv("apply model.gguf -o out.gguf --linear 2 --ollama"),),
    ),
    "apply --ollama --force, GGUF in shards": Case(
        scenes.gguf_shards,
        ropeconv(f"apply {FIRST} -o out.gguf --mixed 4 --ollama --force"),
        ("out-00001-of-00002.Modelfile", *SPLIT),
        (ropeconv("apply other-00001-of-00002.gguf -o out.gguf --linear 2 --ollama"),),
    ),
    "--in-place --ollama": Case(
        scenes.gguf_file,
        ropeconv("apply model.gguf --yarn 4 --in-place --ollama"),
        ("model.gguf", "model.Modelfile"),
        in_place=True,
    ),
    "--in-place --ollama, again": Case(
        scenes.gguf_file,
        ropeconv("apply model.gguf --yarn 4 --in-place --ollama --replace"),
        ("model.gguf", "model.Modelfile"),
        (ropeconv("apply model.gguf --linear 2 --in-place --ollama"),),
        in_place=True,
    ),
    "apply --to ollama": file(
        "apply model --to ollama -o out.gguf --yarn 4",
        output=("out.Modelfile", "out.gguf"),
        scene=scenes.checkpoint,
    ),
    "apply --no-fsync": replace(folder(f"{APPLY} --no-fsync"), fsync=False),
    "apply --outtype, two files": Case(
        scenes.checkpoint,
        ropeconv("apply model --yarn 4 --to gguf --outtype f16 --outtype q8_0 -o out"),
        ("out/Model-255K-yarn4-F16.gguf", "out/Model-255K-yarn4-Q8_0.gguf"),
        apart=True,
    ),
    "apply --draft": Case(
        scenes.two_checkpoints,
        ropeconv("apply model --yarn 4 --draft second -o out"),
        ("out", "out-draft"),
        apart=True,
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
    "plot --dark": file("plot model.gguf --yarn 4 --dark -o out.png", output=("out.png",)),
    "evidence add": Case(
        scenes.items,
        ropeconv("evidence add items.jsonl --to record"),
        ("record/Tiny-4x.jsonl.gz",),
    ),
    "bound --certificate": file("bound 4k --certificate out.tsv", output=("out.tsv",)),
    "train-config -o": Case(
        scenes.checkpoint,
        ropeconv("train-config baked --for axolotl -o out.yml"),
        ("out.yml",),
        (ropeconv("apply model -o baked --yarn 4"),),
    ),
    "run": Case(
        scenes.plan_file,
        ("run", "run", "plan.toml"),
        (RUN_OUTPUT,),
        timed=RUN_FILES,
        grows=RUN_FILES,
    ),
    "run --fresh": Case(
        scenes.plan_file,
        ("run", "run", "plan.toml", "--fresh"),
        (RUN_OUTPUT,),
        (("run", "run", "plan.toml"),),
        timed=(*RUN_FILES, "plan/journal.jsonl.old"),
        grows=(*RUN_FILES, "plan/journal.jsonl.old"),
        more=("plan/journal.jsonl.old2",),
    ),
    "page": Case(scenes.checkpoint, ("page", "model", "out"), ("out",)),
    "eval -o": Case(
        scenes.checkpoint_with_text,
        ("models", *EVAL.split()),
        ("result.json", "page.html", "plot.svg"),
        apart=True,
        grows=("j.jsonl",),
        timed=("result.json", "page.html", "plot.svg", "j.jsonl"),
        torch=True,
    ),
    "eval --fresh": Case(
        scenes.checkpoint_with_text,
        ("models", *EVAL_FRESH.split()),
        ("j.jsonl",),
        (("models", *EVAL_FRESH.split()),),
        grows=("j.jsonl", "j.jsonl.old"),
        timed=("j.jsonl", "j.jsonl.old"),
        torch=True,
        more=("j.jsonl.old2",),
    ),
    "eval, into a receipt": Case(
        scenes.checkpoint_with_text,
        ("models", *EVAL_OUTPUT.split()),
        ("out",),
        (ropeconv(APPLY),),
        grows=("j.jsonl",),
        timed=("out/ropeconv.json", "j.jsonl"),
        torch=True,
    ),
    "tune -o": Case(
        scenes.checkpoint_with_text,
        ("models", *TUNE.split()),
        ("tuned.json", "plot.svg"),
        apart=True,
        grows=("j.jsonl",),
        timed=("tuned.json", "plot.svg", "j.jsonl"),
        torch=True,
    ),
    "validate --report": Case(
        scenes.checkpoint,
        ("models", *VALIDATE.split()),
        ("page.html", "plot.svg", "out"),
        (ropeconv(APPLY),),
        apart=True,
        timed=("page.html", "plot.svg", "out/ropeconv.json"),
        torch=True,
        grows=("out/ropeconv.json",),
    ),
    "vectors": Case(
        scenes.checkpoint,
        ("models", *VECTORS.split()),
        PACKET,
        apart=True,
        torch=True,
    ),
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


READERS: dict[str, tuple[Scene, str]] = {
    "inspect": (scenes.checkpoint, "inspect model"),
    "advise": (scenes.checkpoint, "advise model --context 256"),
    "compare": (scenes.two_checkpoints, "compare model second"),
    "identify": (scenes.checkpoint, "identify model --against model --as-is"),
    "probe": (scenes.checkpoint, "probe transformers model"),
    "evidence compare": (scenes.items, "evidence compare items.jsonl yarn:4 base"),
    "list methods": (scenes.checkpoint, "list methods"),
    "list families": (scenes.checkpoint, "list families"),
    "list archs": (scenes.checkpoint, "list archs"),
    "list runtimes": (scenes.checkpoint, "list runtimes"),
}
"""Commands that write nothing, each with a command line that shows it."""

READS: dict[tuple[str, str], str] = {
    ("*", "--dry-run"): "writes nothing",
    ("*", "--python"): "names a Python that is asked",
    ("*", "--recipe"): "is read",
    ("*", "--longrope"): "is read",
    ("*", "--inv-freq"): "is read",
    ("*", "--text"): "is read",
    ("advise", "--measured"): "is read",
    ("apply", "--imatrix"): "is read",
    ("imatrix", "model"): "is read",
    ("imatrix", "text"): "is read",
    ("push", "baked"): "is read",
    ("validate", "baked"): "is read",
    ("identify", "output"): "is read",
    ("run", "plan"): "is read",
    ("tune", "more"): "is read",
    ("evidence add", "file"): "is read",
    ("eval", "--fail-if"): "changes the exit code",
}
"""Options and arguments that look as if they changed what is written, and do not. "*": of every
command.
"""

NOT_STRUCK: dict[tuple[str, str], str] = {
    ("apply", "--to overrides"): "prints",
    ("apply", "--converter"): "writes by `apply --to gguf`, from the file of another program",
    ("apply", "--validate"): "the result goes into the receipt, as in the case of a validation",
    ("restore", "--no-fsync"): "is that of `apply`",
    ("restore", "--force"): "is that of `apply`",
    ("tune", "--fresh"): "is that of `eval`, in the class of all journals",
}
"""Forms of a command without a case of their own, each with its reason."""

SAVES = "tests/features/derivation/test_derivation.py::test_a_description_is_saved_whole_or_not"
UPDATES = (
    "tests/features/updates/test_update_data.py::test_a_kill_at_each_writing_call_leaves_whole_data"
)
PUSHES = "tests/faults/test_push.py::test_a_fault_while_a_publication_is_staged"
COLLECTS = "tests/features/imatrix/test_imatrix.py::test_a_matrix_is_written_whole_or_not"
ELSEWHERE: dict[tuple[str, str], str] = {
    ("family", ""): SAVES,
    ("family", "--save"): SAVES,
    ("imatrix", ""): COLLECTS,
    ("imatrix", "--out"): COLLECTS,
    ("imatrix", "--force"): COLLECTS,
    ("push", ""): PUSHES,
    ("push", "--revision"): PUSHES,
    ("push", "--private"): PUSHES,
    ("push", "--public"): PUSHES,
    ("push", "--exist-ok"): PUSHES,
    ("push", "--overwrite-card"): PUSHES,
    ("push", "--create-pr"): PUSHES,
    ("apply", "--create-pr"): PUSHES,
    ("profiles", "--private"): PUSHES,
    ("apply", "--push"): PUSHES,
    ("apply", "--private"): PUSHES,
    ("profiles", "--push"): PUSHES,
    ("update-data", ""): UPDATES,
    ("ui", ""): "tests/faults/test_page.py::test_a_fault_in_the_request_of_the_write_button",
}
"""Forms of a command that another test strikes: its module and name."""
