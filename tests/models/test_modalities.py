"""The parts of multimodal models that a method changes, told apart from those that it leaves: by published configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.models.config import modality_note

from ..conftest import CONFIGS, DATA
from ..support.baking import inspected, make_plan, recipe_of, write_config

MORE = DATA / "more_configs"
NOTES = {
    MORE / "Qwen--Qwen2-VL-7B-Instruct.json": (
        "methods leave vision_config as it is; time, height and width (mrope_section 16, 24, 24) share the scaled "
        "frequencies"
    ),
    MORE / "google--gemma-4-26B-A4B.json": "methods leave vision_config as it is",
    MORE / "moonshotai--Kimi-K2.5.json": "methods leave vision_config as it is",
    CONFIGS / "Qwen--Qwen3-8B.json": "",
}


@pytest.mark.parametrize("path", NOTES, ids=lambda path: path.stem)
def test_the_note_on_a_published_config(path: Path) -> None:
    config = json.loads(path.read_text())
    assert modality_note(config, inspected(path).spec.mrope_section) == NOTES[path]


def test_several_towers_of_an_omni_model() -> None:
    parts = {"text_config": {}, "vision_config": {}, "audio_config": {}, "quantization_config": {}}
    for config in (parts, {"thinker_config": parts, "talker_config": {}}):
        assert modality_note(config, ()) == "methods leave vision_config and audio_config as they are"


def test_a_bake_does_what_the_note_says(tmp_path: Path) -> None:
    import torch
    from transformers import Qwen2VLConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

    source = MORE / "Qwen--Qwen2-VL-7B-Instruct.json"
    plan = make_plan(source, recipe_of("linear", 4.0), tmp_path / "out")
    assert NOTES[source] in plan.notes
    (tmp_path / "baked").mkdir()
    write_config(plan, tmp_path / "baked")
    baked, before = (json.loads(path.read_text()) for path in (tmp_path / "baked" / "config.json", source))
    assert baked["vision_config"] == before["vision_config"]
    places, sections = (8, 16, 24), (16, 24, 24)  # of one token in time, height and width, and their pairs
    position = torch.tensor([place for place, pairs in zip(places, sections, strict=True) for _ in range(pairs)])
    for scale, config in ((1, before), (4, baked)):
        rotary = Qwen2VLRotaryEmbedding(Qwen2VLConfig(**config).text_config)
        cosines = rotary(torch.zeros(1, 1, 8), torch.tensor(places)[:, None, None])[0][0, 0]
        expected = torch.cos(position * 1e6 ** (-torch.arange(64) / 64) / scale)
        assert torch.allclose(cosines[:64], expected, atol=1e-5)
