"""The summary of `inspect`."""

import re

import pytest

from ..conftest import CONFIGS
from ..support.in_process import command


@pytest.mark.parametrize(
    ("name", "declared", "trained"),
    [
        ("meta-llama--Llama-2-7b-hf", "4,096", "4,096"),
        # trained with its scaling, for the whole length that it declares
        ("meta-llama--Meta-Llama-3.1-8B", "131,072", "131,072 (8,192 before its scaling)"),
        ("openai--gpt-oss-20b", "131,072", "131,072 (4,096 before its scaling)"),
    ],
)
def test_the_trained_context_is_that_of_plans(name: str, declared: str, trained: str) -> None:
    shown = command(CONFIGS, "inspect", f"{name}.json", code=0).stdout
    (context,) = re.findall("^context +(.*)$", shown, re.MULTILINE)
    assert context.startswith(f"{declared} tokens, trained: {trained}")
