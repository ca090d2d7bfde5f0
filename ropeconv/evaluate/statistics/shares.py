"""Shares of answers that are right: Wilson's interval, and errors that are never nothing."""

from __future__ import annotations

import numpy as np

from .sample import Sample

NORMAL_95 = 1.959964


def wilson(share: float, count: float, errors: float = NORMAL_95) -> tuple[float, float]:
    """The interval of a share, as in Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.

    share: from 0 to 1. count: of answers. errors: its width, in standard errors to each side.
    """
    square = errors**2 / count
    middle = (share + square / 2) / (1 + square)
    half = errors * (share * (1 - share) / count + square / (4 * count)) ** 0.5 / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def effective_count(sample: Sample) -> float:
    """How many independent answers a sample is worth: all of it, or fewer where those of one document are alike."""
    share, answers = sample.mean, len(sample.values)
    if not sample.by_document or not sample.error:
        return answers
    return max(1.0, min(answers, share * (1 - share) / sample.error**2))


def share_error(sample: Sample) -> float:
    """The standard error of a share: half of Wilson's interval of one error to each side."""
    low, high = wilson(min(1.0, max(0.0, sample.mean)), effective_count(sample), 1.0)
    return (high - low) / 2


def difference_error(sample: Sample) -> float:
    """The standard error of a paired difference of shares, if there were no difference, as in McNemar's test.

    Ten answers that are all lost are three errors, as in an exact test; the spread of their differences would be 0. At
    least one answer is taken to differ, and where documents differ more than answers, that counts.
    """
    share = sample.weights / sample.weights.sum()
    squares = float(((share * sample.values) ** 2).sum())
    least = float((share**2).mean())
    between = (sample.error or 0.0) if sample.by_document else 0.0
    return max(float(np.sqrt(max(squares, least))), between)
