"""What the numbers of an evaluation say: means, standard errors, paired differences, and what follows for a row."""

from .summary import Summary, summarise

__all__ = ["Summary", "summarise"]
