"""The options of an output: its format, encoding and runtimes, which make a Target."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..environment import require
from ..errors import UsageError
from .command import (
    FOLDING,
    GGUF,
    OUTPUT,
    RUNNING,
    RUNTIMES,
    Dtype,
    DualChunk,
    EncodingName,
    FoldDtype,
    FoldInto,
    Format,
    encoding_names,
    option_group,
)

if TYPE_CHECKING:
    from ..convert.target import Target

GGUF_ONLY: dict[str, Any] = {"pre": None, "carrier": None, "quantized_by": None}
FOLDER_ONLY: dict[str, Any] = {"all_files": False, "fold_into": None, "fold_dtype": None, "dual_chunk": None}
"""Options that only one format has, with their values where they are not given."""


def _option(name: str, kind: Any, panel: str, help: str, *flags: str, metavar: str | None = None) -> inspect.Parameter:
    """An option as a parameter of a command, False or None unless it is given.

    name: in Python. kind: its type. panel: of the help. help: its text. flags: spellings in addition to `--NAME`.
    metavar: for its value in the help.
    """
    option = typer.Option(
        f"--{name.replace('_', '-')}", *flags, help=help, metavar=metavar, rich_help_panel=panel, show_default=False
    )
    default = False if kind is bool else None
    wanted: Any = kind if kind is bool else kind | None
    annotation: Any = Annotated[wanted, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options() -> list[inspect.Parameter]:
    return [
        _option("out", Path, OUTPUT, "Folder or GGUF file (default: here, named after SOURCE and method); of several "
                "outputs the folder that they are put into.", "-o", metavar="PATH"),
        _option("to", list[Format], OUTPUT, "Format of the output (default: that of SOURCE); repeatable.",
                metavar="[safetensors|gguf]"),
        _option("all_files", bool, OUTPUT, "Copy the same weights in other formats too."),
        _option("replace", bool, OUTPUT, "Start a scaled model from its unscaled RoPE."),
        _option("runtime", list[str], RUNTIMES, "Must read it exactly: NAME or NAME@VERSION; repeatable.",
                metavar="NAME"),
        _option("encoding", EncodingName, RUNTIMES, f"How to write it: {', '.join(encoding_names())} (default: auto).",
                metavar="NAME"),
        _option("allow_approximate", bool, RUNTIMES, "Take log-n in steps where the formula cannot be had."),
        _option("dual_chunk", DualChunk, RUNTIMES, "Keep or drop dual chunk attention (Qwen2.5-1M), with which vLLM "
                "and SGLang do not compute the method.", metavar="HOW"),
        _option("outtype", list[str], GGUF, "Of the weights: auto (as stored), f32, f16, bf16, q8_0, or q4_k_m and its "
                "like; repeatable.", metavar="TYPE"),
        _option("pre", str, GGUF, "tokenizer.ggml.pre, for a pre-tokenizer not in the table.", metavar="NAME"),
        _option("carrier", str, GGUF, "Host architecture: write the file as this one, which takes any frequencies.",
                metavar="ARCH"),
        _option("quantized_by", str, GGUF, "general.quantized_by of a conversion (default: OWNER of --push, where it "
                "quantises).", metavar="NAME"),
        _option("assume_arch_keys", bool, GGUF, "Take an unknown architecture, with keys that all others read."),
        _option("in_place", bool, GGUF, "Change the GGUF file itself; a kill at any moment can be undone."),
        _option("allow_hard_links", bool, GGUF, "With --in-place: also change a file that has other hard links."),
        _option("fold_into", FoldInto, FOLDING, "With --encoding weights: which rows take the attention factor."),
        _option("fold_dtype", FoldDtype, FOLDING, "Of scaled norms: stored (as they are) or f32."),
    ]  # fmt: skip


def split(given: dict[str, Any], from_gguf: bool) -> list[dict[str, Any]]:
    """The options of each output of one source: one per --to, and per --outtype where that has an effect.

    given: values of options by name. from_gguf: whether the source is a GGUF file. Beside another format, options that
    only one of them has go to that one alone.
    """
    formats = [to.value for to in given["to"] or ()] or [None]
    made = []
    for to in formats:
        to_gguf = to == "gguf" or (from_gguf and to is None)
        own = given | {"to": to}
        if len(set(formats)) > 1:
            own |= FOLDER_ONLY if to_gguf else GGUF_ONLY
            own["runtime"] = _runtimes(given["runtime"] or (), to_gguf)
        converts = to_gguf != from_gguf
        outtypes = given["outtype"] if converts or len(set(formats)) == 1 else None
        made += [own | {"outtype": outtype} for outtype in outtypes or [None]]
    return made


def _runtimes(names: Iterable[str], to_gguf: bool) -> list[str]:
    """Of some runtimes those that read a format. names: with or without a version."""
    from ..runtimes.gguf_readers import reader_names
    from ..runtimes.grouping import canonical
    from ..runtimes.runtime import LLAMA_CPP

    known = (LLAMA_CPP, *reader_names())
    return [name for name in names if (canonical(name).partition("@")[0] in known) == to_gguf]


def build_target(given: dict[str, Any], owner: str | None = None) -> Target:
    """The Target of one output.

    given: values of options by name, as `split` gives them. owner: of the repository that it is published in, who is
    named in a conversion that quantises; None where it is not published.
    """
    from ..convert.target import FoldTarget, GgufTarget, Target

    gguf = GgufTarget(
        given["outtype"], given["pre"], given["carrier"], given["assume_arch_keys"], given["quantized_by"] or None
    )
    return Target(
        to=given["to"],
        out=given["out"],
        in_place=given["in_place"],
        allow_hard_links=given["allow_hard_links"],
        encoding=given["encoding"] or "auto",
        runtimes=tuple(given["runtime"] or ()),
        gguf=gguf.published_by(owner) if owner else gguf,
        fold=FoldTarget(given["fold_into"], given["fold_dtype"]),
        allow_approximate=given["allow_approximate"],
        all_files=given["all_files"],
        replace=given["replace"],
        dual_chunk=given["dual_chunk"],
    )


with_target = option_group("target", _options, dict)
"""Decorator: replaces the parameter `target` of a command by these options, as a dict for `build_target`.

The Target is made later, since that imports numpy and the probe of transformers has to start before.
"""


DeviceOption = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.", rich_help_panel=RUNNING)
]
DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", help="auto: float32 on a CPU, elsewhere as stored.", rich_help_panel=RUNNING)
]
DeviceMapOption = Annotated[
    str,
    typer.Option(
        "--device-map",
        metavar="MAP",
        help="auto spreads the model over several devices.",
        rich_help_panel=RUNNING,
        show_default=False,
    ),
]
ChunkOption = Annotated[
    int, typer.Option("--chunk", min=1, help="Tokens that the model sees at a time.", rich_help_panel=RUNNING)
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", help="Write a page with plots and all numbers (HTML).", rich_help_panel=OUTPUT
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code of the models that ropeconv has not written, and load pickled weights."
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Write the plots (.png or .svg).", rich_help_panel=OUTPUT),
]


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
