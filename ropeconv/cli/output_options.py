"""The options of an output: its format, encoding and runtimes, which make a Target."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..environment import require
from ..errors import UsageError
from ..options import OutputPlace, TargetOptions, from_command_line, options
from .command import OUTPUT, RUNNING, OptionGroup, flag

if TYPE_CHECKING:
    from ..convert.target import Target


def split(values: dict[str, Any], from_gguf: bool) -> list[dict[str, Any]]:
    """The options of each output of one source: one per --to, and per --outtype where that has an effect.

    With several formats, options that only one of them has go only to that one.
    """
    formats = ["gguf" if to == "ollama" else to for to in values["to"]] or [None]
    outputs = []
    for to in formats:
        to_gguf = to == "gguf" or (from_gguf and to is None)
        output = values | {"to": to}
        if len(set(formats)) > 1:
            other = "folder" if to_gguf else "gguf"
            output |= {option.name: None for option in options(TargetOptions) if option.only == other}
            output["runtime"] = _runtimes(values["runtime"], to_gguf)
        converts = to_gguf != from_gguf
        outtypes = values["outtype"] if converts or len(set(formats)) == 1 else None
        outputs += [output | {"outtype": outtype} for outtype in outtypes or [None]]
    return outputs


def _runtimes(names: Iterable[str], to_gguf: bool) -> list[str]:
    """The runtimes that read GGUF files, or those that do not. names: with or without a version."""
    from ..runtimes.gguf_readers import reader_names
    from ..runtimes.runtime import LLAMA_CPP, canonical

    known = (LLAMA_CPP, *reader_names())
    return [name for name in names if (canonical(name).partition("@")[0] in known) == to_gguf]


def names_ollama(values: dict[str, Any]) -> bool:
    """Whether the options of a target name Ollama, which needs a Modelfile. values: of options, by name."""
    from ..runtimes.runtime import canonical

    runtimes = (canonical(name).partition("@")[0] for name in values["runtime"])
    return "ollama" in runtimes or "ollama" in values["to"]


def build_target(values: dict[str, Any], owner: str | None = None) -> Target:
    """The Target of one output.

    owner: of the repository that it is published in, who is named in a conversion that quantises.
    """
    from ..convert.target import Target

    return from_command_line(Target, values).published_by(owner or "")


TargetValues = Annotated[dict[str, Any], OptionGroup(lambda: options(OutputPlace, TargetOptions))]
"""The values of the options of an output, by name, for `build_target`.

The Target is made later, since that imports numpy and the probe of transformers has to start before.
"""
DeviceMapOption = Annotated[
    str, flag("auto spreads the model over several devices.", "--device-map", RUNNING, metavar="MAP")
]
ReportOption = Annotated[
    Path | None, flag("Write a page with plots and all numbers (HTML).", "--report", OUTPUT, metavar="FILE")
]
TrustOption = Annotated[
    bool, flag("Run code of the models that ropeconv has not written, and load pickled weights.", "--trust-remote-code")
]
PlotOption = Annotated[Path | None, flag("Write the plots (.png or .svg).", "--plot", OUTPUT, metavar="FILE")]


def check_places(report: Path | None, plot: Path | None, out: Path | None = None) -> None:
    """Raises UsageError for files that could not be written at the end."""
    from ..views.plot_style import checked

    if report is not None or plot is not None:
        require("matplotlib", "--report" if plot is None else "--plot")
    if plot is not None:
        checked(plot)
    for path in (report, plot, out):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path.parent} does not exist; create it, or choose another place for {path.name}")
