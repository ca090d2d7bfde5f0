"""The sources of a plan: ids, folders, patterns, collections and queries of the Hub, each with what it is now."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError
from ..failures import reason
from ..formats.regular import expanded
from ..sources import open_source
from ..sources.hub import HubSource
from ..sources.hub_client import answers
from ..sources.open import HUB_FILE, HUB_ID
from ..sources.reference import resolved

AT_ONCE = 8
"""Requests to the Hub."""
QUERY = re.compile(r"(?:(?:author|search|tag):\S+\s*)+")
MODELS = ("*.gguf", "config.json", "params.json")
"""What a folder has that a pattern takes."""


@dataclass(frozen=True)
class Named:
    """A source of a plan.

    reference: as `open_source` takes it, with the commit. name: in outputs and tables. identity: as sources have it.
    problem: why it cannot be had, or empty.
    """

    reference: str
    name: str
    identity: str = ""
    problem: str = ""


def named_sources(listed: Sequence[str], folder: Path) -> list[Named]:
    """The sources that a plan lists, each once.

    listed: as in the file. folder: that paths are relative to. A source that cannot be had has a `problem`. Raises
    UsageError for a pattern, a collection or a query that gives none.
    """
    references = dict.fromkeys(one for text in listed for one in _expanded(text, folder))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return _told_apart(list(pool.map(_named, references)))


def _expanded(text: str, folder: Path) -> Iterator[str]:
    found: list[str] = []
    if text.startswith("collection:"):
        found = _collection(text.removeprefix("collection:"))
    elif QUERY.fullmatch(text):
        found = _query(text)
    elif any(mark in text for mark in "*?["):
        base = expanded(text)
        start, pattern = (Path(base.anchor), str(base)[len(base.anchor) :]) if base.is_absolute() else (folder, text)
        found = [str(path) for path in sorted(start.glob(pattern)) if _is_model(path)]
    else:
        local = (folder / expanded(text)).resolve()
        found = [str(local) if local.exists() else resolved(text)]
    if not found:
        raise UsageError(f"the source {text!r} gives no model; correct it, or leave it out")
    yield from found


def _is_model(path: Path) -> bool:
    return path.suffix == ".gguf" or (path.is_dir() and any(next(path.glob(one), None) for one in MODELS[1:]))


def _collection(slug: str) -> list[str]:
    from huggingface_hub import HfApi

    with answers(slug):
        items = HfApi(library_name="ropeconv").get_collection(slug).items
    return [item.item_id for item in items if item.item_type == "model"]


def _query(text: str) -> list[str]:
    """The models of a query, such as `author:me search:llama`."""
    from huggingface_hub import HfApi

    api, given = HfApi(library_name="ropeconv"), [part.split(":", 1) for part in text.split()]
    with answers(text):
        said = dict(given)
        if said.get("author") == "me":
            said["author"] = str(api.whoami()["name"])
        tags = [value for key, value in given if key == "tag"] or None
        found = api.list_models(author=said.get("author"), search=said.get("search"), filter=tags)
        return sorted(one.id for one in found)


def _named(reference: str) -> Named:
    path = Path(reference)
    name = (path.stem if reference.endswith(".gguf") else path.name) or reference
    try:
        if path.exists():
            return Named(reference, name, open_source(reference).identity)
        found = re.fullmatch(HUB_FILE, reference) or re.fullmatch(HUB_ID, reference)
        if found is None:
            return Named(reference, name, problem=f"{reference} is neither a path nor a Hub id; correct it")
        source = HubSource(found[1], found[2])
        identity = source.identity
        file = f"/{found[3]}" if found.re.groups > 2 else ""
        name = Path(file).stem if file else source.name
        return Named(f"{found[1]}@{source.commit}{file}", name, identity)
    except Exception as problem:
        return Named(reference, name, problem=reason(problem))


def _told_apart(found: list[Named]) -> list[Named]:
    """Sources of which no two have one name: the owner or the folder stands before it where they would."""
    counts = Counter(one.name for one in found)
    parents = {one.reference: Path(one.reference.split("@")[0]).parent.name for one in found}
    longer = [
        replace(one, name=f"{parents[one.reference]}-{one.name}") if counts[one.name] > 1 else one for one in found
    ]
    again, used = Counter(one.name for one in longer), Counter[str]()
    named = []
    for one in longer:
        used[one.name] += 1
        named.append(replace(one, name=f"{one.name}-{used[one.name]}") if again[one.name] > 1 else one)
    return named
