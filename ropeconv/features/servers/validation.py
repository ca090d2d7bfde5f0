"""Compare log-probabilities of a running server with those of the patched source.

`validate_server` is the function to read first. `_compare` runs the reference, and
`_measure_ranges` compares the answers of the server with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropeconv.engines.engine import LogProbs, Progress
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import (
    DeviceSpec,
    choose_place,
    folder_of,
    load_stock,
    load_widened,
    stored_dtype,
)
from ropeconv.engines.transformers.memory import host_bytes
from ropeconv.errors import BadSource
from ropeconv.formats.kind import is_gguf
from ropeconv.inspection.kv_cache import config_cache
from ropeconv.loader import load_tokenizer
from ropeconv.models.config import text_part
from ropeconv.models.gguf import GgufSource
from ropeconv.models.source import Source
from ropeconv.rope.errors import RopeconvError
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import DEQUANTISED, weights_type
from ropeconv.validate.sampling import (
    KEPT,
    SAMPLE,
    TokenRun,
    affordable_length,
    length_beyond,
    of_text,
    spread_buckets,
    synthetic,
)
from ropeconv.validate.source_reading import (
    ComparisonSpec,
    HiddenStates,
    read_noise_run,
    read_source,
)
from ropeconv.validate.validation import (
    KL_FLOOR,
    BucketResult,
    Measures,
    Validation,
    bucket_result,
    conclusion,
    count_compared,
    in_blocks,
    log_probs_of,
    measure_answers,
    reach_warning,
    rule,
    with_rounded_weights,
)

from .completions import Completions
from .connection import connect
from .protocol import Server

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

READINGS_OF_TEXT = 6
"""How often a text is read: by the server, and by the reference in all its variants."""
POSITIONS_PER_RANGE_OF_TEXT = 32
"""Positions of a range that are compared where each needs a request with the whole text."""
UNCHECKED_BY_SERVER = ("the files that it has loaded",)
SERVER_RULE = (
    f"{rule(KL_FLOOR)}; since the kernels of a server differ, the KL from float32 counts whole, and"
    " only tokens that the server names are compared"
)


def validate_server(
    comparison: Comparison,
    url: str,
    model: str = "",
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Check that a server computes the extended RoPE of the output that it runs.

    The log-probabilities that the server gives for a text are compared with a reference: the source
    with the same extension, in transformers.

    Args:
        comparison: The output that the server runs, and its source.
        url: The address of the server's OpenAI-compatible API.
        model: The name of the model, if the server has several; empty for its only model.
        settings: How the reference runs.
        progress: Callbacks, which are called while tokens are read.

    Raises:
        RopeconvError: No server answers, it runs another model or accepts too few tokens, or a GGUF
            source cannot be dequantised.
    """
    settings = settings or Settings()
    progress = progress or Progress()
    server = connect(url, model)
    progress.note(f"{server.runtime} runs {server.model}.")
    _refuse_other_model(server, comparison)

    # Transformers needs the source as a checkpoint. A GGUF source is dequantised into temporary
    # files in the precision of --dtype, by default float32.
    source: Source = comparison.checkpoint_or_dequantised(with_tokenizer=settings.text is not None)
    dtype_of_files = "auto"  # a checkpoint is read as it was written
    if source.kind == "gguf":
        dtype_of_files = "float32" if settings.dtype == "auto" else settings.dtype
    with folder_of(source, dtype_of_files) as folder:
        return _compare(ComparisonSpec(comparison, settings, progress), server, source, folder)


