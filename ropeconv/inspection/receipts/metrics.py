"""The kinds of numbers that evaluations record in a receipt, and how they are shown."""

from collections.abc import Iterable
from dataclasses import dataclass

from .receipt import MeasuredRecord

GROWTH = "growth"
"""The measure from which the price and the length to which a row holds follow."""


@dataclass(frozen=True)
class Metric:
    """A kind of number."""

    title: str
    """The title in tables and plots."""

    decimals: int = 3
    """How many decimals are shown."""

    factor: float = 1.0
    """The factor on a number for display."""

    unit: str = ""
    """The unit after a number in sentences."""

    share: bool = False
    """Whether it is a share of answers, with Wilson's interval."""

    rising: bool = True
    """Whether more is better."""

    shown: bool = False
    """Whether tables have it beside the headline of its measure, as they have shares."""

    def value(self, number: float) -> str:
        """Return a number of this kind for a table."""
        return f"{self.factor * number:z.{self.decimals}f}"

    def difference(self, number: float) -> str:
        """Return a difference with its sign; +0 for one that rounds to 0."""
        return f"{self.factor * number:+z.{self.decimals}f}"

    def error(self, number: float) -> str:
        """Return a standard error, with one significant digit where it would round to 0."""
        error = self.factor * number
        if 0 < error < 0.5 * 10**-self.decimals:
            return f"{error:.1g}"
        return self.value(number)


METRICS = {
    "loss": Metric("loss in nats per token", unit="nat", rising=False),
    "accuracy": Metric("accuracy in %", decimals=0, factor=100, unit="%", share=True),
    "exact": Metric("exact match in %", decimals=0, factor=100, unit="%", share=True),
    "log_prob": Metric("log-probability of the answer in nats per token", decimals=2, unit="nat"),
    "tokens_per_second": Metric("tokens per second", decimals=0),
    "memory": Metric("memory in GiB", decimals=2, unit="GiB", rising=False, shown=True),
}


def metric_of(name: str) -> Metric:
    """Return the metric of a name; an unknown one has its name as title, and more is better."""
    return METRICS.get(name) or Metric(name)


def sample_size(cells: Iterable[MeasuredRecord], unit: str = "") -> str:
    """How many independent windows or texts numbers are from, and how many answers shares are of.

    Such as `"n = 8"`, `"n = 6 to 8"` or `"n = 12 texts, 24 questions"`.

    Args:
        cells: The numbers.
        unit: The name of the independent parts, such as "texts"; empty to leave it out.
    """
    listed = list(cells)
    size = f"n = {_range([cell.clusters for cell in listed])}"
    if unit:
        size += f" {unit}"
    questions = [cell.questions for cell in listed]
    if any(questions):
        size += f", {_range(questions)} questions"
    return size


def _range(counts: Iterable[int]) -> str:
    """Return the smallest and the largest of some numbers: `6 to 8`, or `8` where all are equal."""
    smallest, *others = sorted(set(counts))
    return f"{smallest:,} to {others[-1]:,}" if others else f"{smallest:,}"
