"""A name is declared once, and no method has the name of a setting."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.methods.method import REGISTRY, Method, number, param, register
from ropeconv.rope.registry import Registry


def test_a_name_is_declared_once() -> None:
    registry: Registry[int] = Registry("number", "ropeconv.rope.methods")
    registry.add("one", 1, "first.py")
    with pytest.raises(RecipeError, match=r"first.py and second.py both declare the number one; rename one"):
        registry.add("one", 2, "second.py")
    assert dict(registry) == {"one": 1}


def test_things_stand_in_their_order_however_they_are_declared() -> None:
    registry: Registry[int] = Registry("number", "ropeconv.rope.methods", order=lambda item: -item)
    for item in (1, 3, 2):
        registry.add(str(item), item, "here")
    assert list(registry) == ["3", "2", "1"]


@pytest.mark.parametrize(("name", "setting"), [("alpha", "curve"), ("curve", "yarn")])
def test_a_method_and_a_setting_have_different_options(name: str, setting: str) -> None:
    fields = {"__annotations__": {"factor": float, setting: float}, "factor": param(number, "a number", 1.0)}
    kind = dataclass(frozen=True)(type("Curve", (Method,), {**fields, setting: param(number, "a number", 1.0)}))
    kind.name = name
    with pytest.raises(RecipeError, match="is a method and a setting of .*; rename one"):
        register(kind)
    assert name not in REGISTRY
