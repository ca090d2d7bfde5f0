"""`ropeconv.patch`: a loaded model computes a method until it is taken back, as transformers itself
computes it.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ropeconv
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import AS_IS, YARN, apply, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.models import TRAINED, VOCABULARY, auto_class, make

LENGTH = 4 * TRAINED


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def model(tiny: Callable[[str], Path]) -> Any:
    return loaded(tiny("llama"))


def logits(model: Any, length: int = LENGTH) -> Any:
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0].double()


def distance(left: Any, right: Any) -> float:
    """Largest difference in standard deviations of the logits."""
    return float((left - right).abs().max() / right.std())


@pytest.mark.parametrize(
    "model_type", sample(["llama", "qwen3", "gemma3_text", "phi", "deepseek_v2"], 2)
)
def test_it_is_what_transformers_computes_from_its_own_keys(
    tiny: Callable[[str], Path], model_type: str
) -> None:
    """The right side has the method in its config, and no code of ours."""
    folder = tiny(model_type)
    model = loaded(folder)
    before = logits(model)
    undo = ropeconv.patch(model, YARN)
    patched = logits(model)
    undo()
    config = transformers.AutoConfig.from_pretrained(folder)
    factor = YARN.schedule(inspected(folder).spec).attention_factor
    scaling = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": TRAINED,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": factor,
    }
    inside = config.rope_parameters.get("full_attention")
    if inside is None:
        config.rope_parameters = {**config.rope_parameters, **scaling}
    else:
        config.rope_parameters = {**config.rope_parameters, "full_attention": {**inside, **scaling}}
    config.max_position_embeddings = LENGTH
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32
    ).eval()
    assert distance(patched, logits(reference)) < 1e-3
    assert distance(before, logits(reference)) > 0.1
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [("deepseek_v3", {"mscale": 1.0, "mscale_all_dim": 0.7}), ("deepseek_v4", {})],
    ids=["a pair of scales", "no other attention factor"],
)
def test_a_wider_scaling_keeps_what_only_the_config_of_the_model_says(
    model_type: str, settings: dict[str, float], tmp_path: Path
) -> None:
    """The right side is transformers with a factor of 8 in the config, as published."""
    results = []
    for factor in (2.0, 8.0):
        scaling = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": TRAINED,
            "beta_fast": 32,
            "beta_slow": 1,
            **settings,
        }
        folder = make(
            model_type,
            tmp_path / f"{factor:g}",
            rope_scaling=scaling,
            max_position_embeddings=int(factor) * TRAINED,
        )
        model = loaded(folder)
        results.append(logits(model))
        if factor == 2:
            ropeconv.patch(model, recipe_of("yarn", 4.0, on_top=True))
            results.append(logits(model))
    narrow, patched, wide = results
    assert distance(patched, wide) < 1e-3
    assert distance(narrow, wide) > 0.1


def test_longrope_takes_the_list_of_the_last_position(model: Any) -> None:
    pairs = 32
    method = REGISTRY["longrope"](long_factor=(4.0,) * pairs, short_factor=(1.0,) * pairs)  # type: ignore[call-arg]
    short = logits(model, TRAINED)
    long = logits(model, LENGTH)
    ropeconv.patch(model, Recipe(method, context=LENGTH, attention_factor=1.0))
    assert distance(logits(model, TRAINED), short) < 1e-3
    assert distance(logits(model, LENGTH), long) > 0.1


def test_queries_are_scaled_and_left_alone_again(model: Any) -> None:
    before = logits(model)
    undo = ropeconv.patch(model, recipe_of("theta", 10000.0, context=LENGTH, log_n="clamped"))
    scaled = logits(model)
    assert distance(scaled[:TRAINED], before[:TRAINED]) < 1e-3
    assert distance(scaled[TRAINED:], before[TRAINED:]) > 0.1
    undo()
    assert torch.equal(logits(model), before)


def test_a_scaled_model_needs_a_plan(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = apply(make_plan(tiny("llama"), YARN, tmp_path / "out"))
    model = loaded(folder)
    with pytest.raises(RopeconvError, match=r"scaled already .*Target\(replace=True\)"):
        ropeconv.patch(model, YARN)
    ropeconv.patch(model, make_plan(folder, YARN, tmp_path / "again", replace=True))


def test_patches_are_undone_in_the_reverse_order(model: Any) -> None:
    before = logits(model)
    first = ropeconv.patch(model, YARN)
    second = ropeconv.patch(model, recipe_of("mixed", 2.0))
    with pytest.raises(RopeconvError, match="undo the later"):
        first()
    second()
    first()
    first()
    assert torch.equal(logits(model), before)


def test_a_plan_for_another_model_is_refused(
    model: Any, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(RopeconvError, match="another RoPE"):
        ropeconv.patch(model, make_plan(tiny("phi"), YARN, tmp_path / "out"))


PARTS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": TRAINED,
}
DEFAULT = {"rope_type": "default", "rope_theta": 1e6}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def voxtral(rope: dict[str, Any]) -> Any:
    """A model with an audio tower that rotates 64 dimensions of a head, as its text model does."""
    text = {**PARTS, "model_type": "voxtral_realtime_text", "rope_parameters": rope}
    audio = {**TOWER, "hidden_size": 64, "head_dim": 64, "vocab_size": VOCABULARY}
    config = transformers.VoxtralRealtimeConfig(text_config=text, audio_config=audio)
    return transformers.VoxtralRealtimeForConditionalGeneration(config)


def omni(rope: dict[str, Any]) -> Any:
    """A model with a talker and a vocoder, which have rotary modules of their own."""
    sections = {**rope, "mrope_section": [8, 12, 12]}
    text = {**PARTS, "rope_parameters": sections}
    audio = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2}
    audio |= {"encoder_ffn_dim": 32, "output_dim": 128}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    vision |= {"out_hidden_size": 128}
    talker = {**PARTS, "vocab_size": 400, "embedding_size": 128}
    vocoder = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "ff_mult": 1}
    vocoder |= {"emb_dim": 32, "head_dim": 64, "num_embeds": 100, "enc_emb_dim": 32, "enc_dim": 32}
    vocoder |= {"enc_channels": [32, 32, 32, 32, 96]}
    config = transformers.Qwen2_5OmniConfig(
        thinker_config={"text_config": text, "audio_config": audio, "vision_config": vision},
        talker_config=talker,
        token2wav_config={"dit_config": vocoder},
        enable_audio_output=True,
    )
    return transformers.Qwen2_5OmniForConditionalGeneration(config)


def frequencies(model: Any) -> dict[str, tuple[Any, Any]]:
    """The frequencies and the attention factor of each rotary module, by its name."""
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "inv_freq"):
            found[name] = module.inv_freq.clone(), getattr(module, "attention_scaling", 1.0)
    return found


def changed(left: dict[str, tuple[Any, Any]], right: dict[str, tuple[Any, Any]]) -> set[str]:
    """The modules with other frequencies or another factor."""
    names = set()
    for name, (inv_freq, factor) in left.items():
        other, other_factor = right[name]
        same_shape = inv_freq.shape == other.shape
        if not same_shape or not torch.allclose(inv_freq, other, rtol=1e-5):
            names.add(name)
        if factor != pytest.approx(other_factor):
            names.add(name)
    return names


@pytest.mark.parametrize(
    ("build", "extended", "others"),
    [
        (voxtral, "model.language_model.rotary_emb", ["model.audio_tower.rotary_emb"]),
        (
            omni,
            "thinker.model.language_model.rotary_emb",
            ["talker.model.rotary_emb", "token2wav.code2wav_dit_model.rotary_embed"],
        ),
    ],
    ids=["an audio tower", "a talker and a vocoder"],
)
def test_other_parts_keep_their_rope(
    build: Callable[[dict[str, Any]], Any], extended: str, others: list[str]
) -> None:
    """The right side is transformers with the method in the config of the text model."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
    stock = frequencies(build({**DEFAULT, **scaling}))
    model = build(DEFAULT)
    before = frequencies(model)
    undo = ropeconv.patch(model, YARN)
    patched = frequencies(model)
    undo()
    assert not changed(patched, stock)
    assert changed(patched, before) == {extended}
    assert before.keys() >= {extended, *others}
    assert not changed(frequencies(model), before)
    ropeconv.patch(model, AS_IS)
    assert not changed(frequencies(model), before)


