"""Options that several commands share, and places of files that are written at the end."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..environment import require
from ..errors import UsageError
from ..formats.disk import obstacle
from ..formats.files import expand_home
from ..options import GENERAL, OUTPUT, RUNNING, OutputPlace, TargetOptions, Writes, options
from ..verbs.recipes import recipe_options
from ..verbs.request import FAMILY
from .command import OptionGroup
from .completion import family_names

ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain", "-v", help="Show all numbers and all runtimes.", rich_help_panel=GENERAL
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Print the plan and write nothing.", rich_help_panel=OUTPUT),
]


SOURCE = (
    "A folder, a GGUF file, a config.json, Ollama's NAME:TAG, or owner/name@revision(/FILE.gguf) on"
    " the Hub."
)
OR_GRAPH = SOURCE.replace("a GGUF file", "a GGUF file, a graph (.onnx, .xml)")
SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)]

FamilyOption = Annotated[
    str,
    typer.Option(
        "--family",
        help=FAMILY,
        rich_help_panel=GENERAL,
        metavar="NAME",
        autocompletion=family_names,
    ),
]

DeviceMapOption = Annotated[
    str,
    typer.Option(
        "--device-map",
        help="auto spreads the model over several devices.",
        rich_help_panel=RUNNING,
        metavar="MAP",
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Write a page with plots and all numbers (HTML).",
        rich_help_panel=OUTPUT,
        metavar="FILE",
        parser=expand_home,
    ),
    Writes(),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run code of the models that ropeconv has not written, and load pickled weights.",
        rich_help_panel=GENERAL,
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Write the plots (.png or .svg).",
        rich_help_panel=OUTPUT,
        metavar="FILE",
        parser=expand_home,
    ),
    Writes(),
]

RecipeValues = Annotated[dict[str, Any], OptionGroup(recipe_options)]
"""The values of the options of a recipe, by name, in the place of a parameter of a command."""


TargetValues = Annotated[dict[str, Any], OptionGroup(lambda: options(OutputPlace, TargetOptions))]
"""The values of the options of an output, by name, for `build_target`.

The Target is made later, since that imports numpy and the probe of transformers has to start
before.
"""


def check_places(report: Path | None, plot: Path | None, out: Path | None = None) -> None:
    """Raises UsageError for files that could not be written at the end."""
    from ..views.plot_style import checked

    if report is not None or plot is not None:
        require("matplotlib", "--report" if plot is None else "--plot")
    if plot is not None:
        checked(plot)
    if report is not None and report.suffix.lower() not in PAGES:
        raise UsageError(f"--report {report} is a page in HTML; name it like report.html")
    if out is not None and out.suffix.lower() in (*PAGES, *PICTURES, *TABLES):
        others = "; --report writes a page, --plot a picture"
        raise UsageError(f"-o {out} is JSON; name it like result.json{others}")
    for path in (report, plot, out):
        check_place(path)


PAGES = (".html", ".htm", ".xhtml")
PICTURES = (".svg", ".png", ".pdf", ".jpg")
TABLES = (".csv", ".tsv", ".md", ".txt")
"""Ends of the names of files that people expect to be of these kinds."""


def check_place(path: Path | None) -> None:
    """Raises UsageError for a file that could not be written at the end. Missing folders will be
    made.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
    problem = obstacle(path.parent)
    if problem:
        raise UsageError(
            f"{problem}, so {path.name} cannot be written there; choose another place for it"
        )
