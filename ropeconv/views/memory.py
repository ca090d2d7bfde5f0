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
    """Return whether a model fits at the wanted context, in one runtime.

    The memory does not depend on the method. The runtime is the one whose command `ropeconv apply`
    would show for the best method: the first named one that supports it, else a usual one.

    Args:
        advice: The methods.
        machine: The machine and the type of the cache.
        named: The values of --runtime.

    Returns:
        The fit; None for a draft model, without a method, and where the memory is not known.

    Raises:
        UsageError: For a value that the runtime cannot have.
    """
    inspection = advice.inspection
    best = advice.best
    if inspection.draft or best is None:
        return None

    # How each runtime computes the best method. `writings` has the encoding of the method in each
    # format, and the verdicts of runtimes on it; here in the format of the model.
    is_folder = not isinstance(inspection.source, GgufSource)
    format_name = "safetensors" if is_folder else "gguf"
    encoded = best.writings.get(format_name)
    verdicts = encoded.verdicts if encoded else ()
    return shown_fit(inspection.shape, advice.context, verdicts, is_folder, machine, named)


def advice_document(
    advice: RankedMethods, machine: MachineOptions, named: tuple[str, ...] = ()
) -> JsonObject:
    """Return advice as `--json` prints it, with the memory that the wanted context takes.

    It is such as {"advice": [{"method": "yarn", ..., "fits": true}, ...], ..., "memory": [...]}.
    The memory depends on the context and not on the method, so `fits` is the same for all methods:
    whether the model fits in the runtime of `advised_fit`. `memory` has an entry for every runtime
    that loads the format of the model.

    Args:
        advice: The methods.
        machine: The machine and the type of the cache.
        named: The values of --runtime; empty for the runtime that is usual.

    Raises:
        UsageError: For a value that the runtime cannot have.
    """
    # the "fits" of every method: true or false, and null where the memory is not known
    fit_of_usual_runtime = advised_fit(advice, machine, named)
    model_fits = None
    if fit_of_usual_runtime is not None and fit_of_usual_runtime.is_known:
        model_fits = fit_of_usual_runtime.fits
    document = advice.to_dict()
    for row in document["advice"]:
        row["fits"] = model_fits

    # the memory in each runtime; not for a draft model, which runs beside its target
    inspection = advice.inspection
    memory = []
    if not inspection.draft:
        is_folder = not isinstance(inspection.source, GgufSource)
        for fit in all_fits(inspection.shape, advice.context, is_folder, machine):
            memory.append(fit.document().to_dict())
    document["memory"] = memory
    return document
