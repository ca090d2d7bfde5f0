"""How the lab reads tables of cos and sin that a class of transformers makes."""

from __future__ import annotations

import sys

import pytest

from scripts.laboratory.environment import PROGRAMS

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("layout", ["once", "halves", "neighbours"])
def test_each_pair_is_read_once_from_any_layout(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """gpt-oss has every pair once, Llama in two halves, Cohere beside each other."""
    monkeypatch.setattr(sys, "path", [str(PROGRAMS), *sys.path])
    import transformers_backend

    frequencies = torch.tensor([1.0, 0.5, 0.25, 0.125])
    angles = {"once": frequencies, "halves": frequencies.repeat(2), "neighbours": frequencies.repeat_interleave(2)}
    cos, sin = (1.5 * function(angles[layout])[None, None] for function in (torch.cos, torch.sin))
    inv_freq, attention_factor = transformers_backend._first(cos, sin)
    assert inv_freq == pytest.approx(frequencies.tolist(), rel=1e-6)
    assert attention_factor == pytest.approx(1.5, rel=1e-6)
