"""Numbers of several models on several documents: their errors, and which differences are
decided.
"""

from dataclasses import dataclass

import numpy as np

from ropeconv.bake.proof import FEWEST, Sample, critical

from .measuring import Numbers


@dataclass(frozen=True)
class Estimate:
    """A mean over models and documents."""

    value: float
    """The mean."""

    between_documents: float | None
    """Its standard error from the differences between documents; None for fewer than two."""

    between_models: float | None
    """The same between models trained with other seeds; None for a single one."""

    documents: int
    models: int

    @property
    def error(self) -> float | None:
        """The root of the sum of both squares; None where neither is known.

        What differs by document and model at once is in both, so this is rather too large than too
        small.
        """
        known = [
            error**2 for error in (self.between_documents, self.between_models) if error is not None
        ]
        return float(np.sqrt(sum(known))) if known else None

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the error, rounded down; 0 where a part is not known.

        With the errors e_i of documents and models, and n_i their numbers, Welch (1947) has
        (sum e_i^2)^2 / sum(e_i^4 / (n_i - 1)).
        """
        if self.between_documents is None or self.between_models is None:
            return 0
        of_documents = self.between_documents**2
        of_models = self.between_models**2
        spread = of_documents**2 / (self.documents - 1) + of_models**2 / (self.models - 1)
        if not spread:
            return 0
        return int((of_documents + of_models) ** 2 / spread)


def estimate(numbers: Numbers) -> Estimate:
    """The mean of float64 [models, documents], which may be paired differences."""
    models, documents = numbers.shape
    means = numbers.mean(0)
    codes = np.arange(documents, dtype=np.int64)
    by_document = Sample(means, np.ones(documents), codes, codes).error
    by_model = float(numbers.mean(1).std(ddof=1) / np.sqrt(models)) if models > 1 else None
    return Estimate(float(numbers.mean()), by_document, by_model, documents, models)


@dataclass(frozen=True)
class Comparison:
    """A paired difference."""

    name: str
    """The rows that are compared, such as "yarn minus linear"."""

    difference: Estimate
    """First minus second."""

    agreeing: int
    """How many models have a mean with the sign of the difference."""

    published: float | None = None
    """The difference that was published, in the same unit; None where it is not at hand."""

    claimed: int | None = None
    """The sign that was published, 0 for hardly any difference; None where nothing is claimed."""

    @property
    def decided(self) -> bool:
        """Whether Student's t tells the difference from 0, at the level of `eval`, and each model
        has its sign.
        """
        estimate = self.difference
        if estimate.documents < FEWEST or estimate.freedom < 1 or self.agreeing < estimate.models:
            return False
        return abs(estimate.value) > critical(estimate.freedom) * (estimate.error or 0.0)

    @property
    def verdict(self) -> str:
        """Whether it is decided and, where a sign was published, whether it is that one."""
        if not self.decided:
            return "not decided"
        if not self.claimed:
            return "decided" if self.claimed is None else "decided, published as about 0"
        return (
            "decided, as published"
            if self.claimed * self.difference.value > 0
            else "decided, not as published"
        )

    @property
    def expected(self) -> str:
        """The published difference or sign, in words."""
        if self.published is not None:
            return f"{self.published:+.2f}"
        return (
            "not at hand"
            if self.claimed is None
            else {-1: "below 0", 0: "about 0", 1: "above 0"}[self.claimed]
        )


def compare(
    name: str,
    first: Numbers,
    second: Numbers,
    published: float | None = None,
    claimed: int | None = None,
) -> Comparison:
    """Compare two rows of the same models on the same documents.

    Args:
        name: The rows that are compared, in words.
        first: The numbers of the first row, float64 [models, documents].
        second: Those of the second one.
        published: The published difference, first minus second; None without one.
        claimed: Its sign, where only that was published.
    """
    paired = first - second
    difference = estimate(paired)
    agreeing = int((np.sign(paired.mean(1)) == np.sign(difference.value)).sum())
    sign = claimed if published is None else int(np.sign(published))
    return Comparison(name, difference, agreeing, published, sign)