def test_a_protein_encoder_keeps_its_rope(tiny: Callable[[str], Path]) -> None:
    model = auto_class("evolla").from_pretrained(tiny("evolla"))
    before = frequencies(model)
    ropeconv.patch(model, YARN)
    assert "model.protein_encoder.model.rotary_embeddings" in before
    assert changed(frequencies(model), before) == {"model.rotary_emb"}


def test_a_model_with_a_copied_config_is_patched(model: Any) -> None:
    """As in transformers 4, which copies the config of a part: an equal config counts."""
    right = logits(model)
    undo = ropeconv.patch(model, YARN)
    expected = logits(model)
    undo()
    model.model.config = copy.deepcopy(model.config)
    model.model.rotary_emb.config = copy.deepcopy(model.config)
    ropeconv.patch(model, YARN)
    assert torch.equal(logits(model), expected)
    assert distance(expected, right) > 0.1


def test_a_model_whose_language_model_does_not_rotate_is_refused(model: Any) -> None:
    model.model.rotary_emb.config = transformers.LlamaConfig(hidden_size=64)
    model.config.audio_config = model.model.rotary_emb.config
    with pytest.raises(BadSource, match="no rotary module"):
        ropeconv.patch(model, YARN)


def pictured(model_type: str, rope: dict[str, Any]) -> Any:
    """A model with a tower for images in front of a Llama or a Mistral."""
    text_type, tower = {
        "mistral3": ("mistral", {"model_type": "pixtral", "head_dim": 16}),
        "llava": ("llama", {"model_type": "clip_vision_model", "projection_dim": 32}),
    }[model_type]
    text = {**PARTS, "model_type": text_type, "initializer_range": 0.35, "rope_parameters": rope}
    config = transformers.AutoConfig.for_model(
        model_type,
        text_config=text,
        vision_config={**TOWER, **tower, "image_size": 28, "patch_size": 14},
        image_token_index=VOCABULARY - 1,
        vision_feature_layer=-1,
    )
    config.text_config.sliding_window = None
    torch.manual_seed(0)
    return transformers.AutoModelForImageTextToText.from_config(config).eval()


