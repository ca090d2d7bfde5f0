"""Comparison: an output, its source, and the schedule that the output has to compute.

`Comparison.open` reads an output, and `Settings` says how both sides run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..convert.from_gguf.source import GgufCheckpoint
from ..engines.transformers.load import DeviceSpec
from ..errors import BadSource, UsageError
from ..formats.kind import is_gguf
from ..inspection.inspection import inspect_source
from ..inspection.receipts.folder import first_source
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import add_validation, read_receipt
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.schema import DUAL_CHUNK
from ..models.source import Source
from ..models.stored.checkpoint import dequantised
from ..options import ValidateOptions
from ..rope.errors import RopeconvError
from ..rope.recipe import Recipe
from ..rope.schedule import LogN, QueryScaling, Schedule, effective_scaling
from ..rope.spec import RopeSpec
from ..runtimes.drafts import DraftKind


@dataclass(frozen=True)
class Comparison:
    """An output and its source, which every validation compares."""

    baked: Path
    """The output, a folder or GGUF file that ropeconv wrote."""

    against: str
    """The source as the user named it."""

    receipt: Receipt
    """The receipt of the output."""

    source: Source | GgufSource

    schedule: Schedule
    """The schedule of the output, from the recipe and the source."""

    spec: RopeSpec
    """The RoPE of the source."""

    draft: DraftKind | None = None
    """The kind of draft model that the source is; None for a whole model."""

    @classmethod
    def open(cls, baked: str | os.PathLike[str], against: str) -> Comparison:
        """Open an output and its source, and compute the schedule that the output must have.

        Args:
            baked: The output.
            against: The path or Hub id of the source. For an output of --replace, this may also be
                the model before the first run of ropeconv.

        Raises:
            BadSource: If `baked` has no receipt, or the recipe gives another schedule for
                `against`.
            UsageError: If both are the same.
        """
        # an output compared with itself would agree, whatever is wrong with it
        baked = Path(baked)
        receipt = read_receipt(baked)
        if Path(against).exists() and baked.samefile(against):
            raise UsageError(
                f"{against} is the output itself, which agrees with whatever it is; name its source"
            )
        if receipt.source.kind == "config":
            raise BadSource(
                f"{baked} has no weights to run; run apply on the folder of the model, and check"
                " that"
            )

        # the source; one that stores its RoPE in tensors cannot be read, and for an output of
        # --replace its own first source does as well
        source = _open_original(str(against), baked, receipt)
        try:
            inspection = inspect_source(source)
        except BadSource as problem:
            if not receipt.target.replace or receipt.original is None:
                raise
            first = receipt.original.source.described
            raise BadSource(
                f"{source.reference} cannot be read ({problem}), and {baked} was made by --replace"
                f" from {first}; name that with --against"
            ) from problem

        # The schedule is computed again from the recipe and the source, instead of trusting the one
        # in the receipt. If the two differ, this is not the source.
        recipe = Recipe.from_dict(receipt.recipe)
        try:
            schedule = inspection.schedule_of(recipe)
        except RopeconvError as problem:
            raise BadSource(
                f"{baked} was not made from {source.reference} ({problem}); name its source,"
                f" {receipt.source.described}"
            ) from None
        if schedule.digest != receipt.schedule.digest:
            raise BadSource(
                f"{baked} was not made from {source.reference}: the recipe gives another schedule;"
                " name its source"
            )

        # what the receipt has beside the recipe: a longer context that the encoding needed, and the
        # ramp of llama.cpp in place of YaRN's
        schedule = replace(schedule, context=receipt.schedule.context or schedule.context)
        if receipt.ramp_approximation is not None:
            schedule = receipt.ramp_approximation.apply_to(schedule)
        return cls(baked, against, receipt, source, schedule, inspection.spec, inspection.draft)

    @property
    def checkpoint(self) -> Source:
        """The source as a checkpoint.

        Raises:
            BadSource: It is a GGUF file.
        """
        if isinstance(self.source, GgufSource):
            raise BadSource(
                f"{self.against} is a GGUF file; give a checkpoint with config.json and safetensors"
            )
        return self.source

    @property
    def loaded_as(self) -> str:
        """The model type with which transformers loads the source; empty for its own."""
        if isinstance(self.source, GgufSource):
            return ""
        family = self.source.family
        return family.text_type if family.assumed else ""

    def checkpoint_or_dequantised(
        self, failure: str = "cannot be dequantised", with_tokenizer: bool = False
    ) -> Source:
        """Return the source as a checkpoint, with the weights of a GGUF file dequantised.

        Args:
            failure: The predicate of the error message for a GGUF file that cannot be converted,
                as in "source.gguf cannot be dequantised (reason); give ...".
            with_tokenizer: Whether to convert the tokenizer of a GGUF file too.

        Raises:
            BadSource: The source is a GGUF file that cannot be converted.
        """
        if not isinstance(self.source, GgufSource):
            return self.source
        checkpoint = GgufCheckpoint(self.source, with_tokenizer=with_tokenizer)
        try:
            checkpoint.files()  # raises where a tensor of the file cannot be converted
        except RopeconvError as problem:
            raise BadSource(
                f"{self.against} {failure} ({problem}); give --against the safetensors checkpoint"
                " of that model"
            ) from None
        return checkpoint

    @property
    def size(self) -> int:
        """Size of the output in bytes."""
        if is_gguf(self.baked):
            paths = list(GgufSource(self.baked).file.paths)
        else:
            paths = [path for path in self.baked.rglob("*.safetensors") if path.is_file()]
        return sum(path.stat().st_size for path in paths)

    @property
    def unchanged(self) -> bool:
        """Whether the source computes the schedule already, so that logits do not change."""
        return self.schedule.digest == self.spec.current().digest

    @property
    def scale(self) -> LogN | QueryScaling | None:
        """The scaling of queries in the output.

        It is log-n, or its approximation where they differ by more than noise.
        """
        steps = self.receipt.log_n_approximation
        if steps is None:
            return self.schedule.log_n
        scaling = QueryScaling(steps.beta, steps.length, steps.gain)
        return effective_scaling(self.schedule.log_n, scaling, steps.deviation)

    @property
    def queries(self) -> str:
        """The end of the name of the last module of the source that outputs unrotated queries."""
        source = self.source
        if isinstance(source, GgufSource):
            source = GgufCheckpoint(source, with_tokenizer=False)
        return source.family.weights.queries

    @property
    def remark(self) -> str:
        """A sentence on what the comparison left out; empty where it compares everything.

        The sentence begins with a space, since it follows another sentence of the report.
        """
        # YaRN with the ramp of llama.cpp. YaRN mixes scaled and unscaled frequencies along a ramp,
        # which llama.cpp computes a little differently. The output and the reference both have the
        # ramp of llama.cpp, so the comparison does not show this difference.
        ramp = self.receipt.ramp_approximation
        if ramp is not None:
            return (
                " This holds for the ramp that llama.cpp computes, not for that of the model:"
                f" {ramp.distance}."
            )

        # A GGUF file has no key for dual chunk attention, so nothing was left out.
        source = self.source
        output_is_gguf = is_gguf(self.baked)
        if output_is_gguf or isinstance(source, GgufSource):
            return ""

        # Dual chunk attention (Qwen2.5-1M). Nothing computes it for a reference: transformers
        # ignores its key, and vLLM and SGLang fail with it.
        was_dropped = self.receipt.target.dual_chunk == "drop"
        has_dual_chunk = bool(text_part(source.config(), source.family).get(DUAL_CHUNK))
        if was_dropped or not has_dual_chunk:
            return ""
        return (
            f" This holds for plain attention: the comparison does not compute {DUAL_CHUNK}, which"
            " is in the config; bake with --dual-chunk drop to remove it."
        )

    def rounded_weights(self, dtype: str) -> tuple[str, ...]:
        """Return the names of weights that a fold rounds, in the files or in a computation.

        Args:
            dtype: The precision of the computation.
        """
        fold = self.receipt.fold
        if fold is None:
            return ()
        if fold.expected_kl or dtype != "float32":
            return fold.tensors
        return ()

    def result_fields(self) -> dict[str, Any]:
        """Return fields of `Validation`: frequencies before and after, trained and new length."""
        frequencies = {
            "before": self.spec.current().inv_freq.tolist(),
            "after": self.schedule.inv_freq.tolist(),
        }
        lengths = {"trained": self.schedule.original_context, "new": self.schedule.context}
        return {"frequencies": frequencies, "lengths": lengths}

    def record(self, result: dict[str, Any], server: str = "") -> None:
        """Write a result into the receipt of the output, or beside a GGUF file.

        Args:
            result: The result as `Validation.to_dict` has it.
            server: The runtime of a server, empty for other results.
        """
        add_validation(self.baked, self.receipt, result, server)


def _open_original(against: str, baked: Path, receipt: Receipt) -> Source | GgufSource:
    """Open the source of an output, converted as `ropeconv apply` converted it for this output.

    Args:
        against: The path or Hub id that the user gave for the source.
        baked: The output, a folder or a GGUF file.
        receipt: The record that apply wrote beside the output. It says how the source was
            converted.

    Returns:
        A checkpoint; or a GGUF file, if the output was made from a GGUF file and is a GGUF file.
    """
    source = open_source(against, receipt.source.family)

    # GGUF file to folder: apply read the GGUF file as a checkpoint.
    if isinstance(source, GgufSource) and baked.is_dir():
        source = GgufCheckpoint(source, receipt.target.outtype or "auto")

    # Published model to output, in one run of apply. The user may instead have given a folder that
    # `apply --as-is` converted from the published model, for example from Meta's layout. The
    # receipt in that folder says where the published model is, which is opened here.
    was_made_in_one_run = receipt.original is not None and len(receipt.steps) == 1
    is_from_published_model = was_made_in_one_run and not receipt.target.replace
    if isinstance(source, Source) and is_from_published_model:
        source = first_source(source)

    # Checkpoint to GGUF file: apply dequantised weights in FP8 before the export.
    if isinstance(source, Source) and is_gguf(baked) and source.weights():
        source = dequantised(source)

    # Draft model for speculative decoding: without this, a draft model is refused.
    source.as_draft = bool(receipt.target.drafts_for)
    return source


@dataclass(frozen=True)
class Settings(ValidateOptions):
    """Options of a validation."""

    device_map: str = ""
    """As in `DeviceSpec`."""

    length: int = 0
    """Tokens of a run over every position, 0 for none."""

    text: Path | str | None = None
    """A file, or as `str` the text itself, to read in place of synthetic tokens.

    `text_or_path` makes it of what people pass.
    """

    trust_remote_code: bool = False
    """Run code that ropeconv did not write, and load pickled weights.

    Such code may be in the output, in tokenizers and in kernels.
    """

    dequantised: bool = False
    """Run the source of a GGUF file in transformers, with its weights dequantised."""

    @property
    def spread(self) -> int:
        """Tokens of each spread run: `tokens`, else 512."""
        if self.tokens:
            return self.tokens
        if not self.length:
            return 512
        # beside a run over every position, spread runs should take a few percent of the time
        return min(512, max(64, self.length // 256))

    def place(self, stored: str = "float32", loaded_as: str = "") -> DeviceSpec:
        """Return the device and the precision in which the models run.

        Args:
            stored: The dtype of the weights on the disk, such as "bfloat16". On a GPU it is used
                for --dtype auto.
            loaded_as: The model type that --family names, such as "llama", for a model that
                transformers does not know; empty for a known model.

        Raises:
            UsageError: The device is not available, or --layer-by-layer is combined with
                --device-map.
        """
        if self.layer_by_layer and self.device_map:
            raise UsageError("--layer-by-layer uses one device; leave --device-map out")
        wanted = DeviceSpec(
            device=self.device,
            dtype=self.dtype,
            device_map=self.device_map,
            loaded_as=loaded_as,
            # pickled weights may run code when they are loaded, so the same option allows them
            pickles=self.trust_remote_code,
            layer_by_layer=self.layer_by_layer,
        )
        return wanted.resolve(stored)
