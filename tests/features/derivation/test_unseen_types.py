"""Model types that no experiment of the derivation was made for, beside an independent measurement.

`measure` runs a small model with random weights, and looks at the arguments and results of the
function of its module that rotates (`apply_rotary_pos_emb` and others). For each dimension of a head
it fits `out = cos * in - sin * other` over heads and sequences, for every other dimension: the one
that fits is the other one of its pair, and the angles at positions 1 to 15 are the frequency. Nothing
of the derivation is used, which reads products of queries and keys and gives its own numbers to the
projections.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.features.derivation.derivation import DerivationProcess
from scripts.families.library import config_classes

from ...support.extent import sample

SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
TALKER = {"embedding_size": 128, "thinker_hidden_size": 128, "rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}}  # fmt: skip
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 70000.0, "mrope_section": [4, 6, 6]}}  # fmt: skip

SMALL_SECTIONS = {"rope_type": "default", "rope_theta": 70000.0, "mrope_section": [2, 3, 3]}

# of the installed transformers; a base of our own where the class has the usual one
OF_TEXT: dict[str, dict[str, Any]] = {
    "csm": {},
    "esmc": {"num_key_value_heads": 4},
    "gradium_phonon_tts": {"num_key_value_heads": 4, "flow_head_config": {"condition_dim": 128}},
    "higgs_audio_v2": {"vocab_size": 129000},
    "pocket_tts": {"num_key_value_heads": 4, "flow_head_config": {"condition_dim": 128}},
    "qwen2_5_omni_talker": TALKER,
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 128},
    # of transformers 5.24
    "exaone": {"rope_theta": 60000.0},
    "hy_v4_vl_text": {**LATENT, "rope_parameters": SMALL_SECTIONS, "pad_token_id": 0},
    "sarvam_mla": {**LATENT, "num_key_value_heads": 4},
    "sarvam_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
AROUND_TEXT: dict[str, dict[str, Any]] = {
    "aria": {"moe_num_experts": 2},
    "cosmos3_omni": SECTIONS,
    "exaone4_5": {"rope_theta": 60000.0},
    "glm46v": {**SECTIONS, "num_hidden_layers": 2},
    "glmasr": {"rope_theta": 50000.0},
    "glmga": SECTIONS,
    "minicpmv4_7": {"num_hidden_layers": 4},
    "musicflamingo": {"rope_theta": 80000.0},
    # of transformers 5.24
    "apertus1p5": {"vocab_size": 270000},
}
REFUSED = {
    "esm": "its class cannot be run",
    "roformer": "its positions come from a table (RoFormerSinusoidalPositionalEmbedding)",
    "dory": "a layer computes attention more than once",
}
"""Types of which no family can be made, and why."""


@dataclass
class Turned:
    """The rotation of queries in a class, over all calls of its function that rotates."""

    layers: int = 0
    """How many layers rotate."""

    inv_freq: list[np.ndarray[Any, Any]] = field(default_factory=list)
    """The frequencies of each of these layers."""

    layouts: set[str] = field(default_factory=set)


def whole_config(name: str) -> dict[str, Any]:
    if name in AROUND_TEXT:
        from transformers import AutoConfig

        text = AutoConfig.for_model(name).get_text_config()
        part = {"model_type": text.model_type, **SIZES, **AROUND_TEXT[name]}
        return {"model_type": name, "text_config": part}
    return {"model_type": name, **SIZES, **OF_TEXT[name]}


def measure(whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Turned:
    """Run a model with random weights, and fit what its rotating function does to queries."""
    import torch
    from transformers import AutoConfig

    from ropeconv.engines.probe_program import class_of

    torch.manual_seed(0)
    config = AutoConfig.for_model(**whole).get_text_config()
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model_class = class_of(config)
    model = model_class(config).eval().double()
    calls: list[tuple[Any, Any]] = []
    module = sys.modules[model_class.__module__]
    for name in [name for name in vars(module) if name.startswith("apply_") and "rotary" in name]:
        monkeypatch.setattr(module, name, recording(getattr(module, name), calls))

    tokens = 16
    if model.get_input_embeddings() is None or whole["model_type"] == "qwen2_5_omni_talker":
        given = {"inputs_embeds": torch.randn(8, tokens, 128).double()}
    else:
        given = {"input_ids": torch.randint(3, 100, (8, tokens))}
    with torch.no_grad():
        model(**given, use_cache=False)

    turned = Turned()
    for before, after in calls:
        fit(before, after, tokens, turned)
    return turned


def recording(function: Any, calls: list[tuple[Any, Any]]) -> Any:
    """The function, which notes its first argument and its first result."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        before = args[0] if args else kwargs["q"]
        after = result[0] if isinstance(result, tuple) else result
        calls.append((before.detach().double().numpy(), after.detach().double().numpy()))
        return result

    return call


