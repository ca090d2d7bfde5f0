"""`ropeconv bound`: the smallest base for a length, or the effective length of a schedule.

`bound_command` sorts out which of the two is asked for. `_find_base` and `_find_reach` answer it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.model_options import HeadDimOption, RotaryDimOption
from ropeconv.cli.options import RecipeValues, check_place
from ropeconv.cli.screen import ProgressScreen, Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import UsageError
from ropeconv.formats.drafts import write_file
from ropeconv.formats.files import expand_home
from ropeconv.options import GENERAL, Writes
from ropeconv.rope.bound.answer import Bound, bound
from ropeconv.rope.bound.reach import Reach, reach
from ropeconv.rope.errors import counted
from ropeconv.rope.forms import asymptotic_base
from ropeconv.rope.lengths import parse_tokens
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import LayerKind, RopeSpec
from ropeconv.verbs.given_model import GivenModel, find, frequencies_only, head_size, is_length

if TYPE_CHECKING:
    from ropeconv.inspection.head_bound import HeadLengths, HeadWeights


app = typer.Typer(add_completion=False)

LAYERS_LEFT_OUT: dict[LayerKind, str] = {
    "local": "with frequencies of their own",
    "none": "without RoPE",
}
"""Kinds of layers that a method does not change, in words: layers with a sliding window, and layers
without RoPE. They have no effective length.
"""
Schedules = dict[str, tuple[Schedule, Reach]]
"""Schedules by label, each with its reach where all variances are equal."""


def _document(
    spec: RopeSpec, schedules: Schedules, weighted: dict[str, HeadLengths]
) -> dict[str, Any]:
    """Return the effective length of each schedule, and of each head, as JSON-ready data.

    Args:
        spec: The RoPE of the model.
        schedules: Each schedule with its effective length, by label such as "yarn 4".
        weighted: The effective lengths of the heads, by label; empty without --weights.
    """
    rows = {}
    for label, (schedule, effective_length) in schedules.items():
        row = {"context": schedule.context, **effective_length.to_dict()}
        if label in weighted:
            row["weighted"] = weighted[label].to_dict()
        rows[label] = row

    document: dict[str, Any] = {"rotary_dim": spec.rotary_dim, "head_dim": spec.head_dim}
    if len(rows) == 1:  # one schedule has its keys at the top level
        (only_row,) = rows.values()
        document |= only_row
    else:
        document["schedules"] = rows
    if weighted:  # the number of layers that are left out, such as {"local": 20, "none": 0}
        document["left_out"] = {kind: spec.count(kind) for kind in LAYERS_LEFT_OUT}
    return document


def _show_reach(spec: RopeSpec, schedules: Schedules, screen: Screen) -> None:
    """Show a table with the effective length of each schedule, for equal weights of all pairs.

    A row is, for example: yarn 4 | 131,072 | 512 in 2 runs below 262,144 | 131,072-131,327, ...

    Args:
        spec: The RoPE of the model.
        schedules: Each schedule with its effective length, by label such as "yarn 4".
        screen: Where the table is shown.
    """
    rows = []
    for label, (_schedule, found) in schedules.items():
        # distances below `length` at which the sum of cosines is negative: there are `count` of
        # them, in `runs` intervals
        negative = f"{found.count:,} in {counted(found.runs, 'run')} below {found.length:,}"
        rows.append((label, _effective_length(found), negative, _intervals_in_words(found)))
    title = f"{2 * spec.rotating_pairs} of {spec.head_dim} dimensions rotate"
    columns = ("", "effective length", "distances with a negative sum", "where")
    screen.table(title, columns, rows)


def _effective_length(found: Reach) -> str:
    """Return the effective length of a schedule in words: 131,072, "above 131,071", or "any"."""
    if found.automatic:
        return "any"
    return _length_in_words(found.effective_length, found.searched)


def _length_in_words(length: int | None, searched: int) -> str:
    """Return an effective length in words: 131,072, or "above 131,071".

    Args:
        length: The effective length; None where no searched distance has a negative sum.
        searched: The distances below this number were searched.
    """
    if length is None:
        return f"above {searched - 1:,}"
    return f"{length:,}"


def _intervals_in_words(found: Reach) -> str:
    """Return the first runs of distances with a negative sum: "2,049, 3,100-3,120, ..."."""
    shown = []
    for first, last in found.places[:6]:
        shown.append(f"{first:,}" if first == last else f"{first:,}-{last:,}")
    if found.runs > 6:
        shown.append("...")
    return ", ".join(shown)


def _head_weights(model: GivenModel, screen: Screen) -> HeadWeights:
    """Read the projections of queries and keys of a SOURCE; refuse a command without a SOURCE."""
    from ropeconv.inspection.head_bound import head_weights

    if model.inspection is None:
        raise UsageError(
            "--weights needs a SOURCE, whose weights are read; give a folder or a Hub id"
        )
    with screen.counting("Reading", "bytes") as (total, advance):
        return head_weights(model.inspection, total, advance)


def _search_heads(
    weights: HeadWeights, schedules: Schedules, screen: Screen
) -> dict[str, HeadLengths]:
    """Search the effective lengths of all heads, by label of the schedule."""
    lengths = {}
    with screen.counting("Searching") as (total, advance):
        total(sum(weights.work(found.length) for _, found in schedules.values()))
        for label, (schedule, found) in schedules.items():
            lengths[label] = weights.reach(schedule, found.length, advance)
    return lengths


def _show_weighted(label: str, equal: Reach, weighted: HeadLengths, screen: Screen) -> None:
    """Show the effective length of the heads of a model: a row for each layer, and a sentence.

    The effective length of a head is the distance m up to which sum_i w_i cos(m theta_i) is not
    negative (theta_i: the frequency of pair i). Men et al. 2024 take all weights w_i to be equal.
    Here they follow from the variances of queries and keys in each head of this model.

    Args:
        label: The name of the schedule, such as "yarn 4".
        equal: The effective length with equal weights, as in the paper.
        weighted: The effective lengths with the weights of each head.
        screen: Where they are shown.
    """
    (table_of_layers,) = weighted.shown_tables()
    title = f"{label}: sum_i w_i cos(m theta_i), with weights per head"
    columns = table_of_layers.columns
    screen.table(title, columns, table_of_layers.rows, right=columns)

    # Distances below `searched` were tried. A head without a negative sum among them has no
    # effective length (None), and is shown as "above 131,071".
    searched = max(layer.below for layer in weighted.layers)
    worst_length = _length_in_words(weighted.worst, searched)
    median_length = _length_in_words(weighted.median, searched)
    negative_heads = weighted.violating  # the number of heads with a negative sum
    verb = "has" if negative_heads == 1 else "have"
    heads_in_words = f"{negative_heads} of {counted(weighted.heads, 'head')} {verb}"
    screen.say(
        f"{label}: with equal variances the effective length is {_effective_length(equal)}. With"
        f" this model's, {heads_in_words} a negative sum; the effective length of the"
        f" worst is {worst_length}, the median {median_length}."
    )


EXAMPLES = """
ropeconv bound 128k
ropeconv bound 1M --head-dim 64 --json
ropeconv bound --theta 500000
ropeconv bound meta-llama/Llama-2-7b-hf --yarn 16 --up-to 64k
ropeconv bound ./Llama-2-7b-hf --weights --yarn 4
"""


@app.command("bound", cls=Command, epilog=EXAMPLES)
@expand_options
def bound_command(
    recipe: RecipeValues,
    screen: ProgressScreen,
    argument: Annotated[
        str | None,
        typer.Argument(metavar="LENGTH|SOURCE", help="A number of tokens, or a model to judge."),
    ] = None,
    head_dim: HeadDimOption = None,
    rotary_dim: RotaryDimOption = None,
    up_to: Annotated[
        str,
        typer.Option(
            "--up-to",
            help="Count violations below this (default: the context).",
            rich_help_panel=GENERAL,
            metavar="TOKENS",
        ),
    ] = "",
    windows: Annotated[
        bool | None,
        typer.Option(
            "--windows/--no-windows",
            help=(
                "Look for the first wide interval and the last violation (default: where that is"
                " quick)."
            ),
            rich_help_panel=GENERAL,
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            help="Write the proof: intervals of ln b, each with a distance.",
            rich_help_panel=GENERAL,
            metavar="FILE",
            parser=expand_home,
        ),
        Writes(),
    ] = None,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights",
            help="Weigh every pair by the SOURCE's own projections, for each layer and head.",
            rich_help_panel=GENERAL,
        ),
    ] = False,
) -> None:
    """Find the smallest rope_theta for a context length, or the longest distance that a model
    supports.

    The bound of Men et al. 2024: sum_i cos(m theta_i) + (d - r)/2 must not be negative for any
    distance m. With a LENGTH: the smallest base above 1, proven, and the first range of bases that
    is wide enough to use. With a SOURCE, methods, or --theta: the effective length. --weights adds
    the effective length of each head.
    """
    by_length = argument is not None and is_length(argument)
    if up_to and by_length:
        raise UsageError("--up-to does not go with a length; leave one out")
    if weights and by_length:
        raise UsageError("--weights does not go with a length; give a SOURCE")
    frequencies_only(recipe)
    check_place(certificate)
    given = [name for name, value in recipe.items() if value is not None]

    # a length: its smallest base
    if argument is not None and is_length(argument):
        if given:
            flag = given[0].replace("_", "-")
            raise UsageError(
                f"--{flag} does not go with a length; give a length, or a schedule with --up-to"
            )
        width, rotary = head_size(head_dim, rotary_dim)
        _find_base(
            parse_tokens(argument),
            head_dim=width,
            rotary_dim=rotary,
            windows=windows,
            certificate=certificate,
            screen=screen,
        )
        return

    # a model, or a base: its effective length
    if certificate is not None or windows is not None:
        raise UsageError(
            "--certificate and --windows go with a LENGTH, as in `ropeconv bound 128k --windows`"
        )
    if argument is None and not given:
        raise UsageError("give a length such as 128k, a SOURCE, or --theta B")
    model = find(argument, recipe, head_dim, rotary_dim)
    is_only_a_base = argument is None and given == ["theta"]
    if is_only_a_base and not up_to:
        up_to = "1M"  # a base has no context that would limit the search
    _find_reach(model, up_to, weights, screen)


def _find_reach(model: GivenModel, up_to: str, weights: bool, screen: Screen) -> None:
    """Show the effective length of every schedule of a model.

    Args:
        model: The model with its methods.
        up_to: The distances to search, as given; empty for the context of each schedule.
        weights: Also weigh the pairs by the projections of each head.
        screen: Where it is shown.
    """
    # the weights are read first: a model without them is refused before the search begins
    heads = None
    if weights:
        heads = _head_weights(model, screen)

    # the effective length of each schedule, and with its weights that of each head
    schedules: Schedules = {}
    for label, schedule in model.schedules().items():
        if up_to:
            length = parse_tokens(up_to)
        else:
            length = model.spec.visible(schedule.context)
        effective_length = reach(schedule.inv_freq, model.spec.unrotated, length)
        schedules[label] = (schedule, effective_length)
    weighted = {}
    if heads is not None:
        weighted = _search_heads(heads, schedules, screen)

    if screen.as_json:
        screen.data(_document(model.spec, schedules, weighted))
        return
    if not weighted:
        _show_reach(model.spec, schedules, screen)
        return
    for label, lengths in weighted.items():
        _, effective_length = schedules[label]
        _show_weighted(label, effective_length, lengths, screen)

    # layers that a method does not change have no effective length
    left_out = []
    for kind, words in LAYERS_LEFT_OUT.items():
        count = model.spec.count(kind)
        if count:
            left_out.append(f"{count} {words}")
    if left_out:
        screen.say(f"Layers left out: {' and '.join(left_out)}.")


def _find_base(
    length: int,
    head_dim: int,
    rotary_dim: int,
    windows: bool | None,
    certificate: Path | None,
    screen: Screen,
) -> None:
    """Show the smallest RoPE base (rope_theta) for a context length, and write its proof.

    It is the lower bound of Men et al. 2024 (https://arxiv.org/abs/2405.14591): with a smaller
    base, a head with equal weights prefers random tokens to similar ones at some distance below the
    length.

    Args:
        length: The context length in tokens.
        head_dim: Dimensions of a head.
        rotary_dim: Dimensions of a head that rotate.
        windows: Whether to compute two more bases: the first one of an interval 1 % wide, and the
            last one that is too small. None computes them where that is quick.
        certificate: The file to which the proof is written; None for no file.
        screen: Where the bases are shown.
    """
    # The proof is a list of intervals of bases that are too small, each as (ln of its begin, ln of
    # its end, a distance with a negative sum). `bound` fills the list that it is given.
    proof: list[tuple[float, float, int]] | None = None
    if certificate is not None:
        proof = []
    with screen.watching() as report_progress:
        bases = bound(length, rotary_dim, head_dim, windows, proof, report_progress)

    if certificate is not None and proof is not None:
        # repr writes the shortest decimals that give the same float64
        lines = ["# ln b from\tto\tdistance whose sum is negative there\n"]
        for begin, end, distance in proof:
            lines.append(f"{begin!r}\t{end!r}\t{distance}\n")
        write_file(certificate, "".join(lines))

    if screen.as_json:
        screen.data(bases.to_dict())
    else:
        _show_bound(bases, screen)


def _show_bound(bases: Bound, screen: Screen) -> None:
    """Show which bases (`rope_theta`) suit a length, as a table.

    A base violates the bound of Men et al. 2024 if sum_i cos(m theta_i) is negative at some
    distance m below the length: a similar token so far away then gets, on average, a lower logit
    than a random one. For 4,096 tokens and heads of 128 dimensions, 26,952 is the smallest base
    that does not violate it.

    Args:
        bases: The smallest base, and intervals of bases that do not violate the bound.
        screen: Where they are shown.
    """
    title = f"{bases.length:,} tokens, {bases.rotary_dim} of {bases.head_dim} dimensions rotate"
    every_base_suits = bases.binding_distance is None
    if every_base_suits:
        screen.say(f"{title}: every base above 1 keeps the sum from being negative.")
        return

    screen.table(title, ("", "base", ""), _rows_of_bound(bases))
    not_searched = _name_missing_searches(bases)
    if not_searched:
        screen.say(f"--windows looks for {not_searched}, which takes 15 minutes at 1M tokens.")


def _rows_of_bound(bases: Bound) -> list[tuple[str, str, str]]:
    """Return the rows of the table of RoPE bases for a length: a label, a base and a remark.

    A base is large enough if sum_i cos(m theta_i) is not negative at any distance m below the
    length (theta_i: the frequencies with this base).

    Args:
        bases: The smallest base for a length, and larger ones with other properties.
    """
    # The bases that are large enough are intervals with gaps between them. The first interval
    # begins at the smallest base, where the sum is 0 at one distance. It is too narrow to use.
    zero_distance = bases.binding_distance
    first_interval = _interval(bases.window)
    width = "" if bases.width is None else f"{bases.width:.2g} wide"
    rows = [
        ("smallest base", repr(bases.base), f"the sum is 0 at distance {zero_distance:,}"),
        ("the interval it opens", first_interval, width),
    ]
    # two bases that are computed on request
    if bases.first_wide_window:
        wide_interval = _interval(bases.first_wide_window)
        rows.append(("first interval 1 % wide", wide_interval, "used by --theta-bound"))
    if bases.last_violating_base:
        last_base = f"{bases.last_violating_base:,.0f}"
        rows.append(("last base that violates", last_base, "all larger ones will do"))

    # the smallest bases for this length in papers, to compare with
    for paper, published_base in bases.published.items():
        rows.append(("published", f"{published_base:.2g}", paper))

    # In heads of ever more dimensions the sum tends to an integral, which becomes negative at
    # m / base = x0 = 0.617. So the smallest base for a length L tends to L / x0 = 1.62 L.
    estimate = asymptotic_base(bases.length)
    rows.append(("estimate L / x0", f"{estimate:,.0f}", "for ever wider heads"))
    return rows


def _name_missing_searches(bases: Bound) -> str:
    """Return which slow searches were not made, in words; empty where both were."""
    if bases.known_windows:
        return ""
    if bases.first_wide_window:
        return "the last violation"
    return "the first wide interval and the last violation"


def _interval(ends: tuple[float, float | None]) -> str:
    """Return an interval of bases in words."""
    begin, end = ends
    if end is None:
        return f"{begin:,.1f} and above"
    return f"{begin:,.1f} to {end:,.1f}"
