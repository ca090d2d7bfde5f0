"""`probe`: what an installed runtime computes from a model's config."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..engines.probes.installed import InstalledRuntime, find_askable, find_installed
from ..engines.probes.result import ProbeResult, expectation, layer_counts, rounded_factor
from ..errors import BadSource
from ..inspection.inspection import ConfigInspection, inspect_source
from ..inspection.receipts.folder import valid_receipt
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.errors import RopeconvError
from ..rope.schedule import Schedule
from ..runtimes.verdict import PlannedConfig
from .arguments import check_arguments, source_of


@check_arguments
def probe(runtime: str, model: object, *, python: str = "", family: str = "") -> ProbeResult:
    """Ask an installed runtime what it computes from the config of a model.

    The runtime builds its own model class from config.json, without weights, in a process of its
    own.

    Args:
        runtime: Its name, as `--runtime` has it: "transformers", "vllm", "mlx-lm" or "exllamav3".
        model: A path, an id on the Hub, or a source.
        python: The interpreter of another environment, in which the runtime is installed.
        family: The family to treat the model as, in place of that of its model_type.

    Raises:
        UsageError: For something that is not a model.
        BadSource: For a damaged checkpoint, and for a GGUF file.
        RopeconvError: For a runtime that cannot be asked, or is not installed.
    """
    installed = require_installed(runtime, python)
    try:
        return probe_source(installed, source_of("probe", model, family))
    finally:
        installed.stop()


def require_installed(name: str, python: str) -> InstalledRuntime:
    """Return an installed runtime. Raises RopeconvError where it is not installed."""
    installed = find_installed(name, python)
    if installed is not None:
        return installed
    askable = find_askable(name)
    if python:
        raise RopeconvError(
            f"{python} has no package {askable.package}; name the Python that has it with --python"
        )
    raise RopeconvError(
        f"{askable.name} is not installed here; name the Python that has it, as in --python"
        f" ./{askable.name}/bin/python"
    )


def probe_source(installed: InstalledRuntime, source: Source | GgufSource) -> ProbeResult:
    """Return what a runtime computes from the config of a source. Raises as `probe` does."""
    if isinstance(source, GgufSource):
        raise BadSource(
            f"{source.reference} is a GGUF file, and a probe asks about config.json; run"
            " `ropeconv validate` on it"
        )
    inspection = inspect_source(source)
    assert isinstance(inspection, ConfigInspection)
    # `answer` is what the runtime computes, `outcome` how that differs from the expected schedule,
    # and `verdict` the status that follows
    planned = expected_of(inspection, source)
    answer, outcome = installed.outcome(planned)
    verdict = installed.verdict_from(planned, answer, outcome)
    return ProbeResult(
        subject=source.reference,
        runtime=installed.name,
        title=installed.title,
        version=installed.version,
        python=installed.installation.python,
        status=verdict.status,
        reason=verdict.reason,
        expected=expectation(planned.schedule),
        expected_attention_factor=planned.schedule.attention_factor,
        attention_factor=rounded_factor(outcome),
        deviation=outcome.deviation,
        switches=any(rope.switches for rope in answer.ropes),
        context=planned.schedule.context,
        window=answer.window,
        model_class=answer.model_class,
        backend=answer.backend,
        **layer_counts(answer),
    )


def expected_of(inspection: ConfigInspection, source: Source) -> PlannedConfig:
    """Return the config of a checkpoint with the schedule that a runtime should compute from it.

    For an output of ropeconv, this is the schedule in its receipt. For another model, it is the one
    that transformers reads from the config.
    """
    planned = inspection.planned
    receipt = valid_receipt(source)
    if receipt is None or receipt.in_config is None:
        return planned

    record = receipt.schedule
    short = None
    if record.short_inv_freq is not None:
        short = np.asarray(record.short_inv_freq)
    schedule: Schedule = replace(
        planned.schedule,
        inv_freq=np.asarray(receipt.computed_inv_freq),
        short_inv_freq=short,
        attention_factor=receipt.in_config.attention_factor,
        softmax_scale=receipt.in_config.softmax_scale,
        context=record.context,
        original_context=record.original_context,
    )
    return PlannedConfig(planned.config, planned.family, schedule, inspection.first_spec)
