"""Show how two models differ, and whether models fit together."""

from ropeconv.inspection.frequencies import FrequencyDifference
from ropeconv.inspection.inspection import Inspection
from ropeconv.inspection.support import POPULAR, WORDS
from ropeconv.rope.errors import counted
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.verdict import describe
from ropeconv.views.sheet import Sheet, statuses

from .compatibility import Compatibility
from .side_by_side import RopeDifference, Side

PROPERTIES = {
    "family": "family",
    "frequencies": "frequencies",
    "attention_factor": "attention factor",
    "softmax_scale": "softmax scale",
    "query_scaling": "query scaling",
    "context": "context",
    "original_context": "trained for",
    "layers": "layers",
    "window_frequencies": "window layers",
    "window_attention_factor": "their attention factor",
    "rotary_dim": "rotary_dim",
    "mla": "attention",
    "layout": "pairs",
}
"""The titles of the properties of a model, by their names."""


def show_compatibility(compatibility: Compatibility, sheet: Sheet) -> None:
    """Show a table of models beside the base of their merge, and of adapters over their models.

    Below the table, each difference has a sentence with its repair.
    """
    # a row for each model and adapter
    rows = [_model_row("base", compatibility.base)]
    for model in compatibility.models:
        rows.append(_model_row("", model))
    for adapter, model_below in compatibility.adapters:
        rope = "unknown"  # that of the model which the adapter was trained on
        context = ""
        if adapter.trained_on:
            spec = adapter.trained_on.spec
            rope = describe(spec.form)
            context = f"{spec.context:,}"
        name = f"{adapter.source.reference} over {model_below.source.reference}"
        rows.append(("adapter", name, rope, context))
    columns = ("", "model", "RoPE", "context")
    sheet.table("", columns, rows, optional=("context",), right=("context",))

    # a repair that is a command has a line of its own, from which it can be copied
    for misfit in compatibility.misfits:
        if misfit.repair.startswith("ropeconv "):
            sheet.say(f"! {misfit.name} {misfit.message}")
            sheet.copyable(f"Fix: {misfit.repair}")
        else:
            sheet.say(f"! {misfit.name} {misfit.message}; {misfit.repair}")
    for note in compatibility.notes:
        sheet.say(note)
    sheet.say(compatibility.sentence)


def _model_row(mark: str, model: Inspection) -> tuple[str, str, str, str]:
    """Return the row of a model: what it is, its name, its RoPE and its context."""
    spec = model.spec
    return mark, model.source.reference, describe(spec.form), f"{spec.context:,}"


def show_comparison(difference: RopeDifference, sheet: Sheet, explain: bool = False) -> None:
    """Show how two models differ: the properties, the frequencies, and the runtimes.

    Args:
        difference: The difference.
        sheet: The sheet that shows it.
        explain: Whether properties that are equal, and every runtime are shown.
    """
    sheet.copyable(f"A: {difference.first.inspection.source.reference}")
    sheet.copyable(f"B: {difference.second.inspection.source.reference}")
    _show_properties(difference, sheet, explain)
    _show_frequencies(difference, sheet, explain)
    if explain:
        _show_all_runtimes(difference, sheet)
    else:
        _show_changed_runtimes(difference, sheet)

    for remark in difference.remarks:
        sheet.say(remark)
    sheet.say(difference.sentence)


def _show_properties(difference: RopeDifference, sheet: Sheet, explain: bool) -> None:
    """Show a table of properties, such as the layout, with a column for each of two models.

    Args:
        difference: The properties of both, and the names of those that differ.
        sheet: The sheet that shows it.
        explain: Whether equal properties are shown too.
    """
    first = _values(difference.first)
    second = _values(difference.second)
    rows = []
    for key, title in PROPERTIES.items():
        differs = key in difference.differs
        if not explain and not differs:
            continue
        if not first[key] and not second[key]:
            continue
        row = [title, first[key], second[key]]
        if explain:
            row.append("differs" if differs else "")
        rows.append(row)
    if rows:
        columns = ("", "A", "B", "") if explain else ("", "A", "B")
        sheet.table("", columns, rows)


