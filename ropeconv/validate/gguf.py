"""Compare logits of a GGUF file in llama.cpp with those of its source.

The source computes the schedule in another way than the file. A source in GGUF runs in llama.cpp,
with metadata keys given at loading, or with other divisors over another base: both use the same
kernels on the same weights. Schedules that neither can express, and checkpoints, run in
transformers, patched from the schedule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..convert.from_gguf.source import GgufCheckpoint
from ..convert.to_gguf.quantise import dequantise
from ..engines.engine import Progress
from ..engines.llamacpp import LlamaCppEngine, overrides, runtime
from ..engines.llamacpp_program import Override
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.layers import change_weights
from ..engines.transformers.load import DeviceSpec, choose_place, folder_of
from ..engines.transformers.memory import host_bytes
from ..engines.transformers.patch import ALL, choose_all_keys, patch
from ..errors import BadSource
from ..formats import jsontext
from ..formats.disk import human
from ..formats.files import scratch
from ..formats.gguf.edit import Edit, write_shards
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import F32, TYPES
from ..formats.safetensors import STORED, widen
from ..inspection.kv_cache import gguf_cache
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.schema import Config
from ..models.source import Source
from ..rope.errors import RopeconvError
from ..rope.schedule import QueryScaling, Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.purpose import gives_no_logits
from ..runtimes.llamacpp.read_header import WINDOW_NORM, arch_of, rope_tensors
from .comparison import Comparison, Settings
from .llamacpp_reference import (
    REFERENCE_BASE_RATIO,
    SECOND_BASE_RATIO,
    run_logits,
    run_with_divisors,
    scales_otherwise,
    takes_any_position,
    takes_divisors,
)
from .sampling import (
    SAMPLE,
    Bucket,
    TokenRun,
    affordable_length,
    block_runs,
    length_beyond,
    tail_buckets,
    usual_length,
)
from .validation import (
    DEVIATIONS,
    ENOUGH_POWER,
    KL_FLOOR,
    NOISE_MARGIN,
    SAME_KERNELS,
    SEPARATION,
    BucketResult,
    Measures,
    Validation,
    beyond_trained,
    bucket_result,
    conclusion,
    count_compared,
    describe_changes,
    measure,
    reach_warning,
    rule,
    spread_of,
    tolerance,
    with_noise,
    with_rounded_weights,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

POSITIONS_PER_RANGE = 128
"""Positions of each range that are compared."""
WEIGHT_ERROR = 2.0**-20
"""The relative error of perturbed weights, as rounding gives it: some steps of float32."""
PERTURBED_RUNS = 3
"""Runs with perturbed weights."""
DIRECTIONS = 64
"""How many random directions each row of weights is projected to."""
ROUNDING_LIMIT = 0.5
"""The relative error of a row up to which it is a rounded one: 0.1 in Q4_K, 1.4 for another row."""
COARSE_ROUNDING_LIMIT = 0.8
"""The same for one and two bits: a row of normal numbers is off by 0.6 with signs only."""
COARSE_TYPES = ("IQ1", "IQ2", "Q1", "Q2")
"""How the names of these types begin."""
ROWS_AT_A_TIME = 4096
"""Rows of weights that are read and compared at a time."""
WRONG_BASE_RATIO = 2.0
"""The base of a schedule that is a little wrong, over the right base."""
NOTICED = 3.0
"""How many times what is allowed a faint fault must be, to be noticed beside rounding.

KLs are squares of distances, and at most about twice the noise is allowed. A fault and the noise
may point in opposite directions: (1 + sqrt(2))^2 = 5.8 times the noise is noticed even then.
"""
SHORT_LENGTH = 1024
"""Tokens that are run at every position where others go beyond the trained context."""


@dataclass(frozen=True)
class ReferenceLogits:
    """Logits after some tokens, [positions, vocabulary]."""

    control: Tensor
    """The logits of the unscaled source."""

    reference: Tensor
    """The logits of the source with the schedule."""

    second: Tensor | None = None
    """A second reference, with the same schedule and other rounding; None where there is none."""

    second_is_noise_only: bool = False
    """Whether `second` only shows the noise, and is not compared with the output.

    An example: `second` has the weights of the output, so that it is always near to the output.
    """

    control_in_llamacpp: Tensor | None = None
    """The control in llama.cpp, where `control` ran in transformers; None where not needed."""

    wrong_weights: str = ""
    """The name of a weight of the output that is not a rounded one of the source; empty for none.
    """

    faults: tuple[tuple[str, Tensor], ...] = ()
    """Words and logits of schedules that are a little wrong, which the comparison must notice."""

    of_output: Tensor | None = None
    """The logits of the output, where they were computed too; None for the caller to run it."""


RunPerturbed = Callable[[list[TokenRun], Progress], "list[Tensor]"]
"""Runs all tokens with weights that are off by rounding, and returns the logits of each run."""


@dataclass(frozen=True)
class GgufReference:
    """A way to make the source of a GGUF file compute the schedule."""

    logits: Callable[[list[TokenRun], Progress], ReferenceLogits]
    """Runs all tokens, and returns the logits after those that are kept."""

    perturbed: RunPerturbed | None = None
    """Shows what rounding does, for a model in which that may be much; None for others."""

    passes: int = 3
    """How often each sequence is run, with the run of the output.

    A run that another reference has made does not count again.
    """

    allows_gaps: bool = False
    """Whether positions may have gaps."""

    floor: float = SAME_KERNELS
    """The KL in nats that is always allowed."""

    separation: float | None = None
    """As in `with_rounded_weights`; None where both sides compute with the same weights."""

    remark: str = ""
    """A sentence for the report."""

    rule: str = ""
    """Other allowances, for the report."""

    keys: dict[str, Override] = field(default_factory=dict)
    """Metadata keys that the output gets when it is loaded."""

    with_all_keys: GgufReference | None = None
    """The same with attention to all keys on both sides; None where no indexer chooses keys."""

    in_float32: GgufReference | None = None
    """The same reference, for an output that llama.cpp runs with dequantised weights.

    llama.cpp rounds no activations then. It is for an output whose rounding would hide a fault, and
    None where no weights are quantised.
    """

    with_output_weights: GgufReference | None = None
    """A second reference, with the dequantised weights of the output; None where there is none.

    It reads the same tokens as this reference, which has computed its logits too.
    """


DIVISORS_REMARK = " The reference has the frequencies as divisors over another base."
DIVISORS_RULE = (
    "; with weights that are not in float32, whose products round otherwise where a frequency"
    " does, and with experts, there are two such references: the mean KL from them may be"
    f" {NOISE_MARGIN:g} times that between them and {DEVIATIONS:g} standard errors larger than"
    " that, or a thousandth of that of the control, which must be ten times as far beyond it"
)
EXPORTED_RULE = (
    "; for quantised weights, the mean KL may be that of the output's own weights with the"
    f" schedule as divisors, and {NOISE_MARGIN:g} times that and {DEVIATIONS:g} standard errors"
    " more"
)
OUTPUT_WEIGHTS_REMARK = (
    " The reference that decides has the dequantised weights of the output, in transformers, with"
    " the config of the source."
)
OUTPUT_WEIGHTS_RULE = (
    "; for quantised weights, the mean KL from the checkpoint may be that of the output's own"
    f" weights, dequantised, and {NOISE_MARGIN:g} times that and {DEVIATIONS:g} standard errors"
    " more; from these weights it may be twice that of the unscaled ones between llama.cpp and"
    " transformers, and the control must be ten times as far beyond it, and schedules that are a"
    " little wrong"
    f" {NOTICED:g} times as far as is allowed, or farther from the output than the right one by"
    f" {DEVIATIONS:g} standard errors; where one would not be noticed, the weights are dequantised"
    " in llama.cpp too"
)
ROUTERS_REMARK = (
    " Rounding makes its routers choose other experts at some positions: the mean KL may be that of"
    " the reference from itself with weights that are a few steps of float32 off."
)
HIDDEN_REMARK = (
    " Quantisation changes the logits as much as the method does there, so the rows beside the"
    " checkpoint are not decisive; those beside its own weights are."
)
DEQUANTISED = " The reference has the dequantised weights of the source, in transformers."
DEQUANTISED_RULE = (
    "; the mean KL may be twice that of the unscaled source between llama.cpp and transformers"
    " more, and the control must be ten times as far beyond it"
)


def logits_of(engine: LlamaCppEngine, runs: list[TokenRun], progress: Progress) -> Tensor:
    """Return the logits of runs, [positions, vocabulary], from one process of llama.cpp."""
    import torch

    return torch.from_numpy(run_logits(engine, runs, progress))


def by_keys(
    source: GgufSource, keys: dict[str, Override], runs: list[TokenRun], progress: Progress
) -> ReferenceLogits:
    """Run the source in llama.cpp, with metadata keys that are given when it is loaded."""
    control = logits_of(LlamaCppEngine(source.path), runs, progress)
    reference = logits_of(LlamaCppEngine(source.path, keys), runs, progress)
    return ReferenceLogits(control, reference)


def by_divisors(
    source: GgufSource,
    spec: RopeSpec,
    schedule: Schedule,
    base_ratios: tuple[float, ...],
    is_output: bool,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a file in llama.cpp, unscaled and with the schedule of the output.

    llama.cpp divides the frequencies of the base by the tensor rope_freqs, so every schedule can be
    had from any base: divisor = frequency of the base / frequency of the schedule. The reference
    has another base than the output, so it has other divisors too, and does not repeat a fault in
    the numbers of the output.

    Args:
        source: The source of the output, or the output itself. llama.cpp then runs the output
            without its own scaling.
        spec: The RoPE of the source.
        schedule: The frequencies and factors that the output must have.
        base_ratios: One or two references, each given by its base over that of the source, such as
            8. The second one differs from the first only by rounding, which shows the noise.
        is_output: Whether `source` is the output.
        runs: The tokens.
        progress: Callbacks, which are called while tokens are read.

    Returns:
        The logits of the unscaled model (control), of the first reference, and of the second.
    """
    # the unscaled model is the source unchanged, or the output with the frequencies of the source
    if is_output:
        control = _logits_by_divisors(
            source.file, spec, spec.current(), REFERENCE_BASE_RATIO, runs, progress
        )
    else:
        control = logits_of(LlamaCppEngine(source.path), runs, progress)
    references = []
    for base_ratio in base_ratios:
        logits = _logits_by_divisors(source.file, spec, schedule, base_ratio, runs, progress)
        references.append(logits)
    return ReferenceLogits(control, *references)


