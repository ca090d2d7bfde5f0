"""Comparison: an output beside what it was made from, opened once, with what it has to compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..families.config import detect
from ..inspection import inspect_source
from ..receipts import Receipt, add_validation, read_receipt
from ..rope.log_n import LogN, QueryScaling, effective_scaling
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..sources import GgufSource, Source, open_source


@dataclass(frozen=True)
class Comparison:
    """What every validation starts from.

    baked: a folder or GGUF file that ropeconv wrote. against: how the source was named. receipt: of `baked`. source:
    what it was made from. schedule: what it has to compute, made again from the recipe and the source. spec: the RoPE
    of the source.
    """

    baked: Path
    against: str
    receipt: Receipt
    source: Source | GgufSource
    schedule: Schedule
    spec: RopeSpec

    @classmethod
    def open(cls, baked: Path, against: str) -> Comparison:
        """Reads the receipt, the source, the expected schedule and the RoPE before, each once.

        Raises BadSource when `baked` has no receipt, or `against` is not what it was made from.
        """
        receipt, source = read_receipt(baked), open_source(against)
        recipe = Recipe.from_dict(receipt.recipe)
        spec = inspect_source(source).spec
        start = spec if isinstance(recipe.method, AsIs) or not spec.scaled else spec.unscaled()
        schedule = recipe.schedule(start)
        if schedule.digest != receipt.schedule.digest:
            raise BadSource(
                f"{source.reference} is not what {baked} was made from: the recipe gives another schedule; name its "
                "source"
            )
        schedule = replace(schedule, context=receipt.schedule.context or schedule.context)
        return cls(baked, against, receipt, source, schedule, spec)

    @property
    def checkpoint(self) -> Source:
        """The source, where it is a checkpoint. Raises BadSource for GGUF."""
        if isinstance(self.source, GgufSource):
            raise BadSource(f"{self.against} is GGUF, and a checkpoint with config.json and safetensors is needed here")
        return self.source

    @property
    def unchanged(self) -> bool:
        """Whether the recipe changes nothing that the source computes."""
        return self.schedule.digest == self.spec.current().digest

    @property
    def scale(self) -> LogN | QueryScaling | None:
        """By what queries are scaled: log-n, or what was written for it where that is more than noise away."""
        found = self.receipt.log_n_approximation
        if found is None:
            return self.schedule.log_n
        written = QueryScaling(found.beta, found.length, found.gain)
        return effective_scaling(self.schedule.log_n, written, found.deviation)

    @property
    def queries(self) -> str:
        """Name of the last module of the source before the rotation that yields queries."""
        weights = detect(self.checkpoint.config()).weights
        return weights.q_norm or weights.q

    def rounded_weights(self, dtype: str) -> tuple[str, ...]:
        """Names of the weights that a fold has rounded, as they are stored or as they are computed with in `dtype`."""
        fold = self.receipt.fold
        return fold.tensors if fold and (fold.expected_kl or dtype != "float32") else ()

    def described(self) -> dict[str, Any]:
        """What a report says of the schedule: its frequencies beside those before, and the lengths."""
        frequencies = {"before": self.spec.current().inv_freq.tolist(), "after": self.schedule.inv_freq.tolist()}
        lengths = {"trained": self.schedule.original_context, "new": self.schedule.context}
        return {"frequencies": frequencies, "lengths": lengths, "unrotated": self.spec.unrotated}

    def record(self, result: dict[str, Any], server: str = "") -> None:
        """Writes a result, as `Validation.to_dict` has it, beside the receipt. server: what a server runs, or empty."""
        add_validation(self.baked, self.receipt, result, server)
