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
    """Keys that code reads."""

    top: set[str] = field(default_factory=set)
    """Keys of the config, such as rope_theta."""

    rope: set[str] = field(default_factory=set)
    """Keys of its RoPE dictionary, such as factor."""

    def add(self, other: Keys) -> None:
        """Adds the keys of another."""
        self.top |= other.top
        self.rope |= other.rope


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text("utf-8-sig"))


def configured_keys(path: Path) -> Keys:
    """Return the keys that the config classes of a file ask for by name, as exllamav3 does.

    Such as `self.read_cfg(float, "rope_theta", 10000.0)`. The bases of the classes, in files beside
    it, are read too.
    """
    sources = {path}
    for source, name in _imported(path).values():
        if name.endswith("Config"):
            sources.add(source)
    keys = Keys()
    for source in sources:
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Call) and _last(node.func) in READERS:
                _call(node, keys, of_self=False)
    return keys


def keys_in(tree: ast.AST, of_self: bool = False) -> Keys:
    """Return every key that a syntax tree reads.

    Args:
        tree: The tree, such as that of a class.
        of_self: Whether `self` is a config as well.
    """
    keys = Keys()
    for node in ast.walk(tree):
        _read(node, keys, of_self)
    return keys


def attention_keys(path: Path, names: Iterable[str] = ()) -> Keys:
    """Return the keys that the attention of a model file reads, and those that are given to it.

    The names that the classes use are followed, in files beside it too.

    Args:
        path: The file.
        names: The classes to begin with; by default all of the file.
    """
    pending = [(path, name) for name in names or _defined(path)]
    keys = Keys()
    done = set[tuple[Path, str]]()
    while pending:
        source, name = pending.pop()
        if (source, name) in done or OTHER.search(name):
            continue
        done.add((source, name))

        # an imported class is looked up in its file
        node = _defined(source).get(name)
        if node is None:
            if name in _imported(source):
                pending.append(_imported(source)[name])
            continue

        if ATTENTION.search(name):
            keys.add(keys_in(node))
        else:
            for function in _functions(node):
                keys.add(_handed_on(function))
        for child in ast.walk(node):
            if isinstance(child, ast.Name):
                pending.append((source, child.id))
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
    """Return the imports from files beside a file: their file and name there, by the name here."""
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
    """Return the file that an import of a model file names; None where that is not beside it.

    Args:
        path: The model file, such as vllm/model_executor/models/qwen2.py.
        node: Such as `from .llama import LlamaAttention`, or the same with the whole name of the
            module.
    """
    parts = (node.module or "").split(".")
    if node.level > 2:
        return None
    if node.level:  # the number of dots
        folder = path.parents[node.level - 1]
    elif path.parent.name in parts:  # a whole name: the parts behind that of the folder
        folder = path.parent
        parts = parts[parts.index(path.parent.name) + 1 :]
    else:
        return None
    source = folder.joinpath(*parts).with_suffix(".py") if parts else path
    return source if source.is_file() and source != path else None


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    return (child for child in ast.walk(node) if isinstance(child, ast.FunctionDef))


def _handed_on(function: ast.FunctionDef) -> Keys:
    """Return the keys in arguments of calls of attention and rotary embeddings.

    In `theta = config.rope_theta; self.attn = Attention(theta)` this is rope_theta: the values of
    variables are followed.
    """
    # what is assigned to each variable and attribute
    values: dict[str, list[ast.AST]] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, (ast.Name, ast.Attribute)):
                values.setdefault(_last(target), []).append(node.value)

    # the arguments of the calls
    pending: list[ast.AST] = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        called = _last(node.func)
        if ATTENTION.search(called) and not OTHER.search(called):
            pending += node.args
            pending += [keyword.value for keyword in node.keywords]

    keys = Keys()
    visited = set()
    while pending:
        tree = pending.pop()
        keys.add(keys_in(tree))
        for child in ast.walk(tree):
            if not isinstance(child, (ast.Name, ast.Attribute)):
                continue
            name = _last(child)
            if name in values and name not in visited:
                visited.add(name)
                pending += values[name]
    return keys


def _read(node: ast.AST, keys: Keys, of_self: bool) -> None:
    """Add the key that one node of a syntax tree reads, if it reads one.

    Args:
        node: Such as `config.rope_theta`, `config.get("rope_theta")`, `"factor" in rope_scaling`.
        keys: The keys, which get it.
        of_self: Whether `self` is a config as well.
    """
    if isinstance(node, ast.Attribute):
        is_read = isinstance(node.ctx, ast.Load) and _holds(node.value, of_self)
        if is_read and not NOT_KEYS.match(node.attr) and node.attr not in CONFIGS:
            keys.top.add(node.attr)
    elif isinstance(node, ast.Call):
        _call(node, keys, of_self)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        _in(node.value, node.slice, keys, of_self)
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        compared = node.comparators[0]
        _in(compared, node.left, keys, of_self)
        # `key in ("factor", "beta_fast")`, in a loop over the dictionary
        is_list = isinstance(compared, (ast.Tuple, ast.List, ast.Set))
        is_key = isinstance(node.left, ast.Name) and node.left.id in "key"
        if is_list and is_key:
            keys.rope |= set(_texts(compared))


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
    """Return the last name of an expression: "rope_scaling" of `self.config.rope_scaling`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    # getattr(config, "rope_scaling", None) or {} and the like
    if isinstance(node, ast.BoolOp):
        return _last(node.values[0])
    if isinstance(node, ast.Call) and _last(node.func) == "getattr" and len(node.args) > 1:
        texts = list(_texts(node.args[1]))
        return texts[0] if texts else ""
    return ""


def _texts(node: ast.AST) -> Iterable[str]:
    listed = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
    return (
        item.value
        for item in listed
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    )