def _compare(spec: ComparisonSpec, server: Server, source: Source, folder: Path) -> Validation:
    """Compare the answers of a server with those of the reference, and return the verdict.

    The reference is the source in transformers, patched to the schedule that the server should
    compute. Both read one text.

    Args:
        spec: The output that the server runs, its source, and how the reference runs.
        server: The server.
        source: The source as a checkpoint.
        folder: The folder with the files of that checkpoint.
    """
    comparison = spec.comparison
    settings = spec.settings
    progress = spec.progress
    baked = comparison.baked

    # load the reference, in the device and the precision that the user wants, if it fits there
    device_spec = _device_of_reference(spec, source)
    engine = TransformersEngine.load(folder, device_spec, chunk=settings.chunk)

    # ask the server first: if it refuses, the long runs of the reference are saved
    run = _text_run(spec, server, source, folder, engine)
    progress.total(READINGS_OF_TEXT * len(run.ids))
    answers = server.top_log_probs(run.ids, run.kept, progress)
    progress.note(
        f"Running {len(run.ids):,} tokens on {device_spec.device} in {device_spec.dtype}: control,"
        " reference, noise floor."
    )
    # run the reference, then once more in another precision, for the noise. The layers of the first
    # are freed before the second is loaded; its last projection makes logits of hidden states.
    states = read_source(engine, spec, [run], device_spec.dtype)
    head = engine.without_layers()
    other_model = _load_in_other_precision(server, folder, device_spec)
    if other_model is not None:
        other_engine = TransformersEngine(other_model, settings.chunk)
        states.noise_runs.append(read_noise_run(other_engine, spec, [run]))

    # compare
    is_quantised = is_gguf(baked) and bool(weights_type(GgufSource(baked).file))
    results, curve = _measure_ranges(run, states, head, answers, is_quantised)
    schedule = comparison.schedule
    agrees, sentence = _conclude(results, comparison)
    return Validation(
        transformers="",
        device=f"{device_spec.device}, the server at {server.client.base_url}",
        digest=schedule.digest,
        tokens=len(run.ids),
        seed=settings.seed,
        buckets=tuple(results),
        agrees=agrees,
        sentence=sentence,
        runtime=server.runtime,
        dtype=device_spec.dtype,
        length=len(run.ids),
        chunk=settings.chunk,
        curve=curve,
        rule=SERVER_RULE,
        unchecked=(*UNCHECKED_BY_SERVER, *server.unchecked),
        reached=count_compared(results),
        **comparison.result_fields(),
    )


def _device_of_reference(spec: ComparisonSpec, source: Source) -> DeviceSpec:
    """Return the device and the precision in which the reference, the source, runs.

    Args:
        spec: The output that the server runs, and the options of the user, such as --dtype.
        source: The source as a checkpoint.
    """
    # Without --dtype, a server runs a checkpoint in the precision that its config.json names. The
    # reference should round in the same way.
    dtype = spec.settings.dtype
    output_is_gguf = is_gguf(spec.comparison.baked)
    if dtype == "auto" and not output_is_gguf:
        dtype = stored_dtype(source.config())

    # the device that the user wants, or another one where the source fits into the memory
    settings = replace(spec.settings, dtype=dtype)
    wanted_device = settings.place(stored=dtype, loaded_as=spec.comparison.loaded_as)
    return choose_place(source, wanted_device)


def _load_in_other_precision(
    server: Server, folder: Path, at: DeviceSpec
) -> PreTrainedModel | None:
    """Load the reference once more in another precision, to measure what rounding changes.

    A server and the reference round differently. The noise floor is the KL between two runs of the
    reference: its own, and one in float32. If its own is in float32 already, the other is in the
    precision of the server.

    Args:
        server: The server, which may compute in a precision of its own.
        folder: The files of the reference.
        at: The device and the precision of the reference.

    Returns:
        The model in float32 for a reference in 16 bits, in the precision of the server for one in
        float32, and None where both have float32.
    """
    if at.dtype != "float32":
        return load_widened(folder, at)
    if server.computes_in:
        return load_stock(folder, replace(at, dtype=server.computes_in))
    return None


def _conclude(results: list[BucketResult], comparison: Comparison) -> tuple[bool, str]:
    """Return whether a server computes the schedule, and a sentence that says so.

    Args:
        results: The results by range of positions, the first within the trained context.
        comparison: The output and its source.
    """
    schedule = comparison.schedule
    agrees, sentence = conclusion(results, comparison.unchanged, schedule.original_context)
    if not agrees:
        # A server that ignores the extension differs from the reference as much as the unscaled
        # source does (control). One that differs twice as much perhaps runs another model.
        beyond_trained = results[1:]
        is_farther = all(result.kl_mean > 2 * result.control_kl for result in beyond_trained)
        if is_farther:
            sentence += (
                " The server differs more than the unscaled source does, as another model would."
            )

    # further sentences, some of which may be empty: that the reference has dequantised weights,
    # that nothing beyond the trained context was compared, and what the comparison has left out
    if isinstance(comparison.source, GgufSource):
        sentence += DEQUANTISED
    sentence += reach_warning(results, schedule.original_context, schedule.context, "--length")
    sentence += comparison.remark
    return agrees, sentence


