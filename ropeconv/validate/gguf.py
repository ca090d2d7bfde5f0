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
from ..formats.gguf.edit import Edit, write_new
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import F32, TYPES
from ..formats.safetensors import STORED, widen
from ..inspection.kv_cache import gguf_cache
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.schema import Config
from ..models.source import Source
from ..rope.errors import RopeconvError
from ..rope.forms import Plain
from ..rope.schedule import QueryScaling, Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.purpose import gives_no_logits
from ..runtimes.llamacpp.read_header import WINDOW_NORM, arch_of, rope_tensors
from .comparison import Comparison, Settings
from .llamacpp_reference import (
    SECOND_SPLIT,
    SPLIT,
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
    KL_FLOOR,
    PART,
    POWER,
    SAME_KERNELS,
    SEPARATION,
    BucketResult,
    Measures,
    Validation,
    beyond,
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

EACH = 128
"""Positions of each range that are compared."""
NEARBY = 2.0**-20
"""The relative error of weights that are off by rounding: some steps of float32."""
NEARBY_RUNS = 3
"""Runs with such weights."""
PROJECTED = 64
"""Random directions to which rows of weights are projected."""
ROUNDED = 0.5
"""The relative error of a row up to which it is a rounded one: 0.1 in Q4_K, 1.4 for another row."""
ROUNDED_COARSELY = 0.8
"""The same for one and two bits: a row of normal numbers is off by 0.6 with signs only."""
COARSE_TYPES = ("IQ1", "IQ2", "Q1", "Q2")
"""How the names of these types begin."""
ROWS_AT_A_TIME = 4096
"""Rows of weights that are read and compared at a time."""
OTHER_BASE = 2.0
"""The base of a faint fault, over the right one."""
NOTICED = 3.0
"""How many times what is allowed a faint fault must be, to be noticed beside rounding.

KLs are squares of distances, and at most about twice the noise is allowed. A fault and the noise
may point in opposite directions: (1 + sqrt(2))^2 = 5.8 times the noise is noticed even then.
"""
SHORT = 1024
"""Tokens that are run at every position where others go beyond the trained context."""


@dataclass(frozen=True)
class ReferenceLogits:
    """Logits after some tokens, [positions, vocabulary]."""

    control: Tensor
    """The logits of the unscaled source."""

    reference: Tensor
    """The logits of the source with the schedule."""

    second: Tensor | None = None
    """The schedule in a further way, which rounds otherwise; None where nothing is rounded."""

    as_output: bool = False
    """Whether `second` has the weights of the output, and `reference` others."""

    other_control: Tensor | None = None
    """The unscaled source, computed as the output is; None where it is not needed."""

    wrong_weights: str = ""
    """The name of a weight of the output that is not a rounded one of the source; empty for none.
    """

    faults: tuple[tuple[str, Tensor], ...] = ()
    """Words and logits of schedules that are a little wrong, which the comparison must notice."""

    of_output: Tensor | None = None
    """The logits of the output, where they were computed too; None for the caller to run it."""


Nearby = Callable[[list[TokenRun], Progress], "list[Tensor]"]
"""Runs all tokens with weights that are off by rounding, and returns the logits of each run."""


@dataclass(frozen=True)
class GgufReference:
    """A way to make the source of a GGUF file compute the schedule."""

    logits: Callable[[list[TokenRun], Progress], ReferenceLogits]
    """Runs all tokens, and returns the logits after those that are kept."""

    nearby: Nearby | None = None
    """Shows what rounding does, for a model in which that may be much; None for others."""

    times: int = 3
    """How often each sequence is run, with the run of the output.

    A run that another reference has made does not count again.
    """

    spreads: bool = False
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

    in_floats: GgufReference | None = None
    """The same with dequantised weights in llama.cpp too, which rounds no activations then; for an
    output whose rounding would hide a fault. None where nothing is dequantised."""

    of_own_weights: GgufReference | None = None
    """The dequantised weights of the output; None where others are used.

    It has the same tokens, and runs after this reference, which has run part of it.
    """


DIVISORS = " The reference has the frequencies as divisors over another base."
DIVISORS_RULE = (
    "; with weights that are not in float32, whose products round otherwise where a frequency"
    " does, and with experts, there are two such references: the mean KL from them may be"
    f" {PART:g} times that between them and {DEVIATIONS:g} standard errors larger than that, or a"
    " thousandth of that of the control, which must be ten times as far beyond it"
)
EXPORTED_RULE = (
    "; for quantised weights, the mean KL may be that of the output's own weights with the"
    f" schedule as divisors, and {PART:g} times that and {DEVIATIONS:g} standard errors more"
)
OWN = (
    " The reference that decides has the dequantised weights of the output, in transformers, with"
    " the config of the source."
)
OWN_RULE = (
    "; for quantised weights, the mean KL from the checkpoint may be that of the output's own"
    f" weights, dequantised, and {PART:g} times that and {DEVIATIONS:g} standard errors more; from"
    " these weights it may be twice that of the unscaled ones between llama.cpp and transformers,"
    " and the control must be ten times as far beyond it, and schedules that are a little wrong"
    f" {NOTICED:g} times as far as is allowed, or farther from the output than the right one by"
    f" {DEVIATIONS:g} standard errors; where one would not be noticed, the weights are dequantised"
    " in llama.cpp too"
)
ROUTERS = (
    " Rounding makes its routers choose other experts at some positions: the mean KL may be that of"
    " the reference from itself with weights that are a few steps of float32 off."
)
HIDDEN = (
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
    splits: tuple[float, ...],
    is_output: bool,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a file in llama.cpp, unscaled and with the schedule of the output.

    llama.cpp divides the frequencies of the base by the tensor rope_freqs, so every schedule can be
    had from any base: divisor = frequency of the base / frequency of the schedule. The reference
    has another base than the output, so that it has no number in common with it.

    Args:
        source: The source of the output, or the output itself, whose own scaling is then taken
            away.
        spec: The RoPE of the source.
        schedule: The frequencies and factors that the output must have.
        splits: For each reference, the ratio of its base to that of the source. A second reference
            is the same but for rounding, which shows the noise.
        is_output: Whether `source` is the output.
        runs: The tokens.
        progress: Callbacks, which are called while tokens are read.

    Returns:
        The logits: unscaled, of the first reference, and of the second one if `splits` has two.
    """
    # the unscaled model is the source unchanged, or the output with the frequencies of the source
    if is_output:
        control = _logits_by_divisors(source.file, spec, spec.current(), SPLIT, runs, progress)
    else:
        control = logits_of(LlamaCppEngine(source.path), runs, progress)
    references = []
    for split in splits:
        logits = _logits_by_divisors(source.file, spec, schedule, split, runs, progress)
        references.append(logits)
    return ReferenceLogits(control, *references)


def _logits_by_divisors(
    file: GgufFile,
    spec: RopeSpec,
    schedule: Schedule,
    split: float,
    runs: list[TokenRun],
    progress: Progress,
) -> Tensor:
    """Return the logits of a copy of a file, with the frequencies of a schedule as divisors."""
    import torch

    return torch.from_numpy(run_with_divisors(file, spec, schedule, split, runs, progress))


@contextmanager
def load_checkpoint(
    comparison: Comparison,
    checkpoint: Source,
    dtype: str,
    run: TokenRun,
    all_keys: bool = False,
) -> Iterator[TransformersEngine]:
    """Yield the source as a loaded model of transformers, on the CPU and without the method.

    It reads all tokens of the run in one pass.

    Args:
        comparison: The output and its source.
        checkpoint: The source as a checkpoint.
        dtype: The precision.
        run: The tokens.
        all_keys: Whether its indexers choose all keys.
    """
    with folder_of(checkpoint, dtype) as folder, ExitStack() as stack:
        at = choose_place(checkpoint, DeviceSpec("cpu", dtype, stands_for=comparison.stands_for))
        engine = TransformersEngine.load(folder, at, chunk=len(run.ids))
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
    """Run a checkpoint in transformers, unscaled and with the schedule of the output.

    For the schedule its rotary modules are patched: they get its frequencies and its factor.

    Args:
        comparison: The output and its source.
        checkpoint: The source as a checkpoint.
        dtype: The precision.
        runs: One run, without gaps.
        progress: Callbacks, which are called while tokens are read.
        all_keys: Whether indexers choose all keys.
    """
    (run,) = runs
    with load_checkpoint(comparison, checkpoint, dtype, run, all_keys) as engine:
        control = engine.logits(run.ids, run.kept, progress)
        patch_engine(engine, comparison)
        reference = engine.logits(run.ids, run.kept, progress)
    return ReferenceLogits(control, reference)


def run_nearby(
    comparison: Comparison,
    checkpoint: Source,
    dtype: str,
    runs: list[TokenRun],
    progress: Progress,
    all_keys: bool = False,
) -> list[Tensor]:
    """Run a patched checkpoint in transformers, with weights that are off by rounding.

    Where two experts of a mixture have almost the same score, rounding decides which one runs, and
    llama.cpp rounds otherwise. All later tokens attend to that one, so that a single choice can
    move half of a range. Which tokens are so is shown by weights that are a little off.

    Args:
        comparison: The output and its source.
        checkpoint: The source as a checkpoint.
        dtype: The precision.
        runs: One run, without gaps.
        progress: Callbacks.
        all_keys: Whether indexers choose all keys.

    Returns:
        The logits of each run with other weights.
    """
    import torch

    (run,) = runs
    generator = torch.Generator().manual_seed(0)

    def disturb(name: str, weight: Tensor) -> Tensor:
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
        return weight * (1 + NEARBY * noise.to(weight.dtype))

    results = []
    with load_checkpoint(comparison, checkpoint, dtype, run, all_keys) as engine:
        patch_engine(engine, comparison)
        for _ in range(NEARBY_RUNS):
            change_weights(engine.model, disturb)
            results.append(engine.logits(run.ids, run.kept, progress))
    return results


def by_dequantising(
    comparison: Comparison,
    source: GgufCheckpoint,
    dtype: str,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a source in GGUF in transformers, with its weights dequantised.

    The output runs in llama.cpp, whose kernels round otherwise. The unscaled source shows how much:
    it runs in both (`control` in transformers, `other_control` in llama.cpp).

    Args:
        comparison: The output and its source.
        source: The GGUF file as a checkpoint, with its dequantised weights.
        dtype: The precision.
        runs: One run, without gaps.
        progress: Callbacks, which are called while tokens are read.
    """
    checkpoint = source.in_dtype(dtype)
    size = human(sum(file.size for file in checkpoint.files()))
    progress.note(
        f"The weights of {comparison.against} take {size} as {dtype}, on the disk and in memory."
    )
    gguf_path = checkpoint.inner.path
    other_control = logits_of(LlamaCppEngine(gguf_path), runs, progress)
    logits = by_patch(comparison, checkpoint, dtype, runs, progress)
    return replace(logits, other_control=other_control)


def by_export(
    comparison: Comparison,
    source: Source,
    output: GgufSource,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a checkpoint in transformers, and the quantised weights of its export in llama.cpp.

    A right output differs from the checkpoint only by the quantisation of its weights, and a wrong
    one by its RoPE too. The second reference shows how much the quantisation does: it has the
    weights of the output with the right frequencies, as divisors over another base.

    Args:
        comparison: The output and its source.
        source: The checkpoint that was exported.
        output: The exported GGUF file.
        runs: One run, without gaps.
        progress: Callbacks, which are called while tokens are read.
    """
    of_checkpoint = by_patch(comparison, source, "float32", runs, progress)
    of_quantised_weights = _logits_by_divisors(
        output.file, comparison.spec, comparison.schedule, SPLIT, runs, progress
    )
    # where rounding changes the logits much, a row in another place does not change them more
    own = open_own_weights(source, output)
    wrong_weights = "" if own is None else find_wrong_rows(source, own)
    return replace(
        of_checkpoint, second=of_quantised_weights, as_output=True, wrong_weights=wrong_weights
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


def open_own_weights(source: Source, output: GgufSource) -> OutputWeights | None:
    """Return the weights of an export as a checkpoint; None where they cannot become one.

    Args:
        source: The checkpoint that was exported.
        output: The exported GGUF file.
    """
    # a checkpoint that also reads images has other names of weights than its text model
    config = source.config()
    if text_part(config, source.family) is not config:
        return None
    own = OutputWeights(output, config)
    try:
        own.files()
    except RopeconvError:  # tensors that are not converted, or that ropeconv changed
        return None
    return own


def unscaled_keys(comparison: Comparison, output: GgufSource) -> dict[str, Override] | None:
    """Return the keys with which llama.cpp runs an output without its scaling; None for none.

    They also have the base of layers with a window from the source, so that a wrong one in the
    file is not taken for rounding.

    Args:
        comparison: The output and its source.
        output: The exported GGUF file.
    """
    # keys cannot undo scaled query norms, or hold the two lists of LongRoPE
    unscaled = comparison.spec.current()
    scales_norms = output.file.get(WINDOW_NORM) is not None
    if scales_norms or unscaled.short_inv_freq is not None:
        return None
    arch = arch_of(output.file)
    keys = overrides(unscaled, arch.name)
    if keys is None:
        return None

    local_key = f"{arch.name}.rope.freq_base_swa"
    local_form = comparison.spec.local_form
    if output.file.get(local_key) is not None and isinstance(local_form, Plain):
        keys[local_key] = ("float", local_form.theta)
    return keys


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
        for shard, path in enumerate(file.paths):
            write_new(file, shard, Edit(removed=removed), folder / path.name)
        return logits_of(LlamaCppEngine(folder / file.path.name, keys), runs, progress)


def faint_faults(comparison: Comparison) -> list[tuple[str, Schedule]]:
    """Return schedules that are a little wrong, with words for people.

    Args:
        comparison: The output, whose schedule is the right one, and its source.
    """
    schedule = comparison.schedule
    right = schedule.inv_freq
    unscaled = comparison.spec.current().inv_freq

    faults = []
    if not comparison.unchanged:
        between = np.sqrt(right * unscaled)  # a factor of 2 in place of 4
        faults.append(("the square root of the factor", replace(schedule, inv_freq=between)))
    pairs = np.arange(len(right)) / len(right)
    other_base = right * OTHER_BASE**-pairs
    faults.append(("a base that is twice as large", replace(schedule, inv_freq=other_base)))
    if schedule.attention_factor != 1:
        faults.append(("no attention factor", replace(schedule, attention_factor=1.0)))
    if schedule.softmax_scale != 1:
        faults.append(("no softmax scale", replace(schedule, softmax_scale=1.0)))
    return faults


@dataclass
class DequantisedExport:
    """The dequantised weights of an export in transformers, with the config of its source.

    They are loaded once, and run for both references: beside the checkpoint they show what the
    quantisation does, and on their own they decide about the RoPE of the output. It is for
    architectures in which llama.cpp cannot divide frequencies.
    """

    comparison: Comparison
    """The output and its source."""

    source: Source
    """The checkpoint that was exported."""

    own: OutputWeights
    """The weights of the output."""

    keys: dict[str, Override]
    """From `unscaled_keys`."""

    own_logits: ReferenceLogits | None = field(default=None, init=False)
    """The logits of `alone`, which `beside_checkpoint` has computed with its own; None before."""

    def beside_checkpoint(self, runs: list[TokenRun], progress: Progress) -> ReferenceLogits:
        """Run the checkpoint too. As in `by_export`, the second reference has the own weights.

        Args:
            runs: One run, without gaps.
            progress: Callbacks, which are called while tokens are read.
        """
        (run,) = runs
        with load_checkpoint(self.comparison, self.source, "float32", run) as engine:
            rows_of_source = project_rows(engine.model)
            control = engine.logits(run.ids, run.kept, progress)
            patch_engine(engine, self.comparison)
            reference = engine.logits(run.ids, run.kept, progress)
        with load_checkpoint(self.comparison, self.own, "float32", run) as engine:
            rows_of_output = project_rows(engine.model)
            own_logits = self._run_own(engine, run, progress)
        output = self.own.inner
        of_output = logits_of(LlamaCppEngine(output.path), runs, progress)
        other_control = run_unscaled(output, self.keys, runs, progress)
        self.own_logits = replace(own_logits, other_control=other_control, of_output=of_output)
        limit = rounding_limit(output.file)
        return ReferenceLogits(
            control,
            reference,
            own_logits.reference,
            as_output=True,
            wrong_weights=find_wrong_weights(rows_of_source, rows_of_output, limit),
            of_output=of_output,
        )

    def alone(self, runs: list[TokenRun], progress: Progress) -> ReferenceLogits:
        """Return the logits of the own weights, after `beside_checkpoint` with the same tokens.

        The output has the same weights, so only its RoPE and the rounding of llama.cpp can differ.
        Without the method, both run too, which shows how much that rounding is. Schedules that are
        a little wrong show whether the comparison would notice them.

        Args:
            runs: The run of `beside_checkpoint`.
            progress: Callbacks, of which none is called.
        """
        assert self.own_logits is not None
        return self.own_logits

    def in_floats(self, runs: list[TokenRun], progress: Progress) -> ReferenceLogits:
        """Run the output in llama.cpp with its weights dequantised, beside the logits of `alone`.

        With quantised weights llama.cpp rounds activations to 8 bits too. A copy of the output in
        float32 has the same RoPE keys and the same weights, without that noise.

        Args:
            runs: The run of `beside_checkpoint`.
            progress: Callbacks, which are called while tokens are read.
        """
        logits = self.alone(runs, progress)
        weights = sum(math.prod(info.shape) for info in self.own.inner.file.tensors.values())
        size = human(4 * weights)
        progress.note(
            "Rounding hides a fault, so the output is run with dequantised weights too, which take"
            f" {size} on the disk and in memory."
        )
        with scratch() as folder:
            path = folder / "floats.gguf"
            dequantise(self.own.inner.path, path)
            of_output = logits_of(LlamaCppEngine(path), runs, progress)
            other_control = run_unscaled(GgufSource(path), self.keys, runs, progress)
        return replace(logits, other_control=other_control, of_output=of_output)

    def _run_own(
        self, engine: TransformersEngine, run: TokenRun, progress: Progress
    ) -> ReferenceLogits:
        """Run the own weights: unscaled, with the schedule, and with schedules that are wrong."""
        comparison = self.comparison

        def compute(schedule: Schedule) -> Tensor:
            undo = patch(
                engine.model, schedule, comparison.spec.mla, comparison.scale, comparison.queries
            )
            logits = engine.logits(run.ids, run.kept, progress)
            undo()
            return logits

        control = engine.logits(run.ids, run.kept, progress)
        reference = compute(comparison.schedule)
        faults = []
        for words, schedule in faint_faults(comparison):
            faults.append((words, compute(schedule)))
        return ReferenceLogits(control, reference, faults=tuple(faults))


def project_rows(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return each row of each weight of a model, projected to `PROJECTED` random directions.

    Distances of rows stay about the same, so that two models can be compared without having both
    in memory.
    """
    import torch

    projections = {}
    for name, weight in model.named_parameters():
        rows = weight.detach().float().reshape(-1, weight.shape[-1])
        generator = torch.Generator().manual_seed(weight.shape[-1])
        directions = torch.randn(weight.shape[-1], PROJECTED, generator=generator)
        projections[name] = rows @ directions
    return projections


def find_wrong_weights(source: dict[str, Tensor], output: dict[str, Tensor], limit: float) -> str:
    """Return the name of a weight with a row that rounding does not explain; empty if none has.

    Args:
        source: The projected rows of the source, [rows, `PROJECTED`], by the name of the weight.
        output: Those of the output.
        limit: From `rounding_limit`.
    """
    for name, right in source.items():
        other = output.get(name)
        if other is None or other.shape != right.shape:
            return name
        if not _is_rounded(right.numpy(), other.numpy(), limit):
            return name
    return ""


def find_wrong_rows(source: Source, own: OutputWeights) -> str:
    """Return the name of a weight with a row that rounding does not explain; empty if none has.

    The rows are read from the files, so that neither model is in memory. Weights that are stored
    otherwise, as one tensor in place of several or quantised, are not compared.

    Args:
        source: The checkpoint that was exported.
        own: The weights of the output.
    """
    limit = rounding_limit(own.inner.file)
    tensors_of_source = source.tensors
    for name, tensor in own.tensors.items():
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
            other = _read_rows(own, name, first, end)
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
        return ROUNDED_COARSELY
    return ROUNDED


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
    progress.total(sum(reference.times * _count_tokens(runs) for reference, runs in planned))

    # run both sides, and judge every range of positions
    judged = []
    results: list[BucketResult] = []
    temperature = 1.0
    for reference, runs in planned:
        _say(runs, reference, progress)
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
        sentence += ROUTERS
    if agrees and rounded and decisive is not None:
        far = beyond(judged[0].results, schedule.original_context)
        if not all(result.is_distinguished for result in far):
            sentence += HIDDEN
    changes = ["attention to all keys"] if any(one.all_keys for one in judged) else []
    if any(one.in_floats for one in judged):
        changes.append("dequantised weights in llama.cpp too")
    if temperature != 1:
        changes.append(f"logits divided by their spread of {temperature:.2g}")
    sentence += _remarks(comparison, references, results, changes)

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

    in_floats: bool = False
    """Whether the weights were dequantised on both sides, since rounding would hide a fault."""


def _run_and_judge(
    comparison: Comparison, reference: GgufReference, runs: list[TokenRun], progress: Progress
) -> Judged:
    """Run the reference and the output over the same tokens, and judge each range of positions.

    A right output can look wrong since rounding changes which experts or which keys a model
    chooses, and a wrong one right since the logits are flat. In these cases it is judged once more,
    in a way that is not open to that.

    Args:
        comparison: The output and its source.
        reference: How the source is made to compute the schedule of the output.
        runs: The tokens.
        progress: Callbacks, which are called while tokens are read.
    """
    schedule = comparison.schedule
    logits = reference.logits(runs, progress)
    of_output = logits.of_output
    if of_output is None:
        output = LlamaCppEngine(comparison.baked, reference.keys)
        of_output = logits_of(output, runs, progress)
    results = _judge(runs, logits, of_output, reference)
    all_agree = all(result.agrees for result in results)

    # in a mixture of experts, rounding may choose other experts: measure how much that changes, and
    # judge again with this noise
    experts_differ = False
    if reference.nearby is not None and not all_agree:
        logits = _with_nearby(logits, reference.nearby(runs, progress))
        results = _judge(runs, logits, of_output, reference)
        experts_differ = True

    # the power is how far the unscaled source is beyond what is allowed: where it is small, a wrong
    # output might pass, so logits are divided by a temperature if that shows it better
    temperature = 1.0
    is_rounded = bool(_rounded_type(comparison))
    if not is_rounded and _power(results, schedule) < POWER:
        results, temperature = _sharpen(results, runs, logits, of_output, reference, schedule)

    # An indexer chooses other keys for a tiny change of its scores, and any where scores are equal:
    # a token with an embedding of zeros, as padding has in a new model, scores 0 for every key. So
    # both sides are run again with attention to all keys.
    all_agree = all(result.agrees for result in results)
    if reference.with_all_keys is not None and not all_agree:
        again = _run_and_judge(comparison, reference.with_all_keys, runs, progress)
        return again._replace(all_keys=True)

    # rounding may be so large that a fault would not be noticed beside it
    hidden_fault = _find_hidden_fault(runs, logits, of_output, results)
    if hidden_fault and reference.in_floats is not None:
        again = _run_and_judge(comparison, reference.in_floats, runs, progress)
        return again._replace(in_floats=True)

    has_same_shape = logits.reference.shape == of_output.shape
    is_equal = has_same_shape and bool((logits.reference == of_output).all())
    return Judged(
        results, temperature, is_equal, experts_differ, hidden_fault, logits.wrong_weights
    )


def _find_hidden_fault(
    runs: list[TokenRun], logits: ReferenceLogits, of_output: Tensor, results: list[BucketResult]
) -> str:
    """Return a fault of the output's RoPE that the comparison would not notice; empty if none.

    Such as "a base that is twice as large", where weights in 4 bits change the logits more than
    that does. A fault is noticed if a file with it would be too far from the reference in some
    range of positions, or if the output is farther from the fault than from the right schedule
    beyond chance.

    Args:
        runs: The tokens.
        logits: The logits of the reference, and of schedules with a fault.
        of_output: The logits of the output.
        results: The results of all ranges, with the KL that is allowed in each.
    """
    width = min(logits.reference.shape[1], of_output.shape[1])  # one side may have padded rows
    of_output = of_output[:, :width]
    kl_from_right = measure(logits.reference[:, :width], of_output).kl
    for words, of_fault in logits.faults:
        # in some range, the fault is much farther from the right schedule than is allowed
        is_too_far = False
        for (_, _, rows), result in zip(_parts(runs), results, strict=True):
            kl = measure(logits.reference[rows], of_fault[rows]).kl.mean().item()
            if kl >= NOTICED * result.tolerance:
                is_too_far = True

        # a paired test over the positions: the output is farther from the fault
        farther = measure(of_fault[:, :width], of_output).kl - kl_from_right
        standard_error = farther.std().item() / math.sqrt(len(farther))
        is_farther_beyond_chance = farther.mean().item() > DEVIATIONS * standard_error

        is_noticed = is_too_far or is_farther_beyond_chance
        if not is_noticed:
            return words
    return ""


def _remarks(
    comparison: Comparison,
    references: list[GgufReference],
    results: list[BucketResult],
    changes: Sequence[str],
) -> str:
    """Return the sentences that follow the conclusion: how the comparison was made.

    Args:
        comparison: The output and its source.
        references: The ways of comparing: with the source, and in some comparisons also with the
            output's own weights, which then run with the frequencies of the schedule.
        results: The results of all buckets of positions.
        changes: Phrases on settings that were changed.
    """
    schedule = comparison.schedule
    source = references[0]
    sentences = reach_warning(results, schedule.original_context, schedule.context, "--tokens")
    sentences += source.remark + comparison.remark

    # the second reference has the weights of the output: dequantised in transformers, or in
    # llama.cpp
    if source.of_own_weights is not None:
        sentences += source.of_own_weights.remark
    elif len(references) > 1:
        sentences += (
            " Up to the new context, llama.cpp is compared with itself on the weights of the"
            " output."
        )
    sentences += describe_changes(changes)
    if isinstance(comparison.scale, QueryScaling):
        sentences += " The output and the reference scale queries in steps, in place of log-n."
    return sentences


def _choose_references(
    comparison: Comparison, settings: Settings, output: GgufSource
) -> list[GgufReference]:
    """Return the sharpest reference, and a second one where that stays in the trained context."""
    first = check_gguf(comparison, settings)
    if first.of_own_weights is not None:
        return [first, first.of_own_weights]
    if first.spreads or settings.tokens:
        return [first]
    second = _in_llamacpp(comparison, output, of_output=True)
    if second is None or not second.spreads:
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
    """Return the tokens that each reference and the output read."""
    first = references[0]
    shares_runs = first.of_own_weights is not None
    # the weights of the output in transformers go no further than the checkpoint
    has_longer = len(references) > 1 and not shares_runs
    planned: list[tuple[GgufReference, list[TokenRun]]] = []
    for reference in references:
        if shares_runs and planned:
            _, runs = planned[0]
        else:
            runs = _runs(comparison, settings, reference, has_longer)
        planned.append((reference, runs))
    return planned


def _count_tokens(runs: list[TokenRun]) -> int:
    """Count the tokens of some runs."""
    return sum(len(run.ids) for run in runs)


def _runs(
    comparison: Comparison, settings: Settings, reference: GgufReference, has_longer: bool
) -> list[TokenRun]:
    """Return the tokens that the output and a reference read, each with its position.

    They are blocks spread up to the new context where the reference can run positions with gaps,
    else every position up to a length.

    Args:
        comparison: The output and its source.
        settings: The number of tokens, 0 for the usual one, and the seed.
        reference: The way of comparing.
        has_longer: Whether there is another comparison, which goes beyond the trained context, so
            that this one need not.
    """
    import torch

    schedule = comparison.schedule
    file = GgufSource(comparison.baked).file
    original = schedule.original_context
    context = schedule.context
    vocabulary = file.tensors["token_embd.weight"].shape[1]
    if reference.spreads and not settings.tokens:
        return block_runs(original, context, vocabulary, settings.seed, EACH)

    # A run of the usual length may end inside the trained context. Then it says nothing about the
    # extension, which the other comparison tests, and a short run does as well.
    is_extended = original < context
    ends_inside = is_extended and usual_length(original, context) <= original
    if settings.tokens:
        length = min(context, settings.tokens)
    elif has_longer and ends_inside:
        length = SHORT
    else:
        length = _whole_length(comparison, reference.times)  # as long as the time allows
    generator = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(vocabulary, (length,), generator=generator).tolist()
    return [TokenRun.over_all("whole", ids, tail_buckets(original, length, EACH))]


def _say(runs: list[TokenRun], reference: GgufReference, progress: Progress) -> None:
    """Note what will be run."""
    if not reference.times:  # it was run with another reference
        return
    tokens = _count_tokens(runs)
    over = ""
    if runs[-1].has_gaps:
        over = f", spread over {runs[-1].positions[-1] + 1:,} positions"
    progress.note(
        f"Running {tokens:,} tokens{over} {reference.times} times: control, reference and output."
    )


def _whole_length(comparison: Comparison, times: int) -> int:
    """Choose the number of tokens of a run over every position, by its memory and its time.

    Args:
        comparison: The output and its source.
        times: How often the run is computed: the output, the reference and its controls.
    """
    schedule = comparison.schedule
    output = GgufSource(comparison.baked)
    original = schedule.original_context
    context = schedule.context

    # the KV cache of a run that goes beyond the trained context; it is in float32, which takes
    # twice the bytes of f16
    cache_bytes = 0
    cache = gguf_cache(output.file, arch_of(output.file))
    if cache is not None:
        sizes = cache.bytes(length_beyond(original, context))
        cache_bytes = 2 * sizes.get("f16", 0)

    def time_sample() -> float:
        begin = time.perf_counter()
        LlamaCppEngine(comparison.baked).logits(list(range(SAMPLE)), [SAMPLE - 1])
        return times * (time.perf_counter() - begin)

    return affordable_length(
        original, context, seconds=time_sample, needed=cache_bytes, free=host_bytes()
    )


def check_gguf(comparison: Comparison, settings: Settings) -> GgufReference:
    """Return how the source of a GGUF file is made to compute the schedule of the output.

    Its logits are what those of the output are compared with. The way is chosen whose rounding is
    nearest to that of the output, so that the smallest error is noticed.

    Args:
        comparison: The output and its source.
        settings: How it is run.

    Raises:
        BadSource: The file cannot be compared with its source.
    """
    rounded_type = _rounded_type(comparison)  # such as "Q4_K"; empty where nothing is rounded
    _refuse_incomparable(comparison, rounded_type)

    # the source is a checkpoint: it runs in transformers
    source = comparison.source
    if not isinstance(source, GgufSource):
        output = GgufSource(comparison.baked)
        return _of_checkpoint(comparison, source, output, rounded=bool(rounded_type))

    # the source is a GGUF file: llama.cpp runs it with the same kernels as the output, which is the
    # sharpest way
    if not settings.dequantised:
        reference = _in_llamacpp(comparison, source)
        if reference is not None:
            return reference

    # The last resort: its dequantised weights in transformers, which round otherwise. The tokens
    # are run four times (`times`): by the unscaled source in llama.cpp and in transformers, whose
    # distance is the noise, by the reference, and by the output. Without a measured noise, the
    # output might be as far away as a part (1 / separation) of the unscaled source's KL; here that
    # part is 0.
    checkpoint = comparison.checkpoint_or_dequantised(
        "cannot be given this schedule at loading, and cannot be dequantised either"
    )
    assert isinstance(checkpoint, GgufCheckpoint)
    dtype = "float32" if settings.dtype == "auto" else settings.dtype
    return GgufReference(
        partial(by_dequantising, comparison, checkpoint, dtype),
        times=4,
        floor=KL_FLOOR,
        separation=math.inf,
        remark=DEQUANTISED,
        rule=DEQUANTISED_RULE,
    )


def _refuse_incomparable(comparison: Comparison, rounded_type: str) -> None:
    """Refuse a draft model, and a file that differs from its source by rounding only.

    Args:
        comparison: The output and its source.
        rounded_type: The type of rounded weights, such as "Q4_K"; empty where nothing is rounded.

    Raises:
        BadSource: The output is one of these.
    """
    if comparison.draft:
        kind = comparison.draft.says
        raise BadSource(
            f"{comparison.baked} is {kind}, which llama.cpp runs only with its target; validate"
            " that"
        )
    if rounded_type and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} differs from its source only in the type of the weights"
            f" ({rounded_type}), so there is no control; compare a --outtype f32 export"
        )


def _of_checkpoint(
    comparison: Comparison, source: Source, output: GgufSource, rounded: bool
) -> GgufReference:
    """Return how the schedule is computed from the source of an exported GGUF file, a checkpoint.

    It runs in transformers, patched with the schedule. Where the export has experts, a further
    computation shows how much rounding changes.

    Args:
        comparison: The output and its source.
        source: The checkpoint.
        output: The exported file.
        rounded: Whether the weights of the file are rounded, as those of Q4_K are.
    """
    if rounded:
        return _of_rounded_export(comparison, source, output)

    logits = partial(by_patch, comparison, source, "float32")
    nearby = None
    if _has_experts(output.file):
        nearby = partial(run_nearby, comparison, source, "float32")

    # Some models (DeepSeek V3.2) have an indexer, which chooses the keys that attention sees. If
    # the comparison fails, another one follows in which both sides see all keys.
    kept_keys = f"{arch_of(output.file).name}.attention.indexer.top_k"
    has_indexer = output.file.get(kept_keys) is not None
    if not has_indexer:
        return GgufReference(logits, nearby, floor=KL_FLOOR)
    nearby_with_all_keys = None
    if nearby is not None:
        nearby_with_all_keys = partial(nearby, all_keys=True)
    with_all_keys = GgufReference(
        partial(logits, all_keys=True),
        nearby_with_all_keys,
        floor=KL_FLOOR,
        keys={kept_keys: ("int", ALL)},  # so many are chosen by the output too
    )
    return GgufReference(logits, floor=KL_FLOOR, with_all_keys=with_all_keys)


def _of_rounded_export(comparison: Comparison, source: Source, output: GgufSource) -> GgufReference:
    """Return how the schedule is computed from a checkpoint, for an export with rounded weights.

    Rounded weights, as those of Q4_K, give other logits than the checkpoint although the RoPE is
    right. The way is chosen that measures this difference most exactly.

    Args:
        comparison: The output and its source.
        source: The checkpoint.
        output: The exported file.
    """
    # llama.cpp runs the rounded weights with the schedule as divisors. The tokens are run four
    # times (`times`): by the checkpoint, unscaled and with the schedule, by the rounded weights,
    # and by the output.
    if _in_llamacpp(comparison, output, of_output=True) is not None:
        logits = partial(by_export, comparison, source, output)
        return GgufReference(logits, times=4, floor=KL_FLOOR, rule=EXPORTED_RULE)

    # else transformers runs the rounded weights, dequantised. They are also a reference of their
    # own, whose noise is measured, so no part of the control's KL is allowed (separation)
    own = open_own_weights(source, output)
    keys = unscaled_keys(comparison, output)
    # Mistral becomes a Llama in GGUF, whose weights have the same names but not always all of them
    is_same_family = own is not None and own.family.name == source.family.name
    if own is not None and is_same_family and keys is not None:
        export = DequantisedExport(comparison, source, own, keys)
        in_floats = GgufReference(export.in_floats, floor=KL_FLOOR, separation=math.inf)
        own_reference = GgufReference(
            export.alone,
            times=0,
            in_floats=in_floats,
            floor=KL_FLOOR,
            separation=math.inf,
            remark=OWN,
        )
        # The tokens are run by the checkpoint and by the own weights, both unscaled and with the
        # schedule, by the latter also with each fault, and by the output with and without scaling.
        return GgufReference(
            export.beside_checkpoint,
            times=6 + len(faint_faults(comparison)),
            floor=KL_FLOOR,
            rule=OWN_RULE,
            of_own_weights=own_reference,
        )

    # else nothing shows what rounding does: the KL of the output may be a part (1 / separation) of
    # that of the unscaled source
    logits = partial(by_patch, comparison, source, "float32")
    return GgufReference(logits, floor=KL_FLOOR, separation=SEPARATION)


def _has_experts(file: GgufFile) -> bool:
    """Whether a model is a mixture of experts."""
    count = file.get(f"{arch_of(file).name}.expert_count")
    return isinstance(count, int) and count > 0


def _in_llamacpp(
    comparison: Comparison, source: GgufSource, of_output: bool = False
) -> GgufReference | None:
    """Return how llama.cpp computes the schedule from a GGUF file; None where it cannot.

    There are two ways: metadata keys that replace those of the file when it is loaded (`by_keys`),
    and the frequencies as divisors over another base (`by_divisors`). In both, the numbers follow
    from the schedule and are not read from the output, so that they do not repeat its faults.

    Args:
        comparison: The output and its source.
        source: The file: the source of the output, or the output.
        of_output: Whether it is the output, whose weights then run without its own scaling.

    Returns:
        The function that runs the file with the schedule, how often it runs the tokens, and whether
        it can run positions with gaps (`spreads`).
    """
    arch = arch_of(source.file)
    spec = comparison.spec
    schedule = comparison.schedule

    output = GgufSource(comparison.baked)
    if scales_otherwise(source.file, output.file, schedule):
        return None
    can_divide = takes_divisors(source.file, spec, schedule)
    spreads = takes_any_position(source.file, spec, schedule)

    # By keys, if the output is written as keys, since the reference then rounds as it does; or if
    # divisors cannot be used. Keys cannot remove a scaling that the file has already: that of the
    # output, or tensors with factors.
    has_scaling = of_output or bool(rope_tensors(source.file))
    is_written_as_keys = comparison.receipt.encoding == "keys"
    prefers_keys = is_written_as_keys or not can_divide
    if prefers_keys and not has_scaling:
        keys = overrides(schedule, arch.name)  # None where no keys express the schedule
        if keys is not None:
            return GgufReference(partial(by_keys, source, keys), spreads=spreads)
    if not can_divide:
        return None

    # By divisors over a base that is SPLIT times that of the source. With weights that are not in
    # float32, changed frequencies also change how products round, and a router may choose another
    # expert, so a second reference with another base shows how large that noise is.
    splits: tuple[float, ...] = (SPLIT,)
    rule = ""
    rounds_otherwise = bool(weights_type(source.file)) or _has_experts(source.file)
    if rounds_otherwise:
        splits = (SPLIT, SECOND_SPLIT)
        rule = DIVISORS_RULE
    return GgufReference(
        partial(by_divisors, source, spec, schedule, splits, of_output),
        times=2 + len(splits),  # the output, the unscaled file, and each reference
        spreads=spreads,
        remark=DIVISORS,
        rule=rule,
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

    - With a second reference (`logits.second`), the output may be as far from both as one is from
      the other.
    - With the unscaled source in transformers and in llama.cpp (`logits.other_control`), the output
      may be twice as far from the reference as these are apart.
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
    noise_of_references: Measures | None = None
    if logits.second is not None:
        noise_of_references = _largest_kl(logits.reference, logits.second, runs, temperature)
    noise_of_runtimes = 0.0
    if logits.other_control is not None:
        apart = _largest_kl(logits.control, logits.other_control, runs, temperature)
        noise_of_runtimes = apart.kl.mean().item()

    results = []
    for kind, bucket, rows in _parts(runs):
        from_control = _compare_rows(logits.reference, logits.control, rows, temperature)
        from_reference = _compare_rows(logits.reference, of_output, rows, temperature)

        # first judged without any noise
        result = bucket_result(
            bucket,
            from_reference,
            control_kl=from_control.kl.mean().item(),
            kind=kind,
            allowed=tolerance(bucket.positions[-1], noise=0.0, floor=reference.floor),
        )
        if logits.second is not None and noise_of_references is not None:
            # The output is compared with both references. A second one with the weights of the
            # output (by_export) only shows the noise: it would be near the output by its weights.
            from_second = from_reference
            if not logits.as_output:
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
    of_buckets = [_compare_rows(left, right, rows, temperature) for _, _, rows in _parts(runs)]
    return max(of_buckets, key=lambda measures: float(measures.kl.mean()))


def _compare_rows(left: Tensor, right: Tensor, rows: slice, temperature: float) -> Measures:
    """Compare some rows of two arrays of logits, [positions, vocabulary].

    One side may have padded its vocabulary to more columns, which are left out.
    """
    width = min(left.shape[1], right.shape[1])
    return measure(left[rows, :width], right[rows, :width], temperature=temperature)


def _with_nearby(logits: ReferenceLogits, nearby: list[Tensor]) -> ReferenceLogits:
    """Return logits whose noise is shown by a run with weights that are off by rounding.

    Args:
        logits: The logits of the reference.
        nearby: Those of several such runs, of which the one with the largest mean KL counts.
    """

    def mean_kl(other: Tensor) -> float:
        return float(measure(logits.reference, other).kl.mean())

    farthest = max(nearby, key=mean_kl)
    return replace(logits, second=farthest, as_output=True)


def _sharpen(
    judged: list[BucketResult],
    runs: list[TokenRun],
    logits: ReferenceLogits,
    of_output: Tensor,
    reference: GgufReference,
    schedule: Schedule,
) -> tuple[list[BucketResult], float]:
    """Judge again with logits over a temperature, if that shows a wrong output better.

    Where a model's logits are almost equal (flat), so are all its distributions, and even the KL of
    a wrong output is below the tolerance. The temperature is the standard deviation of the logits
    over the vocabulary, so that those of every model get the same size. The better judgement is the
    one with more power: the control, the unscaled source, is further beyond the tolerance.

    Args:
        judged: The results with undivided logits, that is with the temperature 1.
        runs: The tokens.
        logits: The logits of the reference, and of the unscaled source.
        of_output: The logits of the output.
        reference: The way of comparing.
        schedule: The frequencies and factors that the output must have.

    Returns:
        The better results, and their temperature.
    """
    temperature = spread_of(logits.reference)
    with_temperature = _judge(runs, logits, of_output, reference, temperature)
    if _power(with_temperature, schedule) > _power(judged, schedule):
        return with_temperature, temperature
    return judged, 1.0


def _parts(runs: list[TokenRun]) -> Iterator[tuple[Literal["spread", "whole"], Bucket, slice]]:
    """Yield (kind of its run, bucket, rows) for each bucket of positions.

    The rows are those of its positions in the logits of all runs, [positions, vocabulary].
    """
    first = 0
    for run in runs:
        for bucket, rows in run.parts():
            yield run.kind, bucket, slice(first + rows.start, first + rows.stop)
        first += len(run.kept)


def _power(results: list[BucketResult], schedule: Schedule) -> float:
    """Return the smallest ratio of the control to the allowed KL, beyond the trained context."""
    extended = beyond(results, schedule.original_context)
    return min(result.control_kl / result.tolerance for result in extended)
