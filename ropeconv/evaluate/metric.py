"""Metric: what kinds of numbers are measured, and how each is written; METRICS by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A kind of number.

    title: in tables and plots. decimals: that are shown. factor: that is shown per unit. unit: behind a number in
    sentences. share: whether it is a share of answers, with Wilson's interval. rising: whether more is better.
    """

    title: str
    decimals: int = 3
    factor: float = 1.0
    unit: str = ""
    share: bool = False
    rising: bool = True

    def value(self, number: float) -> str:
        """A number of this kind for a table."""
        return f"{self.factor * number:.{self.decimals}f}"

    def difference(self, number: float) -> str:
        """A difference with its sign; +0 for one that is rounded to nothing."""
        return f"{self.factor * number:+.{self.decimals}f}"

    def error(self, number: float) -> str:
        """A standard error, with one digit that counts where it would be rounded to nothing."""
        shown = self.factor * number
        return f"{shown:.1g}" if 0 < shown < 0.5 * 10**-self.decimals else self.value(number)


METRICS = {
    "loss": Metric("loss in nats per token", unit="nat", rising=False),
    "accuracy": Metric("accuracy in %", decimals=0, factor=100, unit="%", share=True),
    "log_prob": Metric("log-probability of the answer in nats per token", decimals=2, unit="nat"),
}


def metric_of(name: str) -> Metric:
    """The metric of a name; one that is not known is shown under its name, and more is taken as better."""
    return METRICS.get(name) or Metric(name)
