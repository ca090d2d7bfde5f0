"""The memory of a model in each runtime, and whether it fits, as sentences and tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..bake.fits import shown_fit
from ..formats.jsontext import JsonObject
from ..inspection.inspection import Inspection
from ..inspection.memory.fit import Fit, all_fits
from ..inspection.memory.machine import size
from ..models.gguf import GgufSource
from ..options import MachineOptions
from .sheet import Sheet

if TYPE_CHECKING:
    from ..bake.ranked import RankedMethods


def inspection_fit(inspection: Inspection, machine: MachineOptions) -> Fit | None:
    """Return whether a model fits at its context, in the runtime that runs it by default.

    Args:
        inspection: The model.
        machine: The machine and the type of the cache.

    Returns:
        The fit; None for a draft model, and where the memory is not known.

    Raises:
        UsageError: For a value that the runtime cannot have.
    """
    if inspection.draft:
        return None
    is_folder = not isinstance(inspection.source, GgufSource)
    verdicts = inspection.verdicts
    return shown_fit(inspection.shape, inspection.context, verdicts, is_folder, machine)


def memory_rows(fit: Fit | None) -> list[tuple[str, str]]:
    """Return the rows of an inspection: what the context takes, and whether it fits."""
    if fit is None:
        return []
    return [("memory", fit.memory), ("fits", fit.sentence)]


def show_fits(fits: Iterable[Fit], sheet: Sheet) -> None:
    """Show a row for each runtime whose formulas are known."""
    rows = []
    for fit in fits:
        # without the size of the weights, it is not known how long a context fits either
        need = fit.need
        weights = "?"
        longest = "?"
        if need.weights is not None:
            weights = size(need.weights)
            longest = f"{fit.longest:,}"
        row = (
            fit.runtime.display_name,
            weights,
            size(need.cache),
            size(need.activations),
            size(need.total),
            need.cache_type,
            fit.short,
            longest,
        )
        rows.append(row)
    if not rows:
        return
    columns = (
        "runtime",
        "weights",
        "KV cache",
        "activations",
        "total",
        "cache type",
        "fits",
        "longest",
    )
    sheet.table("Memory", columns, rows, right=("weights", "KV cache", "activations", "total"))


def show_memory(fit: Fit | None, sheet: Sheet) -> None:
    """Show whether the wanted context fits, which is the same for every method.

    Args:
        fit: That of `advised_fit`.
        sheet: Where it is shown.
    """
    if fit is not None:
        sheet.say(f"Fits:    {fit.sentence}")


def advised_fit(
    advice: RankedMethods, machine: MachineOptions, named: tuple[str, ...] = ()
) -> Fit | None:
    """Return whether a model fits at the wanted context, in the runtime that runs it by default.

    That is by the verdicts on the best method, in the format of the model.

    Args:
        advice: The methods.
        machine: The machine and the type of the cache.
        named: The values of --runtime, one of which is shown.

    Raises:
        UsageError: For a value that the runtime cannot have.
    """
    inspection = advice.inspection
    best = advice.best
    if inspection.draft or best is None:
        return None

    # how each runtime computes the best method, written in the format of the model
    is_folder = not isinstance(inspection.source, GgufSource)
    format_name = "safetensors" if is_folder else "gguf"
    writing = best.writings.get(format_name)
    verdicts = writing.verdicts if writing else ()
    return shown_fit(inspection.shape, advice.context, verdicts, is_folder, machine, named)


def advice_document(
    advice: RankedMethods, machine: MachineOptions, named: tuple[str, ...] = ()
) -> JsonObject:
    """Return advice as `--json` prints it, with the memory that the wanted context takes.

    Each method has `fits`: whether its output fits in the runtime that runs it by default. `memory`
    has every runtime of the format of the model.

    Args:
        advice: The methods.
        machine: The machine and the type of the cache.
        named: As for `advised_fit`.

    Raises:
        UsageError: For a value that the runtime cannot have.
    """
    # whether the output of each method fits, null where that is not known
    fits = None
    fit = advised_fit(advice, machine, named)
    if fit is not None and fit.is_known:
        fits = fit.fits
    document = advice.to_dict()
    for row in document["advice"]:
        row["fits"] = fits

    # the memory in each runtime
    inspection = advice.inspection
    memory = []
    if not inspection.draft:
        is_folder = not isinstance(inspection.source, GgufSource)
        for each in all_fits(inspection.shape, advice.context, is_folder, machine):
            memory.append(each.document().to_dict())
    return document | {"memory": memory}
