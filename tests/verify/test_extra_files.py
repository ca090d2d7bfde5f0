"""Which files beside those of the plan somebody loads, and which are for people."""

from __future__ import annotations

import pytest

from ropeconv.verify.extra_files import is_document, is_loaded


@pytest.mark.parametrize(
    "name",
    [
        "LICENSE.safetensors", "NOTICE.bin", "USE_POLICY.gguf", "LICENSE.pt", "LICENSE.jinja", "LICENSE.py",
        "LICENSE.so", "NOTICE.json", "merges.txt", "tokenizer", "sub/LICENSE.pth",
    ],
)  # fmt: skip
def test_the_end_of_a_name_decides_that_a_file_is_loaded(name: str) -> None:
    assert (is_document(name), is_loaded(name)) == (False, True)


@pytest.mark.parametrize(
    "name",
    [
        "LICENSE", "LICENSE.txt", "LICENSE-MODEL.txt", "LICENSE.md", "NOTICE", "NOTICE-2.0", "USE_POLICY.md",
        "sub/USE_POLICY", "README.md", "requirements.txt", "figure.png",
    ],
)  # fmt: skip
def test_licences_notices_and_policies_are_for_people(name: str) -> None:
    assert (is_document(name), is_loaded(name)) == (True, False)
