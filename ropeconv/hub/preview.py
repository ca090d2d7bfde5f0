"""The preview of a publication, for `--dry-run`.

`preview` returns it, and `show_publication` shows it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ..formats.jsontext import JsonObject
from ..models.hub import answers
from ..models.source import CARD
from ..views.sheet import Sheet
from .base_model import BaseModel, inheritable_metadata, name_of
from .options import PublishOptions
from .publish import unreachable
from .repository import Repository
from .upload_set import UploadSet


@dataclass(frozen=True)
class Preview:
    """The effects of a publication."""

    repo_id: str

    exists: bool
    """Whether the repository exists."""

    private: bool | None
    """Whether it would be private; None for an existing one, which does not change."""

    blocked: str
    """Why the publication would be refused; empty where it would not."""

    uploads: dict[str, int]
    """Names of files and their sizes in bytes, 0 for sizes that are not known yet."""

    copies: tuple[str, ...]
    """Names of files that the Hub copies from `source` at `commit`."""

    source: str
    commit: str
    base: BaseModel

    note: str
    """The part of the base model that could not be read, or empty."""

    card: str
    """The text of the model card; empty where the present one stays."""

    def to_dict(self) -> JsonObject:
        """Return the preview as JSON-ready data."""
        uploads = []
        for name, size in self.uploads.items():
            uploads.append({"name": name, "bytes": size or None})
        copies = []
        for name in self.copies:
            copies.append({"name": name, "from": self.source, "commit": self.commit})
        return {
            "repo_id": self.repo_id,
            "exists": self.exists,
            "private": self.private,
            "blocked": self.blocked or None,
            "uploads": uploads,
            "copies": copies,
            "base_model": self.base.name or None,
            "license": self.base.known.get("license"),
            "licence_terms": self.base.licence or None,
            "card": self.card or None,
        }


def preview(upload: UploadSet, options: PublishOptions) -> Preview:
    """Return what `publish` would do, without writing anything.

    Args:
        upload: The files of the output.
        options: The repository, and how the files are published.

    Raises:
        RopeconvError: The licence of the base model forbids derivatives. Errors of huggingface_hub
            are raised too.
    """
    # the present state of the repository, or without the network the state of a new one
    repository = Repository(upload, options)
    try:
        with answers(options.repo_id):
            state = _ask_hub(repository, options.repo_id)
    except Exception as problem:
        if not unreachable(problem):
            raise
        state = _assume_new(repository, upload, options)

    # the files to upload, and the files that the Hub copies from the repository of the source
    base = state.base
    uploads = list(upload.adds)
    copies = set(upload.copies)

    # licence files of the base model that the output lacks
    licence_files = base.missing_licence_files(upload)
    base_is_source = base.name == upload.source
    if base_is_source:
        copies.update(licence_files)
    else:
        uploads += licence_files

    upload_sizes = {name: upload.size(name) for name in uploads}
    for name, data in state.generated.items():  # the card and its pictures
        upload_sizes[name] = len(data)

    # a new repository is private by the options, or like the base model
    private = None
    if not state.exists:
        private = base.hides(options)
    return Preview(
        repo_id=options.repo_id,
        exists=state.exists,
        private=private,
        blocked=state.blocked,
        uploads=upload_sizes,
        copies=tuple(sorted(copies)),
        source=upload.source,
        commit=upload.commit,
        base=base,
        note=state.note,
        card=state.generated.get(CARD, b"").decode(),
    )


class _HubState(NamedTuple):
    """The answers of the Hub about a publication, before anything is sent."""

    exists: bool
    """Whether the repository exists."""

    blocked: str
    """Why the publication would be refused; empty where it would not."""

    base: BaseModel

    note: str
    """The part of the base model that could not be read, or empty."""

    generated: dict[str, bytes]
    """The files that ropeconv makes for the repository, such as its card, by name."""


def _ask_hub(repository: Repository, repo_id: str) -> _HubState:
    """Return what the Hub says about a publication. Raises errors of huggingface_hub."""
    base, note = repository.base_and_problem
    exists = repository.api.repo_exists(repo_id)
    blocked = repository.why_blocked() if exists else ""
    generated = _generated_files(repository, base, exists)
    return _HubState(exists, blocked, base, note, generated)


def _assume_new(repository: Repository, upload: UploadSet, options: PublishOptions) -> _HubState:
    """Return the state that is shown without the network: that of a new repository."""
    name, _ = name_of(upload, options)
    base = BaseModel(name, {**upload.card_metadata, **inheritable_metadata(upload.card)})
    generated = _generated_files(repository, base, exists=False)
    note = (
        f"The Hub cannot be reached: {options.repo_id} is shown as new, and the base model was"
        " not checked."
    )
    return _HubState(exists=False, blocked="", base=base, note=note, generated=generated)


def _generated_files(repository: Repository, base: BaseModel, exists: bool) -> dict[str, bytes]:
    """Return the card and its pictures, by name; empty where the present card stays."""
    if repository.reason_to_keep_card(exists):
        return {}
    return repository.card_files(base, exists)


def show_publication(preview: Preview, sheet: Sheet) -> None:
    """Show a preview: every file, base model and licence, and the card."""
    rows = []
    for name, size in preview.uploads.items():
        size_text = f"{size:,}" if size else "?"
        rows.append((name, "upload", size_text))
    for name in preview.copies:
        rows.append((name, f"copied from {preview.source} at {preview.commit[:7]}", ""))

    if preview.exists:
        state = "exists"
    elif preview.private:
        state = "new, private"
    else:
        state = "new, public"
    title = f"Repository {preview.repo_id} ({state})"
    sheet.table(title, ("file", "", "bytes"), rows, right=("bytes",))

    base = preview.base.name or "none known; `ropeconv push --base-model` names one"
    licence = preview.base.known.get("license") or "none stated"
    terms = f" ({preview.base.licence})" if preview.base.licence else ""
    sheet.say(f"\nBase model: {base}. Licence: {licence}{terms}.")
    if preview.blocked:
        sheet.say(f"It would be refused: {preview.blocked}.")
    if preview.card:
        sheet.say("\nREADME.md:\n")
        sheet.copyable(preview.card)
    else:
        sheet.say("\nREADME.md stays unchanged.")
