"""An output of `apply` as stock transformers or llama.cpp loads it, and its source."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ropeconv.bake.apply import apply, make_plan
from ropeconv.bake.evidence import trained_context, trained_scaling
from ropeconv.bake.verify import target_again
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
from ropeconv.inspection.inspection import Inspection, inspect_source
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
from .runner import Runner, RunnerRequest, refuse_without_next_token

Opener = Callable[[], AbstractContextManager[Engine]]
Models = dict[Row, tuple[str, Opener]]
"""The identity of each unpatched model, and a function that loads it, in the order of the table."""


class OutputRunner(Runner):
    """Unpatched models, one at a time."""

    def __init__(
        self,
        models: Models,
        name: str,
        trained: int,
        original_context: int,
        tokenizer: Tokenizer,
        runtime: str,
        device: str,
        dtype: str,
    ) -> None:
        """Name the models; none is loaded yet.

        Args:
            models: The identity of each model, and a function that loads it, by row. The source of
                the output comes first, where it was found.
            name: The name of that source.
            trained: The trained context in tokens by the receipt, 0 where it has none.
            original_context: The context before the scaling of the source, in tokens.
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
        self.model = name
        self.trained = trained
        self.original_context = original_context
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
    """Open an output of `apply` for an evaluation, together with the model it was made from.

    Yields:
        The runner of both models, and the rows of the table: the source, then the output. If the
        source is not found, the output is the only row.

    Raises:
        BadSource: The model is not an output, or `request.against` is not its source.
    """
    output = Path(request.model)
    receipt = read_receipt(output)

    # a Comparison is an output with its source, both opened
    comparison: Comparison | None
    if request.against:  # the user has named the source with --against
        comparison = Comparison.open(output, request.against)
    else:  # the receipt names the source; None if it is not there any more
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
        else:
            runner.sliding_window = comparison.spec.sliding_window or 0
        rows = list(runner.models)
        yield runner, rows


def _open_folder(
    output: Path, receipt: Receipt, comparison: Comparison | None, request: RunnerRequest
) -> OutputRunner:
    """Return the runner of an output folder and its source, which loads one of them at a time.

    Args:
        output: The folder.
        receipt: The receipt of the output.
        comparison: The output and its source, opened; None if the source was not found.
        request: The options of the user.
    """
    folder = FolderSource(output)
    inspection = _inspect_output(folder)
    output_has_code = needs_trust(output, request.trust_remote_code)
    config = jsontext.parse(read_text(output / "config.json", "config.json"), "config.json")
    # the model type as which transformers loads both; empty for the one in the config.json
    loaded_as = comparison.loaded_as if comparison is not None else ""
    request.set_torch_threads()
    device_spec = request.choose_device(config, loaded_as)

    # For each row of the table: a digest of the model, and a function that loads the model. The
    # source is the first row, "base".
    models: Models = {}
    if comparison is not None:
        source = comparison.checkpoint
        has_two_lists = comparison.spec.current().short_inv_freq is not None
        chunk = _tokens_per_chunk(request, has_two_lists)
        # the code that --encoding buffers adds is in the output only
        load_source = partial(_load_checkpoint, source, device_spec, trust=False, chunk=chunk)
        models[Row(BASE)] = (source.identity, load_source)

    has_two_lists = receipt.schedule.short_inv_freq is not None
    chunk = _tokens_per_chunk(request, has_two_lists)
    load_output = partial(_load_checkpoint, folder, device_spec, trust=output_has_code, chunk=chunk)
    made_by = Recipe.from_dict(receipt.recipe)
    row = Row(output.name, path=output, made_by=made_by, receipt=receipt)
    models[row] = (folder.identity, load_output)

    return OutputRunner(
        models,
        name=receipt.source.name,
        trained=_trained_context(inspection, receipt),
        original_context=receipt.schedule.original_context,
        # `pickles` is true with --trust-remote-code, which also allows code of the tokenizer
        tokenizer=CheckpointTokenizer(output, trust=output_has_code or device_spec.pickles),
        runtime=f"transformers {stock_version()}",
        device=device_spec.device_map or device_spec.device,
        dtype=device_spec.dtype,
    )


