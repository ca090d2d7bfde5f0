"""Options that several commands share, as types for their parameters.

`check_places` at the end is for the files of some of them, which are written when all is computed.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..environment import require
from ..errors import UsageError
from ..formats.disk import obstacle
from ..formats.files import expand_home
from ..options import (
    GENERAL,
    OUTPUT,
    RUNNING,
    RUNTIMES,
    ConverterOptions,
    Option,
    OutputPlace,
    TargetOptions,
    Writes,
    options,
)
from ..verbs.recipes import recipe_options
from ..verbs.request import FAMILY, PYTHON
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

PythonOption = Annotated[
    str,
    typer.Option(
        "--python",
        help=PYTHON,
        rich_help_panel=RUNTIMES,
        metavar="PATH",
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
"""The values of the options of a recipe, by name, for `build_recipe`."""


def _target_options() -> list[Option]:
    return options(OutputPlace, ConverterOptions, TargetOptions)


TargetValues = Annotated[dict[str, Any], OptionGroup(_target_options)]
"""The values of the options of an output, by name, for `build_target`.

The Target is made later, since that imports numpy and the probe of transformers has to start
before.
"""


# Ends of the names of files that people expect to be pages
PAGES = (".html", ".htm", ".xhtml")


def check_places(report: Path | None, plot: Path | None, out: Path | None = None) -> None:
    """Check the files that a command writes at its end, so that it fails before it has run.

    Args:
        report: The page of `--report`.
        plot: The picture of `--plot`.
        out: The JSON file of `-o`.

    Raises:
        RopeconvError: If matplotlib is missing, which draws the pictures.
        UsageError: If a file could not be written.
    """
    from ..bake.items import is_record
    from ..views.plot_style import check_picture

    if plot is not None:
        require("matplotlib", "--plot")
        check_picture(plot)
    if report is not None:
        require("matplotlib", "--report")
        if report.suffix.lower() not in PAGES:
            raise UsageError(f"--report {report} is a page in HTML; name it like report.html")
    if out is not None and out.suffix:
        is_json = out.suffix.lower() == ".json"
        if not is_json and not is_record(out):
            raise UsageError(
                f"-o {out} is JSON; name it like result.json; --report writes a page, --plot a"
                " picture"
            )
    for path in (report, plot, out):
        check_place(path)


def check_place(path: Path | None) -> None:
    """Raise UsageError for a file that could not be written at the end. Missing folders will be
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
