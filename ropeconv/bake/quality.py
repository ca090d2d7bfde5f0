"""The measured losses of the method of an output, in a line."""

from __future__ import annotations

import math

from ..rope.errors import command_line
from ..rope.methods.method import Value
from ..rope.methods.vectors import AsIs
from ..rope.recipe import recipe_text
from .evidence import Study, studies_of
from .plan import Plan

UNIT = "nats"
"""The beginning of the unit of studies of the loss per token."""


def quality(plan: Plan) -> str:
    """Return what was measured of the method of a plan; empty where there is no method.

    It is the study of the loss whose factor is nearest, as `advise` has it, or the command that
    measures the method with this model.
    """
    method = plan.recipe.method
    if isinstance(method, AsIs):
        return ""
    study = nearest_study(plan)
    if study is not None:
        beyond = study.beyond[method.name] - study.beyond["base"]
        words = f"loss {beyond:+.2f} beyond the trained length"
        if method.name in study.inside and "base" in study.inside:
            inside = study.inside[method.name] - study.inside["base"]
            words += f", {inside:+.2f} inside it"
        return f"{words}; {study.model.partition(' (')[0]}, {study.factor:g} times"

    # `eval` measures the loss of the next token of models with weights
    has_lists = method.value is Value.FILE  # which no row of `eval` can name
    if plan.source.kind == "config" or plan.draft or has_lists:
        return "not measured"
    rows = f"base,{recipe_text(plan.recipe)}"
    source = plan.source.reference
    command = command_line("eval", source, "--methods", rows, "--text", "FILE")
    return f"not measured; {command}"


def nearest_study(plan: Plan) -> Study | None:
    """Return the study of the loss of a method whose factor is nearest; None without one.

    Models that are fine-tuned with a method count only where it needs that.

    Args:
        plan: The plan with the method.
    """
    name = plan.recipe.method.name
    factor = plan.schedule.context / plan.before.original_context
    on_top = plan.before.form.kind if plan.recipe.on_top else ""
    studies = []
    for study in studies_of(on_top):
        has_numbers = {name, "base"} <= study.beyond.keys() and study.unit.startswith(UNIT)
        if has_numbers and not study.higher and not study.fine_tuned:
            studies.append(study)
    # a factor that is twice as far says nothing about this one
    near = [study for study in studies if 0.5 <= study.factor / factor <= 2]
    if not near:
        return None
    return min(near, key=lambda study: abs(math.log(study.factor / factor)))
