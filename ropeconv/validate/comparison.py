"""Comparison: an output, its source, and the schedule that the output has to compute."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..convert.from_gguf.source import GgufCheckpoint
from ..engines.transformers.load import DeviceSpec, device_spec
from ..errors import BadSource
from ..inspection.inspection import inspect_source
from ..inspection.receipts.folder import first_source
from ..inspection.receipts.reader import read_receipt
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.writer import add_validation
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import Source
from ..options import ValidateOptions
from ..rope.errors import RopeconvError
from ..rope.recipe import Recipe
from ..rope.schedule import LogN, QueryScaling, Schedule, effective_scaling
from ..rope.spec import RopeSpec


@dataclass(frozen=True)
class Comparison:
    """An output and its source, which every validation compares.

    baked: the output, a folder or GGUF file that ropeconv wrote. against: how the user named the source. receipt: of
    the output. source: that it was made from. schedule: what it has to compute, from the recipe and the source. spec:
    the RoPE of the source.
    """

    baked: Path
    against: str
    receipt: Receipt
    source: Source | GgufSource
    schedule: Schedule
    spec: RopeSpec

    @classmethod
    def open(cls, baked: str | os.PathLike[str], against: str) -> Comparison:
        """Opens an output and its source.

        baked: the output. against: the path or Hub id of the source. Raises BadSource where `baked` has no receipt, and
        where the recipe gives another schedule for `against`, which with --replace may be the first source of one that
        stores its RoPE.
        """
        baked = Path(baked)
        receipt = read_receipt(baked)
        source = open_source(str(against), receipt.source.family)
        if isinstance(source, GgufSource) and baked.is_dir():
            source = GgufCheckpoint(source, receipt.target.outtype or "auto")
        made_once = receipt.original is not None and len(receipt.steps) == 1 and not receipt.target.replace
        if isinstance(source, Source) and made_once:  # Meta's layout is compared with a conversion of it by --as-is
            source = first_source(source)
        recipe = Recipe.from_dict(receipt.recipe)
        try:
            seen = inspect_source(source)
        except BadSource as problem:
            if not receipt.target.replace or receipt.original is None:
                raise
            first = receipt.original.source.described
            raise BadSource(
                f"{source.reference} cannot be compared with, and {baked} was made from its own source, {first}, by "
                "--replace: name that with --against"
            ) from problem
        spec = seen.spec
        basis = seen.basis(recipe)
        schedule = recipe.schedule(recipe.start(basis), basis)
        if schedule.digest != receipt.schedule.digest:
            raise BadSource(
                f"{source.reference} is not what {baked} was made from: the recipe gives another schedule; name its "
                "source"
            )
        schedule = replace(schedule, context=receipt.schedule.context or schedule.context)
        return cls(baked, against, receipt, source, schedule, spec)

    @property
    def checkpoint(self) -> Source:
        """The source as a checkpoint. Raises BadSource for GGUF."""
        if isinstance(self.source, GgufSource):
            raise BadSource(f"{self.against} is GGUF, and a checkpoint with config.json and safetensors is needed here")
        return self.source

    @property
    def stands_for(self) -> str:
        """The model type with which transformers loads a source that is treated as another family; empty for others."""
        family = None if isinstance(self.source, GgufSource) else self.source.family
        return family.text_type if family and family.assumed else ""

    def checkpoint_or_dequantised(self, cannot: str = "cannot be dequantised", with_tokenizer: bool = False) -> Source:
        """The source as a checkpoint, with the weights of a GGUF file dequantised.

        cannot: what the message says of a GGUF file that cannot be converted, for which BadSource is raised.
        with_tokenizer: whether its tokenizer is made too.
        """
        if not isinstance(self.source, GgufSource):
            return self.source
        checkpoint = GgufCheckpoint(self.source, with_tokenizer=with_tokenizer)
        try:
            checkpoint.files()
        except RopeconvError as problem:
            raise BadSource(
                f"{self.against} {cannot} ({problem}); give --against the safetensors checkpoint of that model"
            ) from None
        return checkpoint

    @property
    def size(self) -> int:
        """Size of the output in bytes."""
        if self.baked.suffix == ".gguf":
            return sum(path.stat().st_size for path in GgufSource(self.baked).file.paths)
        return sum(path.stat().st_size for path in self.baked.rglob("*.safetensors") if path.is_file())

    @property
    def unchanged(self) -> bool:
        """Whether the schedule is that of the source, so that logits do not change."""
        return self.schedule.digest == self.spec.current().digest

    @property
    def scale(self) -> LogN | QueryScaling | None:
        """The scaling of queries in the output: log-n, or its approximation where they differ by more than noise."""
        found = self.receipt.log_n_approximation
        if found is None:
            return self.schedule.log_n
        written = QueryScaling(found.beta, found.length, found.gain)
        return effective_scaling(self.schedule.log_n, written, found.deviation)

    @property
    def queries(self) -> str:
        """The end of the name of the last module before the rotation that outputs queries, in the source."""
        source = self.source
        if isinstance(source, GgufSource):
            source = GgufCheckpoint(source, with_tokenizer=False)
        weights = source.family.weights
        return weights.q_norm or weights.q

    def rounded_weights(self, dtype: str) -> tuple[str, ...]:
        """Names of the weights that a fold has rounded, in the files or when they are computed with in `dtype`."""
        fold = self.receipt.fold
        return fold.tensors if fold and (fold.expected_kl or dtype != "float32") else ()

    def described(self) -> dict[str, Any]:
        """Fields of `Validation`: frequencies before and after, trained and new length, and `unrotated`."""
        frequencies = {"before": self.spec.current().inv_freq.tolist(), "after": self.schedule.inv_freq.tolist()}
        lengths = {"trained": self.schedule.original_context, "new": self.schedule.context}
        return {"frequencies": frequencies, "lengths": lengths, "unrotated": self.spec.unrotated}

    def record(self, result: dict[str, Any], server: str = "") -> None:
        """Writes a result into the receipt of the output, or beside a GGUF file.

        result: as `Validation.to_dict` has it. server: the runtime of a server, empty for other results.
        """
        add_validation(self.baked, self.receipt, result, server)


@dataclass(frozen=True)
class Settings(ValidateOptions):
    """Options of a validation.

    device_map: as in `device_spec`. tokens: of each spread run (by default 512, fewer with `length`); for GGUF the
    length of the sequence. length: tokens of a run over every position, 0 for none. text: a file to read in place of
    synthetic tokens. trust_remote_code: run code of the output, of tokenizers and of kernels that ropeconv has not
    written, and load pickled weights. config_reference: also run the source with the method in its config. dequantised:
    run the source of a GGUF file in transformers, with its weights dequantised. The others are in `ValidateOptions`.
    """

    device_map: str = ""
    length: int = 0
    text: Path | None = None
    trust_remote_code: bool = False
    config_reference: bool = False
    dequantised: bool = False

    @property
    def spread(self) -> int:
        """Tokens of each spread run: `tokens`, else 512, or with `length` fewer, to take some percent of its time."""
        return self.tokens or (min(512, max(64, self.length // 256)) if self.length else 512)

    def place(self, stored: str = "float32", stands_for: str = "") -> DeviceSpec:
        """Device and precision. stored, stands_for: as for `device_spec`, which also says what it raises."""
        at = device_spec(self.device, self.dtype, self.device_map, stored, stands_for, self.trust_remote_code)
        return replace(at, layer_by_layer=self.layer_by_layer)
