"""Probe, which asks transformers in another process what it computes from a config.

`ProbeCache` keeps its answers. Their key covers the config and the code that loads it: the versions
of transformers and torch, the files of transformers with the model's RoPE, and the probe. The
module is fast to import, since the probe has to start first.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Self

import msgspec

from ..environment import user_folder, without_secrets
from ..formats.drafts import write_file
from ..formats.jsontext import JsonObject
from ..rope.errors import RopeconvError
from .process import ProgramProcess

UNREADABLE_ANSWER: JsonObject = {"error": "transformers ended without an answer that can be read"}


class Probe(ProgramProcess):
    """`probe_program.py`, which imports torch and transformers while its caller plans and copies.

    It starts when it is entered, or with the first question, and has the environment of its caller
    without secrets.
    """

    def __init__(self, python: str = sys.executable) -> None:
        script = Path(__file__).with_name("probe_program.py")
        super().__init__([python, "-P", "-W", "ignore", str(script)], without_secrets())

    @staticmethod
    def available() -> bool:
        """Return whether transformers and torch are installed here."""
        return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))

    def prefetch(self, model_type: str) -> None:
        """Start the import of the code of a model, before `ask`."""
        self.send(json.dumps({"model_type": model_type}).encode())

    def ask(
        self, folder: Path, context: int, own_code: bool = False, loaded_as: str = ""
    ) -> JsonObject:
        """Return the frequencies that transformers computes from a config.

        Args:
            folder: The folder with config.json.
            context: The length in tokens; the frequencies are those at its last position.
            own_code: Whether to run the modelling file in the folder, which the caller trusts.
            loaded_as: A model type such as "llama", for a config whose model_type transformers
                does not have. Empty to read the config by its model_type.

        Returns:
            A `ProbeAnswer` as JSON-ready data: {"modules": ...}, or {"error": message}.
        """
        # the keys are those that probe_program.py reads, in a process of its own
        question = {
            "path": str(folder.resolve()),
            "context": context,
            "own": own_code,
            "as": loaded_as,
        }
        text_of_program = self._ask(question)
        answer = parse_answer(text_of_program)
        return answer or UNREADABLE_ANSWER

    def call(self, function: str, given: JsonObject) -> JsonObject:
        """Return what a function of ropeconv returns in the process that has transformers.

        Args:
            function: The module and the name of the function, as `MODULE:FUNCTION`. The function
                takes and returns a JSON object.
            given: The argument of the function.

        Returns:
            The result, or {"error": message}.
        """
        try:
            answer: JsonObject = json.loads(self._ask({"call": function, "given": given}))
        except ValueError:
            return UNREADABLE_ANSWER
        return answer

    def _ask(self, question: JsonObject) -> bytes:
        """Return the line that answers a question. A process that has ended is started again."""
        if not self.is_running:
            self.start()
        self.send(json.dumps(question).encode())
        return self.receive()


class SharedProbe(Probe):
    """A probe that starts with the first question, and stays until its caller ends."""

    def prefetch(self, model_type: str) -> None:
        """Start nothing, since the process may run already."""

    def __enter__(self) -> Self:
        return self

    def stop(self) -> None:
        """Keep the process for the next output."""

    def close(self) -> None:
        """End the process."""
        super().stop()


class Module(msgspec.Struct, frozen=True):
    """A set of frequencies."""

    inv_freq: tuple[float, ...]
    """Radians per token at the end of the context."""

    short: tuple[float, ...]
    """Radians per token at its beginning."""

    attention_factor: float


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The RoPE that transformers computes from a config."""

    modules: dict[str, Module] = {}
    """The frequencies of "global" and "local" layers."""

    error: str = ""
    """Why there are none."""

    transformers: str = ""
    """The version of transformers."""

    read_as: str = ""
    """The model type that replaced one that transformers does not have."""


def parse_answer(text: str | bytes) -> JsonObject | None:
    """Return an answer as JSON-ready data; None for another text, such as one with NaN."""
    try:
        msgspec.json.decode(text, type=ProbeAnswer)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    data: JsonObject = json.loads(text)
    if "modules" not in data and "error" not in data:
        return None
    return data