def _logits_by_divisors(
    file: GgufFile,
    spec: RopeSpec,
    schedule: Schedule,
    base_ratio: float,
    runs: list[TokenRun],
    progress: Progress,
) -> Tensor:
    """Return the logits of a copy of a file, with the frequencies of a schedule as divisors."""
    import torch

    return torch.from_numpy(run_with_divisors(file, spec, schedule, base_ratio, runs, progress))


@contextmanager
def load_checkpoint(
    comparison: Comparison,
    checkpoint: Source,
    dtype: str,
    run: TokenRun,
    all_keys: bool = False,
) -> Iterator[TransformersEngine]:
    """Load the source in transformers on the CPU, with its original RoPE, for a with block.

    Args:
        comparison: The output and its source.
        checkpoint: The source as a checkpoint.
        dtype: The precision, such as "float32".
        run: The tokens. The model reads all of them in one pass.
        all_keys: Whether attention sees all keys in a model whose indexer would choose some of
            them (DeepSeek-V3.2). Other models always see all keys.
    """
    with folder_of(checkpoint, dtype) as folder, ExitStack() as stack:
        cpu = DeviceSpec("cpu", dtype, loaded_as=comparison.loaded_as)
        device = choose_place(checkpoint, cpu)
        engine = TransformersEngine.load(folder, device, chunk=len(run.ids))
        if all_keys:
            choose_all_keys(stack, engine.model)
        yield engine


def patch_engine(engine: TransformersEngine, comparison: Comparison) -> None:
    """Make a loaded source compute the schedule of the output, with its scaling of queries."""
    patch(
        engine.model,
        comparison.schedule,
        comparison.spec.mla,
        comparison.scale,
        comparison.queries,
    )


def by_patch(
    comparison: Comparison,
    checkpoint: Source,
    dtype: str,
    runs: list[TokenRun],
    progress: Progress,
    all_keys: bool = False,
) -> ReferenceLogits:
    """Run a checkpoint in transformers, first unscaled and then with the RoPE of the output.

    For the second pass the rotary modules are patched: they get the frequencies and the attention
    factor that the output must have.

    Args:
        comparison: The output and its source.
        checkpoint: The source as a checkpoint.
        dtype: The precision, such as "float32".
        runs: A single run, which has every position from 0 on. It is in a list because all
            references have the same parameters.
        progress: Callbacks, which are called while tokens are read.
        all_keys: Whether attention sees all keys in a model whose indexer would choose some of
            them (DeepSeek-V3.2).
    """
    (run,) = runs
    with load_checkpoint(comparison, checkpoint, dtype, run, all_keys) as engine:
        unscaled_logits = engine.logits(run.ids, run.kept, progress)
        patch_engine(engine, comparison)
        patched_logits = engine.logits(run.ids, run.kept, progress)
    return ReferenceLogits(control=unscaled_logits, reference=patched_logits)


def run_perturbed(
    comparison: Comparison,
    checkpoint: Source,
    dtype: str,
    runs: list[TokenRun],
    progress: Progress,
    all_keys: bool = False,
) -> list[Tensor]:
    """Run a checkpoint in transformers three times, with small random errors in its weights.

    The logits show how much rounding changes a mixture of experts. Where two experts have almost
    the same score, rounding decides which expert runs, and llama.cpp may run another expert than
    transformers.

    Args:
        comparison: The output and its source. The checkpoint is patched to the RoPE of the output.
        checkpoint: The source as a checkpoint.
        dtype: The precision, such as "float32".
        runs: A single run, which has every position from 0 on. It is in a list because all
            references have the same parameters.
        progress: Callbacks, which are called while tokens are read.
        all_keys: Whether attention sees all keys in a model whose indexer would choose some of
            them (DeepSeek-V3.2).

    Returns:
        The logits of each pass, [positions, vocabulary]. The errors add up: the first pass has one
        random error in each weight, the second pass two, and so on.
    """
    import torch

    (run,) = runs
    generator = torch.Generator().manual_seed(0)

    def add_random_error(name: str, weight: Tensor) -> Tensor:
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
        return weight * (1 + WEIGHT_ERROR * noise.to(weight.dtype))

    logits_of_passes = []
    with load_checkpoint(comparison, checkpoint, dtype, run, all_keys) as engine:
        patch_engine(engine, comparison)
        for _ in range(PERTURBED_RUNS):
            change_weights(engine.model, add_random_error)  # in place
            logits_of_passes.append(engine.logits(run.ids, run.kept, progress))
    return logits_of_passes


