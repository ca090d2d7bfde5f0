"""Compare the logits of an extended graph with those of its checkpoint, patched in transformers.

`validate_graph` is the function to read first. ONNX Runtime or OpenVINO runs the graph over every
position; the reference is the checkpoint that it was exported from, which shares nothing with it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ropeconv.engines.engine import Progress
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import choose_place, folder_of
from ropeconv.engines.transformers.memory import host_bytes
from ropeconv.engines.transformers.patch import patch
from ropeconv.environment import require
from ropeconv.errors import BadSource
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.receipts.companion import CompanionReceipt
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.validate.comparison import Settings
from ropeconv.validate.sampling import SAMPLE, TokenRun, affordable_length, tail_buckets
from ropeconv.validate.validation import (
    KL_FLOOR,
    SEPARATION,
    BucketResult,
    Validation,
    bucket_result,
    conclusion,
    count_compared,
    measure,
    reach_warning,
    rule,
    tolerance,
    with_rounded_weights,
)

from .model import GraphSource, open_graph

if TYPE_CHECKING:
    from torch import Tensor

POSITIONS_PER_RANGE = 128
"""Positions of each range that are compared."""
ROUNDED_TYPES = ("float16", "bfloat16", "int8", "uint8", "int4", "uint4")
"""Types of constants that round what the checkpoint has."""
AXIS_SIZES = {"batch": 1, "past": 0}
"""Sizes of axes without a number, by a word in their name: one text, and an empty cache."""

INPUT_NAMES = ("input_ids", "position_ids", "attention_mask", "beam_idx")
"""The names of inputs, but for those of a cache."""
CACHE_PREFIX = "past"
"""How the names of inputs of a cache begin."""

Array = NDArray[Any]


class _Runner(ABC):
    """A program that runs a graph."""

    runtime: str
    """Its name and version."""

    @abstractmethod
    def inputs(self) -> Mapping[str, tuple[Sequence[Any], Any]]:
        """Return the axes and the type of each input: a number, or a name for any."""

    @abstractmethod
    def run(self, given: Mapping[str, Array]) -> Array:
        """Return the output `logits`, [1, tokens, vocabulary]."""

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits of a text, float32 [tokens, vocabulary], from one run of the graph.

        Args:
            ids: The tokens.

        Raises:
            BadSource: The graph has an input that is not known.
        """
        # the inputs that exporters give a language model, for one sequence; keys and values of
        # earlier tokens (the cache) are empty
        count = len(ids)
        known: dict[str, Array] = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "attention_mask": np.ones((1, count), np.int64),
            "beam_idx": np.zeros(1, np.int32),
        }
        given = {}
        for name, (axes, kind) in self.inputs().items():
            if name in known:
                given[name] = known[name].astype(kind)
            elif name.startswith(CACHE_PREFIX):
                given[name] = np.zeros([_size_of(axis) for axis in axes], kind)
            else:
                raise BadSource(f"the graph has the input {name}, which is not known here")
        return np.asarray(self.run(given)[0], np.float32)


def _is_unknown(name: str) -> bool:
    """Whether language models have no input of this name."""
    return name not in INPUT_NAMES and not name.startswith(CACHE_PREFIX)


def _size_of(axis: Any) -> int:
    """Return the size of an axis of an empty cache, [batch, heads, past tokens, width]."""
    if isinstance(axis, int) and axis > 0:
        return axis
    for word, size in AXIS_SIZES.items():
        if word in str(axis):
            return size
    return 0


class _OnnxRuntime(_Runner):
    def __init__(self, path: Path) -> None:
        require("onnxruntime", "running an ONNX graph")
        import onnxruntime

        self.runtime = f"onnxruntime {version('onnxruntime')}"
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def inputs(self) -> Mapping[str, tuple[Sequence[Any], Any]]:
        types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        found = {}
        for entry in self.session.get_inputs():
            found[entry.name] = (entry.shape, types.get(entry.type, np.int64))
        return found

    def run(self, given: Mapping[str, Array]) -> Array:
        (logits,) = self.session.run(["logits"], dict(given))
        return np.asarray(logits)


class _OpenVino(_Runner):
    def __init__(self, path: Path) -> None:
        require("openvino", "running an OpenVINO graph")
        import openvino

        self.runtime = f"openvino {version('openvino')}"
        core = openvino.Core()
        # else it may compute in bfloat16, which rounds more than a wrong RoPE changes
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        self.model = core.compile_model(core.read_model(path), "CPU", settings)

    def inputs(self) -> Mapping[str, tuple[Sequence[Any], Any]]:
        found = {}
        for entry in self.model.inputs:
            axes = []
            for axis in entry.get_partial_shape():
                axes.append(str(axis) if axis.is_dynamic else axis.get_length())
            # a conversion adds names of operations to that of the input
            names = sorted(entry.get_names(), key=_is_unknown)
            found[names[0]] = (axes, entry.get_element_type().to_dtype())
        return found

    def run(self, given: Mapping[str, Array]) -> Array:
        return np.array(self.model(dict(given))["logits"])


def _open_runner(source: GraphSource) -> _Runner:
    """Open the decoder of a folder. Raises BadSource where it has several graphs."""
    names = list(source.graphs)
    if len(names) != 1:
        raise BadSource(
            f"{source.reference} has {len(names)} graphs, and one decoder is run; name its file"
        )
    path = source.path(names[0])
    if path.suffix == ".xml":
        return _OpenVino(path)
    return _OnnxRuntime(path)


