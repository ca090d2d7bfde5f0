"""What people type for a model: addresses of pages of the Hub, and Ollama's Modelfile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from ..errors import BadSource, shown
from ..formats.jsontext import parse
from ..formats.regular import expanded, read_text

PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+?)"
    r"(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/?#]+)(?P<path>/[^?#]*)?)?/?(?:[?#].*)?"
)
OLLAMA_TAG = re.compile(r"(?P<page>(?:huggingface\.co|hf\.co)/[\w.-]+/[\w.-]+):(?P<tag>[\w.-]+)")
FROM = re.compile(r"^\s*FROM\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
ADAPTER = "adapter_config.json"
MOST_NAMED = 8


def resolved(reference: str) -> str:
    """A reference as `open_source` takes it, from an address of the Hub or the path of a Modelfile; others unchanged.

    reference: as the user wrote it. Raises BadSource for a Modelfile whose model is in Ollama's own store.
    """
    modelfile = modelfile_in(reference)
    if modelfile is not None:
        return _of_modelfile(modelfile)
    if expanded(reference).exists():
        return reference
    tagged = OLLAMA_TAG.fullmatch(reference)
    if tagged:
        name = "/".join(tagged["page"].split("/")[1:])
        raise BadSource(
            f"{reference} names a file by its quantisation, as Ollama does; give the file itself, "
            f"{name}/FILE-{tagged['tag']}.gguf"
        )
    page = PAGE.fullmatch(reference)
    if page:
        revision = "" if page["revision"] in (None, "main") else f"@{unquote(page['revision'])}"
        file = unquote(page["path"] or "")
        return page["name"] + revision + (file if file.endswith(".gguf") else "")
    return reference


def modelfile_in(reference: str) -> Path | None:
    """The path of the Modelfile that a reference is; None for others."""
    path = expanded(reference)
    return path if path.name.startswith("Modelfile") and path.is_file() else None


def _of_modelfile(path: Path) -> str:
    """The model of a Modelfile: a path beside it, or a reference to the Hub."""
    found = FROM.search(read_text(path, path.name))
    if found is None:
        raise BadSource(f"{path} has no FROM line; give the GGUF file or checkpoint that it is about")
    named = found[1].strip("\"'")
    beside = path.parent / expanded(named)
    if beside.exists():
        return str(beside)
    if PAGE.fullmatch(named) or OLLAMA_TAG.fullmatch(named):
        return resolved(named)
    raise BadSource(
        f"{path} is FROM {shown(named)}, which is no file beside it and stays in Ollama's store; give its GGUF file "
        "(`ollama show --modelfile NAME` names it)"
    )


def without_config(reference: str, names: Iterable[str], adapter: str | None) -> BadSource:
    """The error for a folder or repository without a config.json, with what to give instead.

    reference: to it. names: of its files. adapter: the text of its adapter_config.json, None without.
    """
    ggufs = [name for name in names if name.endswith(".gguf")]
    if adapter is not None:
        base = parse(adapter, ADAPTER).get("base_model_name_or_path")
        return BadSource(
            f"{reference} is a PEFT adapter, which has no RoPE of its own; bake its base model "
            f"({shown(base) if base else 'which it does not name'}), and load the adapter on the result"
        )
    if ggufs:
        listed = ", ".join(f"{reference}/{name}" for name in ggufs[:MOST_NAMED])
        more = f" and {len(ggufs) - MOST_NAMED} more" if len(ggufs) > MOST_NAMED else ""
        return BadSource(f"{reference} has no config.json but GGUF files; give one of them: {listed}{more}")
    return BadSource(f"{reference} has no config.json, so it is not a checkpoint; give another folder or id")
