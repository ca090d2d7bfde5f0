"""The picture of what was measured about a method, for the plan of an output."""

import math
from functools import partial
from typing import Any

from ropeconv.bake.evidence import Study, evidence
from ropeconv.bake.plan import Plan
from ropeconv.views.plot_style import BLUE, GREY, Picture

OF_A_REAL_MODEL = "a real model"
"""How the sources of studies of a published model end."""


def measured_pictures(plan: Plan) -> list[Picture]:
    """Return the picture of the losses of methods at the factor of a plan.

    The losses are those of the published model that was measured, and not of the planned one, as
    its caption says.

    Args:
        plan: The plan of an output.

    Returns:
        One picture; none for a method that was not measured, or a model that is scaled already.
    """
    spec = plan.source_spec
    factor = plan.schedule.context / spec.original_context
    study = nearest_study(plan.recipe.method.name, factor)
    if study is None or spec.scaled:
        return []
    name = plan.recipe.method.name
    caption = (
        f"Measured on {study.model}, {study.n}, without training: at {study.factor:g} times the"
        f" trained context, {name} lowers the loss by {-study.beyond[name]:.2f} nats per token."
        f" Inside the trained context it costs {study.inside[name]:.2f}. Your model will differ;"
        " measure it with `ropeconv eval`."
    )
    return [Picture(partial(draw_losses, study=study, name=name), caption)]


def nearest_study(name: str, factor: float) -> Study | None:
    """Return the study of a real model whose factor is nearest in ratio, where it has the method.

    Args:
        name: The name of the method.
        factor: The new length over the trained one.
    """
    studies = [study for study in evidence().studies if study.source.endswith(OF_A_REAL_MODEL)]
    having = [study for study in studies if name in study.beyond and name in study.inside]
    if not having or factor <= 1:
        return None
    return min(having, key=lambda study: abs(math.log(study.factor / factor)))


def draw_losses(axes: Any, study: Study, name: str) -> None:
    """Draw by how much each method of a study lowers the loss beyond the trained context.

    Args:
        axes: The axes of a panel.
        study: The study.
        name: The method that is planned, which has the colour.
    """
    methods = [method for method in study.beyond if method != "base"]
    methods.sort(key=lambda method: study.beyond[method], reverse=True)  # the best on top
    gains = [-study.beyond[method] for method in methods]
    bars = axes.barh(methods, gains, color=GREY, height=0.6)
    for bar, method in zip(bars, methods, strict=True):
        if method == name:
            bar.set_color(BLUE)
        else:
            bar.set_alpha(0.4)
    axes.set_title(f"Gain at {study.factor:g} times the trained context")
    axes.set_xlabel("loss below no method, in nats per token")