def _tokens_per_chunk(request: RunnerRequest, has_two_lists: bool) -> int:
    """Return how many tokens a model reads at a time.

    LongRoPE has two lists of frequencies. Transformers chooses a list for each chunk, so a chunk
    must then be a whole sequence.
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
    """Return the runner of a GGUF output and its source, which loads one of them at a time.

    Args:
        output: The file.
        receipt: The receipt of the output.
        comparison: The output and its source, opened; None if the source was not found.
        request: The options of the user.
        stack: Ends the process that runs the tokenizer.
    """
    file = GgufSource(output)
    inspection = _inspect_output(file)
    tokenizer = stack.enter_context(gguf_tokenizer(file.file.path))
    can_use_gpu = tokenizer.loaded.offloads  # whether this llama.cpp was built for a GPU
    options = engine_options(request, can_use_gpu)

    # For each row of the table: a digest of the model, and a function that loads the model. The
    # source is the first row, "base".
    models: Models = {}
    if comparison is not None and isinstance(comparison.source, GgufSource):
        source = comparison.source
        load_source = LlamaCppEngine(source.file.path, **options).opened
        models[Row(BASE)] = (source.identity, load_source)
    elif comparison is not None:
        # the source is a checkpoint, which is converted to GGUF without the method
        identity = text_digest(comparison.source.identity, *_describe_conversion(receipt))
        models[Row(BASE)] = (identity, partial(_load_exported, comparison, options))

    load_output = LlamaCppEngine(file.file.path, **options).opened
    made_by = Recipe.from_dict(receipt.recipe)
    row = Row(output.stem, path=output, made_by=made_by, receipt=receipt)
    models[row] = (file.identity, load_output)

    device, types = device_and_types(file, options)
    return OutputRunner(
        models,
        name=_name_in_gguf(receipt),
        trained=_trained_context(inspection, receipt),
        original_context=receipt.schedule.original_context,
        tokenizer=tokenizer,
        runtime=runtime(),
        device=device,
        dtype=types,
    )


def _inspect_output(output: Source | GgufSource) -> Inspection | None:
    """Return what is read of an output; None where it stores its RoPE in tensors.

    Raises:
        UsageError: It predicts no next token.
    """
    try:
        inspection = inspect_source(output)
    except BadSource:  # stored in tensors, which ropeconv writes for decoders only
        return None
    refuse_without_next_token(inspection)
    return inspection


def _trained_context(inspection: Inspection | None, receipt: Receipt) -> int:
    """Return how many tokens the source of an output was trained with.

    It is the length that the user gave as --original-context, unless the source was trained with a
    scaling.
    """
    if inspection is None:
        return receipt.schedule.original_context
    knows_source = inspection.first is not None
    if knows_source and trained_scaling(inspection):
        return trained_context(inspection)
    return receipt.schedule.original_context


def _name_in_gguf(receipt: Receipt) -> str:
    """Return the name of the source of a GGUF output: `model.gguf`.

    A checkpoint is converted with the types of the output, such as q8_0, and loses otherwise than
    the checkpoint itself. So it has the types in its name: `model-q8_0.gguf`.
    """
    name = receipt.source.name
    types = receipt.target.outtype
    if receipt.source.kind != "gguf" and types:
        name += f"-{types}"
    return f"{name}.gguf"


CONVERSION_OPTIONS = (
    "outtype",
    "tensor_type",
    "output_tensor_type",
    "token_embedding_type",
    "pre",
    "allow_approximate",
    "allow_untested",
    "dual_chunk",
)
"""Options that decide what a checkpoint becomes in GGUF, whatever the method."""


def _describe_conversion(receipt: Receipt) -> Iterator[str]:
    """Yield what losses of a converted checkpoint depend on, for the journal."""
    for name in CONVERSION_OPTIONS:
        yield f"{name} {getattr(receipt.target, name)}"
    if receipt.imatrix is not None:
        yield f"imatrix {receipt.imatrix.sha256}"
    if receipt.converter is not None:
        yield f"converter {receipt.converter.sha256}"


@contextmanager
def _load_exported(comparison: Comparison, options: Mapping[str, Any]) -> Iterator[Engine]:
    """Load the source of an output as a temporary GGUF file that differs from it by its RoPE only.

    Args:
        comparison: The output, converted from a checkpoint, and that checkpoint.
        options: How llama.cpp runs it, as `engine_options` returns it.

    Raises:
        BadSource: The conversion script or the importance matrix of the output is not here.
    """
    again = target_again(comparison)
    kept = {name: getattr(again, name) for name in CONVERSION_OPTIONS}
    with scratch() as folder:
        target = Target(
            to="gguf",
            out=folder / "source.gguf",
            converter=again.converter,
            imatrix=again.imatrix,
            **kept,
        )
        plan = make_plan(comparison.checkpoint, Recipe(AsIs()), target)
        exported = apply(plan, fsync=False, check=False, remember=False)
        with LlamaCppEngine(exported.path, **options).opened() as engine:
            yield engine


def _find_comparison(output: Path) -> Comparison | None:
    """Return an output with the source that its receipt names; None if that is not found."""
    source = find_source(output)  # a path or a name on the Hub; empty where there is none
    if not source:
        return None
    try:
        return Comparison.open(output, source)
    except RopeconvError:
        return None