@pytest.mark.parametrize("model_type", ["mistral3", "llava"])
def test_queries_of_a_model_for_images_are_those_of_its_text_model(model_type: str) -> None:
    """The right side is the text model on its own."""
    whole = pictured(model_type, DEFAULT)
    text = transformers.AutoModelForCausalLM.from_config(whole.config.text_config).eval()
    text.model.load_state_dict(whole.model.language_model.state_dict())
    text.lm_head.load_state_dict(whole.lm_head.state_dict())
    before = logits(whole)
    assert distance(before, logits(text)) < 1e-3
    recipe = recipe_of("theta", 1e6, context=LENGTH, log_n="clamped")
    for model in (whole, text):
        ropeconv.patch(model, recipe)
    assert distance(logits(whole), logits(text)) < 1e-3
    assert distance(logits(whole)[TRAINED:], before[TRAINED:]) > 0.1


def test_the_features_of_an_image_are_kept() -> None:
    """CLIP names its projections as Llama does."""
    model = pictured("llava", DEFAULT)
    pixels = torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    ids = torch.full((1, LENGTH), 5)
    ids[0, 5:9] = VOCABULARY - 1
    with torch.no_grad():
        before = model(input_ids=ids, pixel_values=pixels).logits[0]
        ropeconv.patch(model, recipe_of("theta", 1e6, context=LENGTH, log_n="clamped"))
        for _ in range(2):
            after = model(input_ids=ids, pixel_values=pixels).logits[0]
            assert distance(after[:TRAINED], before[:TRAINED]) < 1e-3
        assert distance(after[TRAINED:], before[TRAINED:]) > 0.01


def test_log_n_is_written_for_a_model_for_images(tmp_path: Path) -> None:
    pictured("mistral3", DEFAULT).save_pretrained(tmp_path / "source")
    output = ropeconv.apply(
        tmp_path / "source",
        theta=1e6,
        context=512,
        log_n="clamped",
        replace=True,
        allow_approximate=True,
        out=tmp_path / "out",
        validate="off",
    )
    assert "ministral3" in (output.path / "config.json").read_text()


@pytest.mark.parametrize("recipe", [AS_IS, recipe_of("theta", 1e6), YARN])
def test_a_family_that_apply_refuses_is_not_patched(recipe: Recipe) -> None:
    experts = {"moe_intermediate_size": [32, 32], "moe_num_experts": 4, "moe_k": 2}
    experts |= {"moe_num_shared_experts": 1, "mlp_layer_types": ["dense"]}
    rope = {**DEFAULT, "mrope_section": [11, 11, 10]}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    config = transformers.Ernie4_5_VLMoeConfig(
        text_config={**PARTS, **experts, "rope_parameters": rope}, vision_config=vision
    )
    model = transformers.Ernie4_5_VLMoeForConditionalGeneration(config)
    before = frequencies(model)
    with pytest.raises(UnsupportedBake, match="own order"):
        ropeconv.patch(model, recipe)
    assert not changed(frequencies(model), before)


def test_an_attention_factor_that_a_norm_cancels_is_not_patched(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny("hunyuan_v1_dense")
    model = loaded(folder)
    before = logits(model)
    with pytest.raises(UnsupportedBake):
        make_plan(folder, YARN, tmp_path / "out")
    with pytest.raises(UnsupportedBake, match="attention_factor"):
        ropeconv.patch(model, YARN)
    assert torch.equal(logits(model), before)
    ropeconv.patch(model, recipe_of("yarn", 4.0, attention_factor=1.0))
    assert distance(logits(model), before) > 0.1


def test_a_copy_of_a_model_with_two_lists_chooses_for_itself(model: Any) -> None:
    method = REGISTRY["longrope"](long_factor=(4.0,) * 32, short_factor=(1.0,) * 32)  # type: ignore[call-arg]
    short = logits(model, TRAINED)
    ropeconv.patch(model, Recipe(method, context=LENGTH, attention_factor=1.0))
    long = logits(model, LENGTH)
    twin = copy.deepcopy(model)
    of_model = model.model.rotary_emb.inv_freq.clone()
    assert distance(logits(twin, TRAINED), short) < 1e-3
    assert torch.equal(model.model.rotary_emb.inv_freq, of_model)
    assert distance(logits(twin, LENGTH), long) < 1e-3
    assert distance(long[:TRAINED], short) > 0.1