def _default_length(spec: ComparisonSpec, source: Source, engine: TransformersEngine) -> int:
    """Return how many tokens a server and the reference can read in reasonable time and memory.

    Args:
        spec: The output that the server runs, and how it is compared.
        source: The checkpoint of the reference.
        engine: The reference, which is timed on a short text.
    """
    schedule = spec.comparison.schedule
    original = schedule.original_context
    context = schedule.context
    cache_bytes = 0
    cache = config_cache(source.config(), source.family)
    if cache is not None:
        sizes = cache.bytes(length_beyond(original, context))
        bytes_in_16_bits = max(sizes.values(), default=0)
        cache_bytes = 2 * bytes_in_16_bits  # the reference may run in float32

    def measure_seconds() -> float:
        """Run a short text, and return how long all runs of such a text take."""
        ids = list(range(SAMPLE))  # any tokens will do: 0, 1, 2, ...
        positions = list(range(SAMPLE))
        last_token = SAMPLE - 1
        begin = time.perf_counter()
        engine.hidden_states(ids, positions, kept=[last_token])
        seconds_of_run = time.perf_counter() - begin
        # Several runs read the text: the server, and the reference with and without the extension
        # and with other rounding. Each is assumed to take as long as this run.
        return READINGS_OF_TEXT * seconds_of_run

    return affordable_length(
        original, context, seconds=measure_seconds, needed=cache_bytes, free=host_bytes()
    )


def _text_run(
    spec: ComparisonSpec, server: Server, source: Source, folder: Path, engine: TransformersEngine
) -> TokenRun:
    """Return the tokens that a server and the reference read, and the positions to compare.

    Args:
        spec: The output that the server runs, and how it is compared.
        server: The server.
        source: The checkpoint of the reference.
        folder: The files of the source, with the tokenizer.
        engine: The reference. The default length depends on its speed.

    Raises:
        RopeconvError: --length is longer than the context, or than the server accepts.
    """
    settings = spec.settings
    schedule = spec.comparison.schedule
    user_length = settings.length  # --length; 0 if the user has not given it
    length = user_length or _default_length(spec, source, engine)
    if user_length > schedule.context:
        raise BadSource(
            f"the checkpoint has a context of {schedule.context} tokens; pass a --length of at most"
            " that"
        )
    if server.length and user_length > server.length:
        raise RopeconvError(
            f"the server accepts {server.length} tokens, fewer than --length {user_length}; start"
            " it with a longer context (vLLM --max-model-len, SGLang --context-length, llama-server"
            " -c), or lower --length"
        )
    if server.length:  # one token is generated after the text
        length = min(length, server.length - 1)

    # some servers read only text, and not token ids
    if isinstance(server, Completions):
        return _run_for_text_server(server, spec, folder, length)

    # the text of the user, or random tokens that the source and the server both have (a checkpoint
    # may pad its embeddings to more rows)
    if settings.text:
        ids = of_text(settings.text, folder, length, settings.trust_remote_code)
    else:
        vocabulary = int(text_part(source.config(), source.family)["vocab_size"])
        if server.vocabulary:
            vocabulary = min(vocabulary, server.vocabulary)
        ids = synthetic(length, vocabulary, settings.seed)

    # Positions to compare, in ranges (buckets): the trained context, then each doubling of it. A
    # server gives no log-probabilities at the last position.
    ranges = spread_buckets(schedule.original_context, length - 1, each=KEPT)
    # "spread": positions all over the text are compared
    return TokenRun.over_all(kind="spread", ids=ids, buckets=ranges)


def _run_for_text_server(
    server: Completions, spec: ComparisonSpec, folder: Path, length: int
) -> TokenRun:
    """Return the tokens and the positions to compare, for a server that reads text, not token ids.

    For each position the server gets the beginning of the text. A position is left out if the
    tokenizer makes other tokens from this beginning than from the whole text.

    Args:
        server: The server. Its precision and its tokenizer are set here.
        spec: The output that the server runs, and how it is compared.
        folder: The checkpoint with the tokenizer.
        length: The length of the text in tokens.

    Raises:
        RopeconvError: In a range of positions, the tokenizer makes other tokens from all
            beginnings.
    """
    settings = spec.settings
    trust = settings.trust_remote_code
    # a GGUF file runs in llama.cpp, whose key-value cache is float16 by default
    if is_gguf(spec.comparison.baked):
        server.computes_in = "float16"
    server.tokenizer = load_tokenizer(folder, trust, "run vLLM, SGLang or llama-server")
    text = settings.text or server.make_text(length, settings.seed)
    ids = of_text(text, folder, length, trust)

    # ranges of positions (buckets): the trained context, then each doubling of it
    trained = spec.comparison.schedule.original_context
    buckets = []
    for bucket in spread_buckets(trained, length - 1, POSITIONS_PER_RANGE_OF_TEXT):
        positions = []
        for position in bucket.positions:
            beginning = server.text_of(ids[: position + 1])  # empty if no text has these tokens
            if beginning:
                positions.append(position)
        if not positions:
            raise RopeconvError(
                f"the tokenizer makes other tokens from each of the texts up to {bucket.name}, and"
                f" {server.runtime} reads text; run vLLM, SGLang or llama-server"
            )
        buckets.append(replace(bucket, positions=positions))
    # "spread": positions all over the text are compared
    return TokenRun.over_all(kind="spread", ids=ids, buckets=buckets)


