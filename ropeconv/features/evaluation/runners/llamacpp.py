"""The rows of a GGUF file in llama.cpp, each as `apply` writes it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropeconv.bake.apply import apply, make_plan
from ropeconv.bake.evidence import trained_context
from ropeconv.bake.gguf import GgufPlan
from ropeconv.convert.target import Target
from ropeconv.engines.engine import Engine
from ropeconv.engines.llamacpp import LlamaCppEngine, runtime
from ropeconv.engines.llamacpp_program import Override
from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.formats.disk import free_bytes, human, same_blocks
from ropeconv.formats.files import scratch
from ropeconv.formats.gguf.edit import Edit
from ropeconv.formats.gguf.header import TYPES
from ropeconv.inspection.inspection import inspect_gguf
from ropeconv.models.gguf import GgufSource
from ropeconv.models.source import RECEIPT
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.vectors import AsIs
from ropeconv.runtimes.llamacpp.read_header import arch_of
from ropeconv.verbs.rows import Row

from ..texts import Tokenizer
from .runner import Runner, RunnerRequest, memory_sentence

KINDS: Mapping[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}
MOST_TOKENS_PER_BATCH = 512
MOST_OVERRIDE_BYTES = 127
"""Bytes of the longest string that can be given at loading."""


def engine_options(request: RunnerRequest, offloads: bool) -> dict[str, Any]:
    """Return the options with which llama.cpp runs a model, such as {"cache": "f16", "gpu": True}.

    Args:
        request: The options of the user, such as --device and --dtype.
        offloads: Whether llama.cpp was built for a GPU.

    Raises:
        UsageError: llama.cpp does not support the device or the precision.
    """
    if request.dtype not in ("auto", "float16", "float32"):
        raise UsageError(
            f"llama.cpp has no {request.dtype} cache; give --dtype float16 or float32, or leave"
            " it out"
        )
    if request.device not in ("auto", "cpu") and not offloads:
        raise UsageError(
            f"--device {request.device}: the installed llama.cpp was built without a GPU; install"
            " llama-cpp-python again with CMAKE_ARGS=-DGGML_CUDA=on, or leave --device out"
        )
    # llama.cpp runs the weights in the types of the file. --dtype changes only the KV cache, and
    # float32 turns off flash attention too.
    exact = request.dtype == "float32"
    options = {
        "gpu": offloads and request.device != "cpu",
        "plain": exact,  # without flash attention
        "cache": "f32" if exact else "f16",
        "batch": min(request.chunk, MOST_TOKENS_PER_BATCH),
    }
    if request.threads:
        options["threads"] = request.threads
    return options


def device_and_types(file: GgufSource, options: Mapping[str, Any]) -> tuple[str, str]:
    """Return the device, and the types of weights and cache, for the result."""
    device = "gpu" if options["gpu"] else "cpu"
    weights = TYPES[file.file.usual_type].name
    cache = "float32" if options["plain"] else "float16"
    return device, f"{weights} with {cache} keys and values"


class LlamaCppRunner(Runner):
    """Rows with a recipe, on one GGUF file.

    A row is loaded with other metadata keys where they express it, otherwise from a copy.
    """

    def __init__(
        self, source: GgufSource, tokenizer: Tokenizer, options: Mapping[str, Any]
    ) -> None:
        """Name the file; it is not loaded yet.

        Args:
            source: The file.
            tokenizer: Its tokenizer.
            options: How llama.cpp runs it, as `engine_options` returns it: {"cache": "f16", ...}.
        """
        self.file = source
        self.options = options
        self.tokenizer = tokenizer
        self.source = source.identity
        self.inspection = inspect_gguf(source)
        self.trained = trained_context(self.inspection)
        self.original_context = self.inspection.first_spec.original_context
        self.sliding_window = self.inspection.spec.sliding_window or 0
        self.runtime = runtime()
        self.device, self.dtype = device_and_types(source, options)
        self.plans = dict[str, GgufPlan]()

    def digest(self, row: Row) -> str:
        row.refuse_other()
        if row.recipe is None:
            return self.inspection.spec.current().digest
        plan = self.plan(row)
        return f"{plan.schedule.digest} {plan.result.encoding} {plan.result.arch}"

    def memory(self, tokens: int) -> str:
        weights = sum(path.stat().st_size for path in self.file.file.paths)
        width = 4 if self.options["plain"] else 2
        return memory_sentence(weights, self.inspection.kv_cache, tokens, width)

    @contextmanager
    def engine(self, row: Row) -> Iterator[Engine]:
        with ExitStack() as stack:
            path = self.file.path
            overrides = None
            if row.recipe is not None:
                # other metadata keys, where llama.cpp can be given them; else a copy with the row
                overrides = overrides_of(self.plan(row).edit, self.file)
                if overrides is None:
                    folder = stack.enter_context(scratch())
                    path = self._write_copy(row, folder)
            loading = LlamaCppEngine(path, overrides, **self.options)
            yield stack.enter_context(loading.opened())

    def plan(self, row: Row) -> GgufPlan:
        """Return the plan of `apply` for a row, made once.

        Raises:
            RopeconvError: As `make_plan` does.
        """
        if row.name not in self.plans:
            self.plans[row.name] = self._make_plan(row)
        return self.plans[row.name]

    def _make_plan(self, row: Row, out: Path | None = None) -> GgufPlan:
        """Return the plan of a GGUF file with the method of a row, such as YaRN by 4.

        Args:
            row: A row with a recipe.
            out: The path of the file; None where only its metadata keys are needed.

        Raises:
            UnsupportedBake: llama.cpp cannot compute the method for this model.
        """
        assert row.recipe is not None
        # a method starts from the unscaled model, unless the recipe builds on its scaling
        keeps_scaling = row.recipe.on_top or isinstance(row.recipe.method, AsIs)
        replaces_scaling = self.inspection.extended and not keeps_scaling
        target = Target(out=out, replace=replaces_scaling)

        # llama.cpp scales queries by position (log-n) only for some architectures. If the file's
        # own architecture is not one of them, the file is declared as another architecture that
        # computes the same layers (a carrier), such as llama for qwen2.
        carriers_to_try: list[str | None] = [None]  # None: the file's own architecture
        if row.recipe.log_n:
            gguf_file = self.file.file
            carriers_to_try += arch_of(gguf_file).carriers

        problems = []
        for carrier in carriers_to_try:
            try:
                plan = make_plan(self.file, row.recipe, replace(target, carrier=carrier))
            except UnsupportedBake as problem:
                problems.append(problem)
            else:
                assert isinstance(plan, GgufPlan)
                return plan
        raise problems[-1]  # the reason that the last carrier does not work

    def _write_copy(self, row: Row, folder: Path) -> Path:
        """Copy the file with the row; the copy shares the weights where the disk supports it."""
        plan = self._make_plan(row, folder / "row.gguf")
        needed = sum(file.size for file in plan.files)
        free = free_bytes(folder)
        if needed > free and not same_blocks(self.file.path, folder):
            raise RopeconvError(
                f"{row.name} needs a copy of {human(needed)}, and {human(free)} are free in"
                f" {folder.parent.parent}; set TMPDIR to a larger disk, best to the one of the"
                " model"
            )
        return apply(plan, fsync=False, check=False, remember=False).path


def overrides_of(edit: Edit, source: GgufSource) -> dict[str, Override] | None:
    """Return the edit of a GGUF file as metadata keys that llama.cpp replaces while it loads.

    {"llama.rope.scaling.factor": ("float", 4.0)}, say. llama.cpp can do that for some types of
    values (`llama_model_kv_override`), and then a method is measured without a file of its own.

    Args:
        edit: The change of the file.
        source: The file before it.

    Returns:
        Types and values by key; None where the edit changes more of a file than these.
    """
    # tensors and the architecture cannot be overridden, and no key can be removed
    rest = replace(edit, values={}, dropped=frozenset())
    removed_keys = edit.dropped & source.file.header.values.keys()
    if rest != Edit() or removed_keys:
        return None

    overrides: dict[str, Override] = {}
    for key, encoded in edit.values.items():
        if key == RECEIPT:  # llama.cpp does not read it
            continue
        value = encoded.decode()
        kind = KINDS.get(type(value))
        is_array = kind is None
        is_too_long = len(str(value).encode()) > MOST_OVERRIDE_BYTES
        if is_array or is_too_long:
            return None
        overrides[key] = (kind, value)  # type: ignore[assignment]
    return overrides
