"""Pictures of what was measured about a method, for the plan of an output."""

from functools import partial
from typing import Any

from ropeconv.bake.evidence import Study
from ropeconv.bake.plan import Plan
from ropeconv.bake.quality import shown_study
from ropeconv.views.plot_style import BLUE, GREY, Picture


def measured_pictures(plan: Plan) -> list[Picture]:
    """Return the pictures of losses and of retrieval by method, at the factor of a plan.

    The numbers are those of the published model that was measured, and not of the planned one, as
    the captions say.

    Args:
        plan: The plan of an output.

    Returns:
        Two pictures; none for a method that was not measured, or a model that is scaled already.
    """
    name = plan.recipe.method.name
    study = shown_study(plan)
    if study is None or name not in study.inside or plan.source_spec.scaled:
        return []
    caption = (
        f"Measured on {study.model}, {study.n}, without training: at {study.factor:g} times the"
        f" trained context, {name} lowers the loss by {-study.beyond[name]:z.2f} nats per token."
        f" Inside the trained context it costs {study.inside[name]:z.2f}. Your model will differ;"
        " measure it with `ropeconv eval`."
    )
    pictures = [Picture(partial(draw_losses, study=study, name=name), caption)]
    if name in study.retrieval:
        caption = (
            f"With {name}, the model finds {study.retrieval[name]:.0f} % of the numbers that were"
            " hidden in the same texts."
        )
        pictures.append(Picture(partial(draw_retrieval, study=study, name=name), caption))
    return pictures


def draw_losses(axes: Any, study: Study, name: str) -> None:
    """Draw by how much each method of a study lowers the loss beyond the trained context.

    Args:
        axes: The axes of a panel.
        study: The study.
        name: The method that is planned, which has the colour.
    """
    gains = {method: -change for method, change in study.beyond.items() if method != "base"}
    draw_bars(axes, gains, name)
    axes.set_title(f"Gain at {study.factor:g} times the trained context")
    axes.set_xlabel("loss below no method, in nats per token")


def draw_retrieval(axes: Any, study: Study, name: str) -> None:
    """Draw how many of the hidden numbers are found with each method. Parameters as above."""
    draw_bars(axes, dict(study.retrieval), name)
    axes.set_title(f"Retrieval at {study.factor:g} times the trained context")
    axes.set(xlabel="hidden numbers that are found, in %", xlim=(0, 100))


def draw_bars(axes: Any, values: dict[str, float], name: str) -> None:
    """Draw a bar for each method, the longest on top.

    Args:
        axes: The axes of a panel.
        values: The lengths of the bars by method.
        name: The method that has the colour.
    """
    methods = sorted(values, key=lambda method: values[method])
    lengths = [values[method] for method in methods]
    bars = axes.barh(methods, lengths, color=GREY, height=0.6)
    for bar, method in zip(bars, methods, strict=True):
        if method == name:
            bar.set_color(BLUE)
        else:
            bar.set_alpha(0.4)
    # the number at each bar says more than lines of a grid, which would strike the bars through
    axes.grid(visible=False)
    axes.bar_label(bars, fmt="{:.3g}", padding=3)
    axes.margins(x=0.12)
