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
    """Return the names of the classes that the auto classes make, by model type.

    Such as {"llama": frozenset({"LlamaModel", "LlamaForCausalLM", ...}), ...}.
    """
    from transformers.models.auto import modeling_auto

    # each auto class has a mapping from model types to one name, or to several
    names_by_type: dict[str, set[str]] = {}
    for listing, classes in vars(modeling_auto).items():
        if not listing.startswith("MODEL_") or not listing.endswith("_MAPPING_NAMES"):
            continue
        for model_type, names in classes.items():
            several = [names] if isinstance(names, str) else names
            names_by_type.setdefault(model_type, set()).update(several)
    return {model_type: frozenset(names) for model_type, names in names_by_type.items()}


@cache
def modeling_files(model_type: str) -> tuple[Path, ...]:
    """Return the modelling files of a model type: its own, or those of the type whose classes it
    has.
    """
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    folder = models_folder() / model_type_to_module_name(model_type)
    own = tuple(sorted(folder.glob("modeling_*.py")))
    if own:
        return own

    # the files of other types that define one of its classes
    classes = model_classes().get(model_type, frozenset())
    files = set()
    for other, names in model_classes().items():
        if other == model_type or not names & classes:
            continue
        for path in (models_folder() / other).glob("modeling_*.py"):
            if module(path).code.keys() & classes:
                files.add(path)
    return tuple(sorted(files))


@cache
def module(path: Path) -> Module:
    """Return what a modelling file defines and imports. It is compiled, but not run."""
    loader = SourceFileLoader(path.stem, str(path))
    text = path.read_text("utf-8")
    code = loader.get_code(path.stem)
    assert code is not None

    # `from ..llama.modeling_llama import LlamaMLP`: the file of each name
    imports = {}
    for dots, name, items in IMPORT.findall(text):
        folder = path.parents[len(dots) - 1]
        target = folder.joinpath(*name.split(".")).with_suffix(".py")
        imports |= dict.fromkeys(re.findall(r"\w+", items), target)

    # `class X(A, B)`: the bases of each class
    bases = {}
    for name, listed in BASES.findall(text):
        bases[name] = tuple(re.findall(r"\w+", listed))

    # the code of each class and function is a constant of the code of the file
    definitions = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            definitions[constant.co_name] = constant
    return Module(path, definitions, bases, imports)