def by_dequantising(
    comparison: Comparison,
    source: GgufCheckpoint,
    dtype: str,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run the source, a GGUF file, in transformers with dequantised weights, and in llama.cpp.

    transformers runs the source unscaled (control) and with the RoPE of the output (reference). The
    output itself runs in llama.cpp, which rounds differently. So llama.cpp runs the unscaled source
    too: the difference between both controls shows how much the rounding changes the logits.

    Args:
        comparison: The output and its source.
        source: The GGUF file as a checkpoint, with its dequantised weights.
        dtype: The precision in transformers, such as "float32".
        runs: A single run, which has every position from 0 on. It is in a list because all
            references have the same parameters.
        progress: Callbacks, which are called while tokens are read.
    """
    checkpoint = source.in_dtype(dtype)
    size = human(sum(file.size for file in checkpoint.files()))
    progress.note(
        f"The weights of {comparison.against} take {size} as {dtype}, on the disk and in memory."
    )
    gguf_file = checkpoint.inner
    control_in_llamacpp = logits_of(LlamaCppEngine(gguf_file.path), runs, progress)
    logits = by_patch(comparison, checkpoint, dtype, runs, progress)
    return replace(logits, control_in_llamacpp=control_in_llamacpp)


def by_export(
    comparison: Comparison,
    source: Source,
    output: GgufSource,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a checkpoint in transformers, and the quantised weights of its export in llama.cpp.

    The checkpoint is the reference. The quantised weights with the right RoPE show the noise, which
    is how much the quantisation changes the logits.

    Args:
        comparison: The output and its source.
        source: The checkpoint that was exported.
        output: The exported GGUF file.
        runs: A single run, which has every position from 0 on. It is in a list because all
            references have the same parameters.
        progress: Callbacks, which are called while tokens are read.
    """
    checkpoint_logits = by_patch(comparison, source, "float32", runs, progress)

    # The RoPE keys of the output are not used here, since they may be wrong. The right frequencies
    # are given to llama.cpp in another way: as another base and a tensor of divisors.
    quantised_logits = _logits_by_divisors(
        output.file, comparison.spec, comparison.schedule, REFERENCE_BASE_RATIO, runs, progress
    )

    # An export may have written the rows of a weight in a wrong order. Beside the effect of
    # quantisation the logits may not show that, so the weights themselves are compared too.
    name_of_wrong_weight = ""
    output_weights = open_output_weights(source, output)
    if output_weights is not None:
        name_of_wrong_weight = find_wrong_rows(source, output_weights)
    return replace(
        checkpoint_logits,
        second=quantised_logits,
        second_is_noise_only=True,
        wrong_weights=name_of_wrong_weight,
    )


class OutputWeights(GgufCheckpoint):
    """The weights of an export, dequantised, with the config of its source.

    The RoPE keys of the file are not read, so a reference with these weights has none of its
    faults.
    """

    def __init__(self, inner: GgufSource, config: Config) -> None:
        super().__init__(inner, "f32", with_tokenizer=False)
        self.source_config = config

    def in_dtype(self, dtype: str) -> OutputWeights:
        return self

    @cached_property
    def _config(self) -> Config:
        return self.source_config | {"dtype": self.dtype}

    @cached_property
    def texts(self) -> dict[str, str]:
        return {"config.json": jsontext.dump(self._config)} | self.index()


def open_output_weights(source: Source, output: GgufSource) -> OutputWeights | None:
    """Return the weights of an exported GGUF file as a checkpoint, with the config of its source.

    Args:
        source: The checkpoint that was exported.
        output: The exported GGUF file.

    Returns:
        The checkpoint; None if a tensor cannot be converted back, or for a model that also reads
        images.
    """
    # Gemma 3: in a model that also reads images, weights have other names than in its text model.
    config = source.config()
    if text_part(config, source.family) is not config:
        return None

    # `files` is called for its errors: it raises RopeconvError if a tensor cannot be converted.
    output_weights = OutputWeights(output, config)
    try:
        output_weights.files()
    except RopeconvError:
        return None
    return output_weights


def unscaled_keys(comparison: Comparison, output: GgufSource) -> dict[str, Override] | None:
    """Return the metadata keys that give an output the RoPE of its source again in llama.cpp.

    llama.cpp accepts such keys when it loads a file, and ignores the same keys in the file.

    Args:
        comparison: The output and its source.
        output: The exported GGUF file.

    Returns:
        The keys, such as llama.rope.scaling.type; None if no keys express the RoPE of the source.
    """
    unscaled = comparison.spec.current()

    # Gemma 3 with an attention factor: the factor is in the weights of the query norms.
    if output.file.get(WINDOW_NORM) is not None:
        return None
    # LongRoPE (Phi-3): the two lists of factors are tensors.
    if unscaled.short_inv_freq is not None:
        return None

    arch = arch_of(output.file)
    return overrides(unscaled, arch.name, comparison.spec)


def run_unscaled(
    output: GgufSource, keys: dict[str, Override], runs: list[TokenRun], progress: Progress
) -> Tensor:
    """Return the logits of an output in llama.cpp without its scaling.

    Args:
        output: The exported GGUF file.
        keys: From `unscaled_keys`.
        runs: The tokens.
        progress: Callbacks, which are called while tokens are read.
    """
    file = output.file
    removed = frozenset(rope_tensors(file))
    if not removed:
        return logits_of(LlamaCppEngine(output.path, keys), runs, progress)
    with scratch() as folder:
        unscaled_copy = write_shards(file, Edit(removed=removed), folder)
        return logits_of(LlamaCppEngine(unscaled_copy, keys), runs, progress)


def slightly_wrong_schedules(comparison: Comparison) -> list[tuple[str, Schedule]]:
    """Return schedules that are a little wrong, which a comparison must notice.

    Args:
        comparison: The output, whose schedule is the right one, and its source.

    Returns:
        Each schedule with words for people, such as "no attention factor".
    """
    schedule = comparison.schedule
    right = schedule.inv_freq
    unscaled = comparison.spec.current().inv_freq

    wrong_schedules = []
    if not comparison.unchanged:
        # the geometric mean of scaled and unscaled: a factor of 2 where 4 is right
        between = np.sqrt(right * unscaled)
        wrong_schedules.append(
            ("the square root of the factor", replace(schedule, inv_freq=between))
        )
    # frequency i of a base b is b^(-i / pairs), so a larger base is one more factor
    pairs = len(right)
    other_base = right * WRONG_BASE_RATIO ** -(np.arange(pairs) / pairs)
    wrong_schedules.append(
        ("a base that is twice as large", replace(schedule, inv_freq=other_base))
    )
    if schedule.attention_factor != 1:
        wrong_schedules.append(("no attention factor", replace(schedule, attention_factor=1.0)))
    if schedule.softmax_scale != 1:
        wrong_schedules.append(("no softmax scale", replace(schedule, softmax_scale=1.0)))
    return wrong_schedules


@dataclass
class DequantisedExport:
    """The dequantised weights of an export in transformers, with the config of its source.

    They are loaded once, and run for two references. Beside the logits of the checkpoint they show
    how much the quantisation changes; beside those of the output, whether its RoPE is right. It is
    for architectures in which llama.cpp cannot divide frequencies.
    """

    comparison: Comparison
    """The output and its source."""

    source: Source
    """The checkpoint that was exported."""

    output_weights: OutputWeights
    """The weights of the output as a checkpoint."""

    keys: dict[str, Override]
    """The metadata keys of the unscaled output, from `unscaled_keys`."""

    computed: ReferenceLogits | None = field(default=None, init=False)
    """The logits for `run_output_weights`, which `run_with_checkpoint` computes; None before."""

    def run_with_checkpoint(self, runs: list[TokenRun], progress: Progress) -> ReferenceLogits:
        """Run the checkpoint and the dequantised weights of the output, both in transformers.

        The returned logits compare the output with the checkpoint. The dequantised weights with the
        same RoPE as the checkpoint show how much the quantisation changes the logits. All logits of
        the dequantised weights are stored in `self.computed`, for `run_output_weights`.

        Args:
            runs: A single run, which has every position from 0 on. It is in a list because all
                references have the same parameters.
            progress: Callbacks, which are called while tokens are read.
        """
        (run,) = runs

        # the checkpoint in transformers, unscaled and with the RoPE that the output must have
        with load_checkpoint(self.comparison, self.source, "float32", run) as engine:
            checkpoint_rows = project_rows(engine.model)  # a summary of the rows of all weights
            unscaled_logits = engine.logits(run.ids, run.kept, progress)
            patch_engine(engine, self.comparison)
            patched_logits = engine.logits(run.ids, run.kept, progress)

        # the dequantised weights in transformers: unscaled, with the right RoPE, and with RoPEs
        # that are a little wrong
        with load_checkpoint(self.comparison, self.output_weights, "float32", run) as engine:
            output_rows = project_rows(engine.model)
            dequantised = self._run_schedules(engine, run, progress)

        # the output in llama.cpp, with its RoPE and unscaled
        gguf_output = self.output_weights.inner
        output_logits = logits_of(LlamaCppEngine(gguf_output.path), runs, progress)
        unscaled_output_logits = run_unscaled(gguf_output, self.keys, runs, progress)

        self.computed = replace(
            dequantised, control_in_llamacpp=unscaled_output_logits, of_output=output_logits
        )
        limit = rounding_limit(gguf_output.file)
        return ReferenceLogits(
            control=unscaled_logits,
            reference=patched_logits,
            second=dequantised.reference,
            second_is_noise_only=True,
            wrong_weights=find_wrong_weights(checkpoint_rows, output_rows, limit),
            of_output=output_logits,
        )

    def run_output_weights(self, runs: list[TokenRun], progress: Progress) -> ReferenceLogits:
        """Return the logits of the output's weights, after `run_with_checkpoint`.

        The output has the same weights, so only its RoPE and the rounding of llama.cpp can differ.
        The unscaled model runs in transformers and in llama.cpp, which shows how much that rounding
        is. Schedules that are a little wrong show whether the comparison would notice them.

        Args:
            runs: The run of `run_with_checkpoint`, which has computed these logits already.
            progress: Callbacks, of which none is called.
        """
        assert self.computed is not None
        return self.computed

    def run_in_float32(self, runs: list[TokenRun], progress: Progress) -> ReferenceLogits:
        """Return the logits of `run_output_weights`, with less rounding in llama.cpp.

        llama.cpp rounds activations to 8 bits where weights are quantised. So it runs a copy of the
        output, with the same RoPE keys and the same weights in float32. The logits of transformers
        are not computed again.

        Args:
            runs: The run of `run_with_checkpoint`.
            progress: Callbacks, which are called while tokens are read.
        """
        logits = self.run_output_weights(runs, progress)
        gguf_output = self.output_weights.inner
        tensors = gguf_output.file.tensors
        weight_count = sum(math.prod(info.shape) for info in tensors.values())
        size = human(4 * weight_count)  # 4 bytes for each weight in float32
        progress.note(
            "Rounding hides a fault, so the output is run with dequantised weights too, which take"
            f" {size} on the disk and in memory."
        )
        with scratch() as folder:
            float32_path = folder / "floats.gguf"
            dequantise(gguf_output.path, float32_path)
            output_logits = logits_of(LlamaCppEngine(float32_path), runs, progress)
            float32_output = GgufSource(float32_path)
            unscaled_output_logits = run_unscaled(float32_output, self.keys, runs, progress)
        return replace(logits, control_in_llamacpp=unscaled_output_logits, of_output=output_logits)

    def _run_schedules(
        self, engine: TransformersEngine, run: TokenRun, progress: Progress
    ) -> ReferenceLogits:
        """Run the weights of the output unscaled, with the right RoPE, and with RoPEs a bit wrong.

        Args:
            engine: The weights of the output, loaded in transformers.
            run: The tokens.
            progress: Callbacks, which are called while tokens are read.
        """
        comparison = self.comparison

        def run_with_schedule(schedule: Schedule) -> Tensor:
            """Return the logits with the frequencies and the attention factor of a schedule."""
            with ExitStack() as stack:
                undo_patch = patch(
                    engine.model,
                    schedule,
                    comparison.spec.mla,
                    comparison.scale,  # the scaling of queries by position, such as log-n
                    comparison.queries,  # the end of the name of the module that outputs queries
                )
                stack.callback(undo_patch)
                return engine.logits(run.ids, run.kept, progress)

        unscaled_logits = engine.logits(run.ids, run.kept, progress)
        right_logits = run_with_schedule(comparison.schedule)

        faults = []
        for description, wrong_schedule in slightly_wrong_schedules(comparison):
            wrong_logits = run_with_schedule(wrong_schedule)
            faults.append((description, wrong_logits))
        return ReferenceLogits(unscaled_logits, right_logits, faults=tuple(faults))


def project_rows(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return each row of each weight of a model, projected to `DIRECTIONS` random directions.

    Distances of rows stay about the same, so that two models can be compared without having both
    in memory.
    """
    import torch

    projections = {}
    for name, weight in model.named_parameters():
        rows = weight.detach().float().reshape(-1, weight.shape[-1])
        generator = torch.Generator().manual_seed(weight.shape[-1])
        directions = torch.randn(weight.shape[-1], DIRECTIONS, generator=generator)
        projections[name] = rows @ directions
    return projections


def find_wrong_weights(source: dict[str, Tensor], output: dict[str, Tensor], limit: float) -> str:
    """Return the name of a weight with a row that rounding does not explain; empty if none has.

    Args:
        source: The projected rows of the source, [rows, `DIRECTIONS`], by the name of the weight.
        output: The projected rows of the output.
        limit: The relative error that rounding may give a row, from `rounding_limit`.
    """
    for name, right in source.items():
        other = output.get(name)
        if other is None or other.shape != right.shape:
            return name
        if not _is_rounded(right.numpy(), other.numpy(), limit):
            return name
    return ""


def find_wrong_rows(source: Source, output_weights: OutputWeights) -> str:
    """Return the name of a weight with a row that rounding does not explain; empty if none has.

    The rows are read from the files, so that neither model is in memory. Weights that are stored
    otherwise, as one tensor in place of several or quantised, are not compared.

    Args:
        source: The checkpoint that was exported.
        output_weights: The weights of the output.
    """
    limit = rounding_limit(output_weights.inner.file)
    tensors_of_source = source.tensors
    for name, tensor in output_weights.tensors.items():
        stored = tensors_of_source.get(name)
        if stored is None or stored.shape != tensor.shape or not stored.shape:
            continue
        is_float = stored.dtype in ("F32", "F16", "BF16")
        if not is_float:
            continue
        rows = math.prod(stored.shape[:-1])
        for first in range(0, rows, ROWS_AT_A_TIME):
            end = min(rows, first + ROWS_AT_A_TIME)
            right = _read_rows(source, name, first, end)
            other = _read_rows(output_weights, name, first, end)
            if not _is_rounded(right, other, limit):
                return name
    return ""


def _read_rows(source: Source, name: str, first: int, end: int) -> NDArray[np.float32]:
    """Return rows first .. end - 1 of a tensor of floats, in float32."""
    for file, header in source.headers.items():
        tensor = header.tensors.get(name)
        if tensor is None:
            continue
        row_bytes = (tensor.stop - tensor.start) // math.prod(tensor.shape[:-1])
        start = header.data_start + tensor.start
        raw = source.read(file, start + first * row_bytes, start + end * row_bytes)
        numbers = np.frombuffer(raw, STORED[tensor.dtype])
        return widen(numbers, tensor.dtype).reshape(-1, tensor.shape[-1])
    raise BadSource(f"{source.reference} has no {name} any more; download it again")


def _is_rounded(right: NDArray[np.float32], other: NDArray[np.float32], limit: float) -> bool:
    """Whether all rows of `other` are those of `right`, but for an error of rounding."""
    distance = np.linalg.norm(other - right, axis=-1)
    return bool((distance <= limit * np.linalg.norm(right, axis=-1)).all())


def rounding_limit(file: GgufFile) -> float:
    """Return the relative error that rounding to the usual type of a file may give a row."""
    name = TYPES[file.usual_type].name
    if name.startswith("TQ"):
        # three values by the largest number of a block: a model that was not trained so loses
        # nearly everything (ggml-quants.c, quantize_row_tq1_0_ref)
        return math.inf
    if name.startswith(COARSE_TYPES):
        return COARSE_ROUNDING_LIMIT
    return ROUNDING_LIMIT


def weights_type(file: GgufFile) -> str:
    """Return the name of the most frequent type of matrices in a file; empty for F32."""
    return "" if file.usual_type == F32 else TYPES[file.usual_type].name


def validate_gguf(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compare the logits of a GGUF file in llama.cpp with the reference and the unscaled source.

    Args:
        comparison: The output and its source.
        settings: `tokens` is the length of a run over every position. By default positions are
            spread up to the new context, or where llama.cpp cannot have gaps between them, it is
            four times the trained one, up to 8192, and more where that is affordable.
        progress: Callbacks, which are called while tokens are read.

    Raises:
        BadSource: If nothing makes the source compute the schedule.
    """
    settings = settings or Settings()
    progress = progress or Progress()
    schedule = comparison.schedule
    output = GgufSource(comparison.baked)
    if gives_no_logits(output.file, arch_of(output.file)):
        raise BadSource(
            f"{comparison.baked} is an encoder, of which llama.cpp gives no logits to compare; its"
            " keys are right, so compare the embeddings of `llama-server --embeddings` with those"
            " of its model in transformers"
        )

    references = _choose_references(comparison, settings, output)
    planned = _plan_runs(comparison, settings, references)
    all_runs = [run for _, runs in planned for run in runs]
    progress.total(sum(reference.passes * _count_tokens(runs) for reference, runs in planned))

    # run both sides, and judge every range of positions
    judged = []
    results: list[BucketResult] = []
    temperature = 1.0
    for reference, runs in planned:
        _note_work(runs, reference, progress)
        one = _run_and_judge(comparison, reference, runs, progress)
        judged.append(one)
        results += one.results
        if one.temperature != 1:
            temperature = one.temperature

    # llama.cpp against itself is the sharper comparison; the other one shows that the weights were
    # converted well
    decisive = judged[-1].results if len(judged) > 1 else None
    agrees, sentence = conclusion(
        results, comparison.unchanged, schedule.original_context, decisive
    )
    rounded = _rounded_type(comparison)
    hidden_fault = judged[-1].hidden_fault
    wrong_weights = judged[0].wrong_weights
    if wrong_weights:
        reason = (
            f"rows of {wrong_weights} are more than {rounding_limit(output.file):.0%} off those of"
            f" the source, which rounding to {rounded} does not explain"
        )
        verdict = "FAIL" if sentence.startswith("FAIL") else "INCONCLUSIVE"
        agrees = False
        sentence = f"{verdict}: {reason}."
    elif agrees and hidden_fault:
        agrees = False
        sentence = (
            f"INCONCLUSIVE: with weights in {rounded}, llama.cpp rounds so much that a file with"
            f" {hidden_fault} would not be noticed; validate a --outtype f32 export too."
        )
    elif not agrees and references[0].separation == SEPARATION:
        # the noise of rounded weights could not be measured
        as_far_as_control = any(one.kl_mean >= one.control_kl for one in results)
        if sentence.startswith("FAIL") and not as_far_as_control:
            reason = sentence.removeprefix("FAIL: ")
            sentence = (
                f"INCONCLUSIVE: {reason} How much of it comes from weights in {rounded} cannot be"
                " measured for this file; validate a --outtype f32 export too."
            )
    if agrees and all(one.is_equal for one in judged):
        sentence = f"Equal to the last bit. {sentence}"
    elif agrees and rounded:
        sentence += f" The weights are {rounded}: {_allowance(references[0])}."
    if agrees and any(one.experts_differ for one in judged):
        sentence += ROUTERS_REMARK
    if agrees and rounded and decisive is not None:
        far = beyond_trained(judged[0].results, schedule.original_context)
        if not all(result.is_distinguished for result in far):
            sentence += HIDDEN_REMARK
    changes = ["attention to all keys"] if any(one.all_keys for one in judged) else []
    if any(one.in_float32 for one in judged):
        changes.append("dequantised weights in llama.cpp too")
    if temperature != 1:
        changes.append(f"logits divided by their spread of {temperature:.2g}")
    sentence += _explain_comparison(comparison, references, results, changes)

    whole_lengths = [len(run.ids) for run in all_runs if run.kind == "whole"]
    rules = [reference.rule for reference in references]
    return Validation(
        transformers="",
        device="cpu",
        digest=schedule.digest,
        tokens=max(len(run.ids) for run in all_runs),
        seed=settings.seed,
        buckets=tuple(results),
        agrees=agrees,
        sentence=sentence,
        runtime=runtime(),
        length=max(whole_lengths, default=0),
        temperature=temperature,
        rule=rule(references[0].floor) + "".join(rules),
        reached=count_compared(results),
        **comparison.result_fields(),
    )


class Judged(NamedTuple):
    """The comparison of an output with one reference."""

    results: list[BucketResult]
    """The result of each range of positions."""

    temperature: float
    """The number that logits were divided by for the KL."""

    is_equal: bool
    """Whether all logits are equal to the last bit."""

    experts_differ: bool
    """Whether rounding was measured too, since it makes routers choose other experts."""

    hidden_fault: str = ""
    """The fault of a schedule that would not be noticed; empty where all would be."""

    wrong_weights: str = ""
    """As in `ReferenceLogits`."""

    all_keys: bool = False
    """Whether both sides attended to all keys, since rounding makes indexers choose others."""

    in_float32: bool = False
    """Whether the weights were dequantised on both sides, since rounding would hide a fault."""


def _run_and_judge(
    comparison: Comparison, reference: GgufReference, runs: list[TokenRun], progress: Progress
) -> Judged:
    """Run the reference and the output over the same tokens, and judge each range of positions.

    In four cases the first judgement is not final: with experts that rounding exchanges, with
    logits that are almost equal, with an indexer that chooses keys, and with quantisation that
    hides a fault. Then the output is judged again, as the comments below say.

    Args:
        comparison: The output and its source.
        reference: How the source is made to compute the schedule of the output.
        runs: The tokens.
        progress: Callbacks, which are called while tokens are read.
    """
    schedule = comparison.schedule
    logits = reference.logits(runs, progress)
    output_logits = logits.of_output  # computed by some references already
    if output_logits is None:
        engine = LlamaCppEngine(comparison.baked, reference.keys)
        output_logits = logits_of(engine, runs, progress)
    results = _judge(runs, logits, output_logits, reference)
    all_agree = all(result.agrees for result in results)

    # 1. In a mixture of experts, rounding may choose other experts. Small errors of the weights
    # show how much that changes the logits, and as much is allowed.
    experts_differ = False
    if reference.perturbed is not None and not all_agree:
        perturbed_logits = reference.perturbed(runs, progress)
        logits = _replace_second(logits, perturbed_logits)
        results = _judge(runs, logits, output_logits, reference)
        experts_differ = True

    # 2. Where the KL of even the unscaled source is hardly larger than the tolerance, a wrong
    # output might pass. Dividing the logits by a temperature may show it better.
    temperature = 1.0
    is_rounded = bool(_rounded_type(comparison))
    if not is_rounded and _power(results, schedule) < ENOUGH_POWER:
        results, temperature = _choose_temperature(
            results, runs, logits, output_logits, reference, schedule
        )

    # 3. An indexer (DeepSeek-V3.2) chooses the keys that attention sees. A tiny change of its
    # scores makes it choose others, and with equal scores it may choose any keys. Padding tokens of
    # a new model have embeddings of zeros, so each key has the score 0 for them. Both sides are run
    # again with attention to all keys.
    all_agree = all(result.agrees for result in results)
    if reference.with_all_keys is not None and not all_agree:
        judged_again = _run_and_judge(comparison, reference.with_all_keys, runs, progress)
        return judged_again._replace(all_keys=True)

    # 4. A fault may change the logits less than quantisation does. The output is run again with
    # dequantised weights, with which llama.cpp rounds less.
    hidden_fault = _find_hidden_fault(runs, logits, output_logits, results)
    if hidden_fault and reference.in_float32 is not None:
        judged_again = _run_and_judge(comparison, reference.in_float32, runs, progress)
        return judged_again._replace(in_float32=True)

    has_same_shape = logits.reference.shape == output_logits.shape
    is_equal = has_same_shape and bool((logits.reference == output_logits).all())
    return Judged(
        results=results,
        temperature=temperature,
        is_equal=is_equal,
        experts_differ=experts_differ,
        hidden_fault=hidden_fault,
        wrong_weights=logits.wrong_weights,
    )


def _find_hidden_fault(
    runs: list[TokenRun], logits: ReferenceLogits, of_output: Tensor, results: list[BucketResult]
) -> str:
    """Return a fault of the output's RoPE that the comparison would not notice.

    An example is "a base that is twice as large", if weights in 4 bits change the logits more than
    such a base does.

    Args:
        runs: The tokens.
        logits: The logits of the reference, and the logits with each fault (`logits.faults`).
        of_output: The logits of the output, [positions, vocabulary].
        results: The result of each range of positions, with the KL that is allowed there.

    Returns:
        The first such fault in words; empty if all faults would be noticed.
    """
    # the vocabulary of one side may be padded with more columns
    vocabulary = min(logits.reference.shape[1], of_output.shape[1])
    of_output = of_output[:, :vocabulary]
    kl_from_reference = measure(logits.reference[:, :vocabulary], of_output).kl
    for fault, logits_with_fault in logits.faults:
        # First test: would an output with this fault fail? In some range of positions, the KL of
        # the fault from the reference must be NOTICED (3) times the allowed KL.
        would_fail = False
        for (_kind, _bucket, rows), result in zip(_rows_of_buckets(runs), results, strict=True):
            kl_of_fault = measure(logits.reference[rows], logits_with_fault[rows]).kl.mean().item()
            if kl_of_fault >= NOTICED * result.tolerance:
                would_fail = True
        if would_fail:
            continue

        # Second test: is this output nearer to the reference than to the fault? The difference of
        # its two KLs must be DEVIATIONS (4) standard errors above 0.
        kl_from_fault = measure(logits_with_fault[:, :vocabulary], of_output).kl
        difference = kl_from_fault - kl_from_reference  # [positions]
        standard_error = difference.std().item() / math.sqrt(len(difference))
        if difference.mean().item() > DEVIATIONS * standard_error:
            continue
        return fault
    return ""


def _explain_comparison(
    comparison: Comparison,
    references: list[GgufReference],
    results: list[BucketResult],
    changes: Sequence[str],
) -> str:
    """Return the text that follows the verdict in the report: how the comparison was made.

    Every sentence of the text begins with a space.

    Args:
        comparison: The output and its source.
        references: The computations with which the output was compared. The first one runs the
            source with the right RoPE. The second one, if any, runs the weights of the output with
            the right RoPE.
        results: The result of each range of positions.
        changes: Settings that were changed, such as "attention to all keys".
    """
    schedule = comparison.schedule
    source_reference = references[0]
    text = reach_warning(results, schedule.original_context, schedule.context, "--tokens")

    # each of these remarks is one sentence, or empty
    text += source_reference.remark
    text += comparison.remark

    # the second reference, in transformers or in llama.cpp
    if source_reference.with_output_weights is not None:
        text += source_reference.with_output_weights.remark
    elif len(references) > 1:
        text += (
            " Up to the new context, llama.cpp is compared with itself on the weights of the"
            " output."
        )

    text += describe_changes(changes)
    if isinstance(comparison.scale, QueryScaling):
        text += " The output and the reference scale queries in steps, in place of log-n."
    return text


def _choose_references(
    comparison: Comparison, settings: Settings, output: GgufSource
) -> list[GgufReference]:
    """Return the sharpest reference, and a second one where that stays in the trained context."""
    first = check_gguf(comparison, settings)
    if first.with_output_weights is not None:
        return [first, first.with_output_weights]
    if first.allows_gaps or settings.tokens:
        return [first]
    second = _reference_in_llamacpp(comparison, output, is_output=True)
    if second is None or not second.allows_gaps:
        return [first]
    return [first, second]


def _allowance(reference: GgufReference) -> str:
    """Return the KL that rounded weights may add, for a sentence."""
    if reference.separation is None:
        return "the noise of that is measured and allowed"
    return "a tenth of the control is allowed"


def _plan_runs(
    comparison: Comparison, settings: Settings, references: list[GgufReference]
) -> list[tuple[GgufReference, list[TokenRun]]]:
    """Choose the tokens that each reference reads; the output reads the same tokens.

    Args:
        comparison: The output and its source.
        settings: The number of tokens, and the seed.
        references: One or two computations with which the output is compared.

    Returns:
        Pairs of a reference and its runs, in the order of `references`.
    """
    first_reference = references[0]
    second_references = references[1:]  # none, or one

    # a single reference
    if not second_references:
        runs = _choose_runs(comparison, settings, first_reference, tests_extension_too=False)
        return [(first_reference, runs)]
    second_reference = second_references[0]

    # The first reference computes the logits of the second one too, in transformers. Both need the
    # same tokens.
    if first_reference.with_output_weights is not None:
        runs = _choose_runs(comparison, settings, first_reference, tests_extension_too=False)
        return [(first_reference, runs), (second_reference, runs)]

    # The second reference runs in llama.cpp, at positions up to the new context. The first one may
    # then be shorter.
    first_runs = _choose_runs(comparison, settings, first_reference, tests_extension_too=True)
    second_runs = _choose_runs(comparison, settings, second_reference, tests_extension_too=True)
    return [(first_reference, first_runs), (second_reference, second_runs)]


def _count_tokens(runs: list[TokenRun]) -> int:
    """Count the tokens of some runs."""
    return sum(len(run.ids) for run in runs)


def _choose_runs(
    comparison: Comparison, settings: Settings, reference: GgufReference, tests_extension_too: bool
) -> list[TokenRun]:
    """Return the tokens that the output and a reference read, each with its position.

    Args:
        comparison: The output and its source.
        settings: The number of tokens, 0 for the usual number, and the seed.
        reference: The computation with which the output is compared.
        tests_extension_too: Whether another reference tests positions beyond the trained context.
            The tokens for this reference may then end within the trained context.
    """
    import torch

    schedule = comparison.schedule
    file = GgufSource(comparison.baked).file
    original = schedule.original_context
    context = schedule.context
    vocabulary = file.tensors["token_embd.weight"].shape[1]

    # Gaps between positions: blocks of tokens are spread over the new context.
    if reference.allows_gaps and not settings.tokens:
        return block_runs(original, context, vocabulary, settings.seed, POSITIONS_PER_RANGE)

    # Without gaps: one run from position 0 on. How long is it?
    usual = usual_length(original, context)
    usual_shows_no_extension = usual <= original < context
    if settings.tokens:
        length = min(context, settings.tokens)
    elif tests_extension_too and usual_shows_no_extension:
        length = SHORT_LENGTH  # 1024
    else:
        length = _choose_affordable_length(comparison, reference.passes)

    # random tokens, of which some positions in each range of positions are compared
    generator = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(vocabulary, (length,), generator=generator).tolist()
    buckets = tail_buckets(original, length, POSITIONS_PER_RANGE)
    return [TokenRun.over_all("whole", ids, buckets)]


def _note_work(runs: list[TokenRun], reference: GgufReference, progress: Progress) -> None:
    """Note what will be run."""
    if not reference.passes:  # it was run with another reference
        return
    tokens = _count_tokens(runs)
    over = ""
    if runs[-1].has_gaps:
        over = f", spread over {runs[-1].positions[-1] + 1:,} positions"
    progress.note(
        f"Running {tokens:,} tokens{over} {reference.passes} times: control, reference and output."
    )


def _choose_affordable_length(comparison: Comparison, passes: int) -> int:
    """Choose how many tokens to run from position 0 on, by the free memory and a measured time.

    Args:
        comparison: The output and its source.
        passes: How often the tokens are run; 3 for the output, the reference and the control.
    """
    schedule = comparison.schedule
    output = GgufSource(comparison.baked)
    original = schedule.original_context
    context = schedule.context

    # the bytes of the KV cache for a run that ends a quarter beyond the trained context
    cache_bytes = 0
    cache = gguf_cache(output.file, arch_of(output.file))
    if cache is not None:
        longer_length = length_beyond(original, context)
        bytes_by_dtype = cache.bytes(longer_length)
        cache_bytes = 2 * bytes_by_dtype.get("f16", 0)  # float32 takes twice the bytes of f16

    def time_sample() -> float:
        """Return the seconds that SAMPLE tokens (256) take in all passes."""
        begin = time.perf_counter()
        LlamaCppEngine(comparison.baked).logits(list(range(SAMPLE)), [SAMPLE - 1])
        return passes * (time.perf_counter() - begin)

    free_memory = host_bytes()
    return affordable_length(
        original, context, seconds=time_sample, needed=cache_bytes, free=free_memory
    )


def check_gguf(comparison: Comparison, settings: Settings) -> GgufReference:
    """Choose the computation with which the logits of a GGUF file are compared (its reference).

    The reference runs the source of the file with the RoPE that the file must have. The choice is
    the computation that rounds most like the output, so that small faults are noticed.

    Args:
        comparison: The output and its source.
        settings: How the models are run.

    Raises:
        BadSource: The file cannot be compared with its source.
    """
    rounded_type = _rounded_type(comparison)  # such as "Q4_K"; empty where nothing is rounded
    _refuse_incomparable(comparison, rounded_type)

    # The source is a checkpoint: transformers runs it.
    source = comparison.source
    if not isinstance(source, GgufSource):
        output = GgufSource(comparison.baked)
        return _reference_from_checkpoint(
            comparison, source, output, output_is_rounded=bool(rounded_type)
        )

    # The source is a GGUF file: llama.cpp runs it with the same kernels as the output.
    if not settings.dequantised:
        reference = _reference_in_llamacpp(comparison, source)
        if reference is not None:
            return reference

    # llama.cpp cannot run it with this RoPE: transformers runs its dequantised weights.
    checkpoint = comparison.checkpoint_or_dequantised(
        failure="cannot be given this schedule at loading, and cannot be dequantised either"
    )
    assert isinstance(checkpoint, GgufCheckpoint)
    dtype = "float32" if settings.dtype == "auto" else settings.dtype
    return GgufReference(
        partial(by_dequantising, comparison, checkpoint, dtype),
        # the unscaled source in llama.cpp and in transformers, the reference, and the output
        passes=4,
        # the KL in nats that is allowed whatever the noise is
        floor=KL_FLOOR,
        # The allowed KL follows from the measured noise. A finite number would also allow the KL of
        # the unscaled source, divided by that number.
        separation=math.inf,
        remark=DEQUANTISED,
        rule=DEQUANTISED_RULE,
    )


def _refuse_incomparable(comparison: Comparison, rounded_type: str) -> None:
    """Raise BadSource for an output that cannot be compared with its source.

    Args:
        comparison: The output and its source.
        rounded_type: The type of rounded weights, such as "Q4_K"; empty where nothing is rounded.

    Raises:
        BadSource: The output is a draft model, or has rounded weights and the RoPE of its source.
    """
    # A draft model, such as "a set of Medusa heads": llama.cpp does not run it alone.
    if comparison.draft:
        kind_of_draft = comparison.draft.says
        raise BadSource(
            f"{comparison.baked} is {kind_of_draft}, which llama.cpp runs only with its target;"
            " validate that"
        )

    # Rounded weights and an unchanged RoPE: a comparison must show that a wrong RoPE is noticed
    # beside the rounding. It runs the unscaled source (the control) to show that, which here is the
    # same as the right model.
    if rounded_type and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} differs from its source only in the type of the weights"
            f" ({rounded_type}), so there is no control; compare a --outtype f32 export"
        )


