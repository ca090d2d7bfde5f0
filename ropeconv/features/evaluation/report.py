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
    """Writes the report of an evaluation: tables, pictures, how it was measured, all numbers, in
    one HTML file.

    Raises RopeconvError without matplotlib.
    """
    facts = {
        "Model": ", ".join(filter(None, [result.source, described_size(Path(result.source))])),
        "Ran in": f"{result.runtime} on {result.device}, {result.dtype}",
        "Trained context": f"{result.trained:,} tokens",
        "Lengths": ", ".join(map(format_tokens, result.lengths)),
        "Texts": ", ".join(result.texts),
        "sha256 of their tokens": result.tokens_sha256,
        "Seed": str(result.seed),
        "Duration": f"{result.seconds:,.0f} s",
    } | origin()
    summaries = {name: REGISTRY[name].summary for name in result.measures if name in REGISTRY}
    recipes = {
        row.name: describe_recipe(row.recipe, result.trained) for row in result.rows if row.recipe
    }
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
