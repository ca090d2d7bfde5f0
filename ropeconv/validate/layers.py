"""Compare the attention of single layers of an output with that of its patched source.

`apply` does this for every checkpoint before it gets its name. As in `validate`, the two sides
share no config: the output runs as it was written, and the reference is the source with its rotary
modules overwritten from the schedule. Controls show that a wrong output would be noticed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..engines.transformers.first_layers import FirstLayers, LayerKind, NoLayerRuns, ReadTensor
from ..engines.transformers.layers import read_tensor
from ..engines.transformers.patch import (
    attention_modules,
    choose_all_keys,
    nudge,
    patch,
    round_weights,
    scale_scores,
)
from ..formats.jsontext import JsonObject
from ..formats.safetensors import Header, read_header
from ..inspection.receipts.receipt import LayerRecord, LayersRecord, ScheduleRecord
from ..rope.schedule import LogN, QueryScaling, Schedule
from .sampling import TokenRun, synthetic
from .source_reading import FACTORS, FAINT_FAULT_FACTOR
from .validation import ENOUGH_POWER, SAME_KERNELS, measure_states, tolerance

if TYPE_CHECKING:
    from torch import Tensor

RUN_TOKENS = 128
"""Tokens of a run, spread over the trained context, and over the whole new one."""
SEED = 1


class CheckpointFiles(msgspec.Struct, frozen=True):
    """Where the files of a checkpoint are, of which some may be in another folder."""

    config: str
    """The folder with its config.json."""

    weights: tuple[str, ...]
    """The paths of its safetensors files."""

    loaded_as: str = ""
    """The model type with which transformers loads it; empty for its own."""

    trust: bool = False
    """Whether to run its modelling file, which ropeconv wrote."""

    def reader(self) -> tuple[dict[str, tuple[int, ...]], ReadTensor]:
        """Return the shape of every tensor by name, and a function that reads one of them.

        The function is given the name, and how many of the first rows it reads, or None for all.
        """
        # Where each tensor is. If several files have it, the first one counts: the files of an
        # output come before those of its source.
        places: dict[str, tuple[Path, Header]] = {}
        for weights in self.weights:
            path = Path(weights)
            header = read_header(path)
            for name in header.tensors:
                places.setdefault(name, (path, header))

        def read(name: str, rows: int | None) -> Tensor:
            path, header = places[name]
            return read_tensor(path, header, name, rows)

        shapes = {}
        for name, (_, header) in places.items():
            shapes[name] = header.tensors[name].shape
        return shapes, read

    def open(self, layers: Sequence[int]) -> FirstLayers:
        """Return the model, to run single layers of it with transformers.

        The embedding, and all else that runs before the layers, is loaded. A layer is read when it
        runs.

        Args:
            layers: The numbers of layers that are known to differ in their RoPE or window.

        Raises:
            NoLayerRuns: Its layers cannot run on their own.
        """
        shapes, read_weight = self.reader()
        return FirstLayers(
            folder=Path(self.config),
            names=list(shapes),
            read=read_weight,
            loaded_as=self.loaded_as,  # a model type that transformers has, for one that it lacks
            trust=self.trust,
            layers=layers,
        )


class LayerQuestion(msgspec.Struct, frozen=True):
    """A comparison of single layers, for another process to answer."""

    source: CheckpointFiles
    output: CheckpointFiles

    numbers: ScheduleRecord
    """The schedule that the output has to compute, whose log-n is in the fields that follow."""

    log_n: LogN | None = None
    """The scaling of queries in the output; None without log-n."""

    query_scaling: QueryScaling | None = None
    """The scaling of queries in the output, where log-n is approximated by this."""

    layers: tuple[int, ...] = (0,)
    """The numbers of layers that are known to differ in their RoPE or window."""

    queries: str = ""
    """The end of the name of the module that outputs queries."""

    mla: bool = False
    """Whether the model has multi-head latent attention."""

    rounded: dict[str, str] = {}
    """The stored dtype of each weight that a fold rounds."""

    unchanged: bool = False
    """Whether the source computes the schedule already, so that there is no control."""

    @property
    def schedule(self) -> Schedule:
        """The schedule, without scalings of queries."""
        return schedule_of(self.numbers)


def schedule_of(numbers: ScheduleRecord) -> Schedule:
    """Return the schedule of a record, without scalings of queries."""
    short = numbers.short_inv_freq
    return Schedule(
        inv_freq=np.array(numbers.inv_freq),
        attention_factor=numbers.attention_factor,
        context=numbers.context,
        original_context=numbers.original_context,
        short_inv_freq=None if short is None else np.array(short),
        softmax_scale=numbers.softmax_scale,
    )


class NeededQuestion(msgspec.Struct, frozen=True):
    """A checkpoint whose weights are not on this disk."""

    config: str
    """The folder with its config.json."""

    shapes: dict[str, tuple[int, ...]]
    """The shape of each tensor."""

    loaded_as: str = ""
    """As in `CheckpointFiles`."""

    layers: tuple[int, ...] = (0,)
    """As in `LayerQuestion`."""


def find_needed_tensors(given: JsonObject) -> JsonObject:
    """Find the tensors that running the first layers of a checkpoint needs, to download only these.

    transformers decides which tensors a layer reads. So the layers run once, on two tokens and with
    zeros for weights, and each tensor that they read is noted.

    It runs in a process with transformers, which is asked and answers in JSON.

    Args:
        given: The folder of config.json, and the shape of each tensor, as JSON-ready data of
            `NeededQuestion`.

    Returns:
        {"tensors": [["model.embed_tokens.weight", 2], ...]}: each tensor with the number of rows
        that are needed, where 0 rows are all of them; or {"reason": clause} where no layer can run
        on its own.
    """
    question = msgspec.convert(given, NeededQuestion)

    # its `read` gives zeros for a tensor, and notes the tensor in `rows_by_name`
    noting_zeros = _NotingZeros(question.shapes)
    try:
        # the embeddings, and what else runs before the layers, are read (and noted) here
        model = FirstLayers(
            folder=Path(question.config),
            names=list(question.shapes),
            read=noting_zeros.read,
            loaded_as=question.loaded_as,
            layers=question.layers,
        )
    except NoLayerRuns as problem:
        return {"reason": str(problem)}

    # layers of the same kind read the same tensors, so one of each kind runs, as in the comparison
    two_tokens = range(2)
    for kind in model.kinds:
        try:
            with model.with_weights(kind.layer):  # reads the tensors of this layer
                model.attention(ids=two_tokens, positions=two_tokens, layer=kind.layer)
        except NoLayerRuns:
            continue  # the comparison leaves this kind out too
    return {"tensors": [[name, rows] for name, rows in noting_zeros.rows_by_name.items()]}


class _NotingZeros:
    """Zeros in place of the weights of a checkpoint, which note what is read of them.

    Args:
        shapes: The shape of each tensor, by name.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.rows_by_name: dict[str, int] = {}
        """How many of the first rows were read, such as {"model.embed_tokens.weight": 256}.

        0 stands for all rows.
        """

    def read(self, name: str, rows: int | None) -> Tensor:
        """Return the first rows of a tensor, or all for None, as zeros; and note them."""
        import torch

        self.rows_by_name[name] = rows or 0
        shape = list(self.shapes[name])
        if rows is not None:
            shape[0] = min(rows, shape[0])
        return torch.zeros(shape)


