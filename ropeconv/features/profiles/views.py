"""Show the profiles of a model."""

from ropeconv.formats.disk import human
from ropeconv.rope.errors import counted
from ropeconv.views.plan import show_plan
from ropeconv.views.sheet import Sheet, sentence

from .plan import ProfilesPlan


def show_profiles(
    plan: ProfilesPlan, sheet: Sheet, explain: bool = False, written: bool = True
) -> None:
    """Show a table of profiles, which are outputs of one model that share its weights.

    Args:
        plan: The profiles.
        sheet: Where they are shown.
        explain: Whether to show the whole plan of each profile too.
        written: Whether the profiles are on this disk; False if they are only published.
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

    # The profiles share their weight files by hard links. Files that are unchanged ("copy") are
    # links to the source too, unless --copy makes a copy for the profiles.
    if written:
        has_unchanged_files = any(file.action == "copy" for file in plan.shared)
        shares_with_source = has_unchanged_files and not plan.copied
        sharing = "The profiles"
        if shares_with_source:
            sharing = f"The profiles and {plan.source.reference}"
        sheet.say(
            f"{sharing} share their weight files (hard links). A program that edits one file in"
            " place edits all of them."
        )

    # most warnings are the same for all profiles, so each is shown once
    warnings: list[str] = []
    for profile in plan.plans.values():
        if explain:
            show_plan(profile, sheet, explain)
        warnings += profile.warnings
    warnings_once = dict.fromkeys(warnings)
    for warning in warnings_once:
        sheet.note(f"Note: {sentence(warning)}")
