"""open_runner: from what the user named to the runner of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...engines.transformers.load import folder_of
from ...environment import require
from ...errors import UsageError
from ...inspection.inspection import inspect_config
from ...inspection.receipts.reader import has_receipt
from ...models.gguf import GgufSource
from ...models.open import open_source
from ...models.source import Source
from ...pretrained import needs_permission
from ..row import DEFAULT, Row, parse_rows
from ..texts import gguf_tokenizer
from .checkpoint import CheckpointRunner
from .llamacpp import HowToRun, LlamaCppRunner
from .output import open_baked
from .runner import Runner, RunnerRequest
from .server import open_servers

Opened = tuple[Runner, list[Row]]


UNNEEDED = "--trust-remote-code is for checkpoints that bring code, and nothing here does; leave it out"


@contextmanager
def open_runner(asked: RunnerRequest) -> Iterator[Opened]:
    """The runner of the rows, and the rows, while it is entered.

    Raises UsageError for options that do not go together, BadSource where a model cannot be opened.
    """
    _refuse_nonsense(asked)
    opener = open_checkpoint
    if asked.servers:
        opener = open_servers
    elif _is_output(asked):
        opener = open_baked
    elif asked.model.endswith(".gguf"):
        opener = open_gguf
    with opener(asked) as opened:
        yield opened


@contextmanager
def open_checkpoint(asked: RunnerRequest) -> Iterator[Opened]:
    """Rows on one load of a checkpoint in transformers."""
    for package in ("torch", "transformers"):
        require(package, "running a checkpoint")
    source = open_source(asked.model, asked.family)
    assert isinstance(source, Source)
    seen = inspect_config(source)
    if seen.encoder:
        raise UsageError(f"{asked.model} is an encoder, which predicts no next token; evaluate it on its own task")
    stands_for = source.family.text_type if source.family.assumed else ""
    at = asked.place(source.config(), stands_for)
    with folder_of(source, at.dtype) as folder:
        if asked.trust_remote_code and not needs_permission(folder):
            raise UsageError(UNNEEDED)
        yield CheckpointRunner(source, folder, seen, at, asked.chunk), asked.rows or parse_rows(DEFAULT)


@contextmanager
def open_gguf(asked: RunnerRequest) -> Iterator[Opened]:
    """Rows on one GGUF file in llama.cpp."""
    source = open_source(asked.model, asked.family)
    assert isinstance(source, GgufSource)
    with gguf_tokenizer(source.file.path) as tokenizer:
        how = HowToRun.of(asked, tokenizer.process.loaded.offloads)
        yield LlamaCppRunner(source, tokenizer, how), asked.rows or parse_rows(DEFAULT)


def _is_output(asked: RunnerRequest) -> bool:
    """Whether a model is evaluated as an output of ropeconv: without methods of its own, and with a receipt."""
    if asked.against or asked.rows:
        return bool(asked.against)
    return has_receipt(asked.model)


def _refuse_nonsense(asked: RunnerRequest) -> None:
    """Raises UsageError for options that do not go together."""
    servers, gguf = bool(asked.servers), asked.model.endswith(".gguf")
    placed = (asked.device, asked.dtype, asked.device_map) != ("auto", "auto", "")
    for together, sentence in (
        (
            servers and asked.rows,
            "a server runs one model, which is one row; leave --methods out, and start one --server for each output",
        ),
        (
            servers and asked.against,
            "--against is loaded here, and a server is not; start a second --server with the source instead",
        ),
        (
            servers and placed,
            "--device, --dtype and --device-map are for models that are loaded here; give them to the server",
        ),
        (not (servers or asked.model), "no model is named; give a checkpoint, a GGUF file, or --server URL"),
        (
            asked.against and asked.rows,
            "--against names the source of an output, which is loaded as it is; leave --methods out, or evaluate the "
            "methods on the source",
        ),
        (
            asked.device_map and gguf,
            "--device-map is for checkpoints in transformers; for a GGUF file give --device cpu or gpu",
        ),
        (
            asked.family and not servers and _is_output(asked),
            "the receipt of an output says its family; leave --family out",
        ),
        (asked.trust_remote_code and not servers and gguf, UNNEEDED),
    ):
        if together:
            raise UsageError(sentence)
