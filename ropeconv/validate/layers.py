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

from ..engines.transformers.first_layers import (
    FirstLayers,
    LayerFails,
    LayerKind,
    NoLayerRuns,
    ReadTensor,
)
from ..engines.transformers.layers import read_tensor
from ..engines.transformers.patch import (
    attention_modules,
    choose_all_keys,
    nudge,
    patch,
    round_weights,
    scale_scores,
)
from ..errors import Disagreement
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
    """Answer a `LayerQuestion` as JSON-ready data, with a `LayersRecord`.

    The answer is {"broken": sentence} where a layer of the source runs, and that of the output
    does not.
    """
    question = msgspec.convert(given, LayerQuestion)
    try:
        record: JsonObject = msgspec.to_builtins(compare_layers(question))
    except Disagreement as problem:
        return {"broken": str(problem)}
    return record


def compare_layers(question: LayerQuestion) -> LayersRecord:
    """Compare the first layer of each kind of an output with that of its patched source.

    Raises:
        Disagreement: A layer of the source runs, and with the method it does not.
    """
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
    """Raise NoLayerRuns if the source gives other numbers each time that it is loaded.

    The model class then fills weights with random numbers that are not in the files, and a
    difference between output and source proves nothing.

    Args:
        question: The comparison, with the source.
        differing: The result of a layer in which output and source differ by more than allowed. Its
            field `layer` is the name of a kind of layers, such as "5 (full_attention)".
    """
    first_copy = question.source.open(question.layers)
    second_copy = question.source.open(question.layers)
    runs = _choose_runs(question.schedule, first_copy.vocabulary)
    longest_run = runs[-1]
    for kind in first_copy.kinds:
        if kind.name != differing.layer:
            continue
        layer_number = kind.layer
        with first_copy.with_weights(layer_number), second_copy.with_weights(layer_number):
            first_output = _attention(first_copy, kind, longest_run, factor=1.0)
            second_output = _attention(second_copy, kind, longest_run, factor=1.0)
        largest_kl = float(measure_states(first_output, second_output).kl.max())
        if _relative_error(largest_kl) > differing.allowed:
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
        """Compare one layer of each kind of the output with the same layer of the source.

        Gemma 3 has two kinds of layers: with a sliding window, and without a window. A layer runs
        without the layers before it. The layer of the source gets the RoPE that the output must
        have, and the outputs of both attention modules are compared.

        Raises:
            NoLayerRuns: No layer can run without the layers before it.
        """
        # one run over the trained context, and a second one over a longer new context
        vocabulary = min(self.source.vocabulary, self.output.vocabulary)
        runs = _choose_runs(self.schedule, vocabulary)

        records: list[LayerRecord] = []
        left_out: list[str] = []
        problems: list[NoLayerRuns] = []
        for kind in self.source.kinds:
            layer_number = kind.layer  # the first layer of this kind
            try:
                with (
                    self.source.with_weights(layer_number),
                    self.output.with_weights(layer_number),
                ):
                    records += [self._compare(kind, run) for run in runs]
            except NoLayerRuns as problem:
                # Gemma 3n: the last layers use the keys of earlier layers
                left_out.append(kind.name)
                problems.append(problem)

        nothing_was_compared = not records
        if problems and nothing_was_compared:
            raise problems[0]
        highest_position = max(runs[-1].positions)  # the last run reaches farthest
        return LayersRecord(
            tokens=max(len(run.ids) for run in runs),
            reached=highest_position,
            layers=tuple(records),
            left_out=tuple(left_out),
            unchanged=self.question.unchanged,  # whether the source has this RoPE already
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
        """Compare a layer of the output with the same layer of the source and the right RoPE.

        Args:
            kind: The kind of the layer, with its name and the number of its first layer.
            run: The tokens and their positions.
            factor: A factor on the attention scores of both sides.

        Returns:
            The relative error of the attention output, the error that is allowed, and the error
            without any scaling (control).

        Raises:
            NoLayerRuns: The layer of the source does not run on its own.
            Disagreement: It runs, and it does not with the RoPE of the method, or the same layer of
                the output does not.
        """
        # the unscaled source first: where this layer runs, its code and its weights are right
        unscaled = _attention(self.source, kind, run, factor)
        try:
            reference = self._patched(kind, run, self.schedule, factor)
        except LayerFails as problem:
            raise Disagreement(
                f"the source runs in transformers, and does not with the new RoPE: {problem}"
            ) from None
        try:
            attention_of_output = _attention(self.output, kind, run, factor)
        except LayerFails as problem:
            # an output for the class of another family may fail for a reason of that class
            if type(self.output.model) is not type(self.source.model):
                raise
            raise Disagreement(
                f"the source runs in transformers, and the output does not: {problem}"
            ) from None

        def distance(other: Tensor) -> float:
            """Return the distance of attention outputs from the reference.

            It is the 95th percentile over the tokens of half the squared relative error. Such a
            distance can be judged by the same formula as a KL (`tolerance`).
            """
            return float(measure_states(reference, other).kl.quantile(0.95))

        output_distance = distance(attention_of_output)
        control_distance = distance(unscaled)

        # the smallest fault that must be noticed: attention scores 2 % larger; infinite for a class
        # whose scores cannot be scaled
        fault_distance = math.inf
        if attention_modules(self.source.model):
            larger_factor = factor * FAINT_FAULT_FACTOR
            fault_distance = distance(self._patched(kind, run, self.schedule, larger_factor))

        # the noise: frequencies that are two steps of float32 off
        noise = distance(self._patched(kind, run, nudge(self.schedule), factor))
        # the noise of an output with a factor in its weights, which rounds these; squares of
        # independent errors add up
        if self.question.rounded:
            with self._rounded():
                noise += distance(self._patched(kind, run, self.schedule, factor))

        last_position = run.positions[-1]
        # SAME_KERNELS is the smallest tolerance, for two sides that run in the same transformers
        allowed = tolerance(last_position, noise, floor=SAME_KERNELS, faint=fault_distance)
        return LayerRecord(
            layer=kind.name,
            last=last_position,
            error=_relative_error(output_distance),
            allowed=_relative_error(allowed),
            control=_relative_error(control_distance),
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
