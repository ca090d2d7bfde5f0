"""Compiled graphs on the command line: `inspect`, `compare` and `apply` with a graph as source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ropeconv.cli.screen import Screen
from ropeconv.errors import UsageError
from ropeconv.formats.kind import is_graph
from ropeconv.inspection.inspection import Inspection, inspect_source
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError, command_line
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.verdict import frequencies
from ropeconv.verbs.request import ApplyRequest, build_target, other_option
from ropeconv.views.plan import title
from ropeconv.views.sheet import sentence

from .inspection import GraphInspection, GraphRope, compare_graph, inspect_graph
from .model import open_graph

if TYPE_CHECKING:
    from ropeconv.bake.execution import Placed

    from .plan import GraphPlan

ALLOWED_OPTIONS = ("dry_run", "no_fsync", "by_length", "family", "out", "replace")
"""Options of `apply` that compiled graphs have, beside the method."""


def inspect_graphs(reference: str, family: str, explain: bool, screen: Screen) -> None:
    """Print the RoPE in compiled graphs: the frequencies that an ONNX or OpenVINO file stores.

    Args:
        reference: The folder of the graphs.
        family: The family of the model; empty to find it by the config.json of the graphs.
        explain: Print every frequency.
        screen: Where it is printed.
    """
    source = open_graph(reference)
    source.treat_as = family
    inspection = inspect_graph(source)
    if screen.as_json:
        screen.data(inspection.to_dict())
        return

    # a graph can hold several RoPEs: Gemma 3 has another one in its window layers
    for rope, formula in zip(inspection.ropes, inspection.formulas, strict=True):
        rows = _describe_rope(inspection, rope, formula)
        if explain:
            numbers = [f"{frequency:.6g}" for frequency in rope.inv_freq]
            rows.append(("inv_freq", ", ".join(numbers)))
        screen.table(f"{rope.file} ({rope.graph.described})", ("", ""), rows)

    # without a readable config.json, the next command compares the graphs with the checkpoint
    if inspection.spec is None:
        screen.say(f"Not compared with config.json: {inspection.note}.")
        command = command_line("compare", reference, "CHECKPOINT")
        screen.copyable(f"Next: {command}")
        return

    # graphs that agree with config.json and are not scaled yet can be extended
    agrees_with_config = all(inspection.part(rope) is not None for rope in inspection.ropes)
    is_unscaled = not inspection.spec.scaled
    if agrees_with_config and is_unscaled:
        command = command_line("apply", reference, "--yarn", 4)
        screen.copyable(f"Next: {command}")


def _describe_rope(
    inspection: GraphInspection, rope: GraphRope, formula: str
) -> list[tuple[str, str]]:
    """Return the rows of the table of one RoPE, such as ("rotates", "128 dimensions").

    Args:
        inspection: The graphs, with the RoPE of the config.json beside them.
        rope: The RoPE of a graph.
        formula: The formula of its frequencies, in words.
    """
    positions = "any"
    if rope.positions:  # cos and sin are stored for each position, and not computed
        positions = f"{rope.positions:,}, as the tables have rows"
    rows = [
        ("constants", f"{rope.name}: {rope.layout}"),
        ("RoPE", _with_factor(formula, rope.attention_factor)),
        ("rotates", f"{2 * len(rope.inv_freq)} dimensions"),
        ("positions", positions),
    ]
    if inspection.spec:
        # the RoPE in config.json that computes the same; in words it is "the same", or "the same,
        # in window layers"
        same_rope_in_config = inspection.part(rope)
        if same_rope_in_config is None:
            rows.append(("config.json", "another RoPE"))
        else:
            rows.append(("config.json", same_rope_in_config.words))
    return rows


def _with_factor(formula: str, attention_factor: float) -> str:
    """Return a formula with the attention factor, where that is not 1."""
    if attention_factor == 1:
        return formula
    return f"{formula}; attention factor {attention_factor:.6g}"


def compare_graphs(
    models: Sequence[str], family: str, others: dict[str, bool], screen: Screen
) -> bool:
    """Print whether a compiled graph and another model have the same RoPE.

    Args:
        models: The graph and the other model, in any order.
        family: The family of a checkpoint; empty to find it.
        others: Options that compiled graphs do not have, and whether they are given.
        screen: Where it is printed.

    Returns:
        Whether they have the same RoPE.

    Raises:
        UsageError: One of these options is given, or not two models.
    """
    for option, is_given in others.items():
        if is_given:
            raise UsageError(f"{option} does not go with a compiled graph; leave it out")
    if family and all(is_graph(model) for model in models):  # --family is for a checkpoint
        raise UsageError("--family does not go with a compiled graph; leave it out")
    if len(models) != 2:
        raise UsageError("a compiled graph is compared with one other model; give two")

    graph, other = models
    if not is_graph(graph):
        graph, other = other, graph
    inspection: GraphInspection | Inspection
    if is_graph(other):
        inspection = inspect_graph(open_graph(other))
    else:
        inspection = inspect_source(open_source(other, family))
    comparison = compare_graph(inspect_graph(open_graph(graph)), inspection)

    if screen.as_json:
        screen.data(comparison.to_dict())
        return comparison.same
    screen.table("", (graph, other), comparison.rows)
    if comparison.problems:
        screen.say(f"They differ: {'; '.join(comparison.problems)}.")
    else:
        screen.say("They have the same RoPE.")
    return comparison.same


def apply_graphs(
    sources: Sequence[str],
    recipe: Recipe,
    target: dict[str, Any],
    options: ApplyRequest,
    screen: Screen,
) -> None:
    """Write a folder with extended graphs.

    Args:
        sources: The graph, or the folder of an export.
        recipe: The method and its modifiers.
        target: The options of the output, by name.
        options: The other options of `apply`.
        screen: Where the plan is printed.

    Raises:
        UsageError: There are several sources, or options without an effect.
        RopeconvError: The graph cannot be extended, or the output folder exists and was not written
            by ropeconv.
    """
    from ropeconv.bake.execution import ApplyOptions, execute_plan
    from ropeconv.inspection.receipts.companion import read_companion

    from .plan import graph_plan

    if len(sources) > 1:
        raise UsageError(
            "a compiled graph is one SOURCE, and there are several; run apply once for each"
        )
    refused_option = other_option(options, target, ALLOWED_OPTIONS)  # such as "--force"
    if refused_option:
        raise UsageError(f"{refused_option} does not go with a compiled graph; leave it out")

    # --to and --outtype were refused above: a graph keeps its format and its types
    output = build_target(target | {"to": None, "outtype": None})
    source = open_graph(sources[0])
    source.treat_as = options.family
    plan = graph_plan(source, recipe, output)

    placed = None
    if not options.dry_run:
        # Only an earlier output is replaced. It has a receipt, which a folder of the user has not.
        if plan.out.exists() and read_companion(plan.out) is None:
            raise RopeconvError(f"{plan.out} exists; choose another place with -o, or remove it")
        with screen.progress("Writing", plan.bytes) as advance:
            writing = ApplyOptions(checksum=True, fsync=not options.no_fsync)
            placed = execute_plan(plan, writing, plan.check, advance)

    if screen.as_json:
        screen.data(plan.to_dict())
    elif screen.quiet:
        screen.copyable(str(plan.out))
    else:
        _show_graph_plan(plan, placed, screen)


def _show_graph_plan(plan: GraphPlan, placed: Placed | None, screen: Screen) -> None:
    """Print the constants that get other frequencies, the warnings, and the place of the output.

    Args:
        plan: The plan.
        placed: The output in its place; None for `--dry-run`.
        screen: Where it is printed.
    """
    # a line for each constant, all of which get the same frequencies
    schedule = plan.checkpoint.schedule
    formula = _with_factor(frequencies(schedule), schedule.attention_factor)
    lines = []
    for edit in plan.edits.values():
        for rope in edit.ropes:
            lines.append((f"{rope.file}, {rope.name}", formula))
    screen.table(title(plan.checkpoint), ("", ""), lines)

    for warning in plan.warnings:
        screen.note(f"Note: {sentence(warning)}")
    if placed is None:
        screen.copyable(f"Would write {plan.out}")
        return
    screen.say("Checked: the constants that were written hold these frequencies.")
    verb = "Unchanged:" if placed.was_there else "Wrote"
    screen.copyable(f"{verb} {plan.out}")