def _show_frequencies(difference: RopeDifference, sheet: Sheet, explain: bool) -> None:
    """Show how the frequencies of two models differ, if `explain` is set.

    If the models rotate different numbers of pairs, their frequencies cannot be compared. A
    sentence says so, whether `explain` is set or not.

    Args:
        difference: The difference of two models.
        sheet: The sheet that shows it.
        explain: Whether to show how the frequencies differ.
    """
    compared_vectors = {
        "Frequencies": difference.frequencies,
        "Frequencies within the trained context": difference.short_frequencies,
        "Frequencies of window layers": difference.window_frequencies,
    }
    if explain:
        for title, vector in compared_vectors.items():
            if vector is not None:
                sheet.say(f"{title}: {_vector(vector)}")

    rotate_different_numbers_of_pairs = difference.frequencies is None
    if rotate_different_numbers_of_pairs:
        first = counted(difference.first.spec.rotary_dim // 2, "pair")
        second = difference.second.spec.rotary_dim // 2
        sheet.say(f"Frequencies: not compared, A rotates {first} and B {second}.")


def _show_all_runtimes(difference: RopeDifference, sheet: Sheet) -> None:
    """Show the support of two models by every runtime, and the legend of the statuses."""
    rows = []
    shown_statuses = []
    for pair in difference.runtimes:
        first, second = pair.statuses
        rows.append((pair.display_name, first or "-", second or "-"))
        for status in (first, second):
            if status:
                shown_statuses.append((status, ""))  # a status and where it is from
    sheet.table("Runtime support", ("newest version", "A", "B"), rows)
    sheet.say(f"{statuses(shown_statuses)}\n")


def _show_changed_runtimes(difference: RopeDifference, sheet: Sheet) -> None:
    """Show the popular runtimes that support two models differently."""
    rows = []
    for pair in difference.runtimes:
        first, second = pair.statuses
        name, _, _ = pair.runtime.partition("@")  # without the version
        if first == second or name not in POPULAR:
            continue
        words = WORDS.get(first or "", "-")
        other_words = WORDS.get(second or "", "-")
        rows.append((pair.display_name, words, other_words))
    if rows:
        sheet.table("", ("runtime", "A", "B"), rows)


def _values(side: Side) -> dict[str, str]:
    """Return the properties of a model in words, such as {"layout": "rotate_half"}, by name.

    The words are empty where a property has its usual value.
    """
    spec = side.spec
    values = dict.fromkeys(PROPERTIES, "")

    values["family"] = side.inspection.name
    values["frequencies"] = describe(spec.form)
    values["attention_factor"] = f"{spec.attention_factor:.6g}"
    if side.folded:
        values["attention_factor"] += " (partly in the weights)"
    if spec.softmax_scale != 1:
        values["softmax_scale"] = f"{spec.softmax_scale:.6g}"
    if spec.query_scaling:
        gain = f"{spec.query_scaling.gain:.6g}"
        beta = f"{spec.query_scaling.beta:.6g}"
        length = f"{spec.query_scaling.length:,}"
        values["query_scaling"] = f"{gain} (1 + {beta} ln(1 + floor(p / {length})))"

    values["context"] = f"{spec.context:,}"
    values["original_context"] = f"{spec.original_context:,}"

    values["layers"] = _layers(spec)
    if spec.local_form:
        values["window_frequencies"] = describe(spec.local_form)
    if side.window_attention_factor != 1:
        values["window_attention_factor"] = f"{side.window_attention_factor:.6g}"

    values["rotary_dim"] = f"{spec.rotary_dim} of head_dim {spec.head_dim}"
    if spec.mla:
        values["mla"] = "multi-head latent"
    values["layout"] = "rotate_half" if spec.layout == "half" else "interleaved"
    return values


def _layers(spec: RopeSpec) -> str:
    """Return how many layers rotate, in words."""
    verbs = {
        "global": ("rotates", "rotate"),
        "local": ("rotates in a window", "rotate in a window"),
        "none": ("does not rotate", "do not rotate"),
    }
    parts = []
    for kind, (one, many) in verbs.items():
        if kind in spec.layers:
            parts.append(counted(spec.layers.count(kind), one, many))
    return "; ".join(parts)


def _vector(difference: FrequencyDifference) -> str:
    """Return a sentence on two vectors of frequencies."""
    if difference.same:
        return f"all {difference.pairs} pairs agree (within {difference.max_ulp} ulp of float32)."
    verb = "differs" if difference.differing == 1 else "differ"
    ratio = "one of them 0"
    if difference.largest_ratio is not None:
        ratio = f"the largest ratio is {difference.largest_ratio:.6g}"
    values = f"A {difference.first:.6e}, B {difference.second:.6e}"
    return (
        f"{difference.differing} of {difference.pairs} pairs {verb}; {ratio}, at pair"
        f" {difference.largest_ratio_at} ({values})."
    )
