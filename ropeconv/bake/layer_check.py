"""Ask another process whether the attention of an output is that of the method.

The process is the probe, which has imported transformers already; `validate/layers.py` is what it
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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
from ..models.source import SINGLE, Source
from ..rope.schedule import LogN, effective_scaling
from ..validate.layers import CheckpointFiles, LayerQuestion, NeededQuestion
from .checkpoint import CheckpointPlan

RunLayers = Callable[[Path], LayersRecord]
"""Compares the first layers of the output in a folder with those of its source."""


def layer_runner(plan: CheckpointPlan, probe: Probe) -> RunLayers:
    """Return the function that compares the first layers of an output with those of its source."""

    def run_layers(folder: Path) -> LayersRecord:
        """Run the first layers of an output, and return how they differ from the method.

        Raises:
            Disagreement: The layers of the source run, and those of the output do not.
        """
        try:
            with _question(plan, folder, probe) as question:
                answer = _ask(probe, "answer", msgspec.to_builtins(question))
        except NoLayerRuns as problem:
            return LayersRecord(reason=str(problem))
        if "broken" in answer:
            raise Disagreement(f"{answer['broken']}; report it")
        return msgspec.convert(answer, LayersRecord)

    return run_layers


def _ask(probe: Probe, function: str, given: JsonObject) -> JsonObject:
    """Return the answer of a function of validate/layers.py. Raises NoLayerRuns if it fails."""
    answer = probe.call(f"ropeconv.validate.layers:{function}", given)
    if "error" in answer:
        raise NoLayerRuns(f"transformers could not run one ({answer['error']})")
    return answer


def refuse_difference(layers: LayersRecord, version: str) -> None:
    """Raise Disagreement where a layer does not have the attention that the method gives.

    Args:
        layers: The comparison of the first layers of each kind.
        version: The version of transformers.
    """
    worst = layers.differing
    if worst is not None:
        raise Disagreement(
            f"transformers {version} computes another attention from this output than the method"
            f" has: that of layer {worst.layer} differs by {worst.error:.2g} up to position"
            f" {worst.last:,}, where {worst.allowed:.2g} is allowed; report it"
        )


def refuse_other_source(layers: LayersRecord, version: str) -> None:
    """Raise Disagreement where a source does not have the attention of the RoPE that was read.

    Args:
        layers: The comparison of the first layers of each kind, for an output with the RoPE of its
            source. The control is the source as transformers runs it.
        version: The version of transformers.
    """
    for layer in layers.layers:
        if layers.unchanged and layer.control > layer.allowed:
            raise Disagreement(
                f"transformers {version} computes another attention from the source than the RoPE"
                f" that ropeconv reads gives: that of layer {layer.layer} differs by"
                f" {layer.control:.2g} up to position {layer.last:,}, where {layer.allowed:.2g} is"
                " allowed; report it"
            )


@contextmanager
def _question(plan: CheckpointPlan, folder: Path, probe: Probe) -> Iterator[LayerQuestion]:
    """Give the question that the probe answers: whether the first layers compute the schedule.

    It names the files of two models: the output, and the source, which the probe patches to the
    schedule. Files that are downloaded for it exist until the context manager ends.

    Args:
        plan: The plan of the output.
        folder: The folder with the output.
        probe: The process that is asked. It also says which tensors of a source on the Hub the
            comparison needs.

    Raises:
        NoLayerRuns: There are no weights of the output or of its source to run.
    """
    source = plan.source
    result = plan.result
    schedule = plan.schedule
    # transformers loads a model type that it does not know as that of a family with the same layers
    family = source.family
    loaded_as = family.text_type if family.assumed else ""
    # tensors that a fold has multiplied, and so rounded
    rounded = {}
    if result.fold is not None:
        rounded = {name: source.tensors[name].dtype for name in result.fold.tensors}

    with folder_of(source, weights=False) as config, scratch() as place:
        output_weights, lacks_some = _output_weights(plan, folder)
        if source.generated_files():
            # transformers cannot load a source in another format. The output has its weights,
            # converted; unless a fold has multiplied them too, so that nothing has the source's.
            if rounded:
                raise NoLayerRuns("its weights were converted and multiplied at once")
            source_weights = output_weights
        else:
            source_weights = _source_weights(plan, probe, config, loaded_as, place)

        # files that are copied unchanged may be missing in the folder; a tensor is then read from
        # the source
        if lacks_some:
            output_weights = output_weights + source_weights

        scale = effective_scaling(schedule.log_n, result.log_n_approximation, result.deviation)
        yield LayerQuestion(
            source=CheckpointFiles(
                config=_absolute(config),
                weights=tuple(_absolute(path) for path in source_weights),
                loaded_as=loaded_as,
            ),
            output=CheckpointFiles(
                config=_absolute(folder),
                weights=tuple(_absolute(path) for path in output_weights),
                loaded_as=loaded_as,
                trust=bool(result.texts),
            ),
            numbers=ScheduleRecord(**schedule.to_dict()),
            # the scaling of queries is log-n, or steps that approximate it
            log_n=scale if isinstance(scale, LogN) else None,
            query_scaling=None if isinstance(scale, LogN) else scale,
            layers=plan.before.first_of_each_kind,
            queries=family.weights.queries,
            mla=plan.before.mla,
            rounded=rounded,
            unchanged=schedule.digest == plan.before.current().digest,
        )


def _absolute(path: Path) -> str:
    """A path for another process, whose working directory may be another one."""
    return str(path.absolute())


def _output_weights(plan: CheckpointPlan, folder: Path) -> tuple[list[Path], bool]:
    """The safetensors files in the folder of an output, and whether some are missing there.

    Some are where the output is staged, that is, without the files that are copied unchanged.

    Raises:
        NoLayerRuns: The output has no weights in safetensors.
    """
    # model.safetensors, or the shards that the index names
    index = folder / INDEX
    names: tuple[str, ...] = (SINGLE,)
    if index.exists():
        names = tuple(shards(read_text(index, INDEX)))
    planned = {file.name for file in plan.files}
    if not planned.issuperset(names):
        raise NoLayerRuns("it has no safetensors")

    paths = [folder / name for name in names if (folder / name).exists()]
    are_some_missing = len(paths) < len(names)
    return paths, are_some_missing


def _source_weights(
    plan: CheckpointPlan, probe: Probe, config: Path, loaded_as: str, place: Path
) -> list[Path]:
    """Return the paths of safetensors files with the weights of the first layers of a source.

    A source on this disk has such files. For a source on the Hub, the tensors of the first layers
    are downloaded, with only some rows of the embeddings.

    Args:
        plan: The plan of the output.
        probe: A process with transformers, which says which tensors the first layers have.
        config: The folder with the config.json of the source.
        loaded_as: The model_type with which transformers loads the source. The user names it with
            --family, such as "llama", if transformers does not know the model_type of the source.
            Empty otherwise.
        place: An empty folder, for the downloaded tensors.

    Raises:
        NoLayerRuns: No layer can run without the others.
    """
    source = plan.source
    is_on_disk = all(source.local(name) is not None for name in source.weights())
    if is_on_disk:
        return [source.path(name) for name in source.weights()]

    rows_by_tensor = _needed_rows(plan, probe, config, loaded_as)
    downloaded = place / SINGLE
    _fetch_tensors(source, rows_by_tensor, downloaded)
    return [downloaded]


def _needed_rows(
    plan: CheckpointPlan, probe: Probe, config: Path, loaded_as: str
) -> dict[str, int]:
    """Ask transformers which tensors are needed to run the first layers of a source.

    Args:
        plan: The plan of the output.
        probe: The process with transformers.
        config: The folder with the config.json of the source.
        loaded_as: The model type with which transformers loads the source; empty for its own.

    Returns:
        The number of first rows that are needed of each tensor, by its name; 0 for all rows.

    Raises:
        NoLayerRuns: No layer can run on its own.
    """
    # The names and shapes of all tensors, without the experts of a mixture, since only attention is
    # compared. Kimi K2 has 276,480 experts, whose names would make the question large.
    shapes = {}
    for name, tensor in plan.source.tensors.items():
        if EXPERTS not in name:
            shapes[name] = tensor.shape
    question = NeededQuestion(
        _absolute(config), shapes, loaded_as, layers=plan.before.first_of_each_kind
    )
    answer = _ask(probe, "find_needed_tensors", msgspec.to_builtins(question))
    if "tensors" not in answer:
        raise NoLayerRuns(answer["reason"])
    return dict(answer["tensors"])


def _fetch_tensors(source: Source, needed_rows: Mapping[str, int], target: Path) -> None:
    """Write some tensors of a source on the Hub into one file, without downloading the others.

    Args:
        source: The checkpoint on the Hub.
        needed_rows: The tensors, as `_needed_rows` returns them.
        target: The safetensors file to write.
    """
    parts = _parts_to_fetch(source, needed_rows)
    entries = [(part.name, part.dtype, part.shape) for part in parts]

    def blocks() -> Iterator[bytes]:
        """Yield the bytes of the new file, which are requested from the Hub range by range."""
        yield header_bytes(entries, {})
        for file, start, stop in _join_neighbours(parts):
            yield source.read(file, start, stop)

    write_blocks(blocks, target, lambda done: None)


class _PartToFetch(NamedTuple):
    """A tensor on the Hub, or its first rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    file: str
    """The file that has it."""

    start: int
    """Its first byte in that file."""

    stop: int
    """The byte after its last one."""


