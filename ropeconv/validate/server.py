"""Compares log-probabilities of a running server with a reference, the source in transformers patched at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..engines.engine import LogProbs, Progress
from ..engines.servers import connect
from ..engines.servers.protocol import ServedModel, Server
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import folder_of, load_stock, load_widened, placed, stored_dtype
from ..errors import BadSource
from ..inspection.receipts.reader import read_receipt
from ..inspection.receipts.receipt import Receipt
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.errors import RopeconvError
from .comparison import Comparison, Settings
from .gguf_reference import DequantisedReference, weights_type
from .sampling import KEPT, TokenRun, of_text, spread_buckets, synthetic, usual_length
from .source_reading import ComparisonSpec, HiddenStates, read_noise_run, read_source
from .validation import (
    KL_FLOOR,
    BucketResult,
    Measures,
    Validation,
    bucket_result,
    coarse,
    conclusion,
    in_blocks,
    log_probs_of,
    noise_floor,
    rule,
    with_rounded_weights,
)

if TYPE_CHECKING:
    from torch import Tensor

UNCHECKED = ("the files that it has loaded",)
SERVER_RULE = (
    f"{rule(KL_FLOOR)}; of a server, whose kernels are others, that from float32 counts whole, and KL is over what it "
    "names"
)


def validate_server(
    comparison: Comparison,
    url: str,
    model: str = "",
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Compares the log-probabilities that a server gives for a text with those of the reference.

    comparison: the output that the server runs, and its source; of one in GGUF the reference has the dequantised
    weights. url: of its OpenAI-compatible API. model: which of those that it runs, empty for the only one. settings:
    how the reference runs. progress: callbacks. Raises RopeconvError where no server answers, it runs another model, or
    accepts fewer tokens than the length, and where a source in GGUF cannot be dequantised.
    """
    settings, progress = settings or Settings(), progress or Progress()
    server = connect(url, model)
    progress.note(f"{server.runtime} runs {server.served.model}.")
    _same_model(server.served, comparison)
    source: Source = comparison.checkpoint_or_dequantised(with_tokenizer=settings.text is not None)
    dequantised = ("float32" if settings.dtype == "auto" else settings.dtype) if source.kind == "gguf" else "auto"
    with folder_of(source, dequantised) as folder:
        return _validated(ComparisonSpec(comparison, settings, progress), server, source, folder)


def _validated(asked: ComparisonSpec, server: Server, source: Source, folder: Path) -> Validation:
    """The result of a comparison with a server. source: the checkpoint of the reference. folder: with its files."""
    comparison, settings, progress = asked.comparison, asked.settings, asked.progress
    baked = comparison.baked
    run = _text_run(asked, server.served, source, folder)
    progress.total(6 * len(run.ids))
    said = server.top_log_probs(run.ids, run.kept, progress)
    dtype = stored_dtype(source.config()) if settings.dtype == "auto" and baked.suffix != ".gguf" else settings.dtype
    at = placed(source, replace(settings, dtype=dtype).place(dtype, comparison.stands_for))
    engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
    progress.note(f"Running {len(run.ids):,} tokens on {at.device} in {at.dtype}: control, reference, noise floor.")
    states = read_source(engine, asked, [run], at.dtype)
    head = engine.without_layers()
    if at.dtype != "float32" or server.computes_in:
        wide = at.dtype != "float32"
        loaded = load_widened(folder, at) if wide else load_stock(folder, replace(at, dtype=server.computes_in))
        states.noise_runs.append(read_noise_run(TransformersEngine(loaded, settings.chunk), asked, [run]))
    rounded = weights_type(GgufSource(baked).file) if baked.suffix == ".gguf" else ""
    results, curve = _judged(run, states, head, said, bool(rounded))
    agrees, sentence = conclusion(results, comparison.unchanged)
    if not agrees and all(result.kl_mean > 2 * result.control_kl for result in results[1:]):
        sentence += " The server is further away than the unscaled source is, as another model would be."
    if isinstance(comparison.source, GgufSource):
        sentence += DequantisedReference.said
    return Validation(
        "", f"{at.device}, the server at {server.client.base_url}", comparison.schedule.digest, len(run.ids),
        settings.seed, tuple(results), agrees, sentence, runtime=server.runtime, dtype=at.dtype, length=len(run.ids),
        chunk=settings.chunk, curve=curve, rule=SERVER_RULE, unchecked=(*UNCHECKED, *server.unchecked),
        **comparison.described(),
    )  # fmt: skip