@dataclass(frozen=True)
class ServedRun:
    """The answers of a server to some tokens, and the reference that they are compared with."""

    answers: list[LogProbs]
    """The log-probabilities from the server, one dict for each compared token."""

    head: TransformersEngine
    """The reference, of which only the last projection is needed."""

    reference: Tensor
    """Its hidden states, [compared tokens, hidden_size]."""

    targets: list[int]
    """The next token of each compared one."""

    def compare_server(self) -> Measures:
        """Compare the answers of the server with the reference."""
        return self._compare(lambda rows: self.answers[rows])

    def compare_states(self, engine: TransformersEngine, hidden: Tensor) -> Measures:
        """Compare another run of the source with the reference, at the tokens of the server.

        Args:
            engine: The engine whose last projection makes logits of the states.
            hidden: The hidden states, [compared tokens, hidden_size].
        """

        def answers_of(rows: slice) -> list[LogProbs]:
            return log_probs_of(engine.head(hidden[rows]), self.answers[rows])

        return self._compare(answers_of)

    def _compare(self, answers_of: Callable[[slice], list[LogProbs]]) -> Measures:
        """Compare answers with the reference; the logits of some rows at a time fit into memory."""

        def compare_rows(rows: slice) -> Measures:
            logits = self.head.head(self.reference[rows])
            return measure_answers(logits, answers_of(rows), self.targets[rows])

        return in_blocks(compare_rows, len(self.answers), self.head.vocabulary)


def _measure_ranges(
    run: TokenRun,
    states: HiddenStates,
    head: TransformersEngine,
    answers: list[LogProbs],
    is_quantised: bool,
) -> tuple[list[BucketResult], tuple[tuple[int, float], ...]]:
    """Return how far the answers of a server are from the reference, as a KL.

    Two other KLs to the reference are the scale: of the source without the extension (control),
    and of runs that differ only by rounding (noise).

    Args:
        run: The tokens, with the ranges of positions (buckets) to compare.
        states: The hidden states of the reference, of the control and of the noise runs.
        head: Computes logits from hidden states.
        answers: The log-probabilities from the server, one dict for each compared token.
        is_quantised: Whether the server runs quantised weights, which differ more.

    Returns:
        The result of each range; and a curve of (position, KL in nats) for the compared tokens.
    """
    for row in answers:
        if any(token >= head.vocabulary for token in row):
            raise RopeconvError(
                f"the server names tokens beyond the {head.vocabulary:,} of the source; start it"
                " with the output"
            )

    # The distances from the reference at each compared token. `states` has lists with a tensor for
    # each run of tokens; here there is only one run.
    (reference,) = states.reference
    (unscaled,) = states.control
    compared = ServedRun(answers, head, reference, run.targets().tolist())
    of_server = compared.compare_server()
    of_unscaled = compared.compare_states(head, unscaled)
    of_rounding = []
    for engine_of_run, hidden_states in states.noise_runs:
        engine = engine_of_run or head  # None stands for the engine of the reference
        (hidden,) = hidden_states
        of_rounding.append(compared.compare_states(engine, hidden))

    # bucket by bucket, such as positions 0 to 8,191
    results = []
    noise = 0.0
    for bucket, rows in run.parts():
        control_kl = of_unscaled[rows].kl.mean().item()
        rounding_kls = [measures[rows].kl.quantile(0.95).item() for measures in of_rounding]
        # The kernels of a server round in another way than transformers. So the KL of a run in
        # another precision counts as noise in full (part=1.0). Noise does not fall with position.
        noise_of_bucket = states.noise_floor(rounding_kls, part=1.0)
        noise = max(noise, noise_of_bucket)
        # "whole": the server has read all tokens up to a position, without gaps
        result = bucket_result(bucket, of_server[rows], control_kl, noise, kind="whole")
        if is_quantised:
            result = with_rounded_weights(result)
        results.append(result)
    curve = tuple(zip(run.kept, of_server.kl.tolist(), strict=True))
    return results, curve


def _refuse_other_model(server: Server, comparison: Comparison) -> None:
    """Refuse a server that loaded another model than the output, where that can be seen.

    Raises:
        RopeconvError: It did.
    """
    baked = comparison.baked
    if server.runs(baked, comparison.receipt) is False:
        raise RopeconvError(
            f"the server runs {server.path}, which is not {baked}; start it with that, or correct"
            " --server"
        )