def _reference_from_checkpoint(
    comparison: Comparison, source: Source, output: GgufSource, output_is_rounded: bool
) -> GgufReference:
    """Return how transformers computes the reference for a GGUF file from its source checkpoint.

    Args:
        comparison: The output and its source.
        source: The checkpoint.
        output: The exported file.
        output_is_rounded: Whether its weights were rounded by the export, for example to Q4_K.
    """
    if output_is_rounded:
        return _reference_for_rounded_export(comparison, source, output)

    # All models: the checkpoint runs unscaled, and with the RoPE of the output.
    run_checkpoint = partial(by_patch, comparison, source, "float32")

    # Mixtures of experts: rounding may choose other experts. If the logits differ by too much, the
    # checkpoint runs again with small errors in its weights, which show how much that changes.
    has_experts = _has_experts(output.file)
    run_with_errors = partial(run_perturbed, comparison, source, "float32")

    # Models without an indexer are done.
    key_of_top_k = f"{arch_of(output.file).name}.attention.indexer.top_k"
    has_indexer = output.file.get(key_of_top_k) is not None
    if not has_indexer:
        return GgufReference(
            logits=run_checkpoint,
            perturbed=run_with_errors if has_experts else None,
            floor=KL_FLOOR,
        )

    # DeepSeek-V3.2: an indexer chooses the `top_k` keys that attention sees, and rounding may
    # choose other keys. If the logits differ by too much, both sides run again with all keys.
    with_all_keys = GgufReference(
        logits=partial(run_checkpoint, all_keys=True),
        perturbed=partial(run_with_errors, all_keys=True) if has_experts else None,
        floor=KL_FLOOR,
        keys={key_of_top_k: ("int", ALL)},  # for the output: a number above all contexts
    )
    return GgufReference(logits=run_checkpoint, floor=KL_FLOOR, with_all_keys=with_all_keys)


