"""The protocol of the programs that ask a runtime, with the functions that they share.

`python run_probe.py ask_NAME` reads a question as a line of JSON from stdin, asks the runtime, and
writes the answer as a line to stdout, until stdin ends. Nothing of ropeconv is imported there but
the modules in this folder, which need the standard library and the runtime. Read `main` first.

A question is {"config", "trained", "context"}: the whole config.json, and the trained and declared
lengths in tokens. It may have "options", those of the command that starts a server, such as
{"model-impl": "transformers"}. Other keys come back in the answer. An answer has "version", that of
the runtime, and one of

- "layers": for every layer of the language model the index of its rope in "ropes", or null for a
  layer that does not rotate; "ropes": each {"inv_freq", "attention_factor"} as it acts on a
  sequence as long as "context", with "short_inv_freq" and "short_attention_factor" where a sequence
  within the trained length gets others. Where the program sees them, there are also:

  - "class": the model class that was built;
  - "scaling": the factor on the logits of attention (1 / sqrt(head_dim) in most models);
  - "query_scale": the factor on queries at position context - 1;
  - "mixed": whether one prompt is computed in several forward passes, as with chunked prefill, so
    that lists which are chosen for each pass are mixed in it;
  - "pairs" in a rope, or "interleaved" beside them: which dimensions are turned together;
  - "window": the longest prompt in tokens without an option; none where nothing limits it;
  - "backend": "transformers" where the runtime runs the class of transformers.

- "error": "Type: message", of loading the model or of its first forward pass, and "stage":
  "config", "load" or "forward".
- "absent": a sentence, where the runtime does not have the model.
- "unseen": a sentence, where it has one that cannot be asked here, which says nothing about it.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
import warnings

TYPE_CHECKING = False  # the module typing takes longer to import than this whole program
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TextIO

    Answer = dict[str, Any]
    Question = dict[str, Any]

WORDS_OF_MISSING_DEVICE = (
    "Torch not compiled with CUDA",
    "No Metal back-end",
    "No CUDA GPUs are available",
)
"""Parts of messages of torch about a device that this machine does not have."""
WORDS_OF_CUSTOM_CODE = ("contains custom code", "trust_remote_code=True")
"""Parts of messages on a model whose config class is in its own repository."""
NEEDS_TRUST = (
    "its config class is in the repository of the model, whose code this probe does not run; start"
    " the runtime with --trust-remote-code, which runs it"
)
"""The answer for such a model. vLLM, SGLang and mlx-lm have an option of this name."""


class NoModel(Exception):
    """The runtime does not have the model; the message names the model."""


class Unseen(Exception):
    """The runtime has a model that cannot be asked here; the message says why."""


class Refused(Exception):
    """The runtime fails on the model; the message is that of the runtime."""

    stage: str
    """Where it fails: "config", "load" or "forward"."""

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(message(error))
        self.stage = stage


def message(error: BaseException) -> str:
    """Return an error in one line, such as "OSError: config.json is missing".

    Folders and dictionaries in it are cut, since they change from run to run: "/tmp/x/config.json"
    becomes "config.json", and "got {'a': 1}" becomes "got {...}".
    """
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    line = lines[0]

    # The sentence of a pydantic error is in its second line:
    # "  Value error, unknown rope_type [type=value_error, input_value=...]"
    is_of_pydantic = type(error).__name__ == "ValidationError"
    if is_of_pydantic and len(lines) > 1:
        sentence = re.sub(r"^\s*Value error, ", "", lines[1])
        sentence = re.sub(r"\s*\[type=.*", "", sentence)
        line = f"ValueError: {sentence}"

    line = re.sub(r"/[\w./-]*/(?=\w)", "", line)  # folders before the name of a file
    line = re.sub(r"\{.*", "{...}", line)
    return line[:200]


def rope(
    inv_freq: Sequence[float],
    attention_factor: float,
    short_inv_freq: Sequence[float] | None = None,
    short_attention_factor: float | None = None,
) -> Answer:
    """Return the RoPE of a layer as JSON-ready data, with nine digits of each frequency.

    {"inv_freq": [0.25, 0.0025], "attention_factor": 1.14}, say. Where a short sequence gets other
    values, as with LongRoPE, these are "short_inv_freq" and "short_attention_factor".

    Args:
        inv_freq: Radians per token in a sequence as long as the context.
        attention_factor: The factor on cos and sin there.
        short_inv_freq: Radians per token within the trained length.
        short_attention_factor: The factor on cos and sin there.
    """
    answer: Answer = {
        "inv_freq": [float(f"{value:.9g}") for value in inv_freq],
        "attention_factor": float(attention_factor),
    }
    if short_inv_freq is not None:
        short = [float(f"{value:.9g}") for value in short_inv_freq]
        if short != answer["inv_freq"]:
            answer["short_inv_freq"] = short
    if short_attention_factor is not None and short_attention_factor != attention_factor:
        answer["short_attention_factor"] = float(short_attention_factor)
    return answer


def from_cos_sin(cos: Sequence[float], sin: Sequence[float]) -> tuple[list[float], float]:
    """Return inv_freq and attention_factor from the cosines and sines of position 1, one per
    pair.
    """
    angles = []
    lengths = []
    for c, s in zip(cos, sin):  # noqa: B905  Python 3.9 of another environment has no strict
        angles.append(math.atan2(s, c))
        lengths.append(math.hypot(c, s))
    return angles, sum(lengths) / len(lengths)


def answer(layers: Sequence[Answer | None], **more: Any) -> Answer:
    """Return an answer from the rope of every layer, in which equal ropes are stored once.

    The ropes A, A, None, B of four layers become {"ropes": [A, B], "layers": [0, 0, None, 1]}.

    Args:
        layers: The rope of each layer, as `rope` returns it; None for one that does not rotate.
        **more: Other keys of the answer.
    """
    ropes: list[Answer] = []
    rope_indices: list[int | None] = []
    for layer in layers:
        if layer is None:
            rope_indices.append(None)
            continue
        if layer not in ropes:
            ropes.append(layer)
        rope_indices.append(ropes.index(layer))
    return {"ropes": ropes, "layers": rope_indices, **more}


def main(program: str) -> None:
    """Read questions from stdin, one JSON object a line, and write an answer to each to stdout.

    Args:
        program: The module that asks the runtime, such as ask_vllm. It has VERSION and a function
            `ask(config, question)`, which returns the answer.
    """
    answers = open_answers()  # stdout; what libraries print goes to stderr from here on
    caller = os.getppid()
    threading.Thread(target=end_with_caller, args=(caller,), daemon=True).start()

    # Import the program, and with it the runtime. Where that fails, the answer to each question is
    # `import_failure`: nothing is known about the model ("unseen").
    version = ""
    import_failure: Answer = {}
    gc.disable()  # garbage collection takes a quarter of the time of the imports
    try:
        module = importlib.import_module(program)
        version = getattr(module, "VERSION", "")
        gc.freeze()  # never search the objects of these packages, which takes a second
        gc.enable()
    except Exception as error:
        # only this failure is written from here on, which needs no garbage collection
        report(error)
        import_failure = {"unseen": f"it cannot be imported: {message(error)}"}

    for line in sys.stdin:
        question = json.loads(line)
        config = question.pop("config")
        if import_failure:
            result = import_failure
        else:
            result = answer_or_reason(module.ask, config, question)
        answers.write(json.dumps({**question, "version": version, **result}) + "\n")
        answers.flush()
    answers.close()
    os._exit(0)  # the shutdown of these packages takes a second, and some of them crash in it


def answer_or_reason(
    ask: Callable[[Answer, Question], Answer], config: Answer, question: Question
) -> Answer:
    """Ask a runtime about one config, and return its answer or the reason why there is none.

    An answer has "layers" and "ropes", the frequencies of each layer. A reason is a sentence under
    one of three keys:

    - "absent": the runtime has no class for the model, so no user can run it there.
    - "error": it has a class, which fails on this config, as it would for a user.
    - "unseen": it may work, and this program cannot see it: a kernel needs a GPU, say, or the
      program itself fails.

    Args:
        ask: The function of the program that asks its runtime.
        config: The whole config.json.
        question: The lengths in tokens, and the options of a server.
    """
    try:
        return ask(config, question)
    except NoModel as missing:
        return {"absent": str(missing)}
    except Unseen as reason:
        return {"unseen": str(reason)}
    except Refused as refused:
        report(refused)
        return describe_refusal(refused)
    except AssertionError as unexpected:
        # a program asserts what it assumes while it reads the rotation, such as that queries and
        # keys share one
        report(unexpected)
        return {"unseen": f"the probe does not understand how it rotates: {unexpected}"}
    except Exception as error:
        report(error)
        return {"unseen": f"the probe fails on this model: {message(error)}"}


def describe_refusal(refused: Refused) -> Answer:
    """Return the answer for an error of the runtime, which may be about this machine only."""
    text = str(refused)
    if any(words in text for words in WORDS_OF_MISSING_DEVICE):
        return {"unseen": f"it needs another device: {text}"}
    if text.startswith(("ImportError", "ModuleNotFoundError")):
        return {"unseen": f"it needs a package that is not installed: {text}"}
    if any(words in text for words in WORDS_OF_CUSTOM_CODE):
        return {"unseen": NEEDS_TRUST}
    return {"error": text, "stage": refused.stage}


def report(error: BaseException) -> None:
    """Print the traceback of an error to stderr where the user wants it."""
    if os.environ.get("ROPECONV_DEBUG"):
        traceback.print_exception(type(error), error, error.__traceback__)


def open_answers() -> TextIO:
    """Return the stream for answers, keep everything else out of it, and stay off the network."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        TRANSFORMERS_VERBOSITY="error",
        TOKENIZERS_PARALLELISM="false",
        CUDA_VISIBLE_DEVICES="",
    )
    return answers


def end_with_caller(caller: int) -> None:
    """End the process when its caller has ended, also in the middle of a question.

    Args:
        caller: The process that started this one.
    """
    while os.getppid() == caller:
        time.sleep(1)
    os._exit(1)