def _text_run(asked: ComparisonSpec, served: ServedModel, source: Source, folder: Path) -> TokenRun:
    """The run for a server: a text over every position from 0 on."""
    settings, schedule = asked.settings, asked.comparison.schedule
    wanted = settings.length or usual_length(schedule.original_context, schedule.context)
    if settings.length > schedule.context:
        raise BadSource(f"the checkpoint is made for {schedule.context} tokens, so --length {wanted} is beyond it")
    if served.length and settings.length > served.length:
        raise RopeconvError(
            f"the server accepts {served.length} tokens, so --length {wanted} is beyond it; start it with a longer "
            "context (vLLM --max-model-len, SGLang --context-length, llama-server -c), or lower --length"
        )
    length = min(wanted, served.length - 1) if served.length else wanted  # one token is generated after it
    config = source.config()
    known = int(text_part(config, source.family)["vocab_size"])
    if settings.text:
        ids = of_text(settings.text, folder, length, settings.trust_remote_code)
    else:
        ids = synthetic(length, min(served.vocabulary or known, known), settings.seed)
    found = spread_buckets(schedule.original_context, length - 1, KEPT)
    kept = [position for bucket in found for position in bucket.positions]
    return TokenRun("spread", ids, list(range(length)), kept, found)


def _judged(
    run: TokenRun, states: HiddenStates, head: TransformersEngine, said: list[LogProbs], rounded: bool
) -> tuple[list[BucketResult], tuple[tuple[int, float], ...]]:
    """The result of each bucket, and (position, KL in nats) of the run."""
    if any(token >= head.vocabulary for row in said for token in row):
        raise RopeconvError(
            f"the server names tokens beyond the {head.vocabulary:,} of the source; it runs another model"
        )
    wanted = states.reference[0]
    targets = run.targets().tolist()

    def compared(given: Callable[[slice], list[LogProbs]]) -> Measures:
        def measured(rows: slice) -> Measures:
            return coarse(head.head(wanted[rows]), given(rows), targets[rows])

        return in_blocks(measured, len(said), head.vocabulary)

    def ours(engine: TransformersEngine, read: Tensor) -> Measures:
        return compared(lambda rows: log_probs_of(engine.head(read[rows]), said[rows]))

    found, control = compared(lambda rows: said[rows]), ours(head, states.control[0])
    floors = [ours(own or head, read[0]) for own, read in states.noise_runs]
    results, noise = [], 0.0
    for bucket, rows in run.parts():
        away = control[rows].kl.mean().item()
        same, other = states.by_precision([measures[rows].kl.quantile(0.95).item() for measures in floors])
        noise = max(noise, noise_floor(same, []), *other)  # whole: a server's kernels are others
        result = bucket_result(bucket, found[rows], away, noise, "whole")
        results.append(with_rounded_weights(result) if rounded else result)
    return results, tuple(zip(run.kept, found.kl.tolist(), strict=True))


def _same_model(served: ServedModel, comparison: Comparison) -> None:
    """Raises RopeconvError where the server has loaded another model from the disk of this machine."""
    baked = comparison.baked
    path = Path(served.path) if served.path else baked
    if not path.exists() or path.resolve() == baked.resolve():
        return
    try:
        same = _identity(read_receipt(path)) == _identity(comparison.receipt)
    except BadSource:
        same = False
    if not same:
        raise RopeconvError(f"the server runs {path}, which is not {baked}; start it with that, or correct --server")


def _identity(receipt: Receipt) -> tuple[object, ...]:
    return receipt.recipe, receipt.schedule, receipt.source