def _reference_for_rounded_export(
    comparison: Comparison, source: Source, output: GgufSource
) -> GgufReference:
    """Return how the reference is computed for a GGUF file whose weights the export has rounded.

    The logits of rounded weights (Q4_K) differ from the logits of the checkpoint also if the RoPE
    is right. There are three ways to allow for that, the most exact way first.

    Args:
        comparison: The output and its source.
        source: The checkpoint.
        output: The exported file.
    """
    # 1. llama.cpp can run the rounded weights with the right RoPE, given as divisors of
    # frequencies. This shows how much the rounding changes.
    if _reference_in_llamacpp(comparison, output, is_output=True) is not None:
        return GgufReference(
            partial(by_export, comparison, source, output),
            # the checkpoint twice (unscaled, and with the right RoPE), the rounded weights with the
            # right RoPE, and the output
            passes=4,
            floor=KL_FLOOR,
            rule=EXPORTED_RULE,
        )

    # 2. transformers can run the rounded weights, dequantised. Their family must be the family of
    # the source: Mistral becomes a Llama in GGUF, which may lack some of its weights.
    output_weights = open_output_weights(source, output)
    keys = unscaled_keys(comparison, output)
    is_same_family = output_weights is not None and output_weights.family.name == source.family.name
    if output_weights is not None and is_same_family and keys is not None:
        export = DequantisedExport(comparison, source, output_weights, keys)
        # With an infinite separation, the allowed KL follows only from the measured noise.
        in_float32 = GgufReference(export.run_in_float32, floor=KL_FLOOR, separation=math.inf)
        second_reference = GgufReference(
            export.run_output_weights,
            passes=0,  # `run_with_checkpoint` computes these logits too
            in_float32=in_float32,  # used if rounding would hide a fault
            floor=KL_FLOOR,
            separation=math.inf,
            remark=OUTPUT_WEIGHTS_REMARK,
        )
        fault_count = len(slightly_wrong_schedules(comparison))
        return GgufReference(
            export.run_with_checkpoint,
            # the checkpoint, the dequantised weights and the output, each unscaled and with its
            # RoPE; and the dequantised weights with each RoPE that is a little wrong
            passes=6 + fault_count,
            floor=KL_FLOOR,
            rule=OUTPUT_WEIGHTS_RULE,
            with_output_weights=second_reference,
        )

    # 3. Nothing shows how much the rounding changes. The KL of the output may then be a tenth of
    # the KL of the unscaled source.
    run_checkpoint = partial(by_patch, comparison, source, "float32")
    return GgufReference(run_checkpoint, floor=KL_FLOOR, separation=SEPARATION)


