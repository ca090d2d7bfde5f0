"""The base model of an output: its name, its licence, and what its card says of derivatives too.

`base_model` finds it on the Hub, and `name_of` from the output only.

https://huggingface.co/docs/hub/model-cards (base_model, base_model_relation)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..formats.jsontext import JsonObject
from ..formats.package_data import package_data
from ..models.source import CARD
from ..rope.errors import RopeconvError
from .options import PublishOptions
from .upload_set import UploadSet, text_entries

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

INHERITED = ("license", "license_name", "license_link", "language", "datasets", "pipeline_tag")
"""Keys of a card's metadata that hold for derivatives too; `tags` are added to them."""
TERMS = ("LICEN[CS]E*", "NOTICE*", "USE_POLICY*", "*_LICENSE*")
"""Patterns of the names of licence files, in capitals."""
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions of a licence, an entry of hub/terms.toml."""

    license: str
    """A pattern of its names in the metadata of a card."""

    says: str
    """The conditions, as the end of a sentence that begins with its name."""

    forbids: bool = False
    """Whether it forbids derivatives."""


@cache
def terms_of(license: str) -> tuple[str, bool]:
    """Return the terms of a licence, such as ("the licence cc-by-nd-4.0 allows no ...", True).

    Args:
        license: Its name in the metadata of a model card.

    Returns:
        A sentence about them, empty for an unknown licence, and whether they forbid derivatives.
    """
    terms = package_data("hub/terms.toml", dict[str, tuple[Term, ...]])["terms"]
    for term in terms:
        if license and fnmatch(license.lower(), term.license):
            return f"the licence {license} {term.says}", term.forbids
    return "", False


@dataclass(frozen=True)
class BaseModel:
    """The base model of an output."""

    name: str = ""
    """`owner/name`; empty where none is known."""

    known: JsonObject = field(default_factory=dict)
    """Metadata of its card that also holds for its derivatives."""

    closed: str = ""
    """The repository that is gated or private: its own or that of the source; else empty."""

    terms: tuple[str, ...] = ()
    """The names of its licence files."""

    licence: str = ""
    """A sentence about the terms of its licence; empty for unknown ones."""

    forbids: bool = False
    """Whether its licence forbids derivatives."""

    commit: str = ""
    """The commit that was read; empty for the newest."""

    def missing_licence_files(self, upload: UploadSet) -> tuple[str, ...]:
        """Return the names of its licence files that an upload set lacks."""
        return tuple(name for name in self.terms if name not in upload.adds)

    def hides(self, options: PublishOptions) -> bool:
        """Return whether a new repository is private: by its options, else as the base model is."""
        return options.private or (bool(self.closed) and not options.public)

    def refuse_forbidden(self) -> None:
        """Refuse to publish a derivative where the licence forbids it.

        Raises:
            RopeconvError: If it does.
        """
        if self.forbids:
            name = self.name or "it"
            raise RopeconvError(
                f"{self.licence}, so nothing made from {name} may be published; keep it to yourself"
            )


def name_of(upload: UploadSet, options: PublishOptions) -> tuple[str, str]:
    """Return the repository of the base model and the commit of it that was read.

    Such as ("Qwen/Qwen3-8B", "9c925d64d72725edaf899c6cb9c377fd0709d9c5").

    The first of these counts: the option `base_model`; the first source, which of several bakes is
    that of the first one; the source of the last bake; the base model that the card or the keys of
    a GGUF file name.

    Args:
        upload: The files of the output.
        options: The options of publishing.

    Returns:
        `owner/name` and the commit, both empty where they are not known.
    """
    # what the user says, what ropeconv has seen itself, and what others have written
    if options.base_model:
        return options.base_model, ""
    first = upload.receipt.first
    if first.repository:
        return first.repository, first.commit or ""
    if upload.source:
        return upload.source, upload.commit

    base = _metadata(upload.card).get("base_model") or upload.card_metadata.get("base_model")
    if isinstance(base, list) and base:  # the Hub allows several, such as the models of a merge
        base = base[0]
    if isinstance(base, str) and REPOSITORY.fullmatch(base):
        return base, ""
    return "", ""


@dataclass(frozen=True)
class _RepositoryOnHub:
    """The part of a repository on the Hub that could be read; empty fields for the rest."""

    closed: bool = False
    """Whether it is gated or private."""

    licence_files: tuple[str, ...] = ()
    """Such as ("LICENSE", "USE_POLICY.md")."""

    card: str = ""
    """The text of its README.md."""

    problem: str = ""
    """A sentence on what could not be read, for the user; empty where all could."""


def base_model(api: HfApi, upload: UploadSet, options: PublishOptions) -> tuple[BaseModel, str]:
    """Return the base model of an output, with its licence, read from the Hub.

    For an output made from meta-llama/Llama-3.1-8B, it has that name, also in `closed` because the
    model is gated, its licence files ("LICENSE", "USE_POLICY.md"), and the terms of "llama3.1".

    Args:
        api: The Hub.
        upload: The files of the output, with their receipt.
        options: The options of publishing, one of which may name the base model.

    Returns:
        The base model, and a sentence on what could not be read of it; empty where all could.
    """
    name, commit = name_of(upload, options)
    on_hub = _RepositoryOnHub()
    if name:
        on_hub = _read_repository(api, name, commit)

    # of several bakes, the source of the last one may be closed where the base model is not
    closed = name if on_hub.closed else ""
    problem = on_hub.problem
    if upload.source and upload.source != name and not closed:
        source_on_hub = _read_repository(api, upload.source, upload.commit)
        closed = upload.source if source_on_hub.closed else ""
        problem = problem or source_on_hub.problem

    # the same key may be in several places; the card on the Hub is the newest of them
    metadata_of_gguf = upload.card_metadata
    metadata_of_copied_card = inheritable_metadata(upload.card)
    metadata_of_hub = inheritable_metadata(on_hub.card)
    metadata = {**metadata_of_gguf, **metadata_of_copied_card, **metadata_of_hub}

    licence_name = str(metadata.get("license") or "")
    licence_sentence, forbids_derivatives = terms_of(licence_name)
    model = BaseModel(
        name=name,
        known=metadata,
        closed=closed,
        terms=on_hub.licence_files,
        licence=licence_sentence,
        forbids=forbids_derivatives,
        commit=commit,
    )
    return model, problem


def _read_repository(api: HfApi, name: str, commit: str) -> _RepositoryOnHub:
    """Read from the Hub whether a model is public, which licence files it has, and its card.

    Args:
        api: The Hub.
        name: `owner/name`.
        commit: The commit to read; empty for the newest.

    Returns:
        The part that could be read. Without access to a gated model, its list of files can be read,
        and its card cannot.
    """
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    revision = commit or None
    try:
        info = api.model_info(name, revision=revision)
    except HfHubHTTPError as error:  # removed, private, or on another Hub
        return _RepositoryOnHub(problem=_describe_failure(name, error))
    closed = bool(info.private or info.gated)
    file_names = [sibling.rfilename for sibling in info.siblings or []]
    licence_files = tuple(file for file in file_names if _is_licence_file(file))

    card = ""
    problem = ""
    try:
        path = api.hf_hub_download(name, CARD, revision=revision)
        card = Path(path).read_text("utf-8", errors="replace")
    except EntryNotFoundError:
        pass  # a model without a card is no problem
    except HfHubHTTPError as error:  # gated
        problem = _describe_failure(name, error)
    return _RepositoryOnHub(closed, licence_files, card, problem)


def _describe_failure(name: str, error: HfHubHTTPError) -> str:
    """Return a sentence on a repository that the Hub does not let us read."""
    status = error.response.status_code
    return f"{name} cannot be read ({status}); its licence and card are left out."


def _is_licence_file(name: str) -> bool:
    return any(fnmatch(name.upper(), pattern) for pattern in TERMS)


def inheritable_metadata(text: str) -> JsonObject:
    """Return the metadata of a model's card that also holds for its derivatives.

    Such as {"license": "apache-2.0", "language": ["en"], "tags": ["chat"]}.

    Args:
        text: The text of the card, which may be empty.
    """
    data = _metadata(text)
    if not data:
        return {}
    metadata = text_entries({key: data.get(key) for key in INHERITED})
    tags = data.get("tags")
    if not isinstance(tags, list):
        tags = []
    return metadata | {"tags": [tag for tag in tags if isinstance(tag, str)]}


def _metadata(text: str) -> JsonObject:
    """Return the metadata of a card; empty for a text without any, and for text that is not YAML.

    The card begins with it, between two lines of `---`. ModelCard of huggingface_hub is not used:
    it is stricter than the Hub, and loses the licence of a card whose `tags` or `model-index` have
    another form.
    """
    if not text:
        return {}
    import yaml
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    block = REGEX_YAML_BLOCK.match(text.removeprefix("\ufeff"))
    if block is None:
        return {}
    try:
        data = yaml.safe_load(block[2])
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: of a date or number
        return {}
    return data if isinstance(data, dict) else {}
