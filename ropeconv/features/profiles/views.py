"""Show the profiles of a model."""

from ropeconv.formats.disk import human
from ropeconv.rope.errors import counted
from ropeconv.views.plan import show_plan
from ropeconv.views.sheet import Sheet, sentence

from .plan import ProfilesPlan


def show_profiles(
    plan: ProfilesPlan, sheet: Sheet, explain: bool = False, written: bool = True
) -> None:
    """Show each profile in a line, and where their weights are.

    Args:
        plan: The profiles.
        sheet: The sheet that shows them.
        explain: Whether the whole plan of each is shown.
        written: Whether they are on this disk, and not only on the Hub.
    """
    # a table with a row for each profile: "MODEL: 3 profiles, which share 14 GB of weights"
    (table,) = plan.shown_tables()  # a plan of profiles has one table
    count = len(table.rows)
    profiles = counted(count, "profile")
    verb = "shares" if count == 1 else "share"
    size_of_weights = human(plan.shared_bytes)
    heading = f"{plan.source.reference}: {profiles}, which {verb} {size_of_weights} of weights"
    right_aligned = ("context", "own files")
    sheet.table(heading, table.columns, table.rows, right=right_aligned)

    # which files are one on the disk
    if written:
        sharing = "The profiles"
        links_to_source = any(file.action == "copy" for file in plan.shared)
        if links_to_source and not plan.copied:
            sharing = f"The profiles and {plan.source.reference}"
        sheet.say(
            f"{sharing} share their weight files (hard links). A program that edits one file in"
            " place edits all of them."
        )

    # the warnings, most of which hold for all profiles, and are said once
    warnings: list[str] = []
    for profile in plan.plans.values():
        if explain:
            show_plan(profile, sheet, explain)
        warnings += profile.warnings
    warnings_once = dict.fromkeys(warnings)
    for warning in warnings_once:
        sheet.note(f"Note: {sentence(warning)}")
