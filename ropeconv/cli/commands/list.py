"""`ropeconv list methods`, `families`, `archs` and `runtimes`: the data that the package uses.

Each command prints its table, or with `--json` a row with more fields for each entry.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from ...options import GENERAL
from ...rope.errors import shown
from ...rope.methods.method import REGISTRY, Method
from ...verbs.recipes import plain
from ..command import expand_options
from ..completion import method_names, runtime_names
from ..screen import Screen
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...models.family import Family
    from ...runtimes.llamacpp.archs import Arch
    from ...runtimes.runtime import Runtime

app = typer.Typer(add_completion=False)

METHODS_EXAMPLES = """
ropeconv list methods
ropeconv list methods yarn
"""
FAMILIES_EXAMPLES = """
ropeconv list families
ropeconv list families --json
"""
ARCHS_EXAMPLES = """
ropeconv list archs
ropeconv list archs --json
"""


@app.command("methods", cls=Command, epilog=METHODS_EXAMPLES)
@expand_options
def methods_command(
    screen: Screen,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Show one method with its settings.", autocompletion=method_names
        ),
    ] = "",
) -> None:
    """List the methods, or show one with its formula, settings and paper."""
    if name and name not in REGISTRY:
        raise UsageError(f"there is no method {shown(name)}; choose {', '.join(REGISTRY)}")
    methods = {name: REGISTRY[name]} if name else REGISTRY
    if screen.as_json:
        screen.data({"methods": [_method_data(method) for method in methods.values()]})
        return
    if name:
        _show_method(REGISTRY[name], screen)
        return
    rows = [(method.flag(), method.summary, method.paper) for method in REGISTRY.values()]
    screen.table("Methods", ("flag", "what", "source"), rows, optional=("source",))


def _method_data(method: type[Method]) -> dict[str, Any]:
    """Return a method as JSON-ready data."""
    # the first field is the value of the flag (--yarn 4), the others are its settings
    _, *setting_fields = dataclasses.fields(method)
    settings = {field.name: field.metadata["help"] for field in setting_fields}
    return {
        "name": method.name,
        "flag": method.flag(),
        "summary": method.summary,
        "formula": " ".join((method.__doc__ or "").split()),
        "paper": method.paper,
        "departures": list(method.departures),
        "max_untuned_factor": method.max_untuned_factor,
        "finetuning_note": method.finetuning_note,
        "settings": settings,
    }


def _show_method(method: type[Method], screen: Screen) -> None:
    """Print a method with its formula and a table of its settings."""
    screen.say(f"{method.flag()}: {method.summary} ({method.paper})")
    if method.finetuning_note:
        screen.say(f"Fine-tuning: {method.finetuning_note}.")
    if method.__doc__:
        screen.say("")
        lines = method.__doc__.strip().splitlines()
        screen.say("\n".join(line.strip() for line in lines))
    if method.departures:
        screen.say("\nDifferences from the paper:")
        for sentence in method.departures:
            screen.say(f"- {sentence}")

    # the first field of a method is the value of its own flag (--yarn 4); the others are settings,
    # each with a flag (--beta-fast)
    _, *setting_fields = dataclasses.fields(method)
    rows = []
    for setting in setting_fields:
        flag = setting.name.replace("_", "-")
        default = ""
        if setting.default not in (None, dataclasses.MISSING):
            default = plain(setting.default)
        rows.append((f"--{flag}", default, setting.metadata["help"]))
    screen.say("")
    if rows:
        screen.table("Settings", ("flag", "default", "what"), rows)


@app.command("families", cls=Command, epilog=FAMILIES_EXAMPLES)
@expand_options
def families_command(screen: Screen) -> None:
    """List the model families, with their rope types and GGUF architectures."""
    from ...models.registry import families

    if screen.as_json:
        screen.data({"families": [_family_data(family) for family in families()]})
        return

    supported = []
    refused = []
    for family in families():
        if family.refuse:
            refused.append((family.name, family.display_name, family.refuse))
            continue
        model_types = ", ".join(family.model_types)
        rope_types = ", ".join(family.writing.types)
        arch = family.gguf.arch if family.gguf else ""
        supported.append((family.name, family.display_name, model_types, rope_types, arch))

    columns = ("name", "models", "model_type", "rope types", "--to gguf as")
    optional = ("rope types", "model_type", "--to gguf as")
    screen.table("Families", columns, supported, optional=optional)
    for family in families():
        if family.origin:
            screen.say(f"{family.name} is described in {family.origin}.")
    screen.table("Refused", ("name", "models", "why"), refused)


def _family_data(family: Family) -> dict[str, Any]:
    """Return a family as JSON-ready data."""
    return {
        "name": family.name,
        "display_name": family.display_name,
        "model_types": list(family.model_types),
        "rope_types": [] if family.refuse else list(family.writing.types),
        "layout": family.layout,
        "gguf": family.gguf.arch if family.gguf else None,
        "refuse": family.refuse or None,
        "since": family.since,
        "origin": family.origin or None,
    }


@app.command("archs", cls=Command, epilog=ARCHS_EXAMPLES)
@expand_options
def archs_command(screen: Screen) -> None:
    """List the GGUF architectures, with the rope tensors and keys that llama.cpp supports for
    each.
    """
    from ...runtimes.drafts import find_kind
    from ...runtimes.llamacpp.archs import arch_table

    table = arch_table()
    if screen.as_json:
        # descriptions of the architectures of draft models, by name: the table has them for some,
        # and for the others their kind has one, such as "eagle3"
        drafts = dict(table.drafts)
        for arch in table.draft_arch.values():
            kind = find_kind(arch.draft)
            drafts[arch.name] = kind.says
        document = {
            "llama_cpp": table.version,
            "source": table.source,
            "archs": [_arch_data(arch) for arch in table.arch.values()],
            "without_rope": table.without_rope,
            "drafts": drafts,
        }
        screen.data(document)
        return

    rows = []
    for arch in table.arch.values():
        # how llama.cpp uses the tensors rope_freqs and rope_factors_long; empty where llama.cpp
        # refuses a file with this tensor
        freqs = arch.freqs or "refused"
        factors = arch.factors or "refused"
        # whether llama.cpp reads the keys yarn_beta_fast and yarn_beta_slow
        reads_betas = "yes" if arch.betas else ""
        # architectures with the same layers, which can be named with --carrier
        carriers = ", ".join(arch.carriers)
        rows.append((arch.name, str(arch.pairs), freqs, factors, reads_betas, carriers))
    columns = ("arch", "pairs", "rope_freqs", "factor lists", "betas", "--carrier")
    screen.table(table.display_name, columns, rows, optional=("betas", "pairs"))


def _arch_data(arch: Arch) -> dict[str, Any]:
    """Return an architecture of llama.cpp as JSON-ready data."""
    return {
        "name": arch.name,
        "family": arch.family or None,
        "pairs": arch.pairs,
        "windows": arch.window.scaling if arch.window else None,
        "fixed": arch.fixed,
        "rope_freqs": arch.freqs or "refused",
        "factor_lists": arch.factors or "refused",
        "betas": arch.betas,
        "carriers": list(arch.carriers),
    }


RUNTIMES_EXAMPLES = """
ropeconv list runtimes
ropeconv list runtimes --matrix
ropeconv list runtimes --matrix --runtime vllm --runtime sglang
"""


@app.command("runtimes", cls=Command, epilog=RUNTIMES_EXAMPLES)
@expand_options
def runtimes_command(
    screen: Screen,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="A line per model family, a column per runtime.",
            rich_help_panel=GENERAL,
        ),
    ] = False,
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            "--runtime",
            help="Only these, in current versions; with @VERSION, in that one.",
            rich_help_panel=GENERAL,
            metavar="NAME[@VERSION]",
            autocompletion=runtime_names,
        ),
    ] = None,
) -> None:
    """List the runtimes, and how many model families each was tested with."""
    from ...runtimes.programs import program_note

    names = runtime or []
    for name in names:
        screen.note(program_note(name))
    named = _find_runtimes(names)
    if matrix:
        _show_runtime_matrix(named, screen)
    else:
        _show_runtime_list(named, screen)


def _find_runtimes(names: list[str]) -> list[Runtime]:
    """Return the versions of the runtimes that the user names with --runtime.

    Args:
        names: The values of --runtime: "vllm" for all versions, or "vllm@0.33" for one version.

    Raises:
        UsageError: A runtime only reads GGUF files. `ropeconv list runtimes` shows how runtimes
            read the config.json of a checkpoint.
    """
    from ...runtimes.gguf_readers import find_any
    from ...runtimes.runtime import Runtime

    versions = []
    for name in names:
        for version in find_any(name):
            if not isinstance(version, Runtime):  # a reader of GGUF files
                raise UsageError(
                    f"--runtime {name}: {version.title} reads GGUF files, and these tables are of"
                    " checkpoints; `ropeconv inspect FILE.gguf` and every plan of a GGUF file have"
                    " its status"
                )
            versions.append(version)
    return versions


def _show_runtime_list(named: list[Runtime], screen: Screen) -> None:
    """Print how many model families each runtime was tested with.

    Args:
        named: Only these; empty for all.
        screen: Where it is printed.
    """
    from ...bake.advice import matrix as all_cells
    from ...runtimes.gguf_readers import gguf_readers
    from ...runtimes.programs import programs
    from ...runtimes.runtime import runtimes
    from ...views.advice import show_runtimes, summaries

    rows = summaries(named or runtimes(), all_cells())
    readers = sorted({reader.title for reader in gguf_readers()}, key=str.lower)
    # programs such as LM Studio run GGUF files in llama.cpp, whose support counts for them
    through = [program.title for program in programs() if program.runs]
    if screen.as_json:
        screen.data({"runtimes": rows, "gguf_readers": readers, "through_llama_cpp": through})
        return
    show_runtimes(rows, screen)
    screen.say(f"Readers of GGUF: {', '.join(readers)}.")
    screen.say(f"Through llama.cpp: {', '.join(through)}.")


def _show_runtime_matrix(named: list[Runtime], screen: Screen) -> None:
    """Print a line per model family and a column per runtime.

    Args:
        named: The runtimes to print; empty for the newest version of each runtime.
        screen: Where it is printed.
    """
    from ...bake.advice import matrix as all_cells
    from ...runtimes.runtime import runtimes
    from ...views.advice import newest_of, show_matrix

    # a column for each version, once, also where the user named it twice
    shown_versions = named or newest_of(runtimes())
    versions = list({version.key: version for version in shown_versions}.values())
    cells = all_cells()
    if not screen.as_json:
        show_matrix(cells, versions, screen)
        return
    documents = []
    for cell in cells:
        if any(cell.verdict.covers(version) for version in versions):
            documents.append(cell.to_dict())
    screen.data({"cells": documents})
