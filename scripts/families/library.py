"""The installed transformers as code: its model types, their config classes, and what their
modelling files define.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

IMPORT = re.compile(r"^from (\.+)([\w.]*modeling_\w+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
BASES = re.compile(r"^class (\w+)\(([^)]*)\)", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """A modelling file, compiled.

    path: of the file. code: of its classes and functions at the top level, by name. bases: of the
    classes. imports: names that it takes from other modelling files, with the path of that file.
    """

    path: Path
    code: dict[str, CodeType]
    bases: dict[str, tuple[str, ...]]
    imports: dict[str, Path]

    def find(self, name: str) -> Module | None:
        """The file that defines a name which this one uses; None for names from elsewhere."""
        if name in self.code:
            return self
        path = self.imports.get(name)
        return module(path).find(name) if path is not None and path.exists() else None

    def uses(self, name: str) -> set[str]:
        """The names that a definition and its methods use.

        Without its decorators, and without the class that models of text, images and sound share to
        initialise weights.
        """
        names = {used for code in nested(self.code[name]) for used in code.co_names}
        return {
            used
            for used in (*names, *self.bases.get(name, ()))
            if not used.endswith("PreTrainedModel")
        }

    def source(self, name: str) -> str:
        """The text of a definition, from its first line to its last."""
        lines = [line for code in nested(self.code[name]) for _, _, line in code.co_lines() if line]
        return "\n".join(
            self.path.read_text("utf-8").splitlines()[
                self.code[name].co_firstlineno - 1 : max(lines)
            ]
        )

    def methods(self, name: str) -> set[str]:
        """The name of a definition and those inside it."""
        return {code.co_name for code in nested(self.code[name])}

    def configs(self, name: str) -> set[str]:
        """The names in the signatures and attributes of a class, its config class among them."""
        code = self.code[name]
        return {*code.co_names, *_strings(code.co_consts)}


def _strings(constants: tuple[object, ...]) -> Iterator[str]:
    for value in constants:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from _strings(value)


def nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


@cache
def models_folder() -> Path:
    """The folder `models` of the installed transformers. Raises ImportError where there is none."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise ImportError("transformers is not installed; pip install ropeconv")
    return Path(spec.origin).parent / "models"


@cache
def config_classes() -> dict[str, str]:
    """The name of the config class of every model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return dict(CONFIG_MAPPING_NAMES)


@cache
def model_classes() -> dict[str, frozenset[str]]:
    """The names of the classes that the auto classes make for every model type."""
    from transformers.models.auto import modeling_auto

    listings: dict[str, set[str]] = {}
    for listing, classes in vars(modeling_auto).items():
        if listing.startswith("MODEL_") and listing.endswith("_MAPPING_NAMES"):
            for model_type, names in classes.items():
                listings.setdefault(model_type, set()).update(
                    [names] if isinstance(names, str) else names
                )
    return {model_type: frozenset(names) for model_type, names in listings.items()}


@cache
def modeling_files(model_type: str) -> tuple[Path, ...]:
    """The modelling files of a model type: its own, or those of the type whose classes it takes."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    module_files = tuple(
        sorted((models_folder() / model_type_to_module_name(model_type)).glob("modeling_*.py"))
    )
    if module_files:
        return module_files
    classes = model_classes().get(model_type, frozenset())
    others = [
        other for other, names in model_classes().items() if names & classes and other != model_type
    ]
    files = {path for other in others for path in (models_folder() / other).glob("modeling_*.py")}
    return tuple(sorted(path for path in files if module(path).code.keys() & classes))


@cache
def module(path: Path) -> Module:
    """A modelling file, compiled but not run."""
    loader = SourceFileLoader(path.stem, str(path))
    text = path.read_text("utf-8")
    code = loader.get_code(path.stem)
    assert code is not None
    imports = {}
    for dots, name, items in IMPORT.findall(text):
        target = path.parents[len(dots) - 1].joinpath(*name.split(".")).with_suffix(".py")
        imports |= dict.fromkeys(re.findall(r"\w+", items), target)
    bases = {name: tuple(re.findall(r"\w+", listed)) for name, listed in BASES.findall(text)}
    return Module(
        path,
        {
            function.co_name: function
            for function in code.co_consts
            if isinstance(function, CodeType)
        },
        bases,
        imports,
    )
