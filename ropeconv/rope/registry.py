"""Registry: things of one kind by name, declared in the modules of one package or of features."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from .errors import RecipeError
from .features import import_features

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """The declarations of the modules of a package, by name.

    The first look-up imports the modules, and those of features, so that no list is needed.

    Args:
        kind: The kind of things, for the error.
        package: The dotted name of the package.

    Attributes:
        declared: The things of the modules that are imported so far.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self.declared: dict[str, T] = {}
        self._places: dict[str, tuple[int, str, str]] = {}
        self._complete = False

    def add(self, name: str, item: T, place: str, order: int = 0) -> T:
        """Declare a thing, such as a method, under its name.

        Args:
            name: The name by which it is looked up.
            item: The thing.
            place: The module that declares it.
            order: Its place in lists, lowest first; of equal ones the name decides.

        Raises:
            RecipeError: For a name that is taken.
        """
        if name in self.declared:
            _, _, first_place = self._places[name]
            raise RecipeError(
                f"{first_place} and {place} both declare the {self.kind} {name}; rename one"
            )

        # a dict keeps the order of insertion, so it is built anew, sorted by `order` and by name
        self._places[name] = (order, name, place)
        unsorted = {**self.declared, name: item}
        names = sorted(unsorted, key=self._places.__getitem__)
        self.declared = {each: unsorted[each] for each in names}
        return item

    def _all(self) -> dict[str, T]:
        if not self._complete:
            self._complete = True  # before the imports, which may look something up themselves
            for module in iter_modules(import_module(self.package).__path__):
                import_module(f"{self.package}.{module.name}")
            import_features()
        return self.declared

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
