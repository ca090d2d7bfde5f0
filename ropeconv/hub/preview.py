"""Preview of a publication, for `--dry-run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from ..bake.apply import AppliedPlan, apply
from ..bake.checkpoint import CheckpointPlan
from ..engines.probe import Probe
from ..formats.disk import Advance
from ..formats.files import scratch
from ..formats.jsontext import JsonObject
from ..models.hub import answers
from ..models.source import CARD
from ..views.sheet import Sheet
from .card import BaseModel, base_model, card, drawn, inherited, name_of
from .options import PublishOptions
from .publish import client, gguf_files, kept_card, unreachable, visibility
from .repository import blocking
from .upload_set import UploadSet, from_plan


@dataclass(frozen=True)
class Preview:
    """The effects of a publication.

    repo_id: the repository. exists: whether it exists. private: whether it would be private; None for an existing
    one, which does not change. blocked: why it would be refused, or empty. uploads: names and sizes in bytes, 0 for
    sizes that are not known yet. copies: names of files that the Hub copies, from `source` at `commit`. base: the base
    model. note: what could not be seen of it, or empty. card: the text of the model card; empty where one stays.
    """

    repo_id: str
    exists: bool
    private: bool | None
    blocked: str
    uploads: tuple[tuple[str, int], ...]
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
            "uploads": [{"name": name, "bytes": size or None} for name, size in self.uploads],
            "copies": [{"name": name, "from": self.source, "commit": self.commit} for name in self.copies],
            "base_model": self.base.name or None,
            "license": self.base.known.get("license"),
            "licence_terms": self.base.licence or None,
            "card": self.card or None,
        }


def preview(what: UploadSet, how: PublishOptions) -> Preview:
    """Return what `publish` would do with files, without writing anything.

    what: the files, which need not be there yet. how: repository and options. Raises RopeconvError where the licence
    of the base model forbids it, and what huggingface_hub raises.
    """
    api, exists, blocked, ggufs, reason_kept = client(how), False, "", what.gguf, ""
    try:
        with answers(how.repo_id):
            base, note = base_model(api, what, how)
            base.refuse_forbidden()
            exists = api.repo_exists(how.repo_id)
            if exists:
                blocked, ggufs = blocking(api, what, how), gguf_files(api, what, how)
            if exists or what.own_card:
                reason_kept = kept_card(api, what, how)
    except Exception as problem:
        if not unreachable(problem):
            raise
        base = BaseModel(name_of(what, how)[0], {**what.known, **inherited(what.card)})
        reason_kept = kept_card(api, what, how) if what.own_card else ""
        note = f"The Hub cannot be reached: {how.repo_id} is shown as new, and the base model was not checked."
    pictures = {} if reason_kept else drawn(what.receipt)
    text = "" if reason_kept else card(what, how.repo_id, base, ggufs, pictures, how.revision)
    licences = base.missing_terms(what)
    copied, fetched = (licences, ()) if base.name == what.source else ((), licences)
    generated = {name: len(data) for name, data in pictures.items()} | ({CARD: len(text.encode())} if text else {})
    names = dict.fromkeys([*what.adds, *fetched, *generated])
    return Preview(
        how.repo_id,
        exists,
        None if exists else visibility(base, how),
        blocked,
        tuple((name, generated[name] if name in generated else what.size(name)) for name in names),
        tuple(sorted({*what.copies, *copied})),
        what.source,
        what.commit,
        base,
        note,
        text,
    )


@contextmanager
def staged(
    plan: CheckpointPlan,
    probe: Probe | None = None,
    checksum: bool = False,
    writing: AbstractContextManager[Advance] | None = None,
) -> Iterator[tuple[AppliedPlan, UploadSet]]:
    """The output of a plan in a temporary folder, and the upload set of it, while it is entered.

    plan: what to write. probe: a running one; None starts one where transformers is installed. checksum: hash copied
    files too. writing: gives the function that is called with the bytes written since the last call, and ends before
    the output is yielded. Raises as `apply` does.
    """
    with scratch() as folder:
        plan = replace(plan, out=folder / plan.out.name)
        with writing or nullcontext(lambda done: None) as advance:
            done = apply(plan, staged=True, checksum=checksum, fsync=False, advance=advance, probe=probe)
        yield done, from_plan(plan, done.path)


def show_publication(preview: Preview, sheet: Sheet) -> None:
    """Shows a preview: every file, base model and licence, and the card."""
    place = f"from {preview.source} at {preview.commit[:7]}"
    rows = [(name, "upload", f"{size:,}" if size else "?") for name, size in preview.uploads]
    rows += [(name, f"copied {place}", "") for name in preview.copies]
    state = "exists" if preview.exists else f"new, {'private' if preview.private else 'public'}"
    sheet.table(f"Repository {preview.repo_id} ({state})", ("file", "", "bytes"), rows, right=("bytes",))
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
