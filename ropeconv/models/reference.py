"""References to models, as people type them: paths, pages of the Hub, Modelfiles, names of Ollama.

`resolve_reference` gives the reference that `open_source` takes, and `names_gguf` says whether that
is a GGUF file. Neither needs numpy, so that a command line can ask before anything heavy is
imported.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from ..errors import BadSource
from ..formats.files import expand_home, read_text
from ..formats.kind import first_text, has_gguf_name, is_gguf, kind_of
from ..rope.errors import shown
from . import ollama
from .modelfile import Instruction, parse_modelfile

PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+?)"
    r"(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/?#]+)(?P<path>/[^?#]*)?)?/?(?:[?#].*)?"
)
FROM = "FROM"
"""The command of a Modelfile that names the model."""


@dataclass(frozen=True)
class Modelfile:
    """A Modelfile of Ollama."""

    name: str
    """The path of the file, or the name in Ollama's store, for messages."""

    text: str
    """Its content."""


def resolve_reference(reference: str) -> str:
    """Return the model that a Modelfile or the address of a page on the Hub stands for.

    https://huggingface.co/owner/name/tree/main becomes owner/name. Other references, such as
    paths, are returned unchanged.

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
        raise ollama.absence_error(reference)

    # https://huggingface.co/owner/name/blob/main/file.gguf becomes owner/name/file.gguf
    page = PAGE.fullmatch(reference)
    if page is None:
        return reference
    resolved = page["name"]
    if page["revision"] not in (None, "main"):
        resolved += f"@{unquote(page['revision'])}"
    file = unquote(page["path"] or "")
    if has_gguf_name(file):
        resolved += file
    return resolved


def names_gguf(reference: str) -> bool:
    """Whether a reference is a GGUF file: by its first bytes on this disk, else by its name.

    Raises what `resolve_reference` raises.
    """
    place = resolve_reference(reference)
    if kind_of(place) == "missing" and ollama.find(place) is not None:
        return True
    return is_gguf(place)


def modelfile_in(reference: str) -> Path | None:
    """Return the path of the Modelfile that a reference is; None for others."""
    path = expand_home(reference)
    kind = kind_of(path)
    if kind not in ("text", "empty"):
        return None
    if path.name.startswith("Modelfile") or path.name.endswith(".Modelfile"):
        return path
    for command in parse_modelfile(first_text(path)).of(FROM):
        if _is_model(path, command.value):
            return path
    return None


def _is_model(path: Path, value: str) -> bool:
    """Return whether the value of a FROM in a text may be a model, and not the rest of a sentence.

    Args:
        path: The text, which may be a Modelfile.
        value: The value.
    """
    is_one_word = len(value.split()) == 1
    return is_one_word or has_gguf_name(value) or _file_beside(path, value) is not None


def modelfile_of(reference: str) -> Modelfile | None:
    """Return the Modelfile at a path, or the Modelfile of a model in Ollama's store.

    A Modelfile with the line `FROM llama3.1:8b` gets the template and the parameters of that model
    too, as `ollama create` does.

    Args:
        reference: The path of a Modelfile, or the name of a model of Ollama. For any other
            reference, such as the path of a GGUF file, the result is None.
    """
    path = modelfile_in(reference)
    if path is None:
        # a file or folder hides a model of Ollama with the same name, and has no Modelfile
        if expand_home(reference).exists():
            return None
        model = ollama.find(reference)
        if model is None:
            return None
        return Modelfile(model.name.short, model.modelfile)

    text = read_text(path, path.name)
    base_model = _model_of_from_line(path, text)
    # FROM model.gguf names a file beside the Modelfile, from which nothing is inherited
    if _file_beside(path, base_model) is not None:
        return Modelfile(str(path), text)
    # FROM llama3.1:8b names a model in Ollama's store
    base_in_store = ollama.find(base_model)
    if base_in_store is not None:
        text = _inherit(text, base_in_store.modelfile)
    return Modelfile(str(path), text)


def _model_of_from_line(path: Path, text: str) -> str:
    """Return the model that a Modelfile names. Raises BadSource where it names none."""
    parsed = parse_modelfile(text)
    for command in parsed.of(FROM):
        if command.value:
            return command.value
    if parsed.fault:
        raise BadSource(f"{path} has no FROM line that Ollama reads: {parsed.fault}; correct it")
    raise BadSource(f"{path} has no FROM line; pass the GGUF file or the checkpoint")


def _file_beside(path: Path, model: str) -> Path | None:
    """Return the file of a model beside a Modelfile; None where there is none."""
    beside = path.parent / expand_home(model)
    return None if kind_of(beside) == "missing" else beside


def _of_modelfile(path: Path) -> str:
    """Return the model of a Modelfile: a path beside it, in Ollama's store, or on the Hub."""
    # in the order in which Ollama looks for it: a file first, then a name, then a page on the Hub
    model = _model_of_from_line(path, read_text(path, path.name))
    beside = _file_beside(path, model)
    if beside is not None:
        return str(beside)
    if ollama.find(model) is not None:
        return model
    if PAGE.fullmatch(model):
        return resolve_reference(model)

    # it is none of these
    if ollama.name_in(model) is None:
        raise BadSource(
            f"{path} is FROM {shown(model)}, which is not a file next to it; pass its GGUF file "
            "(`ollama show --modelfile NAME` names it)"
        )
    problem = ollama.absence_error(model)
    raise BadSource(f"{path} is FROM {shown(model)}, which is not a file next to it; {problem}")


def _inherit(text: str, base: str) -> str:
    """Return the text of a Modelfile with the lines of its base, as `ollama create` inherits them.

    Ollama replaces what a Modelfile says itself: its template, its system prompt, each of its
    parameters.
    """
    own = {_key(command) for command in parse_modelfile(text).commands}
    own.discard((FROM, ""))
    lines = [text.rstrip("\r\n")]
    # the first command is the FROM line, which this Modelfile has; those of projectors stay
    for command in parse_modelfile(base).commands[1:]:
        if _key(command) not in own:
            lines.append(base[command.start : command.stop])
    return "\n".join(lines) + "\n"


def _key(command: Instruction) -> tuple[str, str]:
    """Return what a command of a Modelfile sets: two commands with one key say the same."""
    if command.name != "PARAMETER":
        return command.name, ""
    return command.name, command.key.lower()
