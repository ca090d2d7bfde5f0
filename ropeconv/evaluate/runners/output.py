"""An output of `apply` as stock transformers or llama.cpp loads it, and its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ...bake.apply import apply, make_plan
from ...convert.target import Target
from ...engines.engine import Engine
from ...engines.llamacpp import runtime
from ...engines.transformers.engine import TransformersEngine
from ...engines.transformers.load import DeviceSpec, folder_of
from ...errors import BadSource
from ...formats import jsontext
from ...formats.disk import text_digest
from ...formats.files import read_text, scratch
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
from ...validate.comparison import Comparison, source_of
from ..row import BASE, Row
from ..texts import CheckpointTokenizer, Tokenizer, gguf_tokenizer
from .llamacpp import LlamaCppSettings
from .runner import Runner, RunnerRequest


@dataclass(frozen=True)
class OutputModel:
    """An unpatched model. identity: a digest of it. opened: loads it."""

    row: Row
    identity: str
    opened: Callable[[], AbstractContextManager[Engine]]


class OutputRunner(Runner):
    """Unpatched models, one at a time. models: in the order of the table. receipt, tokenizer: of the output."""

    def __init__(
        self,
        models: Sequence[OutputModel],
        receipt: Receipt,
        tokenizer: Tokenizer,
        runtime: str,
        device: str,
        dtype: str,
    ) -> None:
        self.models = {model.row.name: model for model in models}
        self.source, self.trained = models[0].identity, receipt.schedule.original_context
        self.tokenizer, self.runtime, self.device, self.dtype = tokenizer, runtime, device, dtype
        if not self.trained:
            raise BadSource("the receipt has no trained context; name the source with --against")

    def digest(self, row: Row) -> str:
        return self.models[row.name].identity

    @contextmanager
    def engine(self, row: Row) -> Iterator[Engine]:
        with self.models[row.name].opened() as engine:
            yield engine


@contextmanager
def open_output(request: RunnerRequest) -> Iterator[tuple[Runner, list[Row]]]:
    """The runner of an output, and its rows: the source, where it is named or found, and the output.

    Raises BadSource for another model than an output, and where `request.against` is not its source.
    """
    output = Path(request.model)
    receipt = read_receipt(output)
    comparison = Comparison.open(output, request.against) if request.against else _comparison(output)
    opener = _in_llamacpp if output.suffix == ".gguf" else _in_transformers
    with ExitStack() as stack:
        runner = opener(output, receipt, comparison, request, stack)
        if comparison is None:
            runner.note = (
                f"Its source ({receipt.source.name}) was not found; name it with --against to compare with it."
            )
        yield runner, [model.row for model in runner.models.values()]


def _in_transformers(
    output: Path, receipt: Receipt, comparison: Comparison | None, request: RunnerRequest, stack: ExitStack
) -> OutputRunner:
    """The runner of a folder."""
    trust = needs_trust(output, request.trust_remote_code)
    config = jsontext.parse(read_text(output / "config.json", "config.json"), "config.json")
    at = request.place(config, comparison.stands_for if comparison is not None else "")
    models = []
    if comparison is not None:
        two = comparison.spec.current().short_inv_freq is not None
        models.append(_folder(Row(BASE), two, comparison.checkpoint, at, chunk=request.chunk))
    two = receipt.schedule.short_inv_freq is not None
    models.append(_folder(Row(output.name, path=output), two, FolderSource(output), at, trust, request.chunk))
    tokenizer, where = CheckpointTokenizer(output, trust or at.pickles), at.device_map or at.device
    return OutputRunner(models, receipt, tokenizer, f"transformers {stock_version()}", where, at.dtype)


def _folder(
    row: Row, two_lists: bool, source: Source, at: DeviceSpec, trust: bool = False, chunk: int = 4096
) -> OutputModel:
    """A checkpoint in transformers; with two lists, which it chooses for every chunk, it reads sequences at once."""
    if two_lists:
        chunk = MOST_TOKENS

    @contextmanager
    def opened() -> Iterator[Engine]:
        with folder_of(source, at.dtype) as folder:
            yield TransformersEngine.load(folder, at, trust, chunk)

    return OutputModel(row, source.identity, opened)


def _in_llamacpp(
    output: Path, receipt: Receipt, comparison: Comparison | None, request: RunnerRequest, stack: ExitStack
) -> OutputRunner:
    """The runner of a GGUF file."""
    file = GgufSource(output)
    tokenizer = stack.enter_context(gguf_tokenizer(file.file.path))
    how = LlamaCppSettings.of(request, tokenizer.process.loaded.offloads)
    models = []
    if comparison is not None:
        source = comparison.source
        if isinstance(source, GgufSource):
            models.append(_file(Row(BASE), source, how))
        else:
            models.append(_exported(source, receipt, how))
    models.append(_file(Row(output.stem, path=output), file, how))
    return OutputRunner(models, receipt, tokenizer, runtime(), how.device, how.dtype(file))


def _file(row: Row, file: GgufSource, how: LlamaCppSettings) -> OutputModel:
    """A GGUF file in llama.cpp."""
    return OutputModel(row, file.identity, lambda: how.engine(file.file.path).opened())


def _exported(source: Source, receipt: Receipt, how: LlamaCppSettings) -> OutputModel:
    """A checkpoint as a temporary GGUF file with weights of the same type as an output."""
    options = receipt.target
    target = Target(to="gguf", outtype=options.outtype, pre=options.pre) if options else Target(to="gguf")

    @contextmanager
    def opened() -> Iterator[Engine]:
        with scratch() as folder:
            plan = make_plan(source, Recipe(AsIs()), replace(target, out=folder / "source.gguf"))
            with how.engine(apply(plan, fsync=False, check=False).path).opened() as engine:
                yield engine

    return OutputModel(Row(BASE), text_digest(source.identity, f"{target.outtype} {target.pre}"), opened)


def _comparison(output: Path) -> Comparison | None:
    """The comparison with the source in the receipt, on the Hub or beside the output; None where it is not found."""
    place = source_of(output)
    try:
        return Comparison.open(output, place) if place else None
    except RopeconvError:
        return None
