"""Compare the first layers of a GGUF file in llama.cpp with the method.

`apply` calls `compare_gguf_layers` before a GGUF file gets its name. The file is cut to its first
layers, so that a model of any size runs in seconds, and so is its source. That computes the method
in another way than the output (`llamacpp_reference`). A second way shows how far rounding is, and
the source without the method that a wrong output would be noticed. `_compare` is the function to
read first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from ..engines.llamacpp import LONGEST as LONGEST_SECONDS
from ..engines.llamacpp import LlamaCppEngine, LlamaCppError, overrides
from ..engines.transformers.first_layers import NoLayerRuns
from ..formats.disk import human
from ..formats.files import scratch
from ..formats.gguf.edit import Edit, write_shards
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import ARRAY, STRING, TYPES, GgufValue, array, u32
from ..inspection.receipts.receipt import LayerRecord, LayersRecord
from ..rope.errors import counted
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.purpose import gives_no_logits
from ..runtimes.llamacpp.read_header import FREQS as ROPE_FREQS
from ..runtimes.llamacpp.read_header import arch_of, rope_tensors
from .llamacpp_reference import (
    REFERENCE_BASE_RATIO,
    SECOND_BASE_RATIO,
    Logits,
    compute_divisors,
    has_two_lists,
    keeps_states,
    replace_divisors,
    run_logits,
    scales_otherwise,
    takes_divisors,
)
from .sampling import TokenRun

RUN_TOKENS = 128
"""Tokens of a run: four blocks of 32, the first one at position 0, and the last one at the end."""
LONGEST_RUN = 2048
"""Tokens of the longest run of a model with states, which reads every token before a position."""
COMPARED_TOKENS = 32
"""Tokens of each range of positions that are compared."""
SEED = 1
PHRASE_TOKENS = 61
"""Tokens that are repeated in a run; a prime, so that they begin elsewhere in every block."""
LARGEST_FILE = 8 << 30
"""The most bytes of a cut file."""
NOISE_FACTOR = 5.0
"""How many times as far as two references are apart an output may be from one of them."""
FLOAT_FLOOR = 1e-3
"""The relative error of logits that is always allowed, for weights of 16 or 32 bits."""
BLOCK_FLOOR = 0.03
"""The same for quantised weights, whose kernels round activations to 8 bits: one step of one of
them changes all that follows.
"""
LAYER_PREFIX = re.compile(r"blk\.(\d+)\.")
"""The beginning of the name of a tensor of a layer."""
PROJECTION_PREFIX = "dense_"
"""The beginning of the names of tensors that follow the pooling, and of keys about them."""


def compare_gguf_layers(
    output: GgufFile, source: GgufFile | None, spec: RopeSpec, schedule: Schedule
) -> LayersRecord:
    """Compare the first layers of a GGUF file with the method, in llama.cpp.

    Args:
        output: The file.
        source: The file that it was made from. None takes the weights of the output, without their
            scaling: for a conversion, and for a file that was changed in place.
        spec: The RoPE of the source.
        schedule: The frequencies and factors that the output must have.

    Returns:
        The relative error of the logits after these layers, at the median token of each range of
        positions; or the reason why nothing was compared.
    """
    try:
        return _compare(output, source, spec, schedule)
    except NoLayerRuns as problem:
        return LayersRecord(reason=str(problem))
    except LlamaCppError as problem:
        # the whole file may run: some architectures expect a number of layers
        return LayersRecord(reason=f"llama.cpp does not run only its first layers ({problem})")


class LayerLogits(NamedTuple):
    """Logits after the first layers, [tokens of all runs, vocabulary]."""

    reference: Logits
    """The source that computes the schedule in another way than the output."""

    control: Logits
    """The source without the method, which must be far from the reference."""

    second: Logits
    """The schedule once more, so that it differs from the reference only by rounding.

    It is of the last run only, [tokens of that run, vocabulary].
    """


def _compare(
    output: GgufFile, source: GgufFile | None, spec: RopeSpec, schedule: Schedule
) -> LayersRecord:
    """Compare the logits of the output with a reference and a control, all in llama.cpp.

    The reference is the source with the method, and the control the source without it. Each is a
    file that is cut to its first layers. The noise, the distance between two references, is
    measured in the last run, which has the highest positions: a frequency that is rounded otherwise
    is multiplied by the position.

    Args:
        output: The file that is tested.
        source: The file that it was made from; None where there is none in GGUF.
        spec: The RoPE of the source.
        schedule: The frequencies and factors that the output must have.

    Raises:
        NoLayerRuns: No layer can be compared.
        LlamaCppError: llama.cpp cannot run a cut file.
    """
    _refuse_incomparable(output, source, spec, schedule)
    layers = max(spec.first_of_each_kind) + 1
    vocabulary = output.tensors["token_embd.weight"].shape[1]
    runs = _choose_runs(schedule, vocabulary, keeps_states(output))

    # one cut file after another, so that the temporary folder has one of them at a time
    with cut(output, layers) as short:
        of_output = run_logits(LlamaCppEngine(short.path, patience=LONGEST_SECONDS), runs)
    weights = source or output
    if takes_divisors(weights, spec, schedule):
        of_source = _run_with_divisors(weights, layers, spec, schedule, runs)
    else:
        of_source = _run_with_keys(weights, layers, source is None, spec, schedule, runs)
    reference = of_source.reference
    control = of_source.control
    if not (np.isfinite(reference).all() and np.isfinite(control).all()):
        raise NoLayerRuns("the logits of its source are not finite")

    # how far an output may be from the reference
    parts = list(_rows_of_runs(runs))
    last_position, last_rows = parts[-1]
    noise = median_distance(of_source.second, reference[last_rows])
    floor = BLOCK_FLOOR if _is_quantised(output) else FLOAT_FLOOR
    allowed = floor + NOISE_FACTOR * noise

    # judge each range of positions
    unchanged = schedule.digest == spec.current().digest
    records = []
    for last, rows in parts:
        record = LayerRecord(
            layer="0" if layers == 1 else f"0-{layers - 1}",
            last=last,
            error=median_distance(of_output[rows], reference[rows]),
            allowed=allowed,
            control=0.0 if unchanged else median_distance(control[rows], reference[rows]),
        )
        records.append(record)
    # with states, most of a long context is not reached, and nothing beyond a trained one of 2,048
    ends_early = ""
    if keeps_states(output) and last_position + 1 < schedule.context:
        reach = f"of {schedule.context:,}"
        if last_position < schedule.original_context:
            reach += f", and trained on {schedule.original_context:,}"
        ends_early = (
            f"{reach}: with states, every token before a position is run; `ropeconv validate"
            " --tokens` goes further"
        )
    return LayersRecord(
        tokens=max(len(run.ids) for run in runs),
        reached=last_position,
        ends_early=ends_early,
        layers=tuple(records),
        unchanged=unchanged,
    )


def _run_with_divisors(
    weights: GgufFile, layers: int, spec: RopeSpec, schedule: Schedule, runs: list[TokenRun]
) -> LayerLogits:
    """Run the first layers of a file in llama.cpp, with frequencies given by a divisor tensor.

    llama.cpp computes frequencies from a base, and divides them by the numbers of the tensor
    rope_freqs. The wanted frequencies can be had from any base, with other divisors for each base.

    Args:
        weights: The file.
        layers: How many of its layers run.
        spec: The RoPE of the source.
        schedule: The frequencies that the method gives.
        runs: The tokens.

    Returns:
        Three computations: `reference` has the frequencies of the method, from a base 8 times the
        base of the source; `second` has the same frequencies from 4 times that base, so that only
        rounding differs; `control` has the frequencies of the source.
    """
    unscaled = spec.current()
    first_divisors = compute_divisors(weights, spec, schedule, REFERENCE_BASE_RATIO)
    with cut(weights, layers, first_divisors.tensor) as short_file:

        def run_with_frequencies(
            wanted: Schedule, base_ratio: float, wanted_runs: list[TokenRun]
        ) -> Logits:
            divisors = compute_divisors(weights, spec, wanted, base_ratio)
            replace_divisors(short_file, divisors)  # in place
            engine = LlamaCppEngine(short_file.path, divisors.keys, patience=LONGEST_SECONDS)
            return run_logits(engine, wanted_runs)

        reference = run_with_frequencies(schedule, REFERENCE_BASE_RATIO, runs)
        control = run_with_frequencies(unscaled, REFERENCE_BASE_RATIO, runs)
        # rounding shows most in the last run, which has the highest positions
        second = run_with_frequencies(schedule, SECOND_BASE_RATIO, runs[-1:])
        return LayerLogits(reference, control, second)


def _run_with_keys(
    weights: GgufFile,
    layers: int,
    is_output: bool,
    spec: RopeSpec,
    schedule: Schedule,
    runs: list[TokenRun],
) -> LayerLogits:
    """Run the first layers of a file in llama.cpp, with frequencies given by metadata keys.

    The keys, such as llama.rope.scaling.factor, are passed when llama.cpp loads the file, and
    replace the keys that are in the file.

    Args:
        weights: The source as a GGUF file; the output, if the source is not a GGUF file.
        layers: How many layers of the file run.
        is_output: Whether `weights` is the output.
        spec: The RoPE of the source.
        schedule: The frequencies and factors to compute, and the context.
        runs: The tokens.

    Returns:
        The logits with the schedule (`reference`) and with the RoPE of the source (`control`). No
        other keys give the same schedule with other rounding, so `second`, which shows the noise,
        has the numbers of `reference`.
    """
    with cut(weights, layers) as short_file:
        reference = run_logits(_with_keys(short_file, spec, schedule), runs)

        # The keys in a source are already the unscaled ones. In an output they must be replaced.
        if is_output:
            unscaled_engine = _with_keys(short_file, spec, spec.current())
        else:
            unscaled_engine = LlamaCppEngine(short_file.path, patience=LONGEST_SECONDS)
        control = run_logits(unscaled_engine, runs)

    # the logits of the last run, which are the last rows of [tokens of all runs, vocabulary]
    _, last_rows = list(_rows_of_runs(runs))[-1]
    return LayerLogits(reference, control, second=reference[last_rows])


def _choose_runs(schedule: Schedule, vocabulary: int, without_gaps: bool) -> list[TokenRun]:
    """Return one or two runs of tokens: within the trained context, and beyond it if extended.

    The tokens are a random phrase that is repeated, so that attention to the past matters.

    Args:
        schedule: The frequencies, with the trained context and the new context.
        vocabulary: The number of different tokens.
        without_gaps: Whether a run has every position from 0 on, up to 2,048 tokens, as a model
            with recurrent states (Mamba) needs it. The runs of other models are blocks of 32
            tokens, spread over the positions.
    """
    random = np.random.default_rng(SEED)
    context = schedule.context
    if without_gaps:
        context = min(context, LONGEST_RUN)
    trained_context = min(schedule.original_context, context)

    runs = []
    for first_position, end in ((0, trained_context), (trained_context, context)):
        is_empty = end <= first_position  # beyond the trained context, if it is not extended
        if is_empty:
            continue
        # `blocks` leaves no gaps if there is a token for every position before `end`
        token_count = end if without_gaps else min(RUN_TOKENS, end)
        phrase = random.integers(vocabulary, size=PHRASE_TOKENS)
        ids = np.resize(phrase, token_count).tolist()  # repeats the phrase
        runs.append(TokenRun.blocks(first_position, end, ids, most=COMPARED_TOKENS))
    return runs


def _refuse_incomparable(
    output: GgufFile, source: GgufFile | None, spec: RopeSpec, schedule: Schedule
) -> None:
    """Raise NoLayerRuns if llama.cpp cannot compute the RoPE of an output in an independent way.

    An independent way does not read the numbers in the output, which may be wrong. There are two:
    a tensor that divides frequencies, and metadata keys that are passed when a file is loaded.

    Args:
        output: The file that is tested.
        source: The GGUF file from which the output was made; None if the source is a checkpoint or
            was overwritten.
        spec: The RoPE of the source.
        schedule: The frequencies and factors that the output must have.
    """
    weights = source or output  # the file that runs with the right RoPE
    arch = arch_of(weights)

    # Encoders (EmbeddingGemma): there are no logits to compare.
    if gives_no_logits(output, arch_of(output)):
        raise NoLayerRuns("llama.cpp gives no logits of an encoder")
    # log-n, scaled query norms (Gemma 3): neither divisors nor keys express these.
    if scales_otherwise(weights, output, schedule):
        raise NoLayerRuns("llama.cpp has one way only to scale its attention")
    # LongRoPE (Phi-3): the length of the text chooses one of two lists of frequencies.
    if has_two_lists(spec, schedule):
        raise NoLayerRuns("its layers do not run at far positions without those before")

    # The first way, divisors, is enough.
    if takes_divisors(weights, spec, schedule):
        return

    # The second way is keys. A tensor of divisors in the file would stay in force beside them.
    if rope_tensors(weights):
        raise NoLayerRuns(f"llama.cpp has one way only to compute it for {arch.name}")
    needed_schedules = [schedule]
    if source is None:
        # the output runs without its scaling too, as a control
        needed_schedules.append(spec.current())
    for needed_schedule in needed_schedules:
        if overrides(needed_schedule, arch.name, spec) is None:  # no keys express it
            raise NoLayerRuns(f"llama.cpp has one way only to compute it for {arch.name}")


@contextmanager
def cut(file: GgufFile, layers: int, divisors: bytes = b"") -> Iterator[GgufFile]:
    """Write a temporary copy of a GGUF file that has only its first layers, for a with block.

    Args:
        file: The file.
        layers: How many layers are kept.
        divisors: The bytes of the tensor rope_freqs in the copy; empty to copy the tensor of the
            file, if it has one.

    Yields:
        The copy.

    Raises:
        NoLayerRuns: The copy would be too large for a temporary file.
    """
    removed_tensors = _tensors_of_later_layers(file, layers)
    size = 0
    for name, tensor in file.tensors.items():
        if name not in removed_tensors:
            size += tensor.size
    if size > LARGEST_FILE:
        raise NoLayerRuns(f"its first {counted(layers, 'layer')} have {human(size)}")

    # the tensor rope_freqs: an old one is removed where a new one is added
    added_tensors = {}
    if divisors:
        added_tensors[ROPE_FREQS] = divisors
        if ROPE_FREQS in file.tensors:
            removed_tensors.add(ROPE_FREQS)

    # metadata keys that are removed: EmbeddingGemma projects its pooled output after the last
    # layer, with tensors and keys that the copy does not need
    prefix = f"{arch_of(file).name}.{PROJECTION_PREFIX}"
    removed_keys = frozenset(key for key in file.header.values if key.startswith(prefix))

    edit = Edit(
        values=_keys_of_first_layers(file, layers),
        dropped=removed_keys,
        added=added_tensors,
        removed=frozenset(removed_tensors),
    )
    with scratch() as folder:
        yield GgufFile.open(write_shards(file, edit, folder))


def _keys_of_first_layers(file: GgufFile, layers: int) -> dict[str, GgufValue]:
    """Return the keys that change where a file ends after its first layers.

    These are the number of layers, and each list with one element for every layer of the model.
    """
    block_count = f"{arch_of(file).name}.block_count"
    all_layers = file.header.whole(block_count)
    values: dict[str, GgufValue] = {block_count: u32(layers)}
    for key, value in file.header.values.items():
        # keys of a model begin with the architecture, but for some (xielu.alpha_n of Apertus)
        is_of_model = not key.startswith(("tokenizer.", "general."))
        if is_of_model and value.kind == ARRAY and value.count() == all_layers:
            values[key] = _first_elements(value, layers)
    return values


def _tensors_of_later_layers(file: GgufFile, layers: int) -> set[str]:
    """Return the names of the tensors behind the first layers, such as blk.2.attn_q.weight.

    The projections behind the pooling of EmbeddingGemma (dense_2.weight) belong to these.
    """
    names = set()
    for name in file.tensors:
        block = LAYER_PREFIX.match(name)
        is_later = block is not None and int(block[1]) >= layers
        if is_later or name.startswith(PROJECTION_PREFIX):
            names.add(name)
    return names


def _first_elements(value: GgufValue, count: int) -> GgufValue:
    """Return the first elements of a list of numbers; a list of texts unchanged."""
    kind = int.from_bytes(value.raw[:4], "little")
    if kind == STRING:
        return value
    return array(kind, value.decode()[:count])


def _with_keys(file: GgufFile, spec: RopeSpec, schedule: Schedule) -> LlamaCppEngine:
    """A file that computes a schedule by metadata keys that are given when it is loaded.

    The keys follow from the schedule and the RoPE of the source, and not from the keys that an
    output has.
    """
    keys = overrides(schedule, arch_of(file).name, spec)
    return LlamaCppEngine(file.path, keys, patience=LONGEST_SECONDS)


def _rows_of_runs(runs: list[TokenRun]) -> Iterator[tuple[int, slice]]:
    """Yield the last position of each run, and the slice of its tokens in the logits."""
    first = 0
    for run in runs:
        last = first + len(run.kept)
        yield run.positions[-1], slice(first, last)
        first = last


def median_distance(logits: Logits, reference: Logits) -> float:
    """Return the relative error of logits, |logits - reference| / |reference|, at the median token.

    Rounding sends some tokens of a mixture of experts to other experts, which the median leaves
    out; a wrong RoPE changes all tokens behind the first ones.
    """
    width = min(logits.shape[1], reference.shape[1])  # one side may have padded its vocabulary
    difference = np.linalg.norm(logits[:, :width] - reference[:, :width], axis=1)
    size = np.linalg.norm(reference[:, :width], axis=1)
    return float(np.median(difference / size))


def _is_quantised(file: GgufFile) -> bool:
    """Whether most weights are in blocks with a common scale."""
    return TYPES[file.usual_type].block > 1
