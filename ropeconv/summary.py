"""Summary: results that Python and notebooks show in a few lines."""

from html import escape
from typing import Any


class Summary:
    """A result whose `repr` is its `summary`, one line each, and in a notebook a table."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = Summary.__repr__  # type: ignore[method-assign]  # dataclass() would make another one

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.summary().items() if value}
        width = max(map(len, shown), default=0)
        return "\n".join(
            [type(self).__name__, *(f"  {name:<{width}}  {value}" for name, value in shown.items())]
        )

    def _repr_html_(self) -> str:
        shown = ((escape(name), escape(value)) for name, value in self.summary().items() if value)
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in shown)
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"
