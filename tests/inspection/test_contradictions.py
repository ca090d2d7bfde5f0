"""Configs that state a setting with two values are named by `inspect` and refused by `apply`. The
value that the sentence says is obeyed is the one that the class of transformers computes with.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ropeconv
from ropeconv.errors import BadSource
from ropeconv.inspection.contradictions import contradictions
from ropeconv.inspection.inspection import ConfigInspection
from ropeconv.loader import make_config
from ropeconv.models.config import text_part

from ..support.baking import make_plan, recipe_of
from ..support.in_process import command
from ..support.models import make

Config = dict[str, Any]
SMALL: Config = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 16384,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA = {**SMALL, "model_type": "llama", "rope_theta": 10000.0}
NEOX = {**SMALL, "model_type": "gpt_neox"}
MINIMAX = {
    **SMALL,
    "model_type": "minimax_m2",
    "head_dim": 64,
    "rope_theta": 1e6,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LENGTH = "original_max_position_embeddings"
SHARE = "partial_rotary_factor"

TWICE: dict[str, tuple[Config, str, str]] = {
    "a share and a number": (
        {**MINIMAX, "rotary_dim": 16, SHARE: 0.5},
        SHARE,
        "rotary_dim",
    ),
    "a nested share and a number": (
        {**MINIMAX, "rotary_dim": 16, "rope_parameters": {**PLAIN, "rope_theta": 1e6, SHARE: 0.5}},
        f"rope_parameters.{SHARE}",
        "rotary_dim",
    ),
    "two shares": (
        {**SMALL, "model_type": "phi", SHARE: 0.25, "rope_parameters": {**PLAIN, SHARE: 0.5}},
        f"rope_parameters.{SHARE}",
        SHARE,
    ),
    "two names of a share": ({**NEOX, "rotary_pct": 0.5, SHARE: 0.25}, "rotary_pct", SHARE),
    "two names of a base": (
        {**NEOX, "rotary_emb_base": 50000, "rope_theta": 10000.0},
        "rotary_emb_base",
        "rope_theta",
    ),
    "two bases": (
        {**LLAMA, "rope_parameters": {**PLAIN, "rope_theta": 50000.0}},
        "rope_parameters.rope_theta",
        "rope_theta",
    ),
    "two trained contexts": (
        {**LLAMA, LENGTH: 8192, "rope_scaling": {**YARN, LENGTH: 4096}},
        LENGTH,
        f"rope_scaling.{LENGTH}",
    ),
    "two types": (
        {**LLAMA, "rope_scaling": {**YARN, LENGTH: 4096, "type": "linear"}},
        "rope_scaling.rope_type",
        "rope_scaling.type",
    ),
    "two factors": (
        {
            **LLAMA,
            "rope_scaling": {**YARN, LENGTH: 4096},
            "rope_parameters": {**YARN, LENGTH: 4096, "factor": 2.0, "rope_theta": 10000.0},
        },
        "rope_scaling.factor",
        "rope_parameters.factor",
    ),
    # with rope_scaling, the class reads no key of rope_parameters, and the base of the top level
    "two bases beside rope_scaling": (
        {
            **LLAMA,
            "rope_theta": 20000.0,  # the default of the class is 10000
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0},
        },
        "rope_theta",
        "rope_parameters.rope_theta",
    ),
    "two shares beside rope_scaling": (
        {
            **SMALL,
            "model_type": "phi",
            "rope_theta": 10000.0,
            SHARE: 0.25,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, SHARE: 0.5},
        },
        SHARE,
        f"rope_parameters.{SHARE}",
    ),
}
ONCE: dict[str, Config] = {
    "a share and the same number": {**MINIMAX, "rotary_dim": 32, SHARE: 0.5},
    "a number": {**MINIMAX, "rotary_dim": 16},
    "the same base": {**LLAMA, "rope_parameters": PLAIN},
    "the same trained context": {**LLAMA, LENGTH: 4096, "rope_scaling": {**YARN, LENGTH: 4096}},
    "a width that is not hidden size / heads": {**LLAMA, "head_dim": 32},
    "an old name of no scaling": {
        **LLAMA,
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]},
    },
}


def written(config: Config, folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def without(config: Config, place: str) -> Config:
    """The config without one of its keys; a dot leads into a dictionary. Without its factor, a
    dictionary is not loaded, so that it goes as a whole.
    """
    name, _, key = place.partition(".")
    if key in ("", "factor"):
        return {each: value for each, value in config.items() if each != name}
    inner = {each: value for each, value in config[name].items() if each != key}
    return {**config, name: inner}


def frequencies(config: Config, folder: Path) -> torch.Tensor:
    """Those of the class in transformers, which loads the file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(exist_ok=True)
    written(config, folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    [vector] = [
        buffer for name, buffer in model.named_buffers() if name.endswith("rotary_emb.inv_freq")
    ]
    return vector


@pytest.mark.parametrize("case", TWICE)
def test_a_contradiction_is_named_and_refused(case: str, tmp_path: Path) -> None:
    config, obeyed, other = TWICE[case]
    path = written(config, tmp_path)
    inspection = ropeconv.inspect(str(path))
    assert isinstance(inspection, ConfigInspection)
    doubts = [problem for problem in inspection.problems if problem.code == "contradiction"]
    assert [problem.repair for problem in doubts] == [None]
    # the setting is wrong in a file, and no command is offered that would be refused
    assert "Next:" not in command(tmp_path, "inspect", path, code=0).stdout

    family = inspection.model_family
    part = text_part(inspection.source.config(), family)  # type: ignore[union-attr]
    [found] = contradictions(part, family, inspection.spec.head_dim)
    assert (found.obeyed.place, found.other.place) == (obeyed, other)
    for method in ("yarn", "linear"):
        with pytest.raises(BadSource, match=f"remove {other} "):
            make_plan(path, recipe_of(method, 4.0))


@pytest.mark.parametrize("case", TWICE)
def test_the_class_obeys_the_value_that_is_said(case: str, tmp_path: Path) -> None:
    config, obeyed, other = TWICE[case]
    computed = frequencies(config, tmp_path / "both")
    with_obeyed = frequencies(without(config, other), tmp_path / "obeyed")
    assert computed.shape == with_obeyed.shape
    assert torch.equal(computed, with_obeyed)

    # the control: the other value gives other frequencies
    with_other = frequencies(without(config, obeyed), tmp_path / "other")
    assert computed.shape != with_other.shape or not torch.equal(computed, with_other)


@pytest.mark.parametrize("case", TWICE)
def test_inspect_shows_what_the_class_computes(case: str, tmp_path: Path) -> None:
    config, _, _ = TWICE[case]
    spec = ropeconv.inspect(str(written(config, tmp_path))).spec
    computed = frequencies(config, tmp_path / "class")
    assert spec.current().inv_freq == pytest.approx(computed.double().numpy(), rel=1e-6)


@pytest.mark.parametrize("case", ONCE)
def test_one_value_in_two_places_is_no_contradiction(case: str, tmp_path: Path) -> None:
    inspection = ropeconv.inspect(str(written(ONCE[case], tmp_path)))
    assert "contradiction" not in {problem.code for problem in inspection.problems}
    assert isinstance(inspection, ConfigInspection)
    family = inspection.model_family
    part = text_part(inspection.source.config(), family)  # type: ignore[union-attr]
    assert list(contradictions(part, family, inspection.spec.head_dim)) == []


# MLA: every head has keys of its own, whatever num_key_value_heads says


def runs(config: Config) -> bool:
    """Whether the class in transformers computes logits with a config."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(make_config(config, config["model_type"]))
    try:
        model(torch.arange(4, 12)[None])
    except RuntimeError:
        return False
    return True


# axk1 and others compute attention by the same code; HY V4 sets the number of key heads itself
@pytest.mark.parametrize(
    "model_type", ["deepseek_v2", "deepseek_v3", "minicpm3", "longcat_flash", "hy_v4"]
)
def test_head_counts_are_refused_where_the_class_cannot_run_them(
    model_type: str, tmp_path: Path
) -> None:
    make(model_type, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    heads = config["num_attention_heads"]
    for heads_of_keys in (heads, heads // 2):
        written({**config, "num_key_value_heads": heads_of_keys}, tmp_path)
        codes = [problem.code for problem in ropeconv.inspect(str(tmp_path)).problems]
        try:
            make_plan(tmp_path, recipe_of("yarn", 4.0))
            is_refused = False
        except BadSource as refusal:
            is_refused = f"set num_key_value_heads to {heads} in" in str(refusal)
            assert is_refused
        assert is_refused == ("contradiction" in codes)
        assert is_refused != runs({**config, "num_key_value_heads": heads_of_keys})


def test_a_model_with_heads_that_fail_is_not_run(tmp_path: Path) -> None:
    """An output that was written before, or whose config was edited: the sentence comes first."""
    from ropeconv.engines.transformers.load import load_stock

    make("deepseek_v2", tmp_path)
    load_stock(tmp_path, "cpu")
    config = json.loads((tmp_path / "config.json").read_text())
    written({**config, "num_key_value_heads": 1}, tmp_path)
    with pytest.raises(BadSource, match="set num_key_value_heads to 2 in"):
        load_stock(tmp_path, "cpu")
    # grouped queries are usual elsewhere
    make_plan(written({**LLAMA, "num_key_value_heads": 1}, tmp_path), recipe_of("yarn", 4.0))
