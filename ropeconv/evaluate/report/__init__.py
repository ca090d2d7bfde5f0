"""The report of an evaluation: a page in HTML, and pictures."""

from .page import write_plot, write_report

__all__ = ["write_plot", "write_report"]
