"""Ask another process whether the attention of an output is that of the method.

The process is the probe, which has imported transformers already; `validate/layers.py` is what it
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..engines.probe import Probe
from ..engines.transformers.first_layers import NoLayerRuns
from ..engines.transformers.load import folder_of
from ..errors import Disagreement
from ..formats.files import read_text
from ..formats.safetensors import INDEX, shards
from ..inspection.receipts.receipt import LayersRecord
from ..models.source import SINGLE
from ..rope.schedule import LogN, effective_scaling
from ..validate.layers import CheckpointFiles, LayerQuestion
from .checkpoint import CheckpointPlan

ANSWER = "ropeconv.validate.layers:answer"

RunLayers = Callable[[Path], LayersRecord]
"""Compares the first layers of the output in a folder with those of its source."""


def layer_runner(plan: CheckpointPlan, probe: Probe) -> RunLayers:
    """Return the function that compares the first layers of an output with those of its source."""

    def run_layers(folder: Path) -> LayersRecord:
        try:
            with _question(plan, folder) as question:
                given = msgspec.to_builtins(question)
                answer = probe.call(ANSWER, given)
        except NoLayerRuns as problem:
            return LayersRecord(reason=str(problem))
        if "error" in answer:
            return LayersRecord(reason=f"transformers could not run one ({answer['error']})")
        return msgspec.convert(answer, LayersRecord)

    return run_layers


def refuse_difference(layers: LayersRecord, version: str) -> None:
    """Raise Disagreement where the attention of a layer is not that of the method.

    Args:
        layers: The comparison.
        version: The version of transformers.
    """
    worst = layers.differing
    if worst is not None:
        raise Disagreement(
            f"transformers {version} computes another attention from this output than the method"
            f" has: that of layer {worst.layer} differs by {worst.error:.2g} up to position"
            f" {worst.last:,}, where {worst.allowed:.2g} is allowed; report it"
        )


@contextmanager
def _question(plan: CheckpointPlan, folder: Path) -> Iterator[LayerQuestion]:
    """Give the question about an output in a folder.

    Raises:
        NoLayerRuns: There are no weights of the output or of its source to run.
    """
    source = plan.source
    result = plan.result
    schedule = plan.schedule
    family = source.family
    weights = _weights(plan, folder)

    rounded = {}
    of_source = weights
    if result.fold is not None:
        rounded = {name: source.tensors[name].dtype for name in result.fold.tensors}
    if not source.generated_files():
        of_source = tuple(str(source.path(name)) for name in source.weights())
    elif rounded:
        raise NoLayerRuns("its weights were converted and multiplied at once")

    short = schedule.short_inv_freq
    scale = effective_scaling(schedule.log_n, result.log_n_approximation, result.deviation)
    with folder_of(source, weights=False) as config:
        yield LayerQuestion(
            source=CheckpointFiles(
                config=str(config),
                weights=of_source,
                stands_for=family.text_type if family.assumed else "",
            ),
            output=CheckpointFiles(
                config=str(folder),
                weights=weights,
                stands_for=family.text_type if family.assumed else "",
                trust=bool(result.texts),
            ),
            inv_freq=tuple(schedule.inv_freq.tolist()),
            short_inv_freq=None if short is None else tuple(short.tolist()),
            attention_factor=schedule.attention_factor,
            softmax_scale=schedule.softmax_scale,
            context=schedule.context,
            original_context=schedule.original_context,
            log_n=scale if isinstance(scale, LogN) else None,
            query_scaling=None if isinstance(scale, LogN) else scale,
            queries=family.weights.queries,
            mla=plan.before.mla,
            rounded=rounded,
            unchanged=schedule.digest == plan.before.current().digest,
        )


def _weights(plan: CheckpointPlan, folder: Path) -> tuple[str, ...]:
    """The paths of the safetensors of an output.

    Files that a staged output leaves out are those of the source.
    """
    index = folder / INDEX
    names = shards(read_text(index, INDEX)) if index.exists() else (SINGLE,)
    files = {file.name: file for file in plan.files}
    paths = []
    for name in names:
        path: Path | None = folder / name
        if not (folder / name).exists():
            file = files.get(name)
            path = None if file is None else plan.origin(file)
        if path is None:
            raise NoLayerRuns("it has no safetensors")
        paths.append(str(path))
    return tuple(paths)
