"""The runtimes that the lab executes, one file each."""

from importlib import import_module
from pkgutil import iter_modules

from ..environment import LabRuntime

RUNTIMES: tuple[LabRuntime, ...] = tuple(
    import_module(f"{__name__}.{module.name}").RUNTIME for module in iter_modules(__path__)
)
