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
    """Return how much memory the model needs at the new context in a runtime, and whether it fits.

    The runtime is chosen as `ropeconv apply` chooses it for the best method: the first runtime of
    --runtime that supports the method; without --runtime, a popular one, such as vLLM.

    Args:
        advice: The methods.
        machine: The machine, and the type of the KV cache.
        named: The runtimes that the user named with --runtime; empty for none.

    Returns:
        The memory; None if there is no method, for a draft model, and if it is not known.

    Raises:
        UsageError: An option of the machine has a value that the runtime does not accept.
    """
    inspection = advice.inspection
    best_method = advice.best
    if inspection.draft or best_method is None:
        return None

    # `writings` has an entry for each format in which the method can be written, with the verdicts
    # of runtimes. The format is the format of the model.
    is_folder = not isinstance(inspection.source, GgufSource)
    format_name = "safetensors" if is_folder else "gguf"
    written = best_method.writings.get(format_name)
    verdicts = written.verdicts if written else ()
    return shown_fit(inspection.shape, advice.context, verdicts, is_folder, machine, named)


def advice_document(
    advice: RankedMethods, machine: MachineOptions, named: tuple[str, ...] = ()
) -> JsonObject:
    """Return the document of `ropeconv advise --json`, with the memory that the model needs.

    Args:
        advice: The methods.
        machine: The machine, and the type of the KV cache.
        named: The runtimes that the user named with --runtime; empty for none.

    Returns:
        {"advice": [{"method": "yarn", ..., "fits": true}, ...], ..., "memory": [...]}

    Raises:
        UsageError: An option of the machine has a value that the runtime does not accept.
    """
    # "fits": whether the model fits into the memory in one runtime, the one that `ropeconv apply`
    # would recommend. The memory does not depend on the method, so all methods get the same value:
    # true, false, or null if the memory is not known.
    fit_in_recommended_runtime = advised_fit(advice, machine, named)
    model_fits = None
    if fit_in_recommended_runtime is not None and fit_in_recommended_runtime.is_known:
        model_fits = fit_in_recommended_runtime.fits
    document = advice.to_dict()
    for method_document in document["advice"]:
        method_document["fits"] = model_fits

    # "memory": the memory in each runtime that loads the format of the model. It is left out for a
    # draft model, which runs together with its target.
    inspection = advice.inspection
    memory = []
    if not inspection.draft:
        is_folder = not isinstance(inspection.source, GgufSource)
        for fit in all_fits(inspection.shape, advice.context, is_folder, machine):
            memory.append(fit.document().to_dict())
    document["memory"] = memory
    return document