def _parts_to_fetch(source: Source, needed_rows: Mapping[str, int]) -> list[_PartToFetch]:
    """Return where the needed tensors are, in the order of the files and of their bytes.

    Args:
        source: The checkpoint on the Hub.
        needed_rows: How many of its first rows are needed, by the name of a tensor; 0 for all.
    """
    remaining = dict(needed_rows)  # of a tensor that two files have, the first one counts
    parts = []
    for file, header in source.headers.items():
        in_order = sorted(header.tensors.values(), key=lambda tensor: tensor.start)
        for tensor in in_order:
            rows = remaining.pop(tensor.name, None)
            if rows is None:
                continue
            shape = tensor.shape
            row_count, *row_shape = shape
            if 0 < rows < row_count:
                shape = (rows, *row_shape)
            start = header.data_start + tensor.start
            stop = start + tensor_bytes(tensor.dtype, shape)
            parts.append(_PartToFetch(tensor.name, tensor.dtype, shape, file, start, stop))
    return parts


def _join_neighbours(parts: Sequence[_PartToFetch]) -> list[tuple[str, int, int]]:
    """Return the ranges to request, (file, start, stop), so that neighbours need one request.

    The projections of a layer follow each other in most files: bytes 0 to 100 and 100 to 150 of a
    file become 0 to 150.
    """
    ranges: list[tuple[str, int, int]] = []
    for part in parts:
        start = part.start
        if ranges:
            last_file, last_start, last_stop = ranges[-1]
            continues_last = (part.file, part.start) == (last_file, last_stop)
            if continues_last:
                ranges.pop()
                start = last_start
        ranges.append((part.file, start, part.stop))
    return ranges