def _has_experts(file: GgufFile) -> bool:
    """Whether a model is a mixture of experts."""
    count = file.get(f"{arch_of(file).name}.expert_count")
    return isinstance(count, int) and count > 0


def _reference_in_llamacpp(
    comparison: Comparison, weights: GgufSource, is_output: bool = False
) -> GgufReference | None:
    """Return how llama.cpp computes the RoPE that an output must have; None if it cannot.

    llama.cpp can get the RoPE in two ways: as metadata keys that are given when a file is loaded,
    and as a base with a tensor that divides its frequencies. The numbers are computed from the
    recipe and not read from the output, so that faults of the output are not repeated.

    Args:
        comparison: The output and its source.
        weights: The file that llama.cpp runs: the source of the output, or the output itself.
        is_output: Whether `weights` is the output.
    """
    arch = arch_of(weights.file)
    spec = comparison.spec
    schedule = comparison.schedule

    # Neither keys nor divisors scale queries by position (log-n), query norms, or attention by the
    # log multiplier of YaRN (DeepSeek-V2).
    output = GgufSource(comparison.baked)
    if scales_otherwise(weights.file, output.file, schedule):
        return None
    can_divide = takes_divisors(weights.file, spec, schedule)
    allows_gaps = takes_any_position(weights.file, spec, schedule)

    # 1. Metadata keys, if the output was written as keys: both then round in the same way. Keys
    # cannot remove a scaling that is in the file already.
    is_scaled_already = is_output or bool(rope_tensors(weights.file))
    prefers_keys = comparison.receipt.encoding == "keys" or not can_divide
    if prefers_keys and not is_scaled_already:
        keys = overrides(schedule, arch.name, spec)  # None if no keys express this RoPE
        if keys is not None:
            return GgufReference(partial(by_keys, weights, keys), allows_gaps=allows_gaps)
    if not can_divide:
        return None

    # 2. Divisors, over a base 8 times the base of the source. With weights below float32 and with
    # experts, such frequencies also change the rounding. A second reference, over a base 4 times
    # the base of the source, shows how much.
    base_ratios: tuple[float, ...] = (REFERENCE_BASE_RATIO,)
    rule_of_noise = ""  # for the report
    changes_rounding = bool(weights_type(weights.file)) or _has_experts(weights.file)
    if changes_rounding:
        base_ratios = (REFERENCE_BASE_RATIO, SECOND_BASE_RATIO)
        rule_of_noise = DIVISORS_RULE
    return GgufReference(
        partial(by_divisors, weights, spec, schedule, base_ratios, is_output),
        passes=2 + len(base_ratios),  # the output, the unscaled file, and each reference
        allows_gaps=allows_gaps,
        remark=DIVISORS_REMARK,
        rule=rule_of_noise,
    )