class ProbeCache:
    """Answers by key, as files of a folder that can be deleted at any time."""

    folder: Path | None
    """`ropeconv/checks` in the user's cache; None where the user has no home."""

    def __init__(self) -> None:
        try:
            self.folder = user_folder("cache") / "checks"
        except RopeconvError:
            self.folder = None

    @staticmethod
    def key(config_text: str, model_type: str, context: int, loaded_as: str = "") -> str:
        """Return the key under which the frequencies of a config are cached.

        It is a digest of all that they depend on: the config, ropeconv's code and transformers'. It
        is empty, so that nothing is cached, where transformers has no files on disk.

        Args:
            config_text: The whole config.json.
            model_type: The model type of the code that opens it.
            context: The length in tokens.
            loaded_as: A model type such as "llama", for a config whose model_type transformers
                does not have. Empty to read the config by its model_type.
        """
        # the question, and the code of ropeconv that answers it
        digest = hashlib.sha256(f"{context}\n{loaded_as}\n{config_text}".encode())
        here = Path(__file__)
        for path in (
            here.with_name("probe_program.py"),
            here.parents[1] / "loader.py",
            here.parents[1] / "models" / "parts.py",
        ):
            digest.update(path.read_bytes())

        # the code of transformers that answers it
        spec = importlib.util.find_spec("transformers")
        if spec is None or not spec.origin:
            return ""
        root = Path(spec.origin).parent
        files = [root / "modeling_rope_utils.py", root / "configuration_utils.py"]
        files += sorted((root / "models" / model_type).glob("*.py"))
        try:
            for package in ("transformers", "torch"):
                digest.update(importlib.metadata.version(package).encode())
            # size and time show an edited installation; reading all files would take longer
            for path in files:
                status = path.stat()
                digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        except (OSError, importlib.metadata.PackageNotFoundError):
            return ""
        return digest.hexdigest()

    def answer(
        self,
        folder: Path,
        model_type: str,
        context: int,
        own_code: bool = False,
        loaded_as: str = "",
        probe: Probe | None = None,
    ) -> JsonObject:
        """Return the RoPE frequencies that transformers computes from a config.json.

        The answer comes from a cache, or from a probe: a process that runs transformers.

        Args:
            folder: The folder of config.json.
            model_type: The model type whose class transformers uses, such as "llama".
            context: The length of the input in tokens.
            own_code: Whether to run the modelling file in the folder. Such an answer is not cached.
            loaded_as: A model type to read the config with where transformers does not have the
                model type of the config; empty for no other model type.
            probe: A running probe, which keeps running; None to start a probe and end it.
        """
        config_text = (folder / "config.json").read_bytes().decode(errors="replace")
        key = ""  # an empty key finds and stores nothing
        if not own_code:
            key = self.key(config_text, model_type, context, loaded_as)
        cached = self.get(key)
        if cached is not None:
            return cached

        # `nullcontext` leaves the caller's probe running
        probe_context = Probe() if probe is None else nullcontext(probe)
        with probe_context as running_probe:
            answer = running_probe.ask(folder, context, own_code, loaded_as)
        self.put(key, answer)
        return answer

    def get(self, key: str) -> JsonObject | None:
        """Return the cached answer of a key; None without one and for an empty key."""
        text = self.load(key)
        answer = None if text is None else parse_answer(text)
        if answer is None or "modules" not in answer:
            return None
        return answer

    def load(self, key: str) -> str | None:
        """Return the text that is cached by a key; None without one and for an empty key."""
        if self.folder is None or not key:
            return None
        try:
            return (self.folder / f"{key}.json").read_text("utf-8")
        except (OSError, ValueError):
            return None

    def put(self, key: str, answer: JsonObject) -> None:
        """Cache an answer, unless it is an error or the key is empty.

        A cache that cannot be written is ignored.
        """
        if "error" not in answer:
            self.store(key, json.dumps(answer))

    def store(self, key: str, text: str) -> None:
        """Cache a text, unless the key is empty. A cache that cannot be written is ignored."""
        if self.folder is None or not key:
            return
        path = self.folder / f"{key}.json"
        with suppress(OSError, RopeconvError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, text)
