"""The machine and the user: packages that may be missing, folders of the user, and secrets.

`require` raises the message about a missing package, `user_folder` returns where ropeconv keeps its
files, and `redacted` takes secrets out of a text.
"""

import importlib.util
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .rope.errors import RopeconvError

MODEL_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "tiktoken",
    "matplotlib",
    "httpx2",
    "scipy",
)
"""Dependencies of ropeconv that a machine may lack if it only patches GGUF files or publishes
(docs/README.md).
"""
EXTRAS = {
    "llama_cpp": "llamacpp",
    "lm_eval": "lm-eval",
    "datasets": "datasets",
    "pandas": "pandas",
    "ray": "ray",
    "grpc": "ray",
    "submitit": "slurm",
    "gradio": "ui",
    "starlette": "ui",
    "fastapi": "ui",
    "uvicorn": "ui",
    "onnx": "graphs",
    "onnxruntime": "graphs",
    "openvino": "graphs",
}
"""The extra that installs each other package that is imported late."""


class Requirement(NamedTuple):
    """A package that a step needs, which may not be installed."""

    package: str
    """Its name in imports."""

    task: str
    """The step that needs it, for the message."""

    def check(self) -> None:
        """Raise RopeconvError if the package is not installed."""
        require(self.package, self.task)


def require(package: str, task: str) -> None:
    """Raise RopeconvError if a package is not installed.

    Args:
        package: Its name in imports.
        task: The step that needs it, for the message.
    """
    if not installed(package):
        raise missing(package, task)


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # of a package around it; a module without a spec
        return False


def missing(package: str, task: str = "this") -> RopeconvError:
    """Return the error for a package that is not installed. Parameters as in `require`."""
    if package in MODEL_PACKAGES:
        install = "ropeconv"
    elif package in EXTRAS:
        install = f"'ropeconv[{EXTRAS[package]}]'"
    else:
        install = package
    return RopeconvError(f"{task} needs {package}, which is not installed; pip install {install}")


def user_folder(kind: Literal["cache", "config", "data", "state"]) -> Path:
    """Return the folder of ropeconv in the user's cache, settings, data or state.

    It may not exist yet.

    Raises:
        RopeconvError: The user has no home.
    """
    from platformdirs import PlatformDirs

    folders = PlatformDirs("ropeconv", appauthor=False)
    try:
        if kind == "cache":
            return folders.user_cache_path
        if kind == "config":
            return folders.user_config_path
        if kind == "data":
            return folders.user_data_path
        return folders.user_state_path
    except RuntimeError:
        # the user of a container may have an id without a name
        raise RopeconvError(
            "this user has no home folder; set HOME, or the variable"
            f" XDG_{kind.upper()}_HOME, to a folder that can be written"
        ) from None


SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY")
PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
"""The user and password of a URL."""
SHORTEST = 8
"""Characters of the shortest secret to redact; a shorter one may be part of ordinary words."""


def without_secrets() -> dict[str, str]:
    """Return the environment for a process that needs no secrets."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}


def redacted(text: str) -> str:
    """Return a text without the values of secrets, the stored token, and passwords in URLs."""
    secrets = [os.environ.get(name, "") for name in SECRETS]
    secrets.append(stored_token())
    for secret in secrets:
        if len(secret) >= SHORTEST:
            text = text.replace(secret, "***")
    return PASSWORD.sub("***@", text)


def redact_logs() -> None:
    """Redact what libraries log in this process, such as answers of a Hub that are not HTTP."""
    make = logging.getLogRecordFactory()

    def make_redacted(*given: Any, **more: Any) -> logging.LogRecord:
        record = make(*given, **more)
        # a record whose arguments do not fit is reported by its handler, with its place
        with suppress(TypeError, ValueError):
            record.msg = redacted(record.getMessage())
            record.args = ()
        return record

    logging.setLogRecordFactory(make_redacted)


def stored_token() -> str:
    """Return the token that `hf auth login` stored, or an empty string.

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    path = os.environ.get("HF_TOKEN_PATH", f"{home}/token")
    try:
        return Path(os.path.expandvars(path)).expanduser().read_text("utf-8").strip()
    except (OSError, ValueError, RuntimeError):  # not there; no text; no home
        return ""
