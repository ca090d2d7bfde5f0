"""The base model of what is published: which repository it is, and its card, visibility and licence files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Literal

from ..errors import RopeconvError
from .publish_options import PublishOptions
from .terms import terms_of
from .upload_set import CARD, UploadSet

if TYPE_CHECKING:
    from huggingface_hub import HfApi

INHERITED = ("license", "license_name", "license_link", "language", "datasets", "pipeline_tag")
TERMS = ("LICEN[CS]E*", "NOTICE*", "USE_POLICY*", "*_LICENSE*")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
Relation = Literal["finetune", "quantized"]


@dataclass(frozen=True)
class BaseModel:
    """The base model of an output.

    name: `owner/name`, empty where none is known. known: metadata of its card that also holds for its derivatives.
    closed: whether it is gated or private. terms: names of its licence files. licence: a sentence about its terms,
    empty for a licence of which none is known. forbids: whether that forbids derivatives. commit: of it
    that was read, empty for the newest.
    """

    name: str = ""
    known: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    terms: tuple[str, ...] = ()
    licence: str = ""
    forbids: bool = False
    commit: str = ""

    def missing_terms(self, what: UploadSet) -> tuple[str, ...]:
        """Its licence files that an upload set lacks: the Hub copies them where it is the source, else they are added.

        what: the files.
        """
        return tuple(name for name in self.terms if name not in what.adds)

    def refuse_forbidden(self) -> None:
        """Raises RopeconvError where the licence forbids derivatives."""
        if self.forbids:
            what = self.name or "it"
            raise RopeconvError(f"{self.licence}, so nothing made from {what} may be published; keep it to yourself")


def name_of(what: UploadSet, how: PublishOptions) -> tuple[str, str]:
    """The repository of the base model and the commit that was read, both empty where they are not known.

    what: the files; their receipt names the source, or the first source of several bakes, their card or the keys of a
    GGUF file the model that a local source was made from. how: `base_model` counts before all of these.
    """
    if how.base_model:
        return how.base_model, ""
    if what.source:
        return what.source, what.commit
    first = what.receipt.first
    if first.repository:
        return first.repository, first.commit or ""
    stated = _metadata(what.card).get("base_model") or what.known.get("base_model")
    stated = stated[0] if isinstance(stated, list) and stated else stated
    return (stated, "") if isinstance(stated, str) and REPOSITORY.fullmatch(stated) else ("", "")


def base_model(api: HfApi, what: UploadSet, how: PublishOptions) -> tuple[BaseModel, str]:
    """The base model of an output, and a sentence on what could not be seen of it, empty where all was.

    api: the client. what: the files. how: the options of publishing.
    """
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    name, commit = name_of(what, how)
    text, closed, terms, problem = "", False, (), ""
    if name:
        try:
            info = api.model_info(name, revision=commit or None)
            closed = bool(info.private or info.gated)
            names = [sibling.rfilename for sibling in info.siblings or []]
            terms = tuple(one for one in names if any(fnmatch(one.upper(), known) for known in TERMS))
            with open(api.hf_hub_download(name, CARD, revision=commit or None), encoding="utf-8") as file:
                text = file.read()
        except EntryNotFoundError:
            pass
        except HfHubHTTPError as error:
            problem = f"{name} cannot be seen ({error.response.status_code}); its licence and card are left out."
    known = {**what.known, **inherited(what.card), **inherited(text)}
    licence, forbids = terms_of(str(known.get("license") or ""))
    return BaseModel(name, known, closed, terms, licence, forbids, commit), problem


def inherited(text: str) -> dict[str, Any]:
    """The metadata of a model's card that also holds for its derivatives. text: of the card, may be empty."""
    data = _metadata(text)
    tags = {"tags": list(data.get("tags") or [])} if data else {}
    return {key: data[key] for key in INHERITED if data.get(key)} | tags


def relation(what: UploadSet, ggufs: Sequence[str]) -> Relation:
    """What an output is to its base model, in the words of the Hub. what: the files. ggufs: names of GGUF files."""
    return "quantized" if ggufs or what.quantised else "finetune"


def _metadata(text: str) -> dict[str, Any]:
    """The metadata of a card; empty for a text without."""
    from huggingface_hub import ModelCard

    if not text.strip():
        return {}
    found: dict[str, Any] = ModelCard(text, ignore_metadata_errors=True).data.to_dict()
    return found
