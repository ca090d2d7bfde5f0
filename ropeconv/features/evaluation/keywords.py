"""The keywords of `evaluate` and `tune`, for type checkers and editors.

Written by `python -m scripts.pages` from the options of the command line; change them there.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

from ropeconv.keywords import Length, StrPath
from ropeconv.reporting import Reporter


class EvaluateKeywords(TypedDict, total=False):
    """The measures, and how they are taken.

    Attributes:
        measure: The measures: growth, passkey, ...
        lengths: Tokens, or multiples of the trained context.
        windows: Sequences of each length.
        targets: Tokens predicted at the end of each sequence.
        depths: Places of a fact in a text.
        seed: The seed of random choices.
        generate: Generate answers instead of comparing tokens.
        suite: long: loss, four kinds of questions about your text, speed and memory, and RULER
            where lm_eval is installed.
        device: auto, cpu, cuda, cuda:1 or mps.
        dtype: auto: float32 on a CPU, elsewhere as stored.
        chunk: Tokens that the model sees at a time.
        journal: Where finished sequences are kept, so that a run continues (default: in the cache).
        fresh: Begin a new journal; the one there gets another name.
        server: A running vLLM, SGLang or llama-server as a row, URL or NAME=URL (repeatable).
        threads: Threads of the CPU (default: OMP_NUM_THREADS, otherwise one for each core).
        against: The source of an output, as the first row.
        device_map: auto spreads the model over several devices.
        trust_remote_code: Run code of the model that ropeconv has not written.
        family: Treat the model as one of this family, whatever its model_type.
        reporter: Receives progress, and sentences for the user.
    """

    measure: str | Sequence[str]
    lengths: Length | Sequence[Length]
    windows: int
    targets: int
    depths: int
    seed: int
    generate: bool
    suite: Literal["long"]
    device: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    chunk: int
    journal: StrPath
    fresh: bool
    server: str | Sequence[str]
    threads: int
    against: object
    device_map: str
    trust_remote_code: bool
    family: str
    reporter: Reporter


class TuneKeywords(TypedDict, total=False):
    """How frequencies are searched.

    Attributes:
        start: The formula to begin with (default: the one that loses least).
        attention_factor: Keep cos and sin times A, instead of tuning that too.
        windows: Windows that the search reads.
        held_windows: Windows of held-out text (default: as many, and at least 6).
        targets: Tokens predicted in a window, inside the trained context and beyond it alike.
        inside: Weight of the loss inside the trained context, beside that beyond it.
        needles: Weight of the loss of a number hidden in each window.
        steps: Most steps of the search.
        regularise: Weight of the squared distance of log divisors to the formula.
        seed: The seed of random choices.
        device: auto, cpu, cuda, cuda:1 or mps.
        dtype: auto: float32 on a CPU, elsewhere as stored.
        journal: Where finished sequences are kept, so that a run continues (default: in the cache).
        fresh: Begin a new journal; the one there gets another name.
        device_map: auto spreads the model over several devices.
        trust_remote_code: Run code of the model that ropeconv has not written.
        family: Treat the model as one of this family, whatever its model_type.
        reporter: Receives progress, and sentences for the user.
    """

    start: str
    attention_factor: float
    windows: int
    held_windows: int
    targets: int
    inside: float
    needles: float
    steps: int
    regularise: float
    seed: int
    device: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    journal: StrPath
    fresh: bool
    device_map: str
    trust_remote_code: bool
    family: str
    reporter: Reporter