def fit(before: Any, after: Any, tokens: int, turned: Turned) -> None:
    """Find the pairs and the frequencies of queries of shape (sequences, heads, tokens, width)."""
    if before.shape[2] != tokens:  # tokens come before heads
        before, after = before.swapaxes(1, 2), after.swapaxes(1, 2)
    # at position 0 nothing rotates, which shows where a class puts each dimension (DeepSeek V3)
    width = before.shape[-1]
    moved = np.abs(after[:, :, 0, :, None] - before[:, :, 0, None, :]).max((0, 1))
    after = after[..., np.argsort(moved.argmin(1))]
    partner: dict[int, int] = {}
    angle: dict[int, float] = {}
    for index in range(width):
        if np.abs(after[..., index] - before[..., index]).max() < 1e-9:
            continue  # it does not rotate
        best = 1e-6
        for other in range(width):
            if other == index:
                continue
            angles, residual = angles_of(before[..., index], before[..., other], after[..., index])
            if residual < best:  # slow pairs hardly move, so that another one nearly fits
                best = residual
                partner[index] = other
                # position 1 says which turn, and the last one has the digits
                turns = np.rint((angles[1] * (tokens - 1) - angles[-1]) / (2 * np.pi))
                angle[index] = (angles[-1] + 2 * np.pi * turns) / (tokens - 1)
    if not partner:
        return
    firsts = [index for index in partner if angle[index] > 0]  # out = cos x - sin y
    assert len(firsts) == len(partner) // 2
    distances = {partner[index] - index for index in firsts}
    turned.layers += 1
    turned.layouts.add("interleaved" if distances == {1} else "half")
    assert distances in ({1}, {len(firsts)})
    turned.inv_freq.append(np.array([angle[index] for index in firsts]))


def angles_of(first: Any, other: Any, out: Any) -> tuple[np.ndarray[Any, Any], float]:
    """The angle at each token for which out = cos * first - sin * other, and the largest error."""
    angles = []
    worst = 0.0
    for token in range(first.shape[2]):
        matrix = np.stack([first[:, :, token].ravel(), -other[:, :, token].ravel()], axis=1)
        target = out[:, :, token].ravel()
        (cos, sin), *_ = np.linalg.lstsq(matrix, target, rcond=None)
        error = np.abs(matrix @ np.array([cos, sin]) - target).max()
        worst = max(worst, error / np.abs(target).max())
        angles.append(np.arctan2(sin, cos))
    return np.array(angles), worst


@pytest.fixture(scope="module")
def process() -> Iterator[DerivationProcess]:
    with DerivationProcess(180) as started:
        yield started


INSTALLED = [name for name in (*OF_TEXT, *AROUND_TEXT) if name in config_classes()]


@pytest.mark.parametrize("name", sample(INSTALLED, 3))
def test_a_type_is_derived_as_its_function_rotates(
    name: str, process: DerivationProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = whole_config(name)
    turned = measure(whole, monkeypatch)
    assert turned.layers >= 1

    (tmp_path / "config.json").write_text(json.dumps(whole))
    answer = process.ask(tmp_path, own_code=False)
    assert answer.error == ""
    derived = answer.measured
    rotating = [kind for kind in derived["layers"] if kind != "none"]
    assert turned.layers in (len(rotating), 2 * len(rotating))  # an indexer rotates alike
    inv_freq = np.asarray(derived["inv_freq"]["global"])
    for measured in turned.inv_freq:
        np.testing.assert_allclose(inv_freq[inv_freq > 0], measured, rtol=2e-3, atol=1e-6)
    assert turned.layouts == {answer.family["layout"]}
    # the control: another base would have been noticed
    assert not np.allclose(inv_freq**1.05, turned.inv_freq[0], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", sample([name for name in REFUSED if name in config_classes()], 2))
def test_a_type_that_no_family_describes_says_why(
    name: str, process: DerivationProcess, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    answer = process.ask(tmp_path, own_code=False)
    assert answer.error
    assert REFUSED[name] in answer.error
