"""Registry: things of one kind by name, each declared in a module of one package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from .errors import RecipeError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """The declarations of the modules of a package, by name. The first look-up imports them, so that none is listed.

    Args:
        kind: what the things are, for the error.
        package: the dotted name of the package.
        order: the number or text by which a thing is sorted; by default its name.

    Attributes:
        declared: the things of the modules that are imported so far.
    """

    def __init__(self, kind: str, package: str, order: Callable[[T], float] | None = None) -> None:
        self.kind, self.package, self.order = kind, package, order
        self.declared: dict[str, T] = {}
        self._places: dict[str, str] = {}
        self._complete = False

    def add(self, name: str, item: T, place: str) -> T:
        """Declare a thing. place: the module that declares it. Raises RecipeError for a name that is taken."""
        if name in self.declared:
            raise RecipeError(f"{self._places[name]} and {place} both declare the {self.kind} {name}; rename one")
        order = self.order
        items = {**self.declared, name: item}.items()
        self.declared = dict(sorted(items, key=lambda pair: pair[0] if order is None else order(pair[1])))
        self._places[name] = place
        return item

    def _all(self) -> dict[str, T]:
        if not self._complete:
            self._complete = True
            for module in iter_modules(import_module(self.package).__path__):
                import_module(f"{self.package}.{module.name}")
        return self.declared

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
