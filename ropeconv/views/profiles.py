"""Shows the profiles of a model as one table."""

from __future__ import annotations

from ..bake.profiles import BASE, ProfilesPlan
from ..formats.disk import human
from ..rope.errors import counted
from ..rope.recipe import flags
from .plan import show_plan
from .sheet import Sheet, sentence


def show_profiles(plan: ProfilesPlan, sheet: Sheet, explain: bool = False, written: bool = True) -> None:
    """Shows each profile in a line, and where their weights are.

    explain: with the whole plan of each. written: on this disk, and not only on the Hub.
    """
    rows = [
        (
            name, f"{made.schedule.context:,}", " ".join(flags(made.recipe) or [made.recipe.method.flag()]),
            human(plan.own_bytes(name)), made.result.exact_share,
        )
        for name, made in plan.plans.items()
    ]  # fmt: skip
    first = next(iter(plan.plans.values()))
    if not first.is_folder:
        rows.insert(0, (BASE, f"{first.source_spec.context:,}", "unchanged", human(plan.files[0].size), ""))
    weights = human(sum(file.size for file in plan.shared))
    title = f"{plan.source.reference}: {counted(len(rows), 'profile')}, which share {weights} of weights"
    sheet.table(title, ("profile", "context", "method", "own files", "runtimes"), rows, right=("context", "own files"))
    whose = f"the profiles and {plan.source.reference}" if plan.links_source else "the profiles"
    if written:
        sheet.say(f"The weights of {whose} are the same blocks of the disk: a program that writes to them changes all.")
    for made in plan.plans.values() if explain else ():
        show_plan(made, sheet, explain)
    for warning in dict.fromkeys(warning for made in plan.plans.values() for warning in made.warnings):
        sheet.note(f"Note: {sentence(warning)}")
