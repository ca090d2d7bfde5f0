"""The outputs of one `apply`: one per source, format and outtype, and the rules about making
several at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..formats.disk import obstacle
from ..formats.kind import is_gguf
from ..hub.options import PublishOptions
from ..models.reference import modelfile_in, names_gguf, resolve_reference
from ..options import option
from ..rope.errors import RopeconvError, command_line
from ..rope.lengths import format_tokens
from .command import EXPERT, GENERAL, HUB, OUTPUT, RUNNING, Device, refuse
from .options import FAMILY, WriteOptions, split

if TYPE_CHECKING:
    from ..bake.plan import Plan


@dataclass(frozen=True)
class OutputUnit:
    """One output to make.

    source: the model, for a Modelfile that of its FROM line. given: options of its target, by name.
    folder: that it is put into, None for the place that its target names. label: tells it from the
    others in messages. named: as the user named the source; empty for `source`. is_draft: whether
    it is the draft of the unit before it, which gives it its place and method.
    """

    source: str
    given: dict[str, Any]
    folder: Path | None
    label: str
    named: str = ""
    is_draft: bool = False

    @property
    def from_gguf(self) -> bool:
        """Whether the source is a GGUF file."""
        return names_gguf(self.source)

    @property
    def to_gguf(self) -> bool:
        """Whether the output is a GGUF file."""
        return bool(self.given["to"] == "gguf" or (self.from_gguf and self.given["to"] is None))

    def to_dict(self) -> dict[str, Any]:
        """Source, format and outtype as JSON-ready data; null for what was not given."""
        return {"source": self.source, "to": self.given["to"], "outtype": self.given["outtype"]}

    def placed(self, plan: Plan) -> Plan:
        """A plan with its output in `folder`, under its own name."""
        if self.folder is None:
            return plan
        out = self.folder / plan.out.name
        return replace(plan, out=out, target=replace(plan.target, out=out))


def units_of(sources: Sequence[str], options: dict[str, Any]) -> list[OutputUnit]:
    """The outputs that a command line asks for, in its order.

    `out` is the folder of several outputs. Raises UsageError where that is the name of a file.
    """
    parts = []
    for named in sources:
        source = named if modelfile_in(named) is None else resolve_reference(named)
        parts.append((source, split(options, names_gguf(source)), named))
    folder = (
        options["out"]
        if sum(len(targets) for _, targets, _ in parts) > 1 and not options["in_place"]
        else None
    )
    if folder is not None and (is_gguf(folder) or folder.is_file()):
        raise UsageError(
            f"-o {folder} is one file, and there are several outputs; give a folder for them"
        )
    units = []
    for source, targets, named in parts:
        for target in targets:
            output = (
                " ".join(filter(None, (target["to"], target["outtype"])))
                if len(targets) > 1
                else ""
            )
            given = target if folder is None else target | {"out": None}
            units.append(
                OutputUnit(
                    source, given, folder, f"{source} ({output})" if output else source, named
                )
            )
    return units


def refuse_collisions(
    plans: Sequence[tuple[OutputUnit, Plan]], units: Sequence[OutputUnit]
) -> None:
    """Raises UsageError where an output would have the place of another one or of a source."""
    places: dict[str, OutputUnit] = {}
    sources = {os.path.realpath(unit.source): unit for unit in units if Path(unit.source).exists()}
    for unit, plan in plans:
        for name in [plan.out.name] if plan.is_folder else [file.name for file in plan.files]:
            place = plan.out.with_name(name)
            real = os.path.realpath(place)
            other = places.setdefault(real, unit)
            if other is not unit:
                raise UsageError(
                    f"{other.label} and {unit.label} would both be written to {place}; run them one"
                    " by one, each with its own -o"
                )
            if real in sources and sources[real].source != unit.source:
                raise UsageError(
                    f"the output of {unit.label} would be written to {place}, which is another"
                    " SOURCE; choose another place with -o"
                )


def refuse_untrained(plan: Plan, source: str) -> None:
    """Raises UsageError where the method that --context chose would need training at the length of
    a plan.
    """
    need = plan.fine_tuning
    if need.works_untuned:
        return
    length = format_tokens(plan.schedule.context)
    on_top = plan.recipe.on_top
    method = "llama3" if on_top and plan.before.form.kind == "llama3" else "yarn"
    words = [f"--{method}", length]
    if on_top:
        words.append("--on-top")
    if plan.target.replace:
        words.append("--replace")
    raise UsageError(
        f"--context {length} is {need.times}, where {plan.recipe.method.name} {need.need}, and"
        " --context chooses only what works without training; to train the model, pass"
        f" {shlex.join(words)}, or compare methods with"
        f" `{command_line('advise', source, '--context', length)}`"
    )


def check_folder(units: Sequence[OutputUnit]) -> None:
    """Raises RopeconvError where the folder of several outputs cannot be made, or lies within a
    source.

    The first output that is written makes it.
    """
    folder = units[0].folder
    if folder is None or folder.is_dir():
        return
    real = Path(os.path.realpath(folder))
    for unit in units:
        if Path(os.path.realpath(unit.source)) in real.parents:
            raise RopeconvError(f"-o {folder} lies within {unit.source}; choose another place")
    problem = obstacle(folder)
    if problem:
        raise RopeconvError(
            f"{problem}, so nothing can be written into {folder}; choose another place with -o"
        )


@dataclass(frozen=True)
class Flags(WriteOptions):
    """The options of `apply` beside method, target and those of publishing.

    publication: None where nothing is published. by_length: whether --context chooses the method.
    """

    publication: PublishOptions | None = None
    by_length: bool = False
    family: str = option("", FAMILY, GENERAL, metavar="NAME")
    link: bool = option(
        False,
        "Hard-link unchanged files; programs that write into them also change the source.",
        OUTPUT,
    )
    checksum: bool = option(False, "Also record the hashes of copied weights.", EXPERT)
    explain: bool = option(False, "Show all numbers and all runtimes.", GENERAL, short="-v")
    push: str = option(
        "",
        "Publish the output on the Hub; without -o, weights stay on the Hub.",
        HUB,
        metavar="OWNER/NAME",
    )
    private: bool = option(False, "Make the repository private.", HUB)
    create_pr: bool = option(False, "Open a pull request instead of committing.", HUB)
    validate: Device = option(
        "off", "Compare logits after writing; auto: if a GPU is large enough.", RUNNING
    )
    ollama: bool = option(False, "Write a Modelfile beside the GGUF file.", OUTPUT)
    draft: str = option(
        "",
        "Also extend a draft model (an EAGLE head, or a smaller model) to the same context, as"
        " OUT-draft.",
        OUTPUT,
        metavar="SOURCE",
    )
    draft_original_context: str = option(
        "",
        "Tokens that the draft was trained on, if it declares another length.",
        EXPERT,
        metavar="TOKENS",
    )
    adapter: str = option(
        "",
        "Also write this PEFT adapter with the output as its base, as OUT-adapter.",
        EXPERT,
        metavar="SOURCE",
    )


def other_option(flags: Flags, target: dict[str, Any], allowed: Collection[str]) -> str:
    """The first option that was given and is not among the allowed ones; empty without any. target:
    by name.
    """
    defaults = vars(Flags()) | {"encoding": "auto"}
    given = (
        name
        for name, value in (vars(flags) | target).items()
        if value and value != defaults.get(name)
    )
    name = next((name for name in given if name not in allowed), "")
    return "-o" if name == "out" else name and f"--{name.replace('_', '-')}"


def check_flags(units: Sequence[OutputUnit], flags: Flags) -> None:
    """Raises UsageError for options that have no effect on any of the outputs, or do not go
    together.
    """
    to_gguf = [unit.to_gguf for unit in units]
    folder = not all(to_gguf)
    gguf = any(to_gguf)
    in_place = units[0].given["in_place"]
    several = len(units) > 1 + bool(flags.draft)
    validating = flags.validate != "off"
    typed = {
        "--link": flags.link,
        "--push": flags.push,
        "--force": flags.force,
        "--no-fsync": flags.no_fsync,
    }
    flag = next(compress(typed, typed.values()), "")
    if flags.draft_original_context and not flags.draft:
        raise UsageError(
            "--draft-original-context is of the model of --draft; name that, or leave it out"
        )
    refuse(
        (
            flags.draft and several,
            "--draft goes with one SOURCE and one output; run apply once for each",
        ),
        (
            flags.draft and flags.push,
            (
                "--push publishes one repository, and --draft makes two outputs; leave it out, and"
                f" run `ropeconv push OUT {flags.push}` and `ropeconv push OUT-draft"
                f" {flags.push}-draft` afterwards"
            ),
        ),
        (
            flags.draft and validating,
            "--validate compares one model; run `ropeconv validate` on the output afterwards",
        ),
        (
            flags.push and len({unit.source for unit in units}) > 1,
            (
                "--push publishes the output of one SOURCE, and there are several; run it once for"
                " each"
            ),
        ),
        (
            flags.push and several and folder,
            (
                "--push publishes one folder, or GGUF files of one repository; leave it out, and"
                " publish each output with `ropeconv push`"
            ),
        ),
        (
            validating and not folder,
            "--validate is for checkpoints; run `ropeconv validate` on the GGUF file afterwards",
        ),
        (
            flags.checksum and not folder,
            "--checksum is for folders, whose receipt lists files; leave it out",
        ),
        (in_place and flag, f"{flag} does not go with --in-place; leave one out"),
        (
            flags.adapter and gguf,
            (
                "--adapter goes with checkpoints; leave it out, and convert it with llama.cpp's"
                " convert_lora_to_gguf.py"
            ),
        ),
        (
            flags.adapter and (several or in_place or flags.push),
            (
                "--adapter goes with one SOURCE and one output on this disk; run apply once for"
                " each with -o"
            ),
        ),
        (
            flags.link and not folder,
            "--link is for folders, whose unchanged files it links; leave it out",
        ),
        (
            flags.ollama and not gguf,
            "Ollama runs GGUF files, and the output is a folder; add --to gguf",
        ),
        (
            flags.push and validating and units[0].given["out"] is None,
            "--push with --validate needs -o, the folder to validate; add it",
        ),
    )
