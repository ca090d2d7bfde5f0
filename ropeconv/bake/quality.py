"""The measured losses of the method of an output, in a line."""

from __future__ import annotations

from ..rope.errors import command_line
from ..rope.methods.method import Value
from ..rope.methods.vectors import AsIs
from ..rope.recipe import recipe_text
from .evidence import BASE, Study, study_for
from .next_steps import reads_both_directions
from .plan import Plan


def quality(plan: Plan) -> str:
    """Return a phrase on the loss of the method of a plan, by a study, for users.

    With a study of the method: "loss -2.10 nats beyond the trained length, +0.02 inside it, against
    the unchanged Qwen2.5-0.5B at 4 times". Without a study: "not measured; ropeconv eval ...", with
    the command that measures the method on this model.

    Args:
        plan: The plan of an output.

    Returns:
        The phrase; empty for an output without a method that extends it, for an encoder and for a
            diffusion model.
    """
    method = plan.recipe.method
    is_longer = plan.context > plan.before.original_context
    # a model that predicts no next token has no such loss
    if isinstance(method, AsIs) or not is_longer or reads_both_directions(plan):
        return ""

    # A study of the method. It has the loss of each method at the new length (`beyond`) and at the
    # trained length (`inside`). BASE is the unchanged model.
    study = shown_study(plan)
    if study is not None:
        beyond = study.beyond[method.name] - study.beyond[BASE]
        losses = f"{beyond:+z.2f} nats beyond the trained length"
        if method.name in study.inside:
            inside = study.inside[method.name] - study.inside[BASE]
            losses += f", {inside:+z.2f} inside it"
        model = f"the unchanged {study.short_model} at {study.factor:g} times"
        limit = ""
        factor = factor_of(plan)
        if not study.reaches(factor):
            limit = f"; not measured at {factor:.3g} times"
        return f"loss {losses}, against {model}{limit}"

    # `ropeconv eval` cannot measure a config.json without weights, a draft model, or a method that
    # reads factors from a file
    has_no_loss = plan.source.kind == "config" or bool(plan.draft)
    reads_file = method.value is Value.FILE
    if has_no_loss or reads_file:
        return "not measured"

    # the command, with --methods base,yarn:4 for example
    methods = f"base,{recipe_text(plan.recipe)}"
    source = plan.source.reference
    command = command_line("eval", source, "--methods", methods, "--text", "FILE")
    return f"not measured; {command}"


def shown_study(plan: Plan) -> Study | None:
    """Return the study that `advise` shows for the method of a plan; None without one.

    Studies measure the loss of the next token, which encoders and diffusion models do not have.
    They are of models whose frequencies the method changes, so they say nothing of a model whose
    frequencies it keeps.
    """
    if reads_both_directions(plan) or plan.schedule.keeps_frequencies(plan.before.current()):
        return None
    on_top = plan.before.form.kind if plan.recipe.on_top else ""
    has_windows = plan.before.sliding_window is not None
    return study_for(plan.recipe.method.name, factor_of(plan), on_top, has_windows)


def factor_of(plan: Plan) -> float:
    """Return the context of an output over the trained one."""
    return plan.context / plan.before.original_context
