"""Parameters of a method, searched by Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...errors import RecipeError
from ...extras import require
from ...rope.methods import REGISTRY as METHODS
from ..candidate import Candidate
from ..spaces import ATTENTION, SPACES, Parameter, recipe_of
from .search import Search, Task, register

PATIENCE = 20
"""Trials without a better schedule, beyond its standard error, after which a search ends."""


@register
class Parameters(Search):
    """Bergstra et al. 2011. A trial that loses against the best one is not read to its last window, and what it lost on
    the windows that were read counts."""

    name = "tpe"
    summary = "the parameters of a method, by Optuna's TPE"
    over = "parameters"
    steps = 80

    def run(self, task: Task) -> Candidate:
        require("optuna", "--over a method")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        space = SPACES[task.over] + (() if task.attention_factor is not None else (ATTENTION,))
        sampler = optuna.samplers.TPESampler(seed=task.seed, n_startup_trials=12)
        study = optuna.create_study(sampler=sampler)
        study.enqueue_trial(defaults(task.over, task.start.factor, space))
        for _ in range(task.steps or self.steps):
            trial = study.ask()
            values = {}
            for one in space:
                low, high = one.ends(task.start)
                values[one.name] = trial.suggest_float(one.name, low, high, log=one.log)
            try:
                recipe = recipe_of(task.over, values, task.start.context, task.attention_factor)
                found = task.start.candidate(recipe, f"tuned {task.over}")
            except RecipeError:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, task.gain(found, len(task.offer(found).values)).mean)
            if task.ended(PATIENCE):
                break
        return task.best


def defaults(method: str, factor: float, space: Sequence[Parameter]) -> dict[str, float]:
    """The parameters with which a method is used by itself, which are tried first.

    method: its name. factor: s. space: of its parameters; those without a default are left out.
    """
    known: dict[str, Any] = {one.name: one.default for one in dataclasses.fields(METHODS[method])} | {"factor": factor}
    return {one.name: known[one.name] for one in space if isinstance(known.get(one.name), float)}
