"""A checkpoint in transformers, whose rotary modules are patched for each row."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ropeconv.bake.evidence import trained_context
from ropeconv.bake.start import complete_recipe, not_extended
from ropeconv.engines.engine import Engine, Progress, TokenLosses
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec
from ropeconv.engines.transformers.patch import Undo, patch
from ropeconv.inspection.inspection import ConfigInspection
from ropeconv.models.source import Source
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.validate.checkpoint import stock_version
from ropeconv.verbs.rows import Row

from ..texts import CheckpointTokenizer
from .runner import Runner, memory_sentence


class TwoListEngine(Engine):
    """A loaded checkpoint with a long and a short list, which are chosen for whole sequences.

    transformers chooses at every forward pass, so that the first chunks of a long sequence would
    have the short list.
    """

    def __init__(
        self,
        loaded: TransformersEngine,
        schedule: Schedule,
        patch: Callable[[Schedule], Callable[[], None]],
    ) -> None:
        """Keep the arguments; each pass patches the checkpoint for its own length.

        Args:
            loaded: The checkpoint.
            schedule: The frequencies, with a short list for prompts within the trained length and
                a long one for others, as in LongRoPE.
            patch: Makes the checkpoint compute a schedule, and returns a function that undoes it.
        """
        self.loaded = loaded
        self.schedule = schedule
        self.patch = patch
        self.runtime = loaded.runtime

    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        with self._for(len(ids)):
            return self.loaded.token_losses(ids, targets, progress)

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        # transformers chooses when it reads the prompt, whose keys then stay in the cache
        with self._for(len(ids)):
            return self.loaded.generate(ids, count)

    def not_finite_in(self, ids: Sequence[int]) -> str:
        with self._for(len(ids)):
            return self.loaded.not_finite_in(ids)

    @contextmanager
    def _for(self, length: int) -> Iterator[None]:
        """Use the short or the long list in this block, as a pass over `length` tokens does."""
        inv_freq = self.schedule.inv_freq
        if length <= self.schedule.original_context:
            assert self.schedule.short_inv_freq is not None
            inv_freq = self.schedule.short_inv_freq
        undo = self.patch(replace(self.schedule, inv_freq=inv_freq, short_inv_freq=None))
        try:
            yield
        finally:
            undo()


class CheckpointRunner(Runner):
    """Rows with a recipe, on one load of the source in transformers.

    Patching another row takes milliseconds.
    """

    swaps = True

    def __init__(
        self,
        source: Source,
        folder: Path,
        inspection: ConfigInspection,
        device_spec: DeviceSpec,
        chunk: int = 4096,
    ) -> None:
        """Read the tokenizer; the model is loaded on first use.

        Args:
            source: The checkpoint.
            folder: The files of the checkpoint on this disk.
            inspection: The RoPE of the checkpoint.
            device_spec: Device and precision.
            chunk: Tokens that the model reads at a time.
        """
        # how the model is loaded
        self.folder = folder
        self.device_spec = device_spec
        self.chunk = chunk
        self.family = source.family
        self.inspection = inspection
        # `pickles` is true with --trust-remote-code, which also allows code of the tokenizer
        self.tokenizer = CheckpointTokenizer(folder, trust=device_spec.pickles)

        # what the result and the journal say about the run
        self.source = source.identity  # a digest
        self.trained = trained_context(inspection)
        self.original_context = inspection.first_spec.original_context
        self.sliding_window = inspection.spec.sliding_window or 0
        self.runtime = f"transformers {stock_version()}"
        self.device = device_spec.device_map or device_spec.device
        self.dtype = device_spec.dtype

    @cached_property
    def loaded(self) -> TransformersEngine:
        """The model, which is loaded on first use."""
        return TransformersEngine.load(self.folder, self.device_spec, chunk=self.chunk)

    def schedule(self, row: Row) -> Schedule:
        """Return the frequencies and the attention factor that a row of the table computes.

        Args:
            row: A recipe, such as YaRN by 4, or the unchanged model.

        Raises:
            UnsupportedBake: The family cannot be extended.
        """
        row.refuse_other()  # rows that are a path or a URL
        if row.recipe is None:  # the unchanged model
            return self.inspection.spec.current()
        if self.inspection.refuse:
            raise not_extended(self.inspection.display_name, self.inspection.refuse)

        recipe = complete_recipe(row.recipe, self.inspection)
        return self.inspection.schedule_of(recipe)

    @property
    def unscaled(self) -> RopeSpec:
        """The RoPE that recipes start from: the first one, without scaling."""
        first = self.inspection.first_spec
        return first.unscaled() if first.scaled else first

    def digest(self, row: Row) -> str:
        schedule = self.schedule(row)
        if schedule.short_inv_freq is None:
            return schedule.digest
        # Older journals have answers under the digest of the schedule only, and those may have the
        # wrong list: the tokens that could be generated were counted too.
        return f"{schedule.digest} chosen by the prompt"

    def memory(self, tokens: int) -> str:
        weights = sum(weight.nbytes for weight in self.loaded.model.parameters())
        width = 4 if self.device_spec.dtype == "float32" else 2
        return memory_sentence(weights, self.inspection.kv_cache, tokens, width)

    def engine(self, row: Row) -> AbstractContextManager[Engine]:
        schedule = self.schedule(row)
        if row.recipe is None and schedule.short_inv_freq is None:
            return nullcontext(self.loaded)
        return self.patched(schedule)

    @contextmanager
    def patched(self, schedule: Schedule) -> Iterator[Engine]:
        """Yield the loaded model, patched to compute a schedule inside the block."""
        if schedule.short_inv_freq is not None:
            yield TwoListEngine(self.loaded, schedule, self._patch)
            return
        undo = self._patch(schedule)
        try:
            yield self.loaded
        finally:
            undo()

    def _patch(self, schedule: Schedule) -> Undo:
        spec = self.inspection.spec
        queries = self.family.weights.queries
        return patch(self.loaded.model, schedule, spec.mla, schedule.log_n, queries)
