"""Packages that not every user has: which extra of ropeconv brings them, and the sentence where one is missing."""

from __future__ import annotations

import importlib.util

from .errors import RopeconvError

EXTRAS = {
    "torch": "validate", "transformers": "validate", "tokenizers": "validate", "accelerate": "validate",
    "httpx2": "validate", "matplotlib": "plot", "llama_cpp": "llamacpp", "tiktoken": "meta", "lm_eval": "lm-eval",
    "datasets": "datasets", "ray": "ray", "grpc": "ray", "submitit": "slurm", "gradio": "ui",
    "starlette": "ui", "fastapi": "ui", "uvicorn": "ui",
}  # fmt: skip
"""Packages that are imported late, by the extra that brings them."""


def require(package: str, what: str, extra: str = "") -> None:
    """Raises RopeconvError where a package is not installed.

    package: as it is imported. what: needs it, for the message. extra: that brings it, by default as in `EXTRAS`.
    """
    if not installed(package):
        raise missing(package, what, extra)


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # of a package around it; a module without a spec
        return False


def missing(package: str, what: str = "this", extra: str = "") -> RopeconvError:
    """The error for a package that is not installed. Parameters are those of `require`."""
    extra = extra or EXTRAS.get(package, "")
    install = f"ropeconv[{extra}]" if extra else package
    return RopeconvError(f"{what} needs {package}, which is not installed; pip install '{install}'")
