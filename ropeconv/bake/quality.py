"""The measured losses of the method of an output, in a line."""

from __future__ import annotations

from ..rope.errors import command_line
from ..rope.methods.method import Value
from ..rope.methods.vectors import AsIs
from ..rope.recipe import recipe_text
from .evidence import BASE, Study, study_for
from .next_steps import is_encoder
from .plan import Plan


def quality(plan: Plan) -> str:
    """Return a sentence on how much the method of a plan was measured to help and to cost.

    Such as "loss -2.10 nats beyond the trained length, +0.02 inside it, against the unchanged
    Qwen2.5-0.5B at 4 times". Where no study has the method, it is the command that measures it on
    this model: "not measured; ropeconv eval ...". It is empty for an encoder, which predicts no
    next token, and for an output that only writes the RoPE of the model again (`--as-is`). It is
    empty too for an output that is no longer than the trained context: studies compare methods
    beyond it, so none has the numbers, and `warnings.py` says that the context stays.
    """
    method = plan.recipe.method
    is_longer = plan.context > plan.before.original_context
    if isinstance(method, AsIs) or not is_longer or is_encoder(plan):
        return ""
    # the difference to the unchanged model (BASE) in the losses of a published study
    study = shown_study(plan)
    if study is not None:
        beyond = study.beyond[method.name] - study.beyond[BASE]
        losses = f"{beyond:+.2f} nats beyond the trained length"
        if method.name in study.inside:
            inside = study.inside[method.name] - study.inside[BASE]
            losses += f", {inside:+.2f} inside it"
        model = f"the unchanged {study.short_model} at {study.factor:g} times"
        limit = ""
        factor = factor_of(plan)
        if not study.reaches(factor):
            limit = f"; not measured at {factor:.3g} times"
        return f"loss {losses}, against {model}{limit}"

    # the command, where `eval` can measure it: it needs weights and the loss of the next token, and
    # no row of it can name a file of factors
    has_no_loss = plan.source.kind == "config" or bool(plan.draft)
    needs_file = method.value is Value.FILE
    if has_no_loss or needs_file:
        return "not measured"
    rows = f"base,{recipe_text(plan.recipe)}"
    source = plan.source.reference
    command = command_line("eval", source, "--methods", rows, "--text", "FILE")
    return f"not measured; {command}"


def shown_study(plan: Plan) -> Study | None:
    """Return the study that `advise` shows for the method of a plan; None without one.

    Studies measure the loss of the next token, so an encoder has none.
    """
    if is_encoder(plan):
        return None
    on_top = plan.before.form.kind if plan.recipe.on_top else ""
    return study_for(plan.recipe.method.name, factor_of(plan), on_top)


def factor_of(plan: Plan) -> float:
    """Return the context of an output over the trained one."""
    return plan.context / plan.before.original_context
