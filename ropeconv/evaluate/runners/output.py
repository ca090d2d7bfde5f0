"""An output of `apply` as stock transformers or llama.cpp loads it, and its source."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...bake.apply import apply, make_plan
from ...convert.target import Target
from ...engines.engine import Engine
from ...engines.llamacpp import LlamaCppEngine, runtime
from ...engines.transformers.engine import TransformersEngine
from ...engines.transformers.load import DeviceSpec, folder_of
from ...errors import BadSource
from ...formats import jsontext
from ...formats.disk import text_digest
from ...formats.files import read_text, scratch
from ...formats.kind import is_gguf
from ...inspection.receipts.places import find_source
from ...inspection.receipts.receipt import Receipt
from ...inspection.receipts.storage import read_receipt
from ...models.folder import FolderSource
from ...models.gguf import GgufSource
from ...models.source import Source
from ...rope.errors import RopeconvError
from ...rope.lengths import MOST_TOKENS
from ...rope.methods.vectors import AsIs
from ...rope.recipe import Recipe
from ...validate.checkpoint import stock_version
from ...validate.checks import needs_trust
from ...validate.comparison import Comparison
from ..row import BASE, Row
from ..texts import CheckpointTokenizer, Tokenizer, gguf_tokenizer
from .llamacpp import device_and_types, engine_options
from .runner import Runner, RunnerRequest

Opener = Callable[[], AbstractContextManager[Engine]]
Models = dict[Row, tuple[str, Opener]]
"""The identity of each unpatched model, and a function that loads it, in the order of the table."""


class OutputRunner(Runner):
    """Unpatched models, one at a time. trained: context in tokens, by the receipt."""

    def __init__(
        self,
        models: Models,
        trained: int,
        tokenizer: Tokenizer,
        runtime: str,
        device: str,
        dtype: str,
    ) -> None:
        if not trained:
            raise BadSource("the receipt has no trained context; name the source with --against")
        self.models = models
        self.trained = trained
        self.source = next(iter(models.values()))[0]
        self.tokenizer = tokenizer
        self.runtime = runtime
        self.device = device
        self.dtype = dtype

    def digest(self, row: Row) -> str:
        return self.models[row][0]

    def engine(self, row: Row) -> AbstractContextManager[Engine]:
        return self.models[row][1]()


@contextmanager
def open_output(request: RunnerRequest) -> Iterator[tuple[Runner, list[Row]]]:
    """The runner of an output, and its rows: the source, where it is named or found, and the
    output.

    Raises BadSource for another model than an output, and where `request.against` is not its
    source.
    """
    output = Path(request.model)
    receipt = read_receipt(output)
    comparison = (
        Comparison.open(output, request.against) if request.against else _comparison(output)
    )
    opener = _in_llamacpp if is_gguf(output) else _in_transformers
    with ExitStack() as stack:
        runner = opener(output, receipt, comparison, request, stack)
        if comparison is None:
            runner.note = (
                f"Its source ({receipt.source.name}) was not found; name it with --against to"
                " compare with it."
            )
        yield runner, list(runner.models)


def _in_transformers(
    output: Path,
    receipt: Receipt,
    comparison: Comparison | None,
    request: RunnerRequest,
    stack: ExitStack,
) -> OutputRunner:
    """The runner of a folder."""
    trust = needs_trust(output, request.trust_remote_code)
    config = jsontext.parse(read_text(output / "config.json", "config.json"), "config.json")
    at = request.place(config, comparison.stands_for if comparison is not None else "")
    models: Models = {}
    if comparison is not None:
        source = comparison.checkpoint
        two = comparison.spec.current().short_inv_freq is not None
        models[Row(BASE)] = source.identity, partial(_loaded, source, two, at, False, request.chunk)
    source = FolderSource(output)
    two = receipt.schedule.short_inv_freq is not None
    models[Row(output.name, path=output)] = (
        source.identity,
        partial(_loaded, source, two, at, trust, request.chunk),
    )
    tokenizer = CheckpointTokenizer(output, trust or at.pickles)
    where = at.device_map or at.device
    trained = receipt.schedule.original_context
    return OutputRunner(
        models, trained, tokenizer, f"transformers {stock_version()}", where, at.dtype
    )


@contextmanager
def _loaded(
    source: Source, two_lists: bool, at: DeviceSpec, trust: bool, chunk: int
) -> Iterator[Engine]:
    """A checkpoint in transformers; with two lists, which it chooses for every chunk, it reads
    sequences at once.
    """
    with folder_of(source, at.dtype) as folder:
        yield TransformersEngine.load(folder, at, trust, MOST_TOKENS if two_lists else chunk)


def _in_llamacpp(
    output: Path,
    receipt: Receipt,
    comparison: Comparison | None,
    request: RunnerRequest,
    stack: ExitStack,
) -> OutputRunner:
    """The runner of a GGUF file."""
    file = GgufSource(output)
    tokenizer = stack.enter_context(gguf_tokenizer(file.file.path))
    options = engine_options(request, tokenizer.loaded.offloads)
    models: Models = {}
    if comparison is not None and isinstance(comparison.source, GgufSource):
        source = comparison.source
        models[Row(BASE)] = source.identity, LlamaCppEngine(source.file.path, **options).opened
    elif comparison is not None:
        target = Target(to="gguf", outtype=receipt.target.outtype, pre=receipt.target.pre)
        identity = text_digest(comparison.source.identity, f"{target.outtype} {target.pre}")
        models[Row(BASE)] = identity, partial(_exported, comparison.checkpoint, target, options)
    models[Row(output.stem, path=output)] = (
        file.identity,
        LlamaCppEngine(file.file.path, **options).opened,
    )
    return OutputRunner(
        models,
        receipt.schedule.original_context,
        tokenizer,
        runtime(),
        *device_and_types(file, options),
    )


@contextmanager
def _exported(source: Source, target: Target, options: Mapping[str, Any]) -> Iterator[Engine]:
    """A checkpoint as a temporary GGUF file with weights of the same type as an output."""
    with scratch() as folder:
        plan = make_plan(source, Recipe(AsIs()), replace(target, out=folder / "source.gguf"))
        with LlamaCppEngine(
            apply(plan, fsync=False, check=False, remember=False).path, **options
        ).opened() as engine:
            yield engine


def _comparison(output: Path) -> Comparison | None:
    """The comparison with the source, on the Hub, where it was, or beside the output; None where it
    is not found.
    """
    place = find_source(output)
    try:
        return Comparison.open(output, place) if place else None
    except RopeconvError:
        return None
