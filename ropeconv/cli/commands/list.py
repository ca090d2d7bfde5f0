"""`ropeconv list methods`, `families`, `archs`, `runtimes`: tables of the data that the package
uses.
"""

import dataclasses
from typing import Annotated, Any

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
        screen.data({"methods": [_method(method) for method in methods.values()]})
        return
    if name:
        _show_method(REGISTRY[name], screen)
        return
    rows = [(method.flag(), method.summary, method.paper) for method in REGISTRY.values()]
    screen.table("Methods", ("flag", "what", "source"), rows, optional=("source",))


def _method(method: type[Method]) -> dict[str, Any]:
    fields = dataclasses.fields(method)
    return {
        "name": method.name,
        "flag": method.flag(),
        "summary": method.summary,
        "formula": " ".join((method.__doc__ or "").split()),
        "paper": method.paper,
        "departures": list(method.departures),
        "max_untuned_factor": method.max_untuned_factor,
        "finetuning_note": method.finetuning_note,
        "settings": {item.name: item.metadata["help"] for item in fields[1:]},
    }


def _show_method(method: type[Method], screen: Screen) -> None:
    screen.say(f"{method.flag()}: {method.summary} ({method.paper})")
    if method.finetuning_note:
        screen.say(f"Fine-tuning: {method.finetuning_note}.")
    if method.__doc__:
        screen.say("")
        screen.say("\n".join(line.strip() for line in method.__doc__.strip().splitlines()))
    if method.departures:
        screen.say("\nDifferences from the paper:")
        for sentence in method.departures:
            screen.say(f"- {sentence}")

    rows = []
    for item in dataclasses.fields(method)[1:]:
        flag = item.name.replace("_", "-")
        default = ""
        if item.default not in (None, dataclasses.MISSING):
            default = plain(item.default)
        rows.append((f"--{flag}", default, item.metadata["help"]))
    screen.say("")
    if rows:
        screen.table("Settings", ("flag", "default", "what"), rows)


@app.command("families", cls=Command, epilog=FAMILIES_EXAMPLES)
@expand_options
def families_command(screen: Screen) -> None:
    """List the model families, with their rope types and GGUF architectures."""
    from ...models.registry import families

    supported = [family for family in families() if not family.refuse]
    refused = [family for family in families() if family.refuse]
    if screen.as_json:
        rows = [
            {
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
            for family in families()
        ]
        screen.data({"families": rows})
        return

    table = []
    for family in supported:
        types = ", ".join(family.model_types)
        rope_types = ", ".join(family.writing.types)
        arch = family.gguf.arch if family.gguf else ""
        table.append((family.name, family.display_name, types, rope_types, arch))
    columns = ("name", "models", "model_type", "rope types", "--to gguf as")
    screen.table("Families", columns, table, optional=("rope types", "model_type", "--to gguf as"))
    for family in families():
        if family.origin:
            screen.say(f"{family.name} is described in {family.origin}.")
    reasons = [(family.name, family.display_name, family.refuse) for family in refused]
    screen.table("Refused", ("name", "models", "why"), reasons)


@app.command("archs", cls=Command, epilog=ARCHS_EXAMPLES)
@expand_options
def archs_command(screen: Screen) -> None:
    """List the GGUF architectures, with the rope tensors and keys that llama.cpp supports for
    each.
    """
    from ...runtimes.drafts import find_kind
    from ...runtimes.llamacpp.archs import arch_table

    table = arch_table()
    archs = [
        {
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
        for arch in table.arch.values()
    ]
    if screen.as_json:
        drafts = table.drafts | {
            arch.name: find_kind(arch.draft).says for arch in table.draft_arch.values()
        }
        others = {"without_rope": table.without_rope, "drafts": drafts}
        screen.data({"llama_cpp": table.version, "source": table.source, "archs": archs, **others})
        return
    keys = ("name", "pairs", "rope_freqs", "factor_lists")
    rows = [
        (*(str(row[key]) for key in keys), "yes" if a.betas else "", ", ".join(a.carriers))
        for row, a in zip(archs, table.arch.values(), strict=True)
    ]
    screen.table(
        table.display_name,
        ("arch", "pairs", "rope_freqs", "factor lists", "betas", "--carrier"),
        rows,
        optional=("betas", "pairs"),
    )


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
    from ...bake.advice import matrix as all_cells
    from ...runtimes.gguf_readers import find_any, gguf_readers
    from ...runtimes.programs import program_note, programs
    from ...runtimes.runtime import Runtime, runtimes
    from ...views.advice import newest_of, show_matrix, show_runtimes, summaries

    cells = all_cells()
    for name in runtime or ():
        screen.note(program_note(name))
    rows_named: list[Runtime] = []
    for name in runtime or ():
        for row in find_any(name):
            if not isinstance(row, Runtime):
                raise UsageError(
                    f"--runtime {name}: {row.title} reads GGUF files, and these tables are of"
                    " checkpoints; `ropeconv inspect FILE.gguf` and every plan of a GGUF file have"
                    " its status"
                )
            rows_named.append(row)
    readers = sorted({reader.title for reader in gguf_readers()}, key=str.lower)
    through = [program.title for program in programs() if program.runs]
    if not matrix:
        rows = summaries(rows_named or runtimes(), cells)
        if screen.as_json:
            others = {"gguf_readers": readers, "through_llama_cpp": through}
            screen.data({"runtimes": rows, **others})
        else:
            show_runtimes(rows, screen)
            screen.say(f"Readers of GGUF: {', '.join(readers)}.")
            screen.say(f"Through llama.cpp: {', '.join(through)}.")
        return
    columns = {row.key: row for row in rows_named or newest_of(runtimes())}
    if screen.as_json:
        matching = [
            cell for cell in cells if any(cell.verdict.covers(row) for row in columns.values())
        ]
        screen.data({"cells": [cell.to_dict() for cell in matching]})
        return
    show_matrix(cells, list(columns.values()), screen)
