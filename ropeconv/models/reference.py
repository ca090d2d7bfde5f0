"""References to models, as people type them: paths, pages of the Hub, Modelfiles, names of Ollama.

`resolved` gives the reference that `open_source` takes, and `names_gguf` says whether that is a
GGUF file. Neither needs numpy, so that a command line can ask before anything heavy is imported.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from ..errors import BadSource
from ..formats.files import expand_home, read_text
from ..formats.kind import first_text, is_gguf, kind_of, named_gguf
from ..rope.errors import shown
from . import ollama

PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+?)"
    r"(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/?#]+)(?P<path>/[^?#]*)?)?/?(?:[?#].*)?"
)
FROM = re.compile(r"^[ \t]*FROM[ \t]+(\S+)[ \t]*$", re.IGNORECASE | re.MULTILINE)
COMMAND = re.compile(r"^[ \t]*([A-Za-z]+)(?:[ \t]+(\S+))?", re.MULTILINE)


@dataclass(frozen=True)
class Modelfile:
    """A Modelfile of Ollama."""

    name: str
    """of the file or of the model in Ollama's store, for messages."""

    text: str
    """Its content."""


def resolved(reference: str) -> str:
    """A reference as `open_source` takes it, from an address of the Hub or the path of a Modelfile;
    others unchanged.

    Args:
        reference: As the user wrote it.

    Raises:
        BadSource: For a name that Ollama's store does not have.
    """
    path = modelfile_in(reference)
    if path is not None:
        return _of_modelfile(path)
    if expand_home(reference).exists() or ollama.find(reference) is not None:
        return reference
    if ":" in reference and ollama.name_in(reference) is not None:
        raise ollama.absent(reference)
    page = PAGE.fullmatch(reference)
    if page:
        revision = "" if page["revision"] in (None, "main") else f"@{unquote(page['revision'])}"
        file = unquote(page["path"] or "")
        return page["name"] + revision + (file if named_gguf(file) else "")
    return reference


def names_gguf(reference: str) -> bool:
    """Whether a reference is a GGUF file: by its first bytes where it is on this disk, else by its
    name.

    Raises what `resolved` raises.
    """
    place = resolved(reference)
    if kind_of(place) == "missing" and ollama.find(place) is not None:
        return True
    return is_gguf(place)


def modelfile_in(reference: str) -> Path | None:
    """The path of the Modelfile that a reference is; None for others."""
    path = expand_home(reference)
    kind = kind_of(path)
    if kind not in ("text", "empty"):
        return None
    if path.name.startswith("Modelfile") or FROM.search(first_text(path)):
        return path
    return None


def modelfile_of(reference: str) -> Modelfile | None:
    """The Modelfile that a reference is, with the lines that it inherits from a model in Ollama's
    store.

    For a model of the store that is its own. None for other references.
    """
    path = modelfile_in(reference)
    if path is None:
        stored = None if expand_home(reference).exists() else ollama.find(reference)
        return None if stored is None else Modelfile(stored.name.short, stored.modelfile)
    text = read_text(path, path.name)
    model = _from_line(path, text)
    stored = None if _beside(path, model) else ollama.find(model)
    return Modelfile(str(path), text if stored is None else _inherit(text, stored.modelfile))


def _from_line(path: Path, text: str) -> str:
    match = FROM.search(text)
    if match is None:
        raise BadSource(f"{path} has no FROM line; pass the GGUF file or the checkpoint")
    return match[1].strip("\"'")


def _beside(path: Path, model: str) -> Path | None:
    beside = path.parent / expand_home(model)
    return beside if beside.exists() else None


def _of_modelfile(path: Path) -> str:
    """The model of a Modelfile: a path beside it, a model in Ollama's store, or a reference to the
    Hub.
    """
    model = _from_line(path, read_text(path, path.name))
    beside = _beside(path, model)
    if beside is not None:
        return str(beside)
    if ollama.find(model) is not None:
        return model
    if PAGE.fullmatch(model):
        return resolved(model)
    if ollama.name_in(model) is None:
        raise BadSource(
            f"{path} is FROM {shown(model)}, which is not a file next to it; pass its GGUF file "
            "(`ollama show --modelfile NAME` names it)"
        )
    raise BadSource(
        f"{path} is FROM {shown(model)}, which is not a file next to it; {ollama.absent(model)}"
    )


def _inherit(text: str, base: str) -> str:
    """The text of a Modelfile with the lines of the model that it is made from, as `ollama create`
    inherits them.

    Ollama replaces what a Modelfile says itself: its template, its system prompt, each of its
    parameters.
    """
    own = {_key(block) for block in _blocks(text)} - {("FROM", "")}
    _, *inherited = _blocks(
        base
    )  # without its FROM line, which this Modelfile has; those of projectors stay
    return (
        "\n".join([text.rstrip("\n"), *(block for block in inherited if _key(block) not in own)])
        + "\n"
    )


def _key(block: str) -> tuple[str, str]:
    """The key that a command of a Modelfile sets: two commands with one key say the same."""
    match = COMMAND.match(block)
    if match is None:  # a comment, or an empty line
        return "", ""
    command = match[1].upper()
    return command, (match[2] or "").lower() if command == "PARAMETER" else ""


def _blocks(text: str) -> list[str]:
    """The commands of a Modelfile, each with all its lines."""
    blocks: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside:
            blocks[-1] += f"\n{line}"
        else:
            blocks.append(line)
        if line.count('"""') % 2:
            inside = not inside
    return blocks
