"""What is typed becomes a recipe, a target, a command and an address."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from ropeconv.features.ui.forms import (
    BakeForm,
    CompareForm,
    address_fields,
    fill_form,
    from_address,
    is_on_hub,
    recipe_of,
    target_of,
    to_page,
)
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

FILLED = BakeForm(
    source="a/b@c",
    method="yarn",
    value="4",
    settings="beta_fast=16",
    to="gguf",
    outtype="q8_0",
    encoding="keys",
    runtimes=("llama.cpp", "ollama"),
    replace=True,
    out="x y",
    repo_id="me/x",
    private=True,
)


def read(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query))


def test_an_address_keeps_everything_but_dropped_files() -> None:
    assert from_address(BakeForm, read(to_page("", FILLED))) == FILLED
    dropped = BakeForm(upload="/tmp/x/config.json", recipe="/tmp/y.json")
    assert to_page("", dropped) == "./?"
    assert not {"upload", "measured", "recipe"} & {
        *address_fields(BakeForm),
        *address_fields(CompareForm),
    }
    assert (
        from_address(BakeForm, {"upload": "/etc/passwd", "recipe": "/etc/passwd", "nothing": "1"})
        == BakeForm()
    )


@pytest.mark.parametrize(
    ("form", "recipe"),
    [
        (BakeForm(method="yarn", value="4"), Recipe(REGISTRY["yarn"](4.0))),
        (BakeForm(), Recipe(REGISTRY["yarn"]("128k"))),
        (BakeForm(context="4", method="linear"), Recipe(REGISTRY["linear"](4.0))),
        (BakeForm(method="theta", value="1e6"), Recipe(REGISTRY["theta"](1e6), context=131072)),
        (BakeForm(method="yarn", value=" 128 k "), Recipe(REGISTRY["yarn"]("128k"))),
        (
            BakeForm(
                method="yarn",
                value="4",
                settings="beta_fast = 16, truncate=false,attention_factor=1.5",
            ),
            Recipe(REGISTRY["yarn"](4.0, beta_fast=16, truncate=False), attention_factor=1.5),
        ),
        (
            BakeForm(method="theta", value="1e6", settings="context=8k"),
            Recipe(REGISTRY["theta"](1e6), context=8192),
        ),
        (BakeForm(method="as-is"), Recipe(REGISTRY["as-is"]())),
        (
            BakeForm(method="dynamic", value="yarn:4", settings="at=32k"),
            Recipe(REGISTRY["dynamic"]("yarn:4", at=32768)),
        ),
    ],
)
def test_a_form_is_a_recipe(form: BakeForm, recipe: Recipe) -> None:
    assert recipe_of(form) == recipe


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (BakeForm(context=""), "no length is given"),
        (BakeForm(method="recipe", value="/etc/passwd"), "'recipe' is not a method"),
        (BakeForm(method="base"), "'base' is not a method"),
        (BakeForm(method="inv-freq", value="/etc/passwd"), "'inv-freq' is not a method"),
        (BakeForm(method="yarn", value="4,recipe:/etc/passwd"), "is not a setting"),
        (BakeForm(method="yarn", value="4", settings="recipe:/etc/passwd"), "is not a setting"),
        (
            BakeForm(method="yarn", value="4", settings="beta_fast"),
            "'beta_fast' is not a setting; write name=value",
        ),
        (BakeForm(method="theta", context="4"), "needs one value"),
        (BakeForm(method="yarn", value="nan"), "yarn"),
        (BakeForm(recipe="x.json", value="4"), "a recipe and settings of a method are given"),
    ],
)
def test_what_is_no_recipe_is_refused_in_a_sentence(form: BakeForm, message: str) -> None:
    with pytest.raises(RopeconvError, match=message):
        recipe_of(form)


def test_a_form_is_a_target() -> None:
    gguf = target_of(replace(FILLED, out="x"))
    assert (gguf.to, gguf.out, gguf.encoding, gguf.runtimes) == (
        "gguf",
        Path("x"),
        "keys",
        ("llama.cpp", "ollama"),
    )
    assert (gguf.outtype, gguf.replace) == ("q8_0", True)
    plain = target_of(BakeForm())
    assert (plain.to, plain.encoding, plain.outtype, plain.in_place) == (None, "auto", None, False)
    with pytest.raises(RopeconvError, match="'pickle'"):
        target_of(fill_form(BakeForm, {"to": "pickle"}))


@pytest.mark.parametrize(
    ("reference", "on_hub"),
    [
        ("Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B@main", True),
        ("a/b/c/d.gguf", True),
        ("a/b@v1/d.gguf", True),
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", True),
        ("hf://a/b", True),
        ("Modelfile", False),
        ("/etc/passwd", False),
        ("./a/b", False),
        ("~/a", False),
        ("a/../b", False),
        ("a/b/../../../etc/x.gguf", False),
        ("file:///etc/passwd", False),
        ("/a/Modelfile", False),
        ("", False),
        ("https://example.com/a/b", False),
        ("a/b\n/etc/passwd", False),
    ],
)
def test_what_can_only_be_on_the_hub(reference: str, on_hub: bool) -> None:
    assert is_on_hub(reference) == on_hub