def validate_graph(
    folder: Path,
    receipt: CompanionReceipt,
    against: str,
    settings: Settings,
    progress: Progress,
) -> Validation:
    """Compare the logits of an extended graph with those of its checkpoint.

    Args:
        folder: The folder of the graph.
        receipt: Its receipt.
        against: The checkpoint that the graph was exported from.
        settings: `length` is the number of tokens, by default four times the trained context, and
            `seed` chooses them.
        progress: Callbacks, which are called while tokens are read.

    Raises:
        BadSource: The checkpoint gives another schedule, or the graph cannot be run.
    """
    import torch

    checkpoint = open_source(against)
    if isinstance(checkpoint, GgufSource):
        raise BadSource(
            f"{against} is a GGUF file; name the checkpoint that the graph was exported from"
        )
    inspection = inspect_source(checkpoint)
    recipe = Recipe.from_dict(receipt.recipe)
    rope_of_model = inspection.basis(recipe)
    schedule = inspection.schedule_of(recipe)
    if schedule.digest != receipt.schedule:
        raise BadSource(
            f"{folder} was not made from an export of {against}: the recipe gives another"
            " schedule; name its checkpoint"
        )
    source = open_graph(str(folder))
    runner = _open_runner(source)

    length = settings.length or _choose_length(runner, schedule)
    vocabulary = runner.logits([0, 1]).shape[1]
    generator = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(vocabulary, (length,), generator=generator).tolist()
    run = TokenRun.over_all(
        "whole", ids, tail_buckets(schedule.original_context, length, POSITIONS_PER_RANGE)
    )
    progress.total(3 * length)
    progress.note(f"Running {length:,} tokens 3 times: control, reference and graph.")

    # the checkpoint without the method, and patched; then the graph
    with folder_of(checkpoint) as place:
        engine = TransformersEngine.load(place, choose_place(checkpoint, settings.place("float32")))
        control = engine.logits(run.ids, run.kept, progress)
        patch(
            engine.model,
            schedule,
            rope_of_model.mla,
            schedule.log_n,
            checkpoint.family.weights.queries,
        )
        reference = engine.logits(run.ids, run.kept, progress)
    graph_logits = torch.from_numpy(runner.logits(ids)[run.kept])

    has_rounded_weights = _has_rounded_weights(source)
    results = _measure_ranges(run, control, reference, graph_logits, has_rounded_weights)
    is_unchanged = schedule.digest == rope_of_model.current().digest
    agrees, sentence = conclusion(results, is_unchanged, schedule.original_context)
    sentence += reach_warning(results, schedule.original_context, schedule.context, "--length")
    return Validation(
        transformers=version("transformers"),
        device="cpu",
        digest=schedule.digest,
        tokens=length,
        seed=settings.seed,
        buckets=tuple(results),
        agrees=agrees,
        sentence=sentence,
        runtime=runner.runtime,
        length=length,
        rule=rule(KL_FLOOR),
        reached=count_compared(results),
        frequencies={
            "before": rope_of_model.current().inv_freq.tolist(),
            "after": schedule.inv_freq.tolist(),
        },
        lengths={"trained": schedule.original_context, "new": schedule.context},
    )


def _choose_length(runner: _Runner, schedule: Schedule) -> int:
    """Return how many tokens can be compared in reasonable time.

    Args:
        runner: Runs the graph.
        schedule: The method, with the trained and the new context.
    """

    def time_sample() -> float:
        """Return the estimated seconds of a comparison on a short text."""
        begin = time.perf_counter()
        runner.logits(list(range(SAMPLE)))  # the token ids 0, 1, 2, ...
        seconds_of_graph = time.perf_counter() - begin
        # A comparison runs the graph once and the checkpoint twice, with and without the method. A
        # run of the checkpoint is assumed to take as long as the graph.
        return 3 * seconds_of_graph

    return affordable_length(
        schedule.original_context,
        schedule.context,
        seconds=time_sample,
        needed=0,  # no bytes for a key-value cache
        free=host_bytes(),
    )


def _has_rounded_weights(source: GraphSource) -> bool:
    """Whether a graph stores most of its numbers in a type that rounds those of a checkpoint."""
    rounded = 0
    exact = 0
    for graph in source.opened.values():
        for constant in graph.constants.values():
            size = int(np.prod(constant.shape, dtype=np.int64))
            if constant.dtype in ROUNDED_TYPES:
                rounded += size
            else:
                exact += size
    return rounded > exact


def _measure_ranges(
    run: TokenRun,
    control: Tensor,
    reference: Tensor,
    graph_logits: Tensor,
    has_rounded_weights: bool,
) -> list[BucketResult]:
    """Return for each range of positions how far the graph is from the checkpoint, as a KL.

    All logits are [compared tokens, vocabulary].

    Args:
        run: The tokens, with the ranges of positions that are compared.
        control: The logits of the checkpoint without the method.
        reference: The logits of the checkpoint with the method.
        graph_logits: The logits of the graph.
        has_rounded_weights: Whether the graph stores weights in a type that rounds them.
    """
    results = []
    for bucket, rows in run.parts():  # a range of positions, and its rows of the logits
        measures = measure(reference[rows], graph_logits[rows])
        control_kl = measure(reference[rows], control[rows]).kl.mean().item()
        last_position = bucket.positions[-1]
        # the noise of a graph is not measured, so it is not added to the allowed KL
        allowed = tolerance(last_position, noise=0.0, floor=KL_FLOOR)
        # "whole": the graph has read all tokens up to the last position, without gaps
        result = bucket_result(bucket, measures, control_kl, kind="whole", allowed=allowed)
        if has_rounded_weights:
            # Rounding changes logits too, more than is allowed. The graph must then be much nearer
            # to the reference than the control is.
            result = with_rounded_weights(result, separation=SEPARATION)
        results.append(result)
    return results
