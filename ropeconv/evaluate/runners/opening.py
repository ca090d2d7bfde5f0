"""open_runner: from what the user named to the runner of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...engines.transformers.device import device_spec
from ...engines.transformers.load import folder_of, stored_dtype
from ...errors import UsageError
from ...extras import require
from ...inspection import inspect_source
from ...sources import GgufSource, Source, open_source
from ..row import BASE, Row
from .patched import Patched
from .runner import Runner


@dataclass(frozen=True)
class Opening:
    """What the user named.

    model: a checkpoint, a GGUF file, or an output of `apply`. rows: from --methods; empty where that is not given.
    against: the source of an output. servers: URLs, or NAME=URL. device, dtype, device_map: as in `device_spec`. chunk:
    tokens that a model reads at a time. family: that the model is of, whatever its model_type. trust_remote_code: run
    code in an output that ropeconv has not written.
    """

    model: str
    rows: list[Row]
    against: str = ""
    servers: tuple[str, ...] = ()
    device: str = "auto"
    dtype: str = "auto"
    device_map: str = ""
    chunk: int = 4096
    family: str = ""
    trust_remote_code: bool = False


@contextmanager
def open_runner(asked: Opening) -> Iterator[tuple[Runner, list[Row]]]:
    """The runner of the rows, and the rows, while it is entered.

    Raises UsageError for options that do not go together, BadSource where a model cannot be opened.
    """
    source = open_source(asked.model, asked.family)
    if isinstance(source, GgufSource):
        raise UsageError(f"{asked.model} is GGUF, and a checkpoint is needed here")
    with _patched(asked, source) as runner:
        yield runner, list(asked.rows) or [Row(BASE)]


@contextmanager
def _patched(asked: Opening, source: Source) -> Iterator[Runner]:
    """One load of a checkpoint in transformers."""
    for package in ("torch", "transformers"):
        require(package, "running a checkpoint")
    seen = inspect_source(source)
    if seen.encoder:
        raise UsageError(f"{asked.model} is an encoder, which predicts no next token; evaluate it on its own task")
    at = device_spec(asked.device, asked.dtype, asked.device_map, stored_dtype(source.config()))
    family = source.family
    if family.assumed:
        at = replace(at, stands_for=family.text_type)
    with folder_of(source, at.dtype) as folder:
        yield Patched(source, folder, seen, at, asked.chunk)
