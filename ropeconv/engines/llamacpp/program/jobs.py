"""The answers to jobs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..messages import Answer, Decode, Done, Encode, Generate, Job, Logits, Losses, Lost, Text, Tokens
from .model import Model


def answer(model: Model, job: Job, advance: Callable[[int], None]) -> Answer:
    """The answer to a job.

    model: that is loaded. job: to do. advance: called with the tokens read since the last call. Raises RuntimeError
    where llama.cpp refuses.
    """
    match job:
        case Logits():
            return logits(model, job, advance)
        case Losses():
            return losses(model, job, advance)
        case Generate():
            return generated(model, job)
        case Encode():
            return Tokens(model.encode(job.text))
        case Decode():
            return Text(model.text(job.tokens))


def logits(model: Model, job: Logits, advance: Callable[[int], None]) -> Done:
    """Writes logits, float32 [wanted, vocabulary]. Parameters are those of `answer`."""
    rows = np.empty((len(job.wanted), model.width), np.float32)
    model.begin(len(job.tokens))
    for index, row in enumerate(model.decode(job.tokens, 0, set(job.wanted), advance)):
        rows[index] = row
    np.save(job.out, rows)
    return Done()


def losses(model: Model, job: Losses, advance: Callable[[int], None]) -> Lost:
    """Losses in float64, and whether the token was the likeliest. Parameters are those of `answer`."""
    found, right = np.empty(len(job.targets)), np.zeros(len(job.targets), bool)
    tokens = job.tokens[: job.targets[-1]]  # what comes behind the last target changes nothing
    model.begin(len(job.tokens))
    rows = model.decode(tokens, 0, {target - 1 for target in job.targets}, advance)
    for index, (target, row) in enumerate(zip(job.targets, rows, strict=True)):
        token, likeliest = job.tokens[target], int(row.argmax())
        most = float(row[likeliest])
        with np.errstate(all="ignore"):
            total = np.exp(row - row[likeliest]).sum(dtype=np.float64)
        found[index], right[index] = most + np.log(total) - float(row[token]), token == likeliest
    advance(len(job.tokens) - len(tokens))
    return Lost(found.tobytes(), right.tobytes())


def generated(model: Model, job: Generate) -> Tokens:
    """The next tokens of greedy decoding."""
    given, first, found = job.tokens, 0, list[int]()
    model.begin(len(given) + job.count)
    while len(found) < job.count:
        last = first + len(given) - 1
        (row,) = model.decode(given, first, {last})
        found.append(int(row.argmax()))
        if model.ends(found[-1]):
            break
        given, first = found[-1:], last + 1
    return Tokens(found)
