"""open_runner: from what the user named to the runner of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from ...engines.transformers.load import device_spec, folder_of, stored_dtype
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


@contextmanager
def open_runner(asked: RunnerRequest) -> Iterator[Opened]:
    """The runner of the rows, and the rows, while it is entered.

    Raises UsageError for options that do not go together, BadSource where a model cannot be opened.
    """
    for together, sentence in NONSENSE:
        if together(asked):
            raise UsageError(sentence)
    opener = next(opener for fits, opener in OPENERS if fits(asked))
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
    at = device_spec(asked.device, asked.dtype, asked.device_map, stored_dtype(source.config()))
    at = replace(at, pickles=asked.trust_remote_code)
    if source.family.assumed:
        at = replace(at, stands_for=source.family.text_type)
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


def _is_gguf(asked: RunnerRequest) -> bool:
    return asked.model.endswith(".gguf")


OPENERS: tuple[
    tuple[Callable[[RunnerRequest], bool], Callable[[RunnerRequest], AbstractContextManager[Opened]]], ...
] = (
    (lambda asked: bool(asked.servers), open_servers),
    (_is_output, open_baked),
    (_is_gguf, open_gguf),
    (lambda asked: True, open_checkpoint),
)
"""How a model is opened, by what it is; the first that fits."""

UNNEEDED = "--trust-remote-code is for checkpoints that bring code, and nothing here does; leave it out"
NONSENSE: tuple[tuple[Callable[[RunnerRequest], bool], str], ...] = (
    (
        lambda asked: bool(asked.servers and asked.rows),
        "a server runs one model, which is one row; leave --methods out, and start one --server for each output",
    ),
    (
        lambda asked: bool(asked.servers and asked.against),
        "--against is loaded here, and a server is not; start a second --server with the source instead",
    ),
    (
        lambda asked: bool(asked.servers) and (asked.device, asked.dtype, asked.device_map) != ("auto", "auto", ""),
        "--device, --dtype and --device-map are for models that are loaded here; give them to the server",
    ),
    (
        lambda asked: not (asked.servers or asked.model),
        "no model is named; give a checkpoint, a GGUF file, or --server URL",
    ),
    (
        lambda asked: bool(asked.against and asked.rows),
        "--against names the source of an output, which is loaded as it is; leave --methods out, or evaluate the "
        "methods on the source",
    ),
    (
        lambda asked: bool(asked.device_map and _is_gguf(asked)),
        "--device-map is for checkpoints in transformers; for a GGUF file give --device cpu or gpu",
    ),
    (
        lambda asked: bool(asked.family and not asked.servers and _is_output(asked)),
        "the receipt of an output says its family; leave --family out",
    ),
    (
        lambda asked: asked.trust_remote_code and not asked.servers and _is_gguf(asked),
        UNNEEDED,
    ),
)
"""Options that do not go together, and what to do."""
