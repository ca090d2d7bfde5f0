"""The base model of an output: its name, its licence, and what its card says of derivatives too.

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
from .upload_set import UploadSet, texts

if TYPE_CHECKING:
    from huggingface_hub import HfApi

INHERITED = ("license", "license_name", "license_link", "language", "datasets", "pipeline_tag")
TERMS = ("LICEN[CS]E*", "NOTICE*", "USE_POLICY*", "*_LICENSE*")
FRONT_MATTER = re.compile(r"\s*---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions of a licence. license: a pattern of its names. says: what follows its name.
    forbids: derivatives.
    """

    license: str
    says: str
    forbids: bool = False


@cache
def terms_of(license: str) -> tuple[str, bool]:
    """A sentence about the terms of a licence, empty for unknown ones, and whether it forbids
    derivatives.

    license: its name in the metadata of a model card.
    """
    for entry in package_data("hub/terms.toml", dict[str, tuple[Term, ...]])["terms"]:
        if license and fnmatch(license.lower(), entry.license):
            return f"the licence {license} {entry.says}", entry.forbids
    return "", False


@dataclass(frozen=True)
class BaseModel:
    """The base model of an output.

    name: `owner/name`, empty where none is known. known: metadata of its card that also holds for
    its derivatives. closed: whether it is gated or private. terms: names of its licence files.
    licence: a sentence about its terms, empty for unknown ones. forbids: whether they forbid
    derivatives. commit: the one read, empty for the newest.
    """

    name: str = ""
    known: JsonObject = field(default_factory=dict)
    closed: bool = False
    terms: tuple[str, ...] = ()
    licence: str = ""
    forbids: bool = False
    commit: str = ""

    def missing_terms(self, upload: UploadSet) -> tuple[str, ...]:
        """Its licence files that an upload set lacks."""
        return tuple(name for name in self.terms if name not in upload.adds)

    def hides(self, options: PublishOptions) -> bool:
        """Whether a new repository is private: as is asked for, else as the base model is."""
        return options.private or (self.closed and not options.public)

    def refuse_forbidden(self) -> None:
        """Raises RopeconvError where the licence forbids derivatives."""
        if self.forbids:
            name = self.name or "it"
            raise RopeconvError(
                f"{self.licence}, so nothing made from {name} may be published; keep it to yourself"
            )


def name_of(upload: UploadSet, options: PublishOptions) -> tuple[str, str]:
    """The repository of the base model and the commit that was read, both empty where they are not
    known.

    upload: the files; their receipt names the source, or the first source of several bakes, their
    card or the keys of a GGUF file the model that a local source was made from. options:
    `base_model` counts before all of these.
    """
    if options.base_model:
        return options.base_model, ""
    if upload.source:
        return upload.source, upload.commit
    first = upload.receipt.first
    if first.repository:
        return first.repository, first.commit or ""
    base = _metadata(upload.card).get("base_model") or upload.known.get("base_model")
    base = base[0] if isinstance(base, list) and base else base
    return (base, "") if isinstance(base, str) and REPOSITORY.fullmatch(base) else ("", "")


def base_model(api: HfApi, upload: UploadSet, options: PublishOptions) -> tuple[BaseModel, str]:
    """The base model of an output, and a sentence on what could not be seen of it, empty where all
    was.
    """
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    name, commit = name_of(upload, options)
    text = ""
    closed = False
    terms = ()
    problem = ""
    if name:
        try:
            info = api.model_info(name, revision=commit or None)
            closed = bool(info.private or info.gated)
            names = [sibling.rfilename for sibling in info.siblings or []]
            terms = tuple(
                file_name
                for file_name in names
                if any(fnmatch(file_name.upper(), known) for known in TERMS)
            )
            path = Path(api.hf_hub_download(name, CARD, revision=commit or None))
            text = path.read_text("utf-8", errors="replace")
        except EntryNotFoundError:
            pass
        except HfHubHTTPError as error:
            problem = (
                f"{name} cannot be read ({error.response.status_code}); its licence and card are"
                " left out."
            )
    known = {**upload.known, **inherited(upload.card), **inherited(text)}
    licence, forbids = terms_of(str(known.get("license") or ""))
    return BaseModel(name, known, closed, terms, licence, forbids, commit), problem


def inherited(text: str) -> JsonObject:
    """The metadata of a model's card that also holds for its derivatives. text: of the card, may be
    empty.
    """
    data = _metadata(text)
    tags = data.get("tags")
    of_card = (
        {"tags": [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []}
        if data
        else {}
    )
    return texts({key: data.get(key) for key in INHERITED}) | of_card


def _metadata(text: str) -> JsonObject:
    """The metadata of a card; empty for a text without any, and for text that is not YAML."""
    # huggingface_hub's ModelCard brings its whole client, which takes a second to import
    import yaml

    block = FRONT_MATTER.match(text)
    try:
        data = yaml.safe_load(block[1]) if block else {}
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: of a date or number
        return {}
    return data if isinstance(data, dict) else {}
