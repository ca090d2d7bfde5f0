"""Files of mergekit: every form in which they name models.

The expected ones are `referenced_models()` of mergekit 0.1.5 itself, but for the last form, which it refuses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.inspection.compatibility import is_merge, read_merge

FORMS = {
    "models": ("models: [{model: a}, {model: b@v2}]", ("a", "b@v2"), ()),
    "a base": ("base_model: c\nmodels: [{model: a}, {model: c}]", ("c", "a"), ()),
    "slices": ("slices: [{sources: [{model: a, layer_range: [0, 2]}, {model: b, layer_range: [0, 2]}]}]",
               ("a", "b"), ()),
    "modules": ("modules: {text: {slices: [{sources: [{model: a}]}]}, vision: {models: [{model: b}]}}",
                ("a", "b"), ()),
    "adapters": ("base_model: a+x\nmodels: [{model: b+y@v1}]", ("a", "b"), (("a", "x"), ("b", "y@v1"))),
    "objects": ("models: [{model: {model: {path: a, revision: v1}, lora: x}}, {model: {model: b}}]",
                ("a@v1", "b"), (("a@v1", "x"),)),
    "experts": ("base_model: a\nexperts: [{source_model: b}, {source_model: c}]\nshared_experts: [{source_model: d}]",
                ("a", "b", "c", "d"), ()),
    "aliases": ("models: &m [{model: a}]\nslices: *m", ("a",), ()),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, tmp_path: Path) -> None:
    text, models, adapters = FORMS[form]
    (tmp_path / "merge.yml").write_text(text)
    found = read_merge(tmp_path / "merge.yml")
    assert (found.models, found.adapters) == (models, adapters)
    assert (found.base, found.sliced) == (models[0] if "base_model" in text else "", "slices" in text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "names no models"), ("models: []", "names no models"), ("a: [", "not one YAML document"),
        ("models: [{model: a}]\n---\nmodels: [{model: b}]", "not one YAML document"),
        ("models: [{model: a+b+c}]", "write it as PATH, or as PATH.ADAPTER"), ("[" * 5000, "not one YAML document"),
        ("models: [{model: 3}]", "names the model 3"), ("models: 2024-99-99", "not one YAML document"),
        ("models: [{model: {model: {path: ''}}}]", "names the model"), ("models: [{model: +x}]", "names the model"),
        ("models: [{model: {model: a, lora: 3}}]", "names the model"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "merge.yaml").write_text(text)
    assert is_merge(str(tmp_path / "merge.yaml"))
    assert not is_merge(str(tmp_path / "merge.json"))
    with pytest.raises(BadSource, match=words):
        read_merge(tmp_path / "merge.yaml")


def test_a_file_that_repeats_itself_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 {models: [{model: a}]}"]
    lines += [f"a{n}: &a{n} {{models: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    (tmp_path / "merge.yaml").write_text("\n".join([*lines, "models: [*a29, *a29]"]))
    assert read_merge(tmp_path / "merge.yaml").models == ("a",)
