"""Encoding `weights`: the amplitude folded into the weights, the frequencies in the config that most runtimes read."""

from __future__ import annotations

from dataclasses import replace

from ...errors import UnsupportedBake
from ..fold.placement import fold
from .config_only import bare, furthest, refuse_log_n
from .request import ConfigChoice, Task


def weights(task: Task) -> ConfigChoice:
    """Whoever multiplies queries by keys computes it then. Raises UnsupportedBake where there is nothing to fold."""
    schedule = task.schedule
    if schedule.attention_factor == 1 and schedule.softmax_scale == 1:
        raise UnsupportedBake(
            "an amplitude of 1", "the weights", "there is nothing to multiply", "use --encoding native or factors"
        )
    refuse_log_n(task)
    tensors = task.tensors()
    if not tensors:
        raise UnsupportedBake(
            "an amplitude in the weights", "a config.json alone", "its weights are not here", "give the whole folder"
        )
    choice = furthest(bare(task))
    found = fold(schedule, task.spec, task.family, task.config, tensors, task.side)
    verdicts = choice.verdicts
    if found.expected_kl:
        verdicts = tuple(replace(v, word="rounded") if v.word == "exact" else v for v in verdicts)
    return replace(choice, encoding="weights", verdicts=verdicts, fold=found)
