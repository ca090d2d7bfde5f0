"""Ollama's store of models: names such as `llama3.1:8b`, and the GGUF files that they stand for.

Begin with `find`. A store is a folder with `manifests/HOST/NAMESPACE/MODEL/TAG`, one JSON file per
model, and `blobs/sha256-DIGEST`, the files of all models (https://github.com/ollama/ollama:
types/model/name.go, server/manifest.go, server/images.go). A manifest lists layers by media type:
the model, its projector and adapters, and what a Modelfile says.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..formats.files import expand_home, read_text
from ..formats.jsontext import loads, parse
from ..rope.errors import command_line, shown
from .modelfile import quote_path

VARIABLE = "OLLAMA_MODELS"
FOLDERS = ("~/.ollama/models", "/usr/share/ollama/.ollama/models")
"""Stores without OLLAMA_MODELS: that of the user, and that of the service that Linux installs."""
HOST = "registry.ollama.ai"
NAMESPACE = "library"
TAG = "latest"
HUB_HOSTS = ("hf.co", "huggingface.co")
LAYER = "application/vnd.ollama.image."
PART = r"[A-Za-z0-9_][\w.-]*"
NAME = re.compile(
    rf"(?:(?:https?://)?(?:www\.)?ollama\.com/|ollama://)?(?:(?P<host>{PART}(?::\d+)?)/(?=[^/]+/))?"
    rf"(?:(?P<namespace>{PART})/)?(?P<model>{PART}?)(?::(?P<tag>{PART}))?",
    re.ASCII,
)
BLOB = re.compile(r"sha256-[0-9a-f]{64}")
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
MOST_LISTED = 6
MOST_MANIFESTS = 10_000
"""Manifests that are read to find the name of a blob."""


@dataclass(frozen=True)
class OllamaName:
    """A name as Ollama parses it, with its defaults filled in."""

    typed: str
    """As the user wrote it."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """The folders and the file of its manifest."""
        return self.host, self.namespace, self.model, self.tag

    @property
    def short(self) -> str:
        """The name as `ollama list` shows it, with its tag."""
        if self.host != HOST:
            return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"
        if self.namespace != NAMESPACE:
            return f"{self.namespace}/{self.model}:{self.tag}"
        return f"{self.model}:{self.tag}"

    @property
    def stem(self) -> str:
        """The first part of the default name of an output: `llama3.1-8b`."""
        if self.tag.lower() == TAG:
            return self.model
        return f"{self.model}-{self.tag}"


@dataclass(frozen=True)
class StoredModel:
    """A model in a store."""

    name: OllamaName
    root: Path
    """The folder of the store."""

    layers: tuple[tuple[str, Path], ...]
    """Media types without their first part, and blobs."""

    config: Path | None

    @property
    def path(self) -> Path:
        """Return the path of the GGUF file.

        Raises:
            BadSource: Where the store has none.
        """
        paths = self._of("model")
        if not paths:
            raise BadSource(
                f"{self.name.typed} has no GGUF file in Ollama's store, because it runs in the"
                " cloud or has another format; choose another model"
            )
        path = paths[0]
        if not path.is_file():
            beginning = path.name[:19]  # "sha256-" and 12 digits
            raise BadSource(
                f"{self.name.typed} lacks its file {beginning}... in Ollama's store;"
                f" run `ollama pull {self.name.short}`"
            )
        return path

    def _of(self, kind: str) -> list[Path]:
        """Return the blobs of a kind of layer."""
        return [path for name, path in self.layers if name == kind]

    def _text(self, kind: str) -> str:
        """Return the text of the last layer of a kind; empty without one."""
        paths = self._of(kind)
        if not paths:
            return ""
        return read_text(paths[-1], f"the {kind} of {self.name.typed}")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config of the manifest, which names how newer versions render and parse chats."""
        if self.config is None or not self.config.is_file():
            return {}
        return parse(read_text(self.config, self.config.name), self.config.name)

    @cached_property
    def modelfile(self) -> str:
        """The lines that `ollama show --modelfile` prints, which an output keeps."""
        lines = [f"FROM {quote_path(str(self.path))}"]
        lines += [f"FROM {quote_path(str(path))}" for path in self._of("projector")]
        lines += [f"ADAPTER {quote_path(str(path))}" for path in self._of("adapter")]
        # `prompt` is the older media type of a template (server/images.go)
        for kind, command in (
            ("template", "TEMPLATE"),
            ("prompt", "TEMPLATE"),
            ("system", "SYSTEM"),
        ):
            text = self._text(kind)
            if text:
                lines.append(f"{command} {_quote(text)}")

        for key in ("renderer", "parser"):
            if self.settings.get(key):
                lines.append(f"{key.upper()} {self.settings[key]}")

        lines += self._parameters()
        lines += self._messages()

        for path in self._of("license"):
            license_text = read_text(path, f"the license of {self.name.typed}")
            lines.append(f"LICENSE {_quote(license_text)}")
        return "\n".join(lines) + "\n"

    def _parameters(self) -> Iterator[str]:
        """Yield the PARAMETER lines; a list of values is one line each."""
        text = self._text("params")
        values = parse(text, f"the parameters of {self.name.typed}") if text else {}
        for key, value in values.items():
            for each in value if isinstance(value, list) else [value]:
                yield f"PARAMETER {key} {_parameter(each)}"

    def _messages(self) -> Iterator[str]:
        """Yield the MESSAGE lines."""
        text = self._text("messages")
        if not text:
            return
        messages = loads(text, f"the messages of {self.name.typed}")
        if not isinstance(messages, list):
            return
        for message in messages:
            if isinstance(message, dict) and message.get("role"):
                content = str(message.get("content", ""))
                yield f"MESSAGE {message['role']} {_quote(content)}"


