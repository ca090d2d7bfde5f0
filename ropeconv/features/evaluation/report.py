"""The report of an evaluation, as one HTML file."""

from pathlib import Path

from ropeconv.formats.drafts import write_file
from ropeconv.formats.package_data import render
from ropeconv.inspection.kv_cache import described_size
from ropeconv.inspection.receipts.storage import describe_recipe
from ropeconv.rope.lengths import format_tokens
from ropeconv.views.plot_style import drawn
from ropeconv.views.reports import origin

from .measures.measure import REGISTRY
from .plots import evaluation_pictures
from .result import Result, tables


def write_evaluation_report(result: Result, path: Path) -> None:
    """Write the report of an evaluation as one HTML file.

    It has the tables, the pictures, how they were measured, and all numbers.

    Args:
        result: The evaluation.
        path: The file.

    Raises:
        RopeconvError: matplotlib is not installed.
    """
    model = result.source
    size = described_size(Path(result.source))
    if size:
        model += f", {size}"
    facts = {
        "Model": model,
        "Ran in": f"{result.runtime} on {result.device}, {result.dtype}",
        "Trained context": f"{result.trained:,} tokens",
        "Lengths": ", ".join(map(format_tokens, result.lengths)),
        "Texts": ", ".join(result.texts),
        "sha256 of their tokens": result.tokens_sha256,
        "Seed": str(result.seed),
        "Duration": f"{result.seconds:,.0f} s",
    }
    facts |= origin()

    summaries = {name: REGISTRY[name].summary for name in result.measures if name in REGISTRY}
    recipes = {}
    for row in result.rows:
        if row.recipe:
            recipes[row.name] = describe_recipe(row.recipe, result.unscaled_context, result.trained)
    page = render(
        "evaluation.html.jinja",
        result=result,
        tables=tables(result),
        pictures=drawn(evaluation_pictures(result)),
        recipes=recipes,
        summaries=summaries,
        facts=facts,
    )
    write_file(path, page)
