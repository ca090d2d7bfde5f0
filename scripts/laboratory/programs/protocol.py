"""What every program of the lab shares: it reads questions, asks its runtime, and writes answers.

A program runs in the environment of its runtime, as `python PROGRAM QUESTIONS ANSWERS`, and imports
nothing of ropeconv. Both files have one JSON object per line.

A question is {"id", "label", "config", "trained", "context"}: the whole config.json that the
runtime gets, and the trained and declared lengths in tokens. The answer to it has the same "id" and
one of

- "layers": for every layer of the language model the index of its rope in "ropes", or null for a
  layer that does not rotate; "ropes": each {"inv_freq", "attention_factor"} as it acts on a
  sequence as long as "context", with "short_inv_freq" and "short_attention_factor" where a sequence
  within the trained length gets others; "scaling": the factor on the logits of attention (1 /
  sqrt(head_dim) in most models), where the program sees it; "query_scale": the factor on queries at
  position context - 1, where the runtime has one. "mixed": whether one prompt is computed in
  several forward passes, as with chunked prefill, so that lists which are chosen for each pass are
  mixed in it. "pairs" in a rope, or "interleaved" beside them, says which dimensions are turned
  together.
- "error": "Type: message", of loading the model or of its first forward pass, and "stage":
  "config", "load" or "forward".
- "absent": a sentence, where the runtime has no such model.
- "unseen": a sentence, where it has one that does not run here, which says nothing about the
  runtime.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Answer = dict[str, Any]
NO_DEVICE = ("Torch not compiled with CUDA", "No Metal back-end")
"""Parts of messages that are about the machine and not about the model."""
CUSTOM_CODE = ("contains custom code", "trust_remote_code=True")
"""Parts of messages on a model whose config class is in its own repository, which the lab does not
have.
"""


def message(error: BaseException) -> str:
    """The first line of an error as "Type: message", without what changes from run to run or from
    config to config.
    """
    first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    first = re.sub(r"/[\w./-]*/(?=\w)", "", first)
    first = re.sub(r"\{.*", "{...}", first)
    return first[:200]


class Absent(Exception):
    """The runtime has no such model, which is the message."""


class Unseen(Exception):
    """The runtime has a model that does not run without its kernels; the message says why."""


class Refused(Exception):
    """The runtime fails on the model. stage: where; the message is that of the runtime."""

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(message(error))
        self.stage = stage


def rope(
    inv_freq: Sequence[float],
    attention_factor: float,
    short_inv_freq: Sequence[float] | None = None,
    short_attention_factor: float | None = None,
) -> Answer:
    """One set of frequencies, in radians per token, and the factor on cos and sin."""
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
    """inv_freq and attention_factor from the cosines and sines of position 1, one per pair."""
    lengths = [math.hypot(c, s) for c, s in zip(cos, sin, strict=True)]
    return [math.atan2(s, c) for c, s in zip(cos, sin, strict=True)], sum(lengths) / len(lengths)


def answer(layers: Sequence[Answer | None], **more: Any) -> Answer:
    """An answer from the rope of every layer; equal ones are stored once."""
    ropes: list[Answer] = []
    places: list[int | None] = []
    for layer in layers:
        if layer is not None and layer not in ropes:
            ropes.append(layer)
        places.append(None if layer is None else ropes.index(layer))
    return {"ropes": ropes, "layers": places, **more}


def main(ask: Callable[[dict[str, Any], dict[str, Any]], Answer]) -> None:
    """Answers the questions of the first file in the second one. ask: from a config and its
    question to an answer.
    """
    questions, answers = sys.argv[1:3]
    failures = 0
    with open(questions, encoding="utf-8") as lines, open(answers, "w", encoding="utf-8") as out:
        for line in lines:
            question = json.loads(line)
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    answer = ask(json.loads(json.dumps(question["config"])), question)
                except Absent as missing:
                    answer = {"absent": str(missing)}
                except Unseen as reason:
                    answer = {"unseen": str(reason)}
                except Refused as refused:
                    answer = {"error": str(refused), "stage": refused.stage}
                    if any(words in str(refused) for words in NO_DEVICE):
                        answer = {"unseen": f"it needs another device: {refused}"}
                    if str(refused).startswith(("ImportError", "ModuleNotFoundError")):
                        answer = {
                            "unseen": "untested: it imports a package that the lab does not have"
                        }
                    if any(words in str(refused) for words in CUSTOM_CODE):
                        answer = {
                            "unseen": "untested: its config class is in the model's own repository"
                        }
                except AssertionError as unexpected:
                    answer = {"unseen": f"the lab does not understand how it rotates: {unexpected}"}
                except Exception as error:
                    failures += 1
                    if os.environ.get("LAB_DEBUG"):
                        traceback.print_exc()
                    answer = {"error": message(error), "stage": "load"}
            out.write(json.dumps({"id": question["id"], **answer}) + "\n")
            out.flush()
    print(f"{failures} errors outside of a named stage", file=sys.stderr)