def _rounded_type(comparison: Comparison) -> str:
    """Return the type of the weights if the source has another one; empty if it has the same."""
    if isinstance(comparison.source, GgufSource):
        return ""
    return weights_type(GgufSource(comparison.baked).file)


def _judge(
    runs: list[TokenRun],
    logits: ReferenceLogits,
    of_output: Tensor,
    reference: GgufReference,
    temperature: float = 1.0,
) -> list[BucketResult]:
    """Return whether the output agrees with the reference in each bucket (range of positions).

    It is judged by the KL of its logits from those of the reference. How much is allowed depends on
    the noise, which is the KL between two computations that should be equal:

    - With a second reference (`logits.second`), the noise is the KL between the two references.
    - With the unscaled source in transformers and in llama.cpp (`logits.control_in_llamacpp`), the
      noise is the KL between these, and twice as much is allowed.
    - With neither, a part of the KL of the control is allowed for rounded weights, and only the
      tolerance for others.

    Args:
        runs: The tokens.
        logits: The logits of the reference, of the control (the unscaled source), and of the
            computations that show the noise.
        of_output: The logits of the output.
        reference: The way of comparing, with its tolerances.
        temperature: Divides the logits for the KL.
    """
    # the noise, in the bucket in which it is largest
    noise_of_references: Measures | None = None
    if logits.second is not None:
        noise_of_references = _largest_kl(logits.reference, logits.second, runs, temperature)
    noise_of_runtimes = 0.0
    if logits.control_in_llamacpp is not None:
        between_runtimes = _largest_kl(
            logits.control, logits.control_in_llamacpp, runs, temperature
        )
        noise_of_runtimes = between_runtimes.kl.mean().item()

    results = []
    for kind, bucket, rows in _rows_of_buckets(runs):
        from_control = _compare_rows(logits.reference, logits.control, rows, temperature)
        from_reference = _compare_rows(logits.reference, of_output, rows, temperature)

        # first judged without any noise
        last_position = bucket.positions[-1]
        result = bucket_result(
            bucket,
            from_reference,
            control_kl=from_control.kl.mean().item(),
            kind=kind,
            allowed=tolerance(last_position, noise=0.0, floor=reference.floor),
        )

        # then with the noise, if it was measured
        if logits.second is not None and noise_of_references is not None:
            # A second reference with the weights of the output (`by_export`) only shows the noise.
            # It is nearer to the output than the first one, whether the RoPE is right or wrong.
            from_second = from_reference
            if not logits.second_is_noise_only:
                from_second = _compare_rows(logits.second, of_output, rows, temperature)
            result = with_noise(result, from_reference, from_second, noise_of_references)
        elif reference.separation is not None:
            result = with_rounded_weights(result, noise_of_runtimes, reference.separation)
        results.append(result)
    return results


