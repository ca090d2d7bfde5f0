"""Compare the first layers of a conversion to GGUF with those of its checkpoint in transformers.

llama.cpp compares a conversion with its own weights (`gguf_layers`), which shows the frequencies up
to the declared length, and not whether rows are in the order that it expects. So the first layers
of both run over the same tokens: those of the checkpoint in transformers, patched to the schedule.
`compare_converted_layers` is the function to read first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from ..engines.llamacpp import LONGEST, LlamaCppEngine, LlamaCppError
from ..engines.transformers.first_layers import ROWS, NoLayerRuns
from ..engines.transformers.first_logits import load_first_layers, run_first_layers
from ..engines.transformers.patch import patch
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import TYPES
from ..formats.jsontext import JsonObject
from ..inspection.receipts.receipt import LayerRecord, LayersRecord, ScheduleRecord
from ..rope.schedule import Schedule
from .gguf_layers import cut, median_distance
from .layers import CheckpointFiles, schedule_of

Ask = Callable[[str, JsonObject], JsonObject]
"""Calls a function of this module in the process that has imported transformers."""

TOKENS = 64
SEED = 2
PHRASE = 13
"""Tokens that are repeated, so that attention to the past matters."""
FLOORS = {"F32": 0.003, "F16": 0.01, "BF16": 0.05, "Q8_0": 0.1}
"""The relative error of logits that is always allowed, by the type of most weights.

llama.cpp rounds activations to the type of the weights, and has some functions in tables of 16
bits.
"""
SHARE = 0.25
"""The part of the control's error that is allowed: without RoPE, or with rows in another order, the
error is as large as that of the control.
"""


class ConversionQuestion(msgspec.Struct, frozen=True):
    """A checkpoint and tokens, for another process to run."""

    source: CheckpointFiles
    """The checkpoint."""

    numbers: ScheduleRecord
    """The schedule, without log-n."""

    ids: tuple[int, ...]
    """The tokens, from position 0 on."""

    layers: tuple[int, ...] = (0,)
    """The numbers of layers that are needed at least."""

    queries: str = ""
    """The end of the name of the module that outputs queries."""

    mla: bool = False
    """Whether the model has multi-head latent attention."""


class ConversionAnswer(msgspec.Struct, frozen=True):
    """The logits of the first layers of a checkpoint, [tokens][first tokens of the vocabulary]."""

    reference: tuple[tuple[float, ...], ...] = ()
    """With the schedule."""

    control: tuple[tuple[float, ...], ...] = ()
    """With all tokens at position 0, which is without RoPE."""

    layers: int = 0
    """How many layers they have."""

    reason: str = ""
    """Why there are none, as a clause."""


def answer(given: JsonObject) -> JsonObject:
    """Answer a `ConversionQuestion` as JSON-ready data, with a `ConversionAnswer`."""
    question = msgspec.convert(given, ConversionQuestion)
    try:
        result = _run_source(question)
    except NoLayerRuns as problem:
        result = ConversionAnswer(reason=str(problem))
    document: JsonObject = msgspec.to_builtins(result)
    return document


def _run_source(question: ConversionQuestion) -> ConversionAnswer:
    """Run the first layers of a checkpoint with the schedule, and without RoPE."""
    shapes, read = question.source.reader()
    model = load_first_layers(
        folder=Path(question.source.config),
        shapes=shapes,
        read=read,
        stands_for=question.source.stands_for,
        layers=question.layers,
    )
    ids = question.ids
    with ExitStack() as stack:
        schedule = schedule_of(question.numbers)
        stack.callback(patch(model, schedule, question.mla, None, question.queries))
        reference = run_first_layers(model, ids, range(len(ids)))
    control = run_first_layers(model, ids, [0] * len(ids))
    return ConversionAnswer(
        reference=tuple(map(tuple, reference.tolist())),
        control=tuple(map(tuple, control.tolist())),
        layers=model.config.get_text_config().num_hidden_layers,
    )


def choose_tokens(vocabulary: int, context: int) -> tuple[int, ...]:
    """Return the tokens that are run: some random ones again and again."""
    random = np.random.default_rng(SEED)
    phrase = random.integers(min(vocabulary, ROWS), size=PHRASE)
    tokens = np.resize(phrase, min(TOKENS, context))
    return tuple(int(token) for token in tokens)


def compare_converted_layers(
    output: GgufFile, question: ConversionQuestion, schedule: Schedule, ask: Ask
) -> LayersRecord:
    """Compare the first layers of a conversion in llama.cpp with its checkpoint in transformers.

    Args:
        output: The conversion.
        question: The checkpoint and the tokens.
        schedule: The schedule.
        ask: Calls `answer` in another process.

    Returns:
        The relative error of the logits at the median token; or why nothing was compared.
    """
    usual = TYPES[output.usual_type].name
    if usual not in FLOORS:
        return LayersRecord(reason=f"its weights are rounded to {usual}")
    if schedule.short_inv_freq is not None:
        return LayersRecord(reason="llama.cpp takes the long list for every text")
    if schedule.log_n is not None:
        return LayersRecord(reason="its queries are scaled by position")
    given: JsonObject = msgspec.to_builtins(question)
    of_source = msgspec.convert(ask("answer", given), ConversionAnswer)
    if of_source.reason:
        return LayersRecord(reason=of_source.reason)

    reference = np.array(of_source.reference, np.float32)
    control = np.array(of_source.control, np.float32)
    try:
        with cut(output, of_source.layers) as short:
            engine = LlamaCppEngine(short.path, patience=LONGEST)
            kept = list(range(len(question.ids)))
            logits = engine.logits_array(question.ids, kept)[:, : reference.shape[1]]
    except LlamaCppError as problem:
        return LayersRecord(reason=f"llama.cpp does not run only its first layers ({problem})")
    except NoLayerRuns as problem:
        return LayersRecord(reason=str(problem))

    of_control = median_distance(control, reference)
    if not np.isfinite(of_control) or of_control < FLOORS[usual]:
        return LayersRecord(reason="RoPE changes nothing in its first layers")
    last_layer = of_source.layers - 1
    record = LayerRecord(
        layer="0 in transformers" if not last_layer else f"0-{last_layer} in transformers",
        last=len(question.ids) - 1,
        error=median_distance(logits, reference),
        allowed=max(FLOORS[usual], SHARE * of_control),
        control=of_control,
    )
    return LayersRecord(
        tokens=len(question.ids), reached=len(question.ids) - 1, layers=(record,), unchanged=False
    )
