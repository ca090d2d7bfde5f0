"""Which config keys the rotary and attention code of Python files reads, from their syntax trees
alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ATTENTION = re.compile(r"attention|attn|rotary|rope|(?<![a-z])mla|Mla|MLA", re.IGNORECASE)
OTHER = re.compile(
    r"vision|visual|image|audio|video|vit(?![a-z])|siglip|clip|cross|Moe$|MLP", re.IGNORECASE
)
"""Classes and functions about something else than the attention of the language model."""
CONFIGS = frozenset(
    "config configuration hf_config text_config hf_text_config llm_config cfg args model_args"
    " thinker_config".split()
)
"""Names that hold a config, as a variable or as the last attribute."""
DICTIONARY = re.compile(
    r"rope_(scaling|parameters|params|config|settings)|scaling_config|^scaling$|^rs$"
)
METHODS = frozenset("get pop setdefault".split())
READERS = frozenset("read_cfg assert_cfg".split())
NOT_KEYS = re.compile(
    r"^(_.*|get_.*|to_.*|from_.*|update|items|keys|values|get|pop|copy|is_.*_arch)$"
)


@dataclass
class Keys:
    """Keys that code reads. top: of the config. rope: of its RoPE dictionary."""

    top: set[str] = field(default_factory=set)
    rope: set[str] = field(default_factory=set)

    def add(self, other: Keys) -> None:
        """Adds the keys of another."""
        self.top |= other.top
        self.rope |= other.rope


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text("utf-8-sig"))


def configured_keys(path: Path) -> Keys:
    """The keys that the config classes of a file ask for by name, with those of their bases in
    files beside it.
    """
    keys = Keys()
    for source in {
        path,
        *(source for source, name in _imported(path).values() if name.endswith("Config")),
    }:
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Call) and _last(node.func) in READERS:
                _call(node, keys, of_self=False)
    return keys


def keys_in(tree: ast.AST, of_self: bool = False) -> Keys:
    """Every key that a tree reads. of_self: whether `self` is a config as well."""
    keys = Keys()
    for node in ast.walk(tree):
        _read(node, keys, of_self)
    return keys


def attention_keys(path: Path, names: Iterable[str] = ()) -> Keys:
    """The keys that the attention of a model file reads, and those that it hands to its attention.

    path: the file. names: of the classes to begin with, by default all of the file. What they use
    is followed, in files beside it too.
    """
    pending = [(path, name) for name in names or _defined(path)]
    keys = Keys()
    done = set[tuple[Path, str]]()
    while pending:
        source, name = pending.pop()
        if (source, name) in done or OTHER.search(name):
            continue
        done.add((source, name))
        node = _defined(source).get(name)
        if node is None:
            pending += [_imported(source)[name]] if name in _imported(source) else []
            continue
        if ATTENTION.search(name):
            keys.add(keys_in(node))
        else:
            for function in _functions(node):
                keys.add(_handed_on(function))
        pending += [(source, child.id) for child in ast.walk(node) if isinstance(child, ast.Name)]
    return keys


@cache
def _defined(path: Path) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """The classes and functions of a file by name."""
    return {
        node.name: node
        for node in parsed(path).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }


@cache
def _imported(path: Path) -> dict[str, tuple[Path, str]]:
    """What a file imports from files beside it: the file and the name there, by the name here."""
    return dict(_imports(path, parsed(path)))


def _imports(path: Path, tree: ast.Module) -> Iterator[tuple[str, tuple[Path, str]]]:
    """The names that a file imports from files beside it, with the file and the name there."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        source = _beside(path, node)
        if source is not None:
            yield from ((alias.asname or alias.name, (source, alias.name)) for alias in node.names)


def _beside(path: Path, node: ast.ImportFrom) -> Path | None:
    """The file that an import of a model file names; None where that is not beside it."""
    parts = (node.module or "").split(".")
    if node.level > 2:
        return None
    if node.level:
        folder = path.parents[node.level - 1]
    elif path.parent.name in parts:
        folder = path.parent
        parts = parts[parts.index(path.parent.name) + 1 :]
    else:
        return None
    source = folder.joinpath(*parts).with_suffix(".py") if parts else path
    return source if source.is_file() and source != path else None


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    return (child for child in ast.walk(node) if isinstance(child, ast.FunctionDef))


def _handed_on(function: ast.FunctionDef) -> Keys:
    """The keys in arguments of calls of attention and rotary embeddings, by way of variables
    too.
    """
    values: dict[str, list[ast.AST]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, (ast.Name, ast.Attribute)):
                    values.setdefault(_last(target), []).append(node.value)
    keys = Keys()
    pending = []
    visited = set()
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and ATTENTION.search(_last(node.func))
            and not OTHER.search(_last(node.func))
        ):
            pending += [*node.args, *(keyword.value for keyword in node.keywords)]
    while pending:
        tree = pending.pop()
        keys.add(keys_in(tree))
        for child in ast.walk(tree):
            if (
                isinstance(child, (ast.Name, ast.Attribute))
                and (name := _last(child)) in values
                and name not in visited
            ):
                visited.add(name)
                pending += values[name]
    return keys


def _read(node: ast.AST, keys: Keys, of_self: bool) -> None:
    """Adds the key that one node reads."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and _holds(node.value, of_self)
    ):
        if not NOT_KEYS.match(node.attr) and node.attr not in CONFIGS:
            keys.top.add(node.attr)
    elif isinstance(node, ast.Call):
        _call(node, keys, of_self)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        _in(node.value, node.slice, keys, of_self)
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        _in(node.comparators[0], node.left, keys, of_self)
        listed = node.comparators[0]
        if (
            isinstance(listed, (ast.Tuple, ast.List, ast.Set))
            and isinstance(node.left, ast.Name)
            and node.left.id in "key"
        ):
            keys.rope |= set(_texts(listed))


def _call(node: ast.Call, keys: Keys, of_self: bool) -> None:
    name = _last(node.func)
    arguments = node.args
    if name in ("getattr", "hasattr") and len(arguments) > 1 and _holds(arguments[0], of_self):
        keys.top |= set(_texts(arguments[1]))
    elif name in METHODS and isinstance(node.func, ast.Attribute) and arguments:
        _in(node.func.value, arguments[0], keys, of_self)
    elif name in READERS and len(arguments) > 1:
        keys.top |= {
            text.removeprefix("text_config->").partition("->")[0] for text in _texts(arguments[1])
        }


def _in(place: ast.AST, key: ast.AST, keys: Keys, of_self: bool) -> None:
    """Adds a key that is looked up in a dictionary."""
    name = _last(place)
    if DICTIONARY.search(name):
        keys.rope |= set(_texts(key))
    elif name in ("kwargs", "config_dict", "hf_config_dict") or _holds(place, of_self):
        keys.top |= {text for text in _texts(key) if text.isidentifier()}


def _holds(node: ast.AST, of_self: bool) -> bool:
    name = _last(node)
    return name in CONFIGS or (of_self and isinstance(node, ast.Name) and name == "self")


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Call):  # getattr(config, "rope_scaling", None) or {} and the like
        texts = (
            list(_texts(node.args[1]))
            if _last(node.func) == "getattr" and len(node.args) > 1
            else []
        )
        return texts[0] if texts else ""
    if isinstance(node, ast.BoolOp):
        return _last(node.values[0])
    return (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )


def _texts(node: ast.AST) -> Iterable[str]:
    listed = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
    return (
        item.value
        for item in listed
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    )
