"""Baked: an output of `apply` as stock transformers or llama.cpp loads it, and its source before it."""

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
from ...inspection.receipts.reader import read_receipt
from ...inspection.receipts.receipt import Receipt
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
from .llamacpp import HowToRun
from .runner import Runner, RunnerRequest


@dataclass(frozen=True)
class OutputModel:
    """A model that is loaded as it is. row: of it. identity: what tells it from others. opened: loads it."""

    row: Row
    identity: str
    opened: Callable[[], AbstractContextManager[Engine]]


class OutputRunner(Runner):
    """Models that are loaded as they are, one at a time.

    models: in the order of the table. receipt: of the output. tokenizer: of it. runtime, device, dtype: as in Runner.
    """

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
            raise BadSource("its receipt does not state the trained context; name the source with --against")

    def digest(self, row: Row) -> str:
        return self.models[row.name].identity

    @contextmanager
    def engine(self, row: Row) -> Iterator[Engine]:
        with self.models[row.name].opened() as engine:
            yield engine


@contextmanager
def open_baked(asked: RunnerRequest) -> Iterator[tuple[Runner, list[Row]]]:
    """The runner of an output, and its rows: the source, where it is named or found, and the output.

    Raises BadSource where it is no output of ropeconv, and where `asked.against` is not its source.
    """
    baked = Path(asked.model)
    receipt = read_receipt(baked)
    comparison = Comparison.open(baked, asked.against) if asked.against else _found(baked, receipt)
    opener = _in_llamacpp if baked.suffix == ".gguf" else _in_transformers
    with ExitStack() as stack:
        runner = opener(baked, receipt, comparison, asked, stack)
        if comparison is None:
            runner.note = (
                f"Its source ({receipt.source.name}) was not found; name it with --against to compare with it."
            )
        yield runner, [model.row for model in runner.models.values()]


def _in_transformers(
    baked: Path, receipt: Receipt, comparison: Comparison | None, asked: RunnerRequest, stack: ExitStack
) -> OutputRunner:
    """The runner of a folder."""
    trust = needs_trust(baked, asked.trust_remote_code)
    config = jsontext.parse(read_text(baked / "config.json", "config.json"), "config.json")
    at = asked.place(config, comparison.stands_for if comparison is not None else "")
    models = []
    if comparison is not None:
        two = comparison.spec.current().short_inv_freq is not None
        models.append(_folder(Row(BASE), two, comparison.checkpoint, at, chunk=asked.chunk))
    two = receipt.schedule.short_inv_freq is not None
    models.append(_folder(Row(baked.name, path=baked), two, FolderSource(baked), at, trust, asked.chunk))
    tokenizer, where = CheckpointTokenizer(baked, trust or at.pickles), at.device_map or at.device
    return OutputRunner(models, receipt, tokenizer, f"transformers {stock_version()}", where, at.dtype)


def _folder(
    row: Row, two_lists: bool, source: Source, at: DeviceSpec, trust: bool = False, chunk: int = 4096
) -> OutputModel:
    """A checkpoint in transformers, which takes one of two lists anew for every chunk and so reads them at once."""
    if two_lists:
        chunk = MOST_TOKENS

    @contextmanager
    def opened() -> Iterator[Engine]:
        with folder_of(source, at.dtype) as folder:
            yield TransformersEngine.load(folder, at, trust, chunk)

    return OutputModel(row, source.identity, opened)


def _in_llamacpp(
    baked: Path, receipt: Receipt, comparison: Comparison | None, asked: RunnerRequest, stack: ExitStack
) -> OutputRunner:
    """The runner of a GGUF file. Parameters are those of `_in_transformers`."""
    file = GgufSource(baked)
    tokenizer = stack.enter_context(gguf_tokenizer(file.file.path))
    how = HowToRun.of(asked, tokenizer.process.loaded.offloads)
    models = []
    if comparison is not None:
        source = comparison.source
        made = _file(Row(BASE), source, how) if isinstance(source, GgufSource) else _exported(source, receipt, how)
        models.append(made)
    models.append(_file(Row(baked.stem, path=baked), file, how))
    return OutputRunner(models, receipt, tokenizer, runtime(), how.device, how.dtype(file))


def _file(row: Row, file: GgufSource, how: HowToRun) -> OutputModel:
    """A GGUF file in llama.cpp."""
    return OutputModel(row, file.identity, lambda: how.engine(file.file.path).opened())


def _exported(source: Source, receipt: Receipt, how: HowToRun) -> OutputModel:
    """A checkpoint as a GGUF file with weights of the same type as an output, which is there while it runs."""
    written = receipt.target
    target = Target(to="gguf", outtype=written.outtype, pre=written.pre) if written else Target(to="gguf")

    @contextmanager
    def opened() -> Iterator[Engine]:
        with scratch() as folder:
            plan = make_plan(source, Recipe(AsIs()), replace(target, out=folder / "source.gguf"))
            with how.engine(apply(plan, fsync=False, check=False).path).opened() as engine:
                yield engine

    return OutputModel(Row(BASE), text_digest(source.identity, f"{target.outtype} {target.pre}"), opened)


def _found(baked: Path, receipt: Receipt) -> Comparison | None:
    """The comparison with the source that a receipt names, on the Hub or beside `baked`; None without it."""
    named = receipt.source
    beside = [baked.parent / name for name in (named.name, f"{named.name}.gguf")]
    places = [str(path) for path in beside if path.exists() and path.resolve() != baked.resolve()]
    if named.repository:
        file = (named.reference or "").split("@")[0].removeprefix(named.repository)
        places.insert(0, f"{named.repository}@{named.commit}{file if named.kind == 'gguf' else ''}")
    for place in places:
        try:
            return Comparison.open(baked, place)
        except RopeconvError:
            continue
    return None
