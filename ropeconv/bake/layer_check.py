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
from ..engines.transformers.first_layers import EXPERTS, NoLayerRuns
from ..engines.transformers.load import folder_of
from ..errors import Disagreement
from ..formats.disk import write_blocks
from ..formats.files import read_text, scratch
from ..formats.jsontext import JsonObject
from ..formats.safetensors import INDEX, header_bytes, shards, tensor_bytes
from ..inspection.receipts.receipt import LayersRecord, ScheduleRecord
from ..models.source import SINGLE
from ..rope.schedule import LogN, effective_scaling
from ..rope.spec import RopeSpec
from ..validate.layers import CheckpointFiles, LayerQuestion, NeededQuestion
from .checkpoint import CheckpointPlan

RunLayers = Callable[[Path], LayersRecord]
"""Compares the first layers of the output in a folder with those of its source."""


def layer_runner(plan: CheckpointPlan, probe: Probe) -> RunLayers:
    """Return the function that compares the first layers of an output with those of its source."""

    def run_layers(folder: Path) -> LayersRecord:
        try:
            with _question(plan, folder, probe) as question:
                answer = _ask(probe, "answer", msgspec.to_builtins(question))
        except NoLayerRuns as problem:
            return LayersRecord(reason=str(problem))
        return msgspec.convert(answer, LayersRecord)

    return run_layers


def _ask(probe: Probe, function: str, given: JsonObject) -> JsonObject:
    """Return the answer of a function of validate/layers.py. Raises NoLayerRuns if it fails."""
    answer = probe.call(f"ropeconv.validate.layers:{function}", given)
    if "error" in answer:
        raise NoLayerRuns(f"transformers could not run one ({answer['error']})")
    return answer


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
def _question(plan: CheckpointPlan, folder: Path, probe: Probe) -> Iterator[LayerQuestion]:
    """Give the question about an output in a folder.

    Raises:
        NoLayerRuns: There are no weights of the output or of its source to run.
    """
    source = plan.source
    result = plan.result
    schedule = plan.schedule
    family = source.family
    stands_for = family.text_type if family.assumed else ""
    rounded = {}
    if result.fold is not None:
        rounded = {name: source.tensors[name].dtype for name in result.fold.tensors}

    with folder_of(source, weights=False) as config, scratch() as place:
        of_output, missing = _output_weights(plan, folder)
        of_source = of_output
        if source.generated_files():
            if rounded:
                raise NoLayerRuns("its weights were converted and multiplied at once")
        elif any(source.local(name) is None for name in source.weights()):
            part = place / SINGLE
            _fetch_part(plan, probe, config, stands_for, part)
            of_source = [part]
        else:
            of_source = [source.path(name) for name in source.weights()]
        if missing:
            of_output += of_source

        scale = effective_scaling(schedule.log_n, result.log_n_approximation, result.deviation)
        yield LayerQuestion(
            source=CheckpointFiles(
                config=_absolute(config),
                weights=tuple(map(_absolute, of_source)),
                stands_for=stands_for,
            ),
            output=CheckpointFiles(
                config=_absolute(folder),
                weights=tuple(map(_absolute, of_output)),
                stands_for=stands_for,
                trust=bool(result.texts),
            ),
            numbers=ScheduleRecord(**schedule.to_dict()),
            log_n=scale if isinstance(scale, LogN) else None,
            query_scaling=None if isinstance(scale, LogN) else scale,
            layers=_first_layers(plan.before),
            queries=family.weights.queries,
            mla=plan.before.mla,
            rounded=rounded,
            unchanged=schedule.digest == plan.before.current().digest,
        )


def _first_layers(spec: RopeSpec) -> tuple[int, ...]:
    """The first layer of each kind: by its RoPE, and by the window that it sees."""
    first: dict[tuple[object, object], int] = {}
    for number, kind in enumerate(spec.layers):
        window = spec.windows[number] if spec.windows else None
        first.setdefault((kind, window), number)
    return tuple(first.values()) or (0,)


def _absolute(path: Path) -> str:
    """A path for another process, whose working directory may be another one."""
    return str(path.absolute())


def _output_weights(plan: CheckpointPlan, folder: Path) -> tuple[list[Path], bool]:
    """The safetensors of an output that are in its folder, and whether others are not.

    A staged output leaves out the files that are copied unchanged.
    """
    index = folder / INDEX
    names = shards(read_text(index, INDEX)) if index.exists() else (SINGLE,)
    planned = {file.name for file in plan.files}
    if not planned.issuperset(names):
        raise NoLayerRuns("it has no safetensors")
    paths = [folder / name for name in names if (folder / name).exists()]
    return paths, len(paths) < len(names)


def _fetch_part(
    plan: CheckpointPlan, probe: Probe, config: Path, stands_for: str, target: Path
) -> None:
    """Write the tensors of a source on the Hub that a comparison needs, read by their ranges.

    Args:
        plan: The plan.
        probe: Says which they are.
        config: The folder with the config.json of the source.
        stands_for: As in `CheckpointFiles`.
        target: The file.

    Raises:
        NoLayerRuns: No layer can run on its own.
    """
    source = plan.source
    shapes = {}
    for name, tensor in source.tensors.items():
        if EXPERTS not in name:
            shapes[name] = tensor.shape
    question = NeededQuestion(
        _absolute(config), shapes, stands_for, layers=_first_layers(plan.before)
    )
    answer = _ask(probe, "needed", msgspec.to_builtins(question))
    if "tensors" not in answer:
        raise NoLayerRuns(answer["reason"])

    rows_of = dict(answer["tensors"])
    parts = []
    ranges: list[tuple[str, int, int]] = []
    for file, header in source.headers.items():
        for name, tensor in sorted(header.tensors.items(), key=lambda item: item[1].start):
            rows = rows_of.pop(name, None)
            if rows is None:
                continue
            shape = tensor.shape
            if 0 < rows < shape[0]:
                shape = (rows, *shape[1:])
            parts.append((name, tensor.dtype, shape))

            # the projections of a layer follow each other in most files: one request for all
            start = header.data_start + tensor.start
            stop = start + tensor_bytes(tensor.dtype, shape)
            if ranges and ranges[-1][0] == file and ranges[-1][2] == start:
                start = ranges.pop()[1]
            ranges.append((file, start, stop))

    def blocks() -> Iterator[bytes]:
        yield header_bytes(parts, {})
        for file, start, stop in ranges:
            yield source.read(file, start, stop)

    write_blocks(blocks, target, lambda done: None)
