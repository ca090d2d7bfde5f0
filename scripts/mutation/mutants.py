"""The mutants of a file: every operator, constant, condition, return value and removable statement of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import (
    operator_augmented_assignment,
    operator_if_exp,
    operator_keywords,
    operator_name,
    operator_number,
    operator_remove_unary_ops,
    operator_swap_op,
)

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
PASS = cst.SimpleStatementLine([cst.Pass()])


def negated_condition(node: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    """`if a:` to `if not (a):`."""
    inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    test = cst.UnaryOperation(cst.Not(), inner)
    yield node.with_changes(test=test)


def no_return_value(node: cst.Return) -> Iterator[cst.CSTNode]:
    """`return a` to `return None`."""
    if node.value is not None and not m.matches(node.value, m.Name("None")):
        yield node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))


def removed_statement(node: cst.SimpleStatementLine) -> Iterator[cst.CSTNode]:
    """A raise, or a call for its effect, to `pass`."""
    if m.matches(node, m.SimpleStatementLine([m.Raise() | m.Expr(m.Call())])):
        yield PASS.with_changes(leading_lines=node.leading_lines)


OPERATORS: list[tuple[Any, Any]] = [
    (cst.BaseNumber, operator_number),
    (cst.Name, operator_name),
    (cst.UnaryOperation, operator_remove_unary_ops),
    (cst.AugAssign, operator_augmented_assignment),
    (cst.IfExp, operator_if_exp),
    (cst.CSTNode, operator_keywords),
    (cst.CSTNode, operator_swap_op),
    ((cst.If, cst.While), negated_condition),
    (cst.Return, no_return_value),
    (cst.SimpleStatementLine, removed_statement),
]
"""mutmut's operators but those that put None for an argument or change text, and three more."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    line: int
    function: str
    original: str
    """The changed lines, without indentation."""
    mutated: str
    source: str
    """The whole file with the change."""


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(EQUIVALENT.read_text())


def equivalent(mutant: Mutant) -> str | None:
    """Why a mutant computes the same, where the list says so: matched by its text, so that lines may move."""
    for row in _data().get("mutant", []):
        known = {"file": mutant.path, "function": mutant.function}
        known |= {"original": mutant.original, "mutated": mutant.mutated, "reason": row["reason"]}
        if known | row == known:
            return str(row["reason"])
    return None


class _Places(cst.CSTVisitor):
    """Collects every (node, changed node, line, function)."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, int, str]] = []
        self.inside: list[str] = []
        self.keywords = set(_data()["never"]["keywords"])
        self.assigned = set(_data()["never"]["assigned"])
        self.names = set(_data()["never"]["conditions"])

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Import | cst.ImportFrom) or (
            isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value in self.keywords
        ):
            return False
        target = node.targets[0].target if isinstance(node, cst.Assign) else None
        if isinstance(target, cst.Name) and target.value in self.assigned:
            return False
        if isinstance(node, cst.If) and isinstance(node.test, cst.Name) and node.test.value in self.names:
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self.inside.append(node.name.value)
        line = self.get_metadata(PositionProvider, node, None)
        for kind, operator in OPERATORS:
            if line is not None and isinstance(node, kind):
                changes: Iterable[cst.CSTNode] = operator(node)
                self.found += [(node, new, line.start.line, ".".join(self.inside)) for new in changes]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self.inside.pop()


class File:
    """The mutants of one file, in a fixed order."""

    def __init__(self, root: Path, path: str) -> None:
        self.path, self.text = path, (root / path).read_text()
        wrapper = MetadataWrapper(cst.parse_module(self.text))
        places = _Places()
        wrapper.visit(places)
        self.module, self.found = wrapper.module, places.found

    def __len__(self) -> int:
        return len(self.found)

    def mutant(self, index: int) -> Mutant:
        """The mutant with this number."""
        node, new, line, function = self.found[index]
        changed = self.module.deep_replace(node, new)
        assert isinstance(changed, cst.Module)
        before, after = self.text.splitlines(), changed.code.splitlines()
        start = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), line - 1)
        end = 0
        while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
            end += 1
        original = " ".join(text.strip() for text in before[start : len(before) - end])
        mutated = " ".join(text.strip() for text in after[start : len(after) - end])
        return Mutant(self.path, start + 1, function, original, mutated, changed.code)
