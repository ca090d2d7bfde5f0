"""Which files beside those of the plan somebody loads, and which are for people."""

from __future__ import annotations

import pytest

from ropeconv.bake.file_checks import is_document, is_loaded

LOADED = (
    "LICENSE.safetensors", "NOTICE.bin", "USE_POLICY.gguf", "LICENSE.jinja", "LICENSE.py", "LICENSE.so", "NOTICE.json",
    "merges.txt", "tokenizer", "sub/LICENSE.pth",
)  # fmt: skip
FOR_PEOPLE = (
    "LICENSE", "LICENSE.txt", "LICENSE-MODEL.txt", "NOTICE-2.0", "USE_POLICY.md", "sub/USE_POLICY", "README.md",
    "requirements.txt", "figure.png",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "loaded"), [*((name, True) for name in LOADED), *((name, False) for name in FOR_PEOPLE)]
)
def test_the_end_of_a_name_decides_whether_a_file_is_loaded_or_for_people(name: str, loaded: bool) -> None:
    assert (is_document(name), is_loaded(name)) == (not loaded, loaded)