def _largest_kl(left: Tensor, right: Tensor, runs: list[TokenRun], temperature: float) -> Measures:
    """Compare two computations in every bucket, and return the measures with the largest mean KL.

    Args:
        left: The logits of one, [positions, vocabulary].
        right: The logits of the other.
        runs: The tokens, with their buckets.
        temperature: Divides the logits.
    """
    of_buckets = [
        _compare_rows(left, right, rows, temperature) for _, _, rows in _rows_of_buckets(runs)
    ]
    return max(of_buckets, key=lambda measures: float(measures.kl.mean()))


def _compare_rows(left: Tensor, right: Tensor, rows: slice, temperature: float) -> Measures:
    """Compare some rows of two arrays of logits, [positions, vocabulary].

    One side may have padded its vocabulary to more columns, which are left out.
    """
    width = min(left.shape[1], right.shape[1])
    return measure(left[rows, :width], right[rows, :width], temperature=temperature)


def _replace_second(logits: ReferenceLogits, perturbed: list[Tensor]) -> ReferenceLogits:
    """Return the same logits with another second reference, by which the noise is measured.

    Args:
        logits: The logits of the reference.
        perturbed: The logits of several runs of the reference with small errors in its weights,
            each [positions, vocabulary].

    Returns:
        The logits with the run that has the largest mean KL from the reference as `second`. Only
        the noise is measured with that run: the output is not compared with it.
    """

    def mean_kl_from_reference(other: Tensor) -> float:
        return float(measure(logits.reference, other).kl.mean())

    farthest = max(perturbed, key=mean_kl_from_reference)
    return replace(logits, second=farthest, second_is_noise_only=True)


def _choose_temperature(
    undivided_results: list[BucketResult],
    runs: list[TokenRun],
    logits: ReferenceLogits,
    of_output: Tensor,
    reference: GgufReference,
    schedule: Schedule,
) -> tuple[list[BucketResult], float]:
    """Compare the output with the reference again, with all logits divided by a temperature.

    If the logits of a model are almost equal, its probabilities are too, and even a wrong output
    has a small KL. The temperature is the standard deviation of the logits over the vocabulary, so
    that the divided logits of all models have about the same size.

    Args:
        undivided_results: The results with a temperature of 1.
        runs: The tokens.
        logits: The logits of the reference, and of the unscaled source (control).
        of_output: The logits of the output, [positions, vocabulary].
        reference: How the reference was computed, with its tolerances.
        schedule: The frequencies and factors that the output must have.

    Returns:
        The more sensitive results, and their temperature. Results are more sensitive if the KL of
        the unscaled source is larger relative to the tolerance (`_power`).
    """
    temperature = spread_of(logits.reference)
    divided_results = _judge(runs, logits, of_output, reference, temperature)
    if _power(divided_results, schedule) > _power(undivided_results, schedule):
        return divided_results, temperature
    return undivided_results, 1.0


def _rows_of_buckets(
    runs: list[TokenRun],
) -> Iterator[tuple[Literal["spread", "whole"], Bucket, slice]]:
    """Yield (kind of its run, bucket, rows) for each bucket of positions.

    The rows are those of its positions in the logits of all runs, [positions, vocabulary].
    """
    first_row = 0
    for run in runs:
        for bucket, rows in run.parts():
            yield run.kind, bucket, slice(first_row + rows.start, first_row + rows.stop)
        first_row += len(run.kept)


def _power(results: list[BucketResult], schedule: Schedule) -> float:
    """Return the smallest ratio of the control to the allowed KL, beyond the trained context."""
    extended = beyond_trained(results, schedule.original_context)
    return min(result.control_kl / result.tolerance for result in extended)
