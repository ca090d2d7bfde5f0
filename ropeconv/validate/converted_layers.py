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

from ..engines.llamacpp import LONGEST as LONGEST_SECONDS
from ..engines.llamacpp import LlamaCppEngine, LlamaCppError
from ..engines.transformers.first_layers import VOCABULARY_ROWS, NoLayerRuns
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

RUN_TOKENS = 64
SEED = 2
PHRASE_TOKENS = 13
"""Tokens that are repeated, so that attention to the past matters."""
FLOORS_BY_TYPE = {"F32": 0.003, "F16": 0.01, "BF16": 0.05, "Q8_0": 0.1}
"""The relative error of logits that is always allowed, by the type of most weights.

llama.cpp rounds activations to the type of the weights, and has some functions in tables of 16
bits.
"""
ALLOWED_SHARE_OF_CONTROL = 0.25
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

    states: bool = False
    """Whether hidden states are compared: llama.cpp gives no logits of an encoder."""


class ConversionAnswer(msgspec.Struct, frozen=True):
    """The logits of the first layers of a checkpoint, [tokens][first tokens of the vocabulary].

    Encoders have hidden states in their place, [tokens][width].
    """

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
    """Run the first layers of a checkpoint in transformers, with the new RoPE and without RoPE.

    Args:
        question: The checkpoint, the numbers of its first layers, the tokens, and the new RoPE
            (`numbers`: its frequencies and attention factor).

    Returns:
        The logits, or with `question.states` the hidden states of an encoder. A right conversion is
        near to `reference`, which has the new RoPE, and far from `control`, which has none.
    """
    shapes, read_tensor = question.source.reader()
    model = load_first_layers(
        folder=Path(question.source.config),
        shapes=shapes,
        read=read_tensor,
        loaded_as=question.source.loaded_as,
        layers=question.layers,
        states=question.states,
    )
    ids = question.ids
    token_count = len(ids)

    # with the new RoPE: the rotary modules of the model are patched, and then restored
    with ExitStack() as stack:
        undo_patch = patch(
            model,
            schedule_of(question.numbers),
            question.mla,
            scale=None,
            queries=question.queries,  # the end of the name of the module that outputs queries
        )
        stack.callback(undo_patch)
        reference = run_first_layers(model, ids, range(token_count), question.states)

    # without RoPE: at position 0 nothing is rotated
    control = run_first_layers(model, ids, [0] * token_count, question.states)

    text_config = model.config.get_text_config()
    return ConversionAnswer(
        reference=tuple(map(tuple, reference.tolist())),
        control=tuple(map(tuple, control.tolist())),
        layers=text_config.num_hidden_layers,  # the layers that were loaded
    )


def choose_tokens(vocabulary: int, context: int) -> tuple[int, ...]:
    """Return the tokens that are run: some random ones again and again."""
    random = np.random.default_rng(SEED)
    phrase = random.integers(min(vocabulary, VOCABULARY_ROWS), size=PHRASE_TOKENS)
    tokens = np.resize(phrase, min(RUN_TOKENS, context))
    return tuple(int(token) for token in tokens)


def compare_converted_layers(
    output: GgufFile, question: ConversionQuestion, schedule: Schedule, ask: Ask
) -> LayersRecord:
    """Compare the first layers of a conversion in llama.cpp with its checkpoint in transformers.

    Args:
        output: The conversion.
        question: The checkpoint and the tokens.
        schedule: The frequencies and factors to compute, and the context.
        ask: Calls `answer` in another process.

    Returns:
        The relative error of the logits, or of the hidden states of an encoder, at the median
        token; or why nothing was compared.
    """
    weights_type = TYPES[output.usual_type].name
    if weights_type not in FLOORS_BY_TYPE:
        return LayersRecord(reason=f"its weights are rounded to {weights_type}")
    if schedule.short_inv_freq is not None:
        return LayersRecord(reason="llama.cpp takes the long list for every text")
    if schedule.log_n is not None:
        return LayersRecord(reason="its queries are scaled by position")

    # the checkpoint in transformers: with the schedule, and as a control without RoPE
    given: JsonObject = msgspec.to_builtins(question)
    of_source = msgspec.convert(ask("answer", given), ConversionAnswer)
    if of_source.reason:
        return LayersRecord(reason=of_source.reason)
    reference = np.array(of_source.reference, np.float32)  # [tokens, first of the vocabulary]
    control = np.array(of_source.control, np.float32)
    vocabulary = reference.shape[1]

    # the same layers of the conversion in llama.cpp
    count = len(question.ids)
    try:
        with cut(output, of_source.layers) as short:
            engine = LlamaCppEngine(short.path, patience=LONGEST_SECONDS)
            if question.states:
                computed = engine.states_array(question.ids)
            else:
                computed = engine.logits_array(question.ids, list(range(count)))
                computed = computed[:, :vocabulary]
    except LlamaCppError as problem:
        return LayersRecord(reason=f"llama.cpp does not run only its first layers ({problem})")
    except NoLayerRuns as problem:
        return LayersRecord(reason=str(problem))

    # the test must be able to fail: without RoPE, the logits must be others
    floor = FLOORS_BY_TYPE[weights_type]
    control_error = median_distance(control, reference)
    if not np.isfinite(control_error) or control_error < floor:
        return LayersRecord(reason="RoPE changes nothing in its first layers")
    last_layer = of_source.layers - 1
    layers = "0" if last_layer == 0 else f"0-{last_layer}"
    record = LayerRecord(
        layer=f"{layers} in transformers",
        last=count - 1,
        error=median_distance(computed, reference),
        allowed=max(floor, ALLOWED_SHARE_OF_CONTROL * control_error),
        control=control_error,
    )
    return LayersRecord(tokens=count, reached=count - 1, layers=(record,), unchanged=False)
