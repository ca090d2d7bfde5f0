"""Requests to `apply`: the options of a command line, and the outputs that they make.

`units_of` turns sources and options into one `OutputUnit` for each output. The rules about several
outputs at once are here too; those about a single one are in `ropeconv.convert.target`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..formats.disk import obstacle
from ..formats.kind import is_gguf
from ..hub.options import PublishOptions
from ..models.reference import modelfile_in, names_gguf, resolve_reference
from ..options import (
    EXPERT,
    GENERAL,
    HUB,
    OUTPUT,
    RUNNING,
    RUNTIMES,
    ConverterOptions,
    MachineOptions,
    OutputPlace,
    TargetOptions,
    ValidateOn,
    from_command_line,
    option,
    options,
)
from ..rope.errors import RopeconvError

if TYPE_CHECKING:
    from ..bake.plan import Plan
    from ..convert.target import Target

FAMILY = (
    "Treat the model as one of this family, whatever its model_type (`ropeconv list families`)."
)
PYTHON = "The Python of another environment, whose runtime is asked what it computes."
VALIDATE = "ROPECONV_VALIDATE"
"""The environment variable with another default of --validate."""


@dataclass(frozen=True)
class WriteOptions:
    """How `apply` and `restore` write an output."""

    dry_run: bool = option(False, "Print the plan and write nothing.", OUTPUT)
    force: bool = option(False, "Replace an earlier output of ropeconv.", OUTPUT, writes=True)
    no_fsync: bool = option(
        False,
        "Do not wait for the disk: faster, and a loss of power soon after may damage the output.",
        OUTPUT,
        writes=True,
    )


@dataclass(frozen=True)
class OutputUnit:
    """One output to make."""

    source: str
    """The model; for a Modelfile, that of its FROM line."""

    given: dict[str, Any]
    """The options of its target, by name."""

    folder: Path | None
    """The folder that it is put into; None for the place that its target names."""

    label: str
    """Tells it from the others in messages."""

    named: str = ""
    """The source as the user named it; empty for `source`."""

    is_draft: bool = False
    """Whether it is the draft of the unit before it, which gives it its place and method."""

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

    def move_into_folder(self, plan: Plan) -> Plan:
        """Return a plan with its output in `folder`, under its own name."""
        if self.folder is None:
            return plan
        out = self.folder / plan.out.name
        return replace(plan, out=out, target=replace(plan.target, out=out))


def units_of(sources: Sequence[str], values: Mapping[str, Any]) -> list[OutputUnit]:
    """Return the outputs that a command line asks for.

    `ropeconv apply A B --to safetensors --to gguf` asks for four outputs: A in both formats, then B
    in both formats.

    Args:
        sources: The models of the command line, such as ["A", "B"].
        values: The options of the command line that are about an output, by name: {"out": None,
            "to": ["safetensors", "gguf"], "outtype": [], ...}.

    Raises:
        UsageError: There are several outputs, and `out` (-o) is the name of a single file.
    """
    units = []
    for named in sources:
        # a Modelfile of Ollama stands for the GGUF file that it names
        source = named
        if modelfile_in(named) is not None:
            source = resolve_reference(named)

        outputs = options_of_outputs(values, from_gguf=names_gguf(source))
        for output_options in outputs:
            # a name for messages: "model", or with several outputs "model (gguf f16)"
            label = source
            given_words = []
            for name in ("to", "outtype"):
                if output_options[name]:
                    given_words.append(output_options[name])
            if len(outputs) > 1 and given_words:
                label = f"{source} ({' '.join(given_words)})"

            unit = OutputUnit(
                source=source, given=output_options, folder=None, label=label, named=named
            )
            units.append(unit)

    # a single output: -o is its path, which is among its options
    folder = values["out"]
    if len(units) <= 1 or folder is None or values["in_place"]:
        return units

    # several outputs: -o is the folder for all of them
    if is_gguf(folder) or folder.is_file():
        raise UsageError(
            f"-o {folder} is one file, and there are several outputs; give a folder for them"
        )
    units_in_folder = []
    for unit in units:
        options_without_out = unit.given | {"out": None}
        units_in_folder.append(replace(unit, given=options_without_out, folder=folder))
    return units_in_folder


def refuse_collisions(
    plans: Sequence[tuple[OutputUnit, Plan]], units: Sequence[OutputUnit]
) -> None:
    """Refuse an output that would have the place of another one or of a source.

    Args:
        plans: The plans with their units.
        units: All units, also those that could not be planned: their sources are not replaced.

    Raises:
        UsageError: Two would have one place.
    """
    # two names may lead to one file by links, so real paths are compared
    sources = {}  # by the real path, the source as it was named
    for unit in units:
        if Path(unit.source).exists():
            sources[os.path.realpath(unit.source)] = unit.source

    taken: dict[str, OutputUnit] = {}  # by the real path, the output that is written there
    for unit, plan in plans:
        names = [plan.out.name]
        if not plan.is_folder:  # a GGUF file may have several shards
            names = [file.name for file in plan.files]
        for name in names:
            place = plan.out.with_name(name)
            real = os.path.realpath(place)
            if real in taken and taken[real] is not unit:
                raise UsageError(
                    f"{taken[real].label} and {unit.label} would both be written to {place}; run"
                    " them one by one, each with its own -o"
                )
            taken[real] = unit
            if real in sources and sources[real] != unit.source:
                raise UsageError(
                    f"the output of {unit.label} would be written to {place}, which is another"
                    " SOURCE; choose another place with -o"
                )


def options_of_outputs(values: Mapping[str, Any], from_gguf: bool) -> list[dict[str, Any]]:
    """Return a dict of options for each output of a source.

    `--to gguf --outtype f16 --outtype q8_0` gives two: [{"to": "gguf", "outtype": "f16", ...},
    {"to": "gguf", "outtype": "q8_0", ...}]. In these dicts None means that the user left out an
    option.

    Args:
        values: The options of the command line, by name. `to`, `outtype` and `runtime` are lists,
            which are empty if the user left them out.
        from_gguf: Whether the source is a GGUF file.
    """
    # `--to ollama` is a GGUF file; without --to, an output has the format of its source
    formats: list[str | None] = ["gguf" if to == "ollama" else to for to in values["to"]]
    if not formats:
        formats = [None]
    has_several_formats = len(set(formats)) > 1

    outputs = []
    for to in formats:
        to_gguf = from_gguf if to is None else to == "gguf"
        output = {**values, "to": to}
        outtypes = values["outtype"]

        # --to safetensors --to gguf: an option such as --carrier is only for GGUF files, and goes
        # to the output in that format. (With a single format it stays, and is refused later.)
        if has_several_formats:
            other_format = "folder" if to_gguf else "gguf"  # "folder" is one of safetensors
            for option in options(OutputPlace, ConverterOptions, TargetOptions):
                is_only_for_other_format = option.only == other_format
                if is_only_for_other_format:
                    output[option.name] = None
            output["runtime"] = _runtimes_of(values["runtime"], to_gguf)

            # without a conversion, the weights keep their type
            is_converted = to_gguf != from_gguf
            if not is_converted:
                outtypes = []

        # one output for each --outtype
        for outtype in outtypes or [None]:
            outputs.append(output | {"outtype": outtype})
    return outputs


def _runtimes_of(names: Iterable[str], to_gguf: bool) -> list[str]:
    """Return those of some runtimes that read GGUF files, or those that do not."""
    from ..runtimes.gguf_readers import reader_names
    from ..runtimes.runtime import LLAMA_CPP

    readers = (LLAMA_CPP, *reader_names())
    return [name for name in names if (_without_version(name) in readers) == to_gguf]


def _without_version(name: str) -> str:
    """Return the name of a runtime as our tables have it: `LM Studio@0.3` as `lmstudio`."""
    from ..runtimes.runtime import canonical

    runtime, _, _ = canonical(name).partition("@")
    return runtime


def build_target(values: Mapping[str, Any], owner: str = "") -> Target:
    """Return the Target of one output.

    Args:
        values: The values of its options, by name.
        owner: The owner of the repository that it is published in, who is named in a conversion
            that quantises.
    """
    from ..convert.target import Target

    return from_command_line(Target, values).published_by(owner)


def check_folder(units: Sequence[OutputUnit]) -> None:
    """Check that the folder of several outputs can be created.

    The folder is created later, when the first output is written.

    Args:
        units: All outputs of the command. Several outputs have the same folder; a single output has
            None.

    Raises:
        RopeconvError: The folder cannot be created, or is inside a source.
    """
    folder = units[0].folder
    if folder is None or folder.is_dir():
        return

    # a new folder inside a checkpoint would belong to that checkpoint in the next run
    real_folder = Path(os.path.realpath(folder))
    for unit in units:
        real_source = Path(os.path.realpath(unit.source))
        if real_source in real_folder.parents:
            raise RopeconvError(f"-o {folder} lies within {unit.source}; choose another place")

    # the reason why the folder cannot be created, such as "out is a file"; empty if it can
    reason = obstacle(folder)
    if reason:
        raise RopeconvError(
            f"{reason}, so nothing can be written into {folder}; choose another place with -o"
        )


@dataclass(frozen=True)
class ApplyRequest(WriteOptions, MachineOptions):
    """The options of `apply` beside method and target."""

    family: str = option("", FAMILY, GENERAL, metavar="NAME")
    python: str = option("", PYTHON, RUNTIMES, metavar="PATH")
    link: bool = option(
        False,
        "Hard-link unchanged files; programs that write into them also change the source.",
        OUTPUT,
        writes=True,
    )
    checksum: bool = option(False, "Also record the hashes of copied weights.", EXPERT, writes=True)
    no_check: bool = option(
        False,
        "Do not ask transformers or llama.cpp what it computes from the output.",
        EXPERT,
    )
    push: str = option(
        "",
        "Publish the output on the Hub; without -o, weights stay on the Hub.",
        HUB,
        metavar="OWNER/NAME",
        writes=True,
    )
    private: bool = option(False, "Make the repository private.", HUB, writes=True)
    create_pr: bool = option(False, "Open a pull request instead of committing.", HUB, writes=True)
    validate: ValidateOn = option(
        "auto",
        "Compare logits after writing; auto: where that takes less than half a minute.",
        RUNNING,
        variable=VALIDATE,
        writes=True,
    )
    ollama: bool = option(False, "Write a Modelfile beside the GGUF file.", OUTPUT, writes=True)
    draft: str = option(
        "",
        "Also extend a draft model (an EAGLE head, or a smaller model) to the same context, as"
        " OUT-draft.",
        OUTPUT,
        metavar="SOURCE",
        writes=True,
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
        writes=True,
    )

    publication: PublishOptions | None = None
    """How the output is published; None where it is not."""

    by_length: bool = False
    """Whether --context chooses the method."""

    staged: bool = False
    """Leave out files that are copied unchanged."""

    remember: bool = True
    """Note on this machine where the source is."""


def other_option(request: ApplyRequest, target: Mapping[str, Any], allowed: Collection[str]) -> str:
    """Return the first option that was given and is not among the allowed ones; empty without any.

    Such as "--force" for a request with force=True, unless "force" is allowed.

    Args:
        request: The options of `apply`.
        target: Those of its output, by name.
        allowed: The names of those that may be given.
    """
    # an option counts as given where it is not empty, and is not the default of its class
    defaults = vars(ApplyRequest()) | {"encoding": "auto"}
    values = vars(request) | dict(target)
    for name, value in values.items():
        was_given = bool(value) and value != defaults.get(name)
        if not was_given or name in allowed:
            continue
        if name == "validate" and value == "off":  # asks for less, which does no harm
            continue
        if name == "out":
            return "-o"
        return f"--{name.replace('_', '-')}"
    return ""


def check_request(units: Sequence[OutputUnit], request: ApplyRequest) -> None:
    """Refuse options that have no effect on any output, or do not go together.

    Raises:
        UsageError: For the first of them.
    """
    has_folder = not all(unit.to_gguf for unit in units)
    has_gguf = any(unit.to_gguf for unit in units)
    # all units have the options of the command line, so the first one tells
    if units[0].given["in_place"]:
        _check_in_place(request)

    # an option and those that only refine it, which are refused without it
    if request.draft:
        _check_draft(units, request)
    elif request.draft_original_context:
        raise UsageError(
            "--draft-original-context is of the model of --draft; name that, or leave it out"
        )

    if request.push:
        _check_push(units, request, has_folder)
    elif request.private:
        raise UsageError("--private goes with --push OWNER/NAME; add it, or leave --private out")
    elif request.create_pr:
        raise UsageError(
            "--create-pr goes with --push OWNER/NAME; add it, or leave --create-pr out"
        )

    # options that are for one format: there must be an output of it
    if request.adapter:
        _check_adapter(units, request, has_gguf)
    if request.checksum and not has_folder:
        raise UsageError("--checksum is for folders, whose receipt lists files; leave it out")
    if request.link and not has_folder:
        raise UsageError("--link is for folders, whose unchanged files it links; leave it out")
    if request.staged and not has_folder:
        raise UsageError(
            "staged is for folders, whose unchanged files are not copied; leave it out"
        )
    if request.ollama and not has_gguf:
        raise UsageError("Ollama runs GGUF files, and the output is a folder; add --to gguf")


def _check_in_place(request: ApplyRequest) -> None:
    """Raise UsageError for an option that has no effect on a change in place."""
    given = {
        "--link": request.link,
        "--push": request.push,
        "--force": request.force,
        "--no-fsync": request.no_fsync,
    }
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag} does not go with --in-place; leave one out")


def _check_draft(units: Sequence[OutputUnit], request: ApplyRequest) -> None:
    """Raise UsageError for options that do not go with --draft."""
    if len(units) > 2:
        raise UsageError("--draft goes with one SOURCE and one output; run apply once for each")
    if request.push:
        raise UsageError(
            "--push publishes one repository, and --draft makes two outputs; leave it out, and run"
            f" `ropeconv push OUT {request.push}` and `ropeconv push OUT-draft"
            f" {request.push}-draft` afterwards"
        )


def _check_push(units: Sequence[OutputUnit], request: ApplyRequest, has_folder: bool) -> None:
    """Raise UsageError for outputs that cannot be published together."""
    if len({unit.source for unit in units}) > 1:
        raise UsageError(
            "--push publishes the output of one SOURCE, and there are several; run it once for each"
        )
    if len(units) > 1 and has_folder:
        raise UsageError(
            "--push publishes one folder, or GGUF files of one repository; leave it out, and"
            " publish each output with `ropeconv push`"
        )


def _check_adapter(units: Sequence[OutputUnit], request: ApplyRequest, has_gguf: bool) -> None:
    """Raise UsageError for options that do not go with --adapter."""
    if has_gguf:
        raise UsageError(
            "--adapter goes with checkpoints; leave it out, and convert it with llama.cpp's"
            " convert_lora_to_gguf.py"
        )
    if len(units) > 1 or units[0].given["in_place"] or request.push:
        raise UsageError(
            "--adapter goes with one SOURCE and one output on this disk; run apply once for each"
            " with -o"
        )