def answer(given: JsonObject) -> JsonObject:
    """Answer a `LayerQuestion` as JSON-ready data, with a `LayersRecord`."""
    question = msgspec.convert(given, LayerQuestion)
    record: JsonObject = msgspec.to_builtins(compare_layers(question))
    return record


def compare_layers(question: LayerQuestion) -> LayersRecord:
    """Compare the first layer of each kind of an output with that of its patched source."""
    try:
        source = question.source.open(question.layers)
        output = question.output.open(question.layers)
        record = _Comparison(question, question.schedule, source, output).run()
        if record.differing is not None:
            _check_repeatable(question, record.differing)
        return record
    except NoLayerRuns as problem:
        return LayersRecord(reason=str(problem))


def _check_repeatable(question: LayerQuestion, differing: LayerRecord) -> None:
    """Raise NoLayerRuns where the source differs from itself when it is opened again.

    Then the class has made weights at random that are not in the files, and the comparison shows
    nothing.

    Args:
        question: The comparison.
        differing: The layer at which the output differs by more than is allowed.
    """
    first = question.source.open(question.layers)
    second = question.source.open(question.layers)
    runs = _choose_runs(question.schedule, first.vocabulary)
    longest_run = runs[-1]  # over the whole new context
    for kind in first.kinds:
        if kind.name != differing.layer:
            continue
        with first.with_weights(kind.layer), second.with_weights(kind.layer):
            once = _attention(first, kind, longest_run, factor=1.0)
            again = _attention(second, kind, longest_run, factor=1.0)
        largest_kl = float(measure_states(once, again).kl.max())
        largest_error = _relative_error(largest_kl)
        if largest_error > differing.allowed:
            raise NoLayerRuns("its source computes something else each time that it is opened")