def _quote(text: str) -> str:
    """Return a text as a Modelfile has it, over several lines if need be."""
    return f'"""{text}"""'


def _parameter(value: object) -> str:
    """Return the value of a parameter as a Modelfile has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    if '"' in value or "\n" in value:
        return _quote(value)
    return f'"{value}"'


def name_in(reference: str) -> OllamaName | None:
    """Return the parts of the name of an Ollama model; None for a path, a Hub id and the like.

    llama3.1:8b has the model "llama3.1" and the tag "8b". Names are `model`, `model:tag`,
    `owner/model:tag`, `host/owner/model:tag`, and the address of a page of ollama.com.
    """
    match = NAME.fullmatch(reference)  # the pattern of all these forms
    if match is None:
        return None
    for part in match.groups():
        if part and ".." in part:
            return None
    host, namespace, model, tag = match.groups()

    # owner/name is an id on the Hub, and ollama.com/owner/name is a page of Ollama
    is_page = "ollama.com/" in reference or reference.startswith("ollama://")
    is_owner_and_name = host is None and namespace is not None
    if tag is None and is_owner_and_name and not is_page:
        return None

    # hf.co/owner/name without a tag is an id on the Hub too
    is_at_other_host = host is not None and host != HOST  # HOST is registry.ollama.ai
    if tag is None and is_at_other_host:
        return None

    # folder/owner/model:tag is a path; hosts have a dot or a port, such as localhost:5000
    if host is not None and "." not in host and ":" not in host:
        return None
    return OllamaName(
        typed=reference,
        host=host or HOST,
        namespace=namespace or NAMESPACE,
        model=model,
        tag=tag or TAG,
    )


def folders() -> tuple[Path, ...]:
    """The stores on this machine, in the order in which they are searched; they need not exist."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        return (expand_home(chosen),)
    return tuple(expand_home(folder) for folder in FOLDERS)


def find(reference: str) -> StoredModel | None:
    """Return the model that a reference names in Ollama's stores on this machine.

    Upper and lower case are the same, as in Ollama. None for a name that no store has, and for a
    reference that is not a name of Ollama.

    Raises:
        BadSource: For a damaged manifest.
    """
    name = name_in(reference)
    if name is None:
        return None
    hosts = [name.host]
    if name.host in HUB_HOSTS:  # both are addresses of the Hub
        hosts += [host for host in HUB_HOSTS if host != name.host]

    _, namespace, model, tag = name.parts
    for root in folders():
        for host in hosts:
            manifest = _manifest(root / "manifests", (host, namespace, model, tag))
            if manifest is not None:
                # the name in upper and lower case as the store has it
                stored_name = OllamaName(reference, *_name_parts(root, manifest))
                return _read_manifest(stored_name, root, manifest)
    return None


def _manifest(folder: Path, parts: tuple[str, ...]) -> Path | None:
    """Return the manifest of a name in a store, whatever the case of its parts.

    It is at manifests/HOST/NAMESPACE/MODEL/TAG.
    """
    place = folder
    for part in parts:
        exact = place / part
        if exact.exists():
            place = exact
            continue
        try:
            same_letters = [path for path in place.iterdir() if path.name.lower() == part.lower()]
        except OSError:
            return None
        if not same_letters:
            return None
        place = same_letters[0]
    if not place.is_file():
        return None
    return place


