"""Preview of a publication, for `--dry-run`."""

from dataclasses import dataclass

from ..formats.jsontext import JsonObject
from ..models.hub import answers
from ..models.source import CARD
from ..views.sheet import Sheet
from .base_model import BaseModel, inherited, name_of
from .options import PublishOptions
from .publish import unreachable
from .repository import Repository
from .upload_set import UploadSet


@dataclass(frozen=True)
class Preview:
    """The effects of a publication.

    exists: whether the repository exists. private: whether it would be private; None for an
    existing one, which does not change. blocked: why it would be refused, or empty. uploads: names
    and sizes in bytes, 0 for sizes that are not known yet. copies: names of files that the Hub
    copies from `source`. note: what could not be seen of the base model, or empty. card: the text
    of the model card; empty where one stays.
    """

    repo_id: str
    exists: bool
    private: bool | None
    blocked: str
    uploads: dict[str, int]
    copies: tuple[str, ...]
    source: str
    commit: str
    base: BaseModel
    note: str
    card: str

    def to_dict(self) -> JsonObject:
        """The preview as JSON-ready data."""
        return {
            "repo_id": self.repo_id,
            "exists": self.exists,
            "private": self.private,
            "blocked": self.blocked or None,
            "uploads": [
                {"name": name, "bytes": size or None} for name, size in self.uploads.items()
            ],
            "copies": [
                {"name": name, "from": self.source, "commit": self.commit} for name in self.copies
            ],
            "base_model": self.base.name or None,
            "license": self.base.known.get("license"),
            "licence_terms": self.base.licence or None,
            "card": self.card or None,
        }


def preview(upload: UploadSet, options: PublishOptions) -> Preview:
    """Return what `publish` would do with files, without writing anything.

    Raises RopeconvError where the licence of the base model forbids it, and what huggingface_hub
    raises.
    """
    repository = Repository(upload, options)
    exists = False
    blocked = ""
    try:
        with answers(options.repo_id):
            base, note = repository.base
            exists = repository.api.repo_exists(options.repo_id)
            blocked = repository.blocked() if exists else ""
            generated = {} if repository.kept_card(exists) else repository.card_files(base, exists)
    except Exception as problem:
        if not unreachable(problem):
            raise
        base = BaseModel(name_of(upload, options)[0], {**upload.known, **inherited(upload.card)})
        exists = False
        generated = {} if repository.kept_card(exists) else repository.card_files(base, exists)
        note = (
            f"The Hub cannot be reached: {options.repo_id} is shown as new, and the base model was"
            " not checked."
        )
    licences = base.missing_terms(upload)
    copied, fetched = (licences, ()) if base.name == upload.source else ((), licences)
    sizes = {name: upload.size(name) for name in (*upload.adds, *fetched)}
    return Preview(
        repo_id=options.repo_id,
        exists=exists,
        private=None if exists else base.hides(options),
        blocked=blocked,
        uploads=sizes | {name: len(data) for name, data in generated.items()},
        copies=tuple(sorted({*upload.copies, *copied})),
        source=upload.source,
        commit=upload.commit,
        base=base,
        note=note,
        card=generated.get(CARD, b"").decode(),
    )


def show_publication(preview: Preview, sheet: Sheet) -> None:
    """Shows a preview: every file, base model and licence, and the card."""
    place = f"from {preview.source} at {preview.commit[:7]}"
    rows = [
        (name, "upload", f"{size:,}" if size else "?") for name, size in preview.uploads.items()
    ]
    rows += [(name, f"copied {place}", "") for name in preview.copies]
    state = "exists" if preview.exists else f"new, {'private' if preview.private else 'public'}"
    sheet.table(
        f"Repository {preview.repo_id} ({state})", ("file", "", "bytes"), rows, right=("bytes",)
    )
    base = preview.base.name or "none known; `ropeconv push --base-model` names one"
    licence = preview.base.known.get("license")
    terms = f" ({preview.base.licence})" if preview.base.licence else ""
    sheet.say(f"\nBase model: {base}. Licence: {licence or 'none stated'}{terms}.")
    if preview.blocked:
        sheet.say(f"It would be refused: {preview.blocked}.")
    if preview.card:
        sheet.say("\nREADME.md:\n")
        sheet.copyable(preview.card)
    else:
        sheet.say("\nREADME.md stays unchanged.")