def _choose_runs(schedule: Schedule, vocabulary: int) -> list[TokenRun]:
    """Return two runs of a few tokens each: over the trained context, and over the new one.

    In the second, positions beyond the trained context are compared.
    """
    original = min(schedule.original_context, schedule.context)
    runs = []
    for low, high in ((0, original), (original, schedule.context)):
        if high > low:
            ids = synthetic(min(RUN_TOKENS, high), vocabulary, SEED)
            runs.append(TokenRun.spread(low, high, ids))
    return runs


@dataclass(frozen=True)
class _Comparison:
    """A question whose two models are open."""

    question: LayerQuestion
    schedule: Schedule
    source: FirstLayers
    output: FirstLayers

    def run(self) -> LayersRecord:
        """Compare a layer of each kind over the trained context, and over the new one.

        The kinds are those of the attention: in Gemma 3, layers with a sliding window and layers
        without one. A layer runs on its own. Its attention output is compared with that of the same
        layer of the source, patched to compute the schedule of the method.
        """
        # one or two runs: tokens over the trained context, and over the new one if it is longer
        vocabulary = min(self.source.vocabulary, self.output.vocabulary)
        runs = _choose_runs(self.schedule, vocabulary)
        records: list[LayerRecord] = []
        left_out: list[str] = []
        problems: list[NoLayerRuns] = []
        for kind in self.source.kinds:
            try:
                with (
                    self.source.with_weights(kind.layer),
                    self.output.with_weights(kind.layer),
                ):
                    records += [self._compare(kind, run) for run in runs]
            except NoLayerRuns as problem:
                # such as the last layers of Gemma 3n, which use the keys of others
                left_out.append(kind.name)
                problems.append(problem)

        if problems and not records:  # nothing was compared
            raise problems[0]
        longest_run = runs[-1]
        return LayersRecord(
            tokens=max(len(run.ids) for run in runs),
            reached=max(longest_run.positions),
            layers=tuple(records),
            left_out=tuple(left_out),
            unchanged=self.question.unchanged,  # the source computes the schedule already
        )

    def _compare(self, kind: LayerKind, run: TokenRun) -> LayerRecord:
        """Compare a layer in a run, with larger or smaller attention scores where that shows more.

        With random or few tokens, attention can be almost uniform or one-hot, and then a wrong RoPE
        changes nothing. A factor on the scores of both sides helps, and does not change their RoPE.
        Factors are tried until the control, the unscaled source, is far enough away.
        """
        # the power of a comparison is how many times the control is beyond what is allowed
        best = self._compare_with(kind, run, 1.0)
        shows_enough = _power(best) >= ENOUGH_POWER
        if self.question.unchanged or not best.is_changed or shows_enough:
            return best
        for factor in FACTORS:
            other = self._compare_with(kind, run, factor)
            if _power(other) > _power(best):
                best = other
            if _power(best) >= ENOUGH_POWER:
                break
        return best

    def _compare_with(self, kind: LayerKind, run: TokenRun, factor: float) -> LayerRecord:
        """Compare the attention output of a layer of the output with that of the reference.

        The reference is the same layer of the source, patched to compute the schedule.

        Args:
            kind: The layer, which is the first one of its kind.
            run: The tokens and their positions.
            factor: A factor on the attention scores of both sides.
        """
        reference = self._patched(kind, run, self.schedule, factor)

        def squared_error(other: Tensor) -> float:
            """Return half of the squared relative error that 95 % of the tokens are within.

            It is of the size of a KL.
            """
            return float(measure_states(reference, other).kl.quantile(0.95))

        error_of_output = squared_error(_attention(self.output, kind, run, factor))
        # the control: the source without the method must be further away
        error_of_control = squared_error(_attention(self.source, kind, run, factor))
        # the smallest fault that must be noticed: attention scores 2 % larger, if the class has a
        # scale that can be changed
        error_of_fault = math.inf
        if attention_modules(self.source.model):
            larger = factor * FAINT_FAULT_FACTOR
            error_of_fault = squared_error(self._patched(kind, run, self.schedule, larger))
        # The noise: frequencies two steps of float32 away, and weights that are rounded as where a
        # factor is folded (multiplied) into them. These errors are independent, so their squares
        # add.
        nudged_schedule = nudge(self.schedule)
        noise = squared_error(self._patched(kind, run, nudged_schedule, factor))
        if self.question.rounded:
            with self._rounded():
                noise += squared_error(self._patched(kind, run, self.schedule, factor))

        # both sides run in the same transformers, so the least error that is allowed is that of the
        # same kernels (SAME_KERNELS)
        last_position = run.positions[-1]
        allowed = tolerance(last_position, noise, floor=SAME_KERNELS, faint=error_of_fault)
        return LayerRecord(
            layer=kind.name,
            last=last_position,
            error=_relative_error(error_of_output),
            allowed=_relative_error(allowed),
            control=_relative_error(error_of_control),
        )

    def _patched(self, kind: LayerKind, run: TokenRun, schedule: Schedule, factor: float) -> Tensor:
        """Return the attention of the source, patched to a schedule."""
        question = self.question
        scale = question.query_scaling or question.log_n
        with ExitStack() as stack:
            undo = patch(self.source.model, schedule, question.mla, scale, question.queries)
            stack.callback(undo)
            return _attention(self.source, kind, run, factor)

    @contextmanager
    def _rounded(self) -> Iterator[None]:
        """Round the weights of the source as a fold does, until the end of the block."""
        weights = [weight for weight in self.source.model.parameters() if not weight.is_meta]
        before = [weight.data for weight in weights]
        round_weights(self.source.model, self.source.by_parameter(self.question.rounded))
        try:
            yield
        finally:
            for weight, data in zip(weights, before, strict=True):
                weight.data = data


def _attention(layers: FirstLayers, kind: LayerKind, run: TokenRun, factor: float) -> Tensor:
    """Return the attention of a layer for the compared tokens of a run, [tokens, hidden_size]."""
    with ExitStack() as stack:
        scale_scores(stack, layers.model, factor)
        choose_all_keys(stack, layers.model)
        return layers.attention(run.ids, run.positions, kind.layer)[run.kept]


def _relative_error(kl: float) -> float:
    """The relative error of hidden states whose half square is `kl`, as `measure_states` has it."""
    return math.sqrt(2 * kl)


def _power(record: LayerRecord) -> float:
    """How many times as far as allowed the unscaled source is, in squares as those of a KL."""
    return (record.control / record.allowed) ** 2