def _read_manifest(name: OllamaName, root: Path, manifest: Path) -> StoredModel:
    """Read the model of a manifest, which lists its parts as the layers of an OCI image.

    A layer is `{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:..."}`.

    Args:
        name: The name of the model, for messages.
        root: The folder of the store.
        manifest: The path of the manifest in it.
    """
    content = parse(read_text(manifest, str(manifest)), str(manifest))
    listed = content.get("layers")
    if not isinstance(listed, list):
        listed = []
    layers = []
    for layer in listed:
        is_layer = isinstance(layer, dict) and isinstance(layer.get("mediaType"), str)
        if not is_layer:
            raise BadSource(f"{manifest} is damaged; run `ollama pull {name.short}`")
        media_type: str = layer["mediaType"]
        if media_type.startswith(LAYER):  # layers with another beginning are not of GGUF models
            kind = media_type.removeprefix(LAYER)  # e.g. "template"
            layers.append((kind, _blob_path(root, layer, manifest, name)))

    # the config is a blob too, which older manifests do not have
    config = content.get("config")
    config_path = None
    if isinstance(config, dict) and config.get("digest"):
        config_path = _blob_path(root, config, manifest, name)
    return StoredModel(name=name, root=root, layers=tuple(layers), config=config_path)


def _blob_path(root: Path, layer: dict[str, Any], manifest: Path, name: OllamaName) -> Path:
    """Return the path of the file of a layer, blobs/sha256-DIGEST, from the digest that it states.

    The manifest and the name of the model are for the message about a wrong digest.
    """
    digest = DIGEST.fullmatch(str(layer.get("digest")))
    if digest is None:
        raise BadSource(
            f"{manifest} has {shown(layer.get('digest'))} as a digest; run `ollama pull"
            f" {name.short}` again"
        )
    return root / "blobs" / f"sha256-{digest[1]}"


def _names_and_manifests(root: Path) -> Iterator[tuple[OllamaName, Path]]:
    """Yield the names in a store with their manifests, the newest first."""
    manifests = [path for path in (root / "manifests").glob("*/*/*/*") if path.is_file()]
    for path in sorted(manifests, key=lambda path: -path.stat().st_mtime)[:MOST_MANIFESTS]:
        if not path.name.startswith("."):
            yield OllamaName(path.name, *_name_parts(root, path)), path


def _name_parts(root: Path, manifest: Path) -> tuple[str, str, str, str]:
    """Return the parts of a name, from the place of its manifest."""
    host, namespace, model, tag = manifest.relative_to(root / "manifests").parts
    return host, namespace, model, tag


def is_blob(path: Path) -> bool:
    """Whether a file is a blob of a store, whose name is the digest of its content."""
    return BLOB.fullmatch(path.name) is not None and path.parent.name == "blobs"


def blob_stem(path: Path) -> str:
    """Return a name for the output that is made of a file in Ollama's store.

    The file has a name such as sha256-6a0746a1ec1a.... The output is named after a model of the
    store that uses the file, such as llama3.1-8b. Without such a model it has the beginning of the
    file's name.
    """
    store = path.parent.parent  # the path is STORE/blobs/sha256-DIGEST
    for name, manifest in _names_and_manifests(store):
        try:
            model = _read_manifest(name, store, manifest)
        except (BadSource, OSError):  # a damaged manifest
            continue
        gguf_names = [blob.name for kind, blob in model.layers if kind == "model"]
        if path.name in gguf_names:
            return name.stem
    return path.name[:19]  # "sha256-" and 12 digits


def absence_error(reference: str) -> BadSource:
    """Return the error about a name that no store has, with what to do."""
    name = name_in(reference)
    assert name is not None
    stores = folders()
    stored_names = set()
    for store in stores:
        for stored, _ in _names_and_manifests(store):
            stored_names.add(stored.short)

    plain_name = name.short.removesuffix(f":{TAG}")
    advice = f"run `ollama pull {plain_name}`"
    # owner/model:Q4_K_M may be meant as a file on the Hub
    has_owner = name.namespace != NAMESPACE and name.host == HOST
    if name.host in HUB_HOSTS or has_owner:
        advice += f", or give the file itself, {name.namespace}/{name.model}/FILE-{name.tag}.gguf"

    if not stored_names:
        places = " or ".join(str(store) for store in stores)
        return BadSource(
            f"{reference} is not in Ollama's store ({places}), which has no models; {advice}"
        )
    listed = ", ".join(sorted(stored_names)[:MOST_LISTED])
    if len(stored_names) > MOST_LISTED:
        listed += f" and {len(stored_names) - MOST_LISTED} more"
    return BadSource(f"{reference} is not in Ollama's store, which has {listed}; {advice}")


def refuse_change(path: Path, again: str) -> None:
    """Raise BadSource for a change in place of a blob, whose name would no longer be its digest.

    Args:
        path: The file that would be changed.
        again: The reference for the command that writes a new file.
    """
    if is_blob(path.resolve()):
        command = command_line("apply", again, "--yarn", 4, "-o", "FILE.gguf")
        raise BadSource(
            f"{again} is in Ollama's store, where each file is named by its digest, so --in-place "
            f"would break it; write a new file, such as with `{command}`"
        )
