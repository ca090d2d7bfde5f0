"""Shows what a publication on the Hub would do."""

from __future__ import annotations

from ..hub.preview import Preview
from .sheet import Sheet


def show_publication(found: Preview, sheet: Sheet) -> None:
    """Shows what a publication would do: every file, base model and licence, and the card."""
    place = f"from {found.source} at {found.commit[:7]}"
    rows = [(name, "upload", f"{size:,}" if size else "?") for name, size in found.uploads]
    rows += [(name, f"copied {place}", "") for name in found.copies]
    state = "exists" if found.exists else f"new, {'private' if found.private else 'public'}"
    sheet.table(f"Repository {found.repo_id} ({state})", ("file", "", "bytes"), rows, right=("bytes",))
    base, licence = found.base.name or "none known; --base-model names one", found.base.known.get("license")
    terms = f" ({found.base.licence})" if found.base.licence else ""
    sheet.say(f"\nBase model: {base}. Licence: {licence or 'none stated'}{terms}.")
    if found.blocked:
        sheet.say(f"It would be refused: {found.blocked}.")
    if found.card:
        sheet.say("\nREADME.md:\n")
        sheet.copyable(found.card)
    else:
        sheet.say("\nREADME.md stays as it is.")
