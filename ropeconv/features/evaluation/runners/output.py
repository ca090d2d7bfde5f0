"""An output of `apply` as stock transformers or llama.cpp loads it, and its source."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ropeconv.bake.apply import apply, make_plan
from ropeconv.convert.target import Target
from ropeconv.engines.engine import Engine
from ropeconv.engines.llamacpp import LlamaCppEngine, runtime
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec, folder_of
from ropeconv.errors import BadSource
from ropeconv.formats import jsontext
from ropeconv.formats.disk import text_digest
from ropeconv.formats.files import read_text, scratch
from ropeconv.formats.kind import is_gguf
from ropeconv.inspection.receipts.places import find_source
from ropeconv.inspection.receipts.receipt import Receipt
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.folder import FolderSource
from ropeconv.models.gguf import GgufSource
from ropeconv.models.source import Source
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.lengths import MOST_TOKENS
from ropeconv.rope.methods.vectors import AsIs
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.checkpoint import stock_version
from ropeconv.validate.checks import needs_trust
from ropeconv.validate.comparison import Comparison
from ropeconv.verbs.rows import BASE, Row

from ..texts import CheckpointTokenizer, Tokenizer, gguf_tokenizer
from .llamacpp import device_and_types, engine_options
from .runner import Runner, RunnerRequest

Opener = Callable[[], AbstractContextManager[Engine]]
Models = dict[Row, tuple[str, Opener]]
"""The identity of each unpatched model, and a function that loads it, in the order of the table."""


class OutputRunner(Runner):
    """Unpatched models, one at a time."""

    def __init__(
        self,
        models: Models,
        trained: int,
        tokenizer: Tokenizer,
        runtime: str,
        device: str,
        dtype: str,
    ) -> None:
        """Name the models; none is loaded yet.

        Args:
            models: The identity of each model, and a function that loads it, by row. The source of
                the output comes first, where it was found.
            trained: The trained context in tokens by the receipt, 0 where it has none.
            tokenizer: The tokenizer of all of them.
            runtime: Name and version of what runs them.
            device: The device, for the result.
            dtype: The precision, for the result.

        Raises:
            BadSource: The receipt has no trained context.
        """
        if not trained:
            raise BadSource("the receipt has no trained context; name the source with --against")
        self.models = models
        self.trained = trained
        identity, _ = next(iter(models.values()))
        self.source = identity  # the journal belongs to the first model of the table
        self.tokenizer = tokenizer
        self.runtime = runtime
        self.device = device
        self.dtype = dtype

    def digest(self, row: Row) -> str:
        identity, _ = self.models[row]
        return identity

    def engine(self, row: Row) -> AbstractContextManager[Engine]:
        _, load = self.models[row]
        return load()


@contextmanager
def open_output(request: RunnerRequest) -> Iterator[tuple[Runner, list[Row]]]:
    """Open an output of `apply` for an evaluation, together with its source.

    The table has two rows: the source, where it is named or found, and the output.

    Raises:
        BadSource: The model is not an output, or `request.against` is not its source.
    """
    # The source is the one of --against, or else where the receipt says. It may be gone.
    output = Path(request.model)
    receipt = read_receipt(output)
    if request.against:
        comparison: Comparison | None = Comparison.open(output, request.against)
    else:
        comparison = _find_comparison(output)

    with ExitStack() as stack:
        if is_gguf(output):
            # the tokenizer of a GGUF file runs in a process, which `stack` ends after the block
            runner = _open_gguf(output, receipt, comparison, request, stack)
        else:
            runner = _open_folder(output, receipt, comparison, request)
        if comparison is None:
            runner.note = (
                f"Its source ({receipt.source.name}) was not found; name it with --against to"
                " compare with it."
            )
        yield runner, list(runner.models)


def _open_folder(
    output: Path, receipt: Receipt, comparison: Comparison | None, request: RunnerRequest
) -> OutputRunner:
    """Return what runs a checkpoint and its source in transformers, one at a time.

    Args:
        output: The folder.
        receipt: Its receipt.
        comparison: The folder with its source; None where the source was not found.
        request: The options of the user.
    """
    trust = needs_trust(output, request.trust_remote_code)
    config = jsontext.parse(read_text(output / "config.json", "config.json"), "config.json")
    loaded_as = comparison.loaded_as if comparison is not None else ""
    request.set_torch_threads()
    device_spec = request.choose_device(config, loaded_as)

    # by row: the identity of a model, and a function that loads it. The unchanged source is the
    # first row
    models: Models = {}
    if comparison is not None:
        source = comparison.checkpoint
        has_two_lists = comparison.spec.current().short_inv_freq is not None
        chunk = _chunk(request, has_two_lists)
        # only the output may have code, that of --encoding buffers
        load_source = partial(_load_checkpoint, source, device_spec, trust=False, chunk=chunk)
        models[Row(BASE)] = (source.identity, load_source)

    folder = FolderSource(output)
    has_two_lists = receipt.schedule.short_inv_freq is not None
    chunk = _chunk(request, has_two_lists)
    load_output = partial(_load_checkpoint, folder, device_spec, trust=trust, chunk=chunk)
    models[Row(output.name, path=output)] = (folder.identity, load_output)

    return OutputRunner(
        models,
        trained=receipt.schedule.original_context,
        # --trust-remote-code allows pickled weights, and code of the tokenizer too
        tokenizer=CheckpointTokenizer(output, trust or device_spec.pickles),
        runtime=f"transformers {stock_version()}",
        device=device_spec.device_map or device_spec.device,
        dtype=device_spec.dtype,
    )


def _chunk(request: RunnerRequest, has_two_lists: bool) -> int:
    """Return how many tokens a model reads at a time.

    With LongRoPE's two lists these are whole sequences, since transformers chooses the list for
    each chunk.
    """
    return MOST_TOKENS if has_two_lists else request.chunk


@contextmanager
def _load_checkpoint(
    source: Source, device_spec: DeviceSpec, trust: bool, chunk: int
) -> Iterator[Engine]:
    """Yield a checkpoint that is loaded in transformers, and free its memory after the block."""
    with folder_of(source, device_spec.dtype) as folder:
        yield TransformersEngine.load(folder, device_spec, trust, chunk)


def _open_gguf(
    output: Path,
    receipt: Receipt,
    comparison: Comparison | None,
    request: RunnerRequest,
    stack: ExitStack,
) -> OutputRunner:
    """Return what runs a GGUF file and its source in llama.cpp, one at a time.

    A checkpoint from which the file was exported is exported too, without the method.

    Args:
        output: The file.
        receipt: Its receipt.
        comparison: The file with its source; None where the source was not found.
        request: The options of the user.
        stack: Ends the process with the tokenizer.
    """
    file = GgufSource(output)
    tokenizer = stack.enter_context(gguf_tokenizer(file.file.path))
    options = engine_options(request, tokenizer.loaded.offloads)

    # by row: the identity of a model, and a function that loads it. The unchanged source is the
    # first row
    models: Models = {}
    if comparison is not None and isinstance(comparison.source, GgufSource):
        source = comparison.source
        engine = LlamaCppEngine(source.file.path, **options)
        models[Row(BASE)] = (source.identity, engine.opened)
    elif comparison is not None:
        # The source is a checkpoint. It is converted too, with the types and the pre-tokenizer of
        # the output, so that the two differ by nothing else than their RoPE. Its losses depend on
        # the checkpoint, the types and the pre-tokenizer, so its identity in the journal is a
        # digest of these three.
        target = Target(to="gguf", outtype=receipt.target.outtype, pre=receipt.target.pre)
        identity = text_digest(comparison.source.identity, f"{target.outtype} {target.pre}")
        load = partial(_load_exported, comparison.checkpoint, target, options)
        models[Row(BASE)] = (identity, load)

    engine = LlamaCppEngine(file.file.path, **options)
    models[Row(output.stem, path=output)] = (file.identity, engine.opened)

    device, types = device_and_types(file, options)
    return OutputRunner(
        models,
        trained=receipt.schedule.original_context,
        tokenizer=tokenizer,
        runtime=runtime(),
        device=device,
        dtype=types,
    )


@contextmanager
def _load_exported(source: Source, target: Target, options: Mapping[str, Any]) -> Iterator[Engine]:
    """Load a checkpoint as a temporary GGUF file with weights of the same type as an output."""
    with scratch() as folder:
        plan = make_plan(source, Recipe(AsIs()), replace(target, out=folder / "source.gguf"))
        exported = apply(plan, fsync=False, check=False, remember=False)
        with LlamaCppEngine(exported.path, **options).opened() as engine:
            yield engine


def _find_comparison(output: Path) -> Comparison | None:
    """Return the comparison with the source, wherever that is found; None where it is not."""
    source = find_source(output)  # a path or a name on the Hub; empty where there is none
    if not source:
        return None
    try:
        return Comparison.open(output, source)
    except RopeconvError:
        return None
