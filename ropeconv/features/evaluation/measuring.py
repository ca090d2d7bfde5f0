"""`evaluate` and `tune`: what methods do to a model, and frequencies found by measuring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar, Unpack

from ropeconv.engines.engine import Progress
from ropeconv.keywords import Length, StrPath
from ropeconv.options import asked_names
from ropeconv.reporting import Reporter, SilentReporter
from ropeconv.verbs.arguments import check_keywords, check_value, list_keywords, reference_of
from ropeconv.verbs.recipes import length_text

from .evaluation import Sizes, evaluate_model, refuse_ignored
from .keywords import EvaluateKeywords, TuneKeywords
from .result import Result
from .runners.runner import RunnerRequest
from .tune.result import TuningResult
from .tune.tuning import SearchSettings, tune_model

Texts = StrPath | Sequence[StrPath]
"""A file, a pattern, the text itself, or several of these."""
Kind = TypeVar("Kind")


@list_keywords(EvaluateKeywords)
def evaluate(
    model: object,
    methods: str | Iterable[str] = "",
    text: Texts = (),
    **keywords: Unpack[EvaluateKeywords],
) -> Result:
    """Measure what methods do to a model, before anything is written.

    Args:
        model: A checkpoint, a GGUF file or an output of `apply`, as in `inspect`.
        methods: The rows, such as "base,yarn:4,mixed:4" or a list of them.
        text: A file, a pattern, the text itself, or several of these.
        keywords: The flags of `ropeconv eval` with underscores. They are listed below.

    Raises:
        UsageError: For keywords that do not exist or have no effect, and a row that does not name a
            method.
        RopeconvError: Where the model, a text or all rows cannot be run.
    """
    given = check_keywords("evaluate", keywords, EvaluateKeywords)
    reporter = given.pop("reporter", None) or SilentReporter()

    # `evaluate_model` reads texts with commas, as on the command line: "base,yarn:4"
    rows = ",".join(_as_texts("methods", methods))
    measures = Sizes.measures  # the default
    if "measure" in given:
        measures = ",".join(_as_texts("measure", given["measure"]))

    # Sizes: how much is measured, such as lengths and windows
    size_options = _select_fields(given, Sizes, without=["measures"])
    if "lengths" in given:
        size_options["lengths"] = ",".join(_as_texts("lengths", given["lengths"], Length))
    sizes = Sizes(measures=measures, **size_options)

    # RunnerRequest: where and how the model runs, such as the device
    run_options = _select_fields(given, RunnerRequest, without=["model", "rows"])
    if "server" in given:
        run_options["servers"] = _as_texts("server", given["server"])
    if "against" in given:  # a path, a name on the Hub, or an object such as an inspection
        run_options["against"] = reference_of("evaluate", given["against"])

    reference = reference_of("evaluate", model, given.get("family", ""))
    servers = run_options.get("servers", ())
    refuse_ignored(asked_names(given), reference, servers, sizes.chosen_measures())

    with reporter.counting("Measuring") as (total, advance):
        return evaluate_model(
            reference,
            rows,
            text,
            sizes,
            journal=given.get("journal"),
            progress=Progress(reporter.note, total, advance),
            fresh=given.get("fresh", False),
            **run_options,
        )


@list_keywords(TuneKeywords)
def tune(
    model: object, text: Texts, context: int | str, **keywords: Unpack[TuneKeywords]
) -> TuningResult:
    """Search for frequencies with a lower loss on a text than every formula.

    Args:
        model: A checkpoint, as in `inspect`.
        text: A file, a pattern, the text itself, or several of these. A part is held out of the
            search for the test.
        context: The context to reach, as a number of tokens or a text such as "32k".
        keywords: The flags of `ropeconv tune` with underscores. They are listed below.

    Returns:
        The recipe, as `Recipe.from_dict(result.recipe)` reads it, with its evidence.

    Raises:
        UsageError: For keywords that do not exist, and wrong settings.
        RopeconvError: Where the model or a text cannot be read or run.
    """
    given = check_keywords("tune", keywords, TuneKeywords)
    reporter: Reporter = given.pop("reporter", None) or SilentReporter()
    check_value("context", context, int | str)
    search_options = _select_fields(given, SearchSettings, without=["context"])
    settings = SearchSettings(context=str(context), **search_options)

    # keywords that say where and how the model runs, such as device, are fields of RunnerRequest
    run_options = _select_fields(given, RunnerRequest, without=["model", "rows"])
    with reporter.counting("Searching", "steps") as (total, advance):
        return tune_model(
            reference_of("tune", model, given.get("family", "")),
            text,
            settings,
            progress=Progress(reporter.note, total, advance),
            journal=given.get("journal"),
            fresh=given.get("fresh", False),
            **run_options,
        )


def _select_fields(
    given: dict[str, Any], kind: type[Kind], without: Sequence[str]
) -> dict[str, Any]:
    """Return the keywords that are fields of a dataclass, except the fields in `without`."""
    names = {item.name for item in fields(kind)} - set(without)  # type: ignore[arg-type]
    return {name: value for name, value in given.items() if name in names}


def _as_texts(name: str, value: Any, kind: Any = str) -> tuple[str, ...]:
    """Return the value of a keyword as texts: ("yarn:4",) for "yarn:4" and for ["yarn:4"].

    Args:
        name: The keyword, for the message.
        value: One value, or several.
        kind: The type of each.
    """
    check_value(name, value, kind | Iterable[kind])
    if isinstance(value, str | int | float):
        values: tuple[Any, ...] = (value,)
    else:
        values = tuple(value)
    for one in values:
        check_value(name, one, kind)
    return tuple(length_text(one) for one in values)
