"""Open the runner of the rows that a user named."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ropeconv.engines.transformers.load import folder_of
from ropeconv.environment import require
from ropeconv.errors import UsageError
from ropeconv.inspection.inspection import inspect_config, inspect_gguf
from ropeconv.inspection.receipts.storage import has_receipt
from ropeconv.loader import needs_permission
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.models.reference import names_gguf
from ropeconv.models.source import Source
from ropeconv.verbs.rows import DEFAULT, Row, parse_rows

from ..texts import gguf_tokenizer
from .checkpoint import CheckpointRunner
from .llamacpp import LlamaCppRunner, engine_options
from .output import open_output
from .runner import Runner, RunnerRequest, refuse_without_next_token
from .server import open_servers

Opened = tuple[Runner, list[Row]]
NO_CODE_TO_TRUST = (
    "--trust-remote-code has no effect, since this checkpoint has no code; leave it out"
)


def open_runner(request: RunnerRequest) -> AbstractContextManager[Opened]:
    """Open what an evaluation runs: a server, an output of `apply`, a GGUF file or a checkpoint.

    The context manager gives a runner, which loads models, and the rows, one for each method.

    Raises:
        UsageError: Options do not go together.
        BadSource: A model cannot be opened.
    """
    _refuse_contradictions(request)
    # In this order: a server may be named together with the model that it runs, and an output may
    # be a GGUF file or a checkpoint.
    if request.servers:
        return open_servers(request)
    if _is_output(request):
        return open_output(request)
    if names_gguf(request.model):
        return open_gguf(request)
    return open_checkpoint(request)


@contextmanager
def open_checkpoint(request: RunnerRequest) -> Iterator[Opened]:
    """Open a checkpoint in transformers for an evaluation, and close it after the block.

    Yields:
        The runner, which loads the checkpoint once and patches it for each method; and the rows of
        the table, which are the methods to measure.
    """
    for package in ("torch", "transformers"):
        require(package, "running a checkpoint")
    source = open_source(request.model, request.family)
    assert isinstance(source, Source)  # a checkpoint; `open_runner` has excluded GGUF files
    _refuse_without_weights(source)
    inspection = inspect_config(source)
    refuse_without_next_token(inspection)

    # With --family llama, transformers loads a model type that it does not know as a "llama". An
    # empty text keeps the model type of the config.json.
    loaded_as = source.family.text_type if source.family.assumed else ""
    request.set_torch_threads()
    device_spec = request.choose_device(source.config(), loaded_as)
    with folder_of(source, device_spec.dtype) as folder:
        if request.trust_remote_code and not needs_permission(folder):
            raise UsageError(NO_CODE_TO_TRUST)
        runner = CheckpointRunner(source, folder, inspection, device_spec, request.chunk)
        yield runner, request.rows or parse_rows(DEFAULT)


@contextmanager
def open_gguf(request: RunnerRequest) -> Iterator[Opened]:
    """Open rows on one GGUF file in llama.cpp."""
    source = open_source(request.model, request.family)
    assert isinstance(source, GgufSource)
    refuse_without_next_token(inspect_gguf(source))
    with gguf_tokenizer(source.file.path) as tokenizer:
        options = engine_options(request, tokenizer.loaded.offloads)
        yield LlamaCppRunner(source, tokenizer, options), request.rows or parse_rows(DEFAULT)


def _refuse_without_weights(source: Source) -> None:
    """Refuse a folder with nothing that could run, before its tokenizer is missed too.

    Raises:
        UsageError: It has neither safetensors nor pickled weights.
    """
    is_pickled = any(file.name.endswith((".bin", ".pth")) for file in source.files())
    if not source.weights() and not is_pickled:
        raise UsageError(
            f"{source.reference} has no weights, and eval runs a model; give the folder of a"
            " checkpoint with its weights, or its name on the Hub"
        )


def _is_output(request: RunnerRequest) -> bool:
    """Whether a model is evaluated as an output of ropeconv: with a receipt, without methods."""
    if request.against:
        return True
    return not request.rows and has_receipt(request.model)


def _refuse_contradictions(request: RunnerRequest) -> None:
    """Refuse options that do not go together, before a model is opened.

    Raises:
        UsageError: Two of them contradict each other, or one has no effect.
    """
    if request.servers:
        _refuse_for_servers(request)
    elif not request.model:
        raise UsageError("no model is named; give a checkpoint, a GGUF file, or --server URL")

    # options that contradict each other, whatever the model is
    if request.against and request.rows:
        raise UsageError(
            "--against names the source of an output, which is loaded unchanged; leave --methods"
            " out, or evaluate the methods on the source"
        )
    if request.device_map and names_gguf(request.model):
        raise UsageError(
            "--device-map is for checkpoints in transformers; for a GGUF file give --device cpu or"
            " gpu"
        )

    # --family and --trust-remote-code say how MODEL is read. A server runs the model, and MODEL may
    # be named too, for its tokenizer and its config. These may need both options.
    if request.servers:
        return
    if request.family and _is_output(request):
        raise UsageError("the receipt of an output says its family; leave --family out")
    # a GGUF file has no code
    if request.trust_remote_code and names_gguf(request.model):
        raise UsageError(NO_CODE_TO_TRUST)


def _refuse_for_servers(request: RunnerRequest) -> None:
    """Refuse options that cannot change a server that is running already."""
    if request.rows:
        raise UsageError(
            "a server runs one model, which is one row; leave --methods out, and start one --server"
            " for each output"
        )
    if request.against:
        raise UsageError(
            "--against is loaded here, and a server is not; start a second --server with the source"
            " instead"
        )
    if (request.device, request.dtype, request.device_map) != ("auto", "auto", ""):
        raise UsageError(
            "--device, --dtype and --device-map are for models that are loaded here; give them to"
            " the server"
        )
