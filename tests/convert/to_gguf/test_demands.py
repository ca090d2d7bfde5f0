"""A conversion is what llama.cpp computes and what its loader demands, or it is refused before it
has its name.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoConfig

from ropeconv.bake.apply import apply as apply_checked
from ropeconv.convert.to_gguf import export as exported
from ropeconv.convert.to_gguf.demands import demands
from ropeconv.engines.llamacpp import why_not_run
from ropeconv.engines.transformers.load import load_stock
from ropeconv.errors import BadSource, UnsupportedBake, UsageError
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.registry import by_model_type, families
from ropeconv.rope.errors import RopeconvError
from scripts.llamacpp import demands as gguf_demands

from ...support.baking import AS_IS, make_plan, recipe_of
from ...support.corruptions import tensors
from ...support.extent import sample
from ...support.llamacpp import EXPORTED, bake, checkpoint
from ...support.models import ENCODERS, VOCABULARY, from_config

WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
COMPUTED_OTHERWISE: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob = False"),
    ("gemma2", {"query_pre_attn_scalar": 32}, "query_pre_attn_scalar = 32"),
    ("cohere", {"use_qk_norm": True}, "use_qk_norm = True"),
    ("smollm3", {"no_rope_layers": [1, 0, 1, 1]}, "no_rope_layers"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers = \\[0\\]"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    (
        "exaone4",
        {"sliding_window": 32, "layer_types": WINDOWS},
        "windows there in models of 64 layers only",
    ),
    (
        "laguna",
        {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] + ["full_attention"] * 2},
        "a window in the first layer",
    ),
    ("hy_v3", {"mlp_bias": True}, "mlp_bias = True"),
    ("cohere2_moe", {"shared_expert_combination_strategy": "sum"}, "llama.cpp computes 'average'"),
    ("persimmon", {}, "llama.cpp no longer supports this architecture; keep safetensors"),
    ("phimoe", {}, "SparseMixer"),
]
NOT_LOADED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3", {"attention_bias": True}, "attn_output.bias"),
    ("arcee", {"mlp_bias": True}, "ffn_down.bias"),
    ("gpt_neox", {"attention_bias": False}, "no blk.0.attn_qkv.bias"),
    ("olmoe", {"num_key_value_heads": 1}, "attn_k_norm.weight has the shape \\[64\\]"),
]


def test_every_architecture_of_a_family_is_known() -> None:
    rules = [family.gguf for family in families() if family.gguf is not None]
    assert {rule.arch for rule in rules} <= set(demands())
    known = set(gguf.MODEL_ARCH_NAMES.values())
    for rule in rules:
        assert set(rule.like or (rule.arch,)) <= known
        # other names only for those that gguf-py has none of
        assert not rule.like or rule.arch not in known


@pytest.mark.parametrize(("model_type", "changes", "words"), COMPUTED_OTHERWISE + NOT_LOADED)
def test_what_llama_cpp_computes_otherwise_or_does_not_load_is_refused(
    tmp_path: Path, model_type: str, changes: dict[str, Any], words: str
) -> None:
    if changes:
        assert make_plan(checkpoint(model_type, tmp_path / "plain"), AS_IS, to="gguf").files
    source = checkpoint(model_type, tmp_path / "source", **changes)
    with pytest.raises((UnsupportedBake, BadSource), match=words):
        make_plan(source, AS_IS, to="gguf")


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("model.layers.0.self_attn.q_proj.qweight", torch.zeros(8, 8, dtype=torch.int32), "in I32"),
        (
            "model.layers.0.surprise.weight",
            torch.ones(4),
            "model.layers.0.surprise.weight has no name",
        ),
    ],
)
def test_a_tensor_without_a_name_or_of_integers_is_refused(
    name: str, tensor: Any, words: str, tmp_path: Path
) -> None:
    source = checkpoint("llama", tmp_path / "source")
    tensors(lambda arrays: arrays.update({name: tensor.numpy()}))(source)
    with pytest.raises((UnsupportedBake, BadSource), match=words):
        make_plan(source, AS_IS, to="gguf")


def test_an_unknown_type_and_a_folder_without_weights_are_refused(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    with pytest.raises(UsageError, match="--outtype q9 is not known"):
        make_plan(source, AS_IS, to="gguf", outtype="q9")
    (source / "model.safetensors").unlink()
    with pytest.raises(BadSource, match="no safetensors weights"):
        make_plan(source, AS_IS, to="gguf")


def test_what_llama_cpp_does_not_load_never_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second guard, where the first is away: the file is opened once before it has its name."""
    source = checkpoint("qwen3", tmp_path / "source", attention_bias=True)
    monkeypatch.setattr(exported, "check_demands", lambda *_: None)
    with pytest.raises(RopeconvError, match="cannot run .*wrong number"):
        apply_checked(make_plan(source, AS_IS, tmp_path / "bad.gguf", to="gguf"))
    apply_checked(
        make_plan(checkpoint("qwen3", tmp_path / "good"), AS_IS, tmp_path / "good.gguf", to="gguf")
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "good.gguf", "source"]


DOCS = Path(__file__).parents[3] / "docs" / "tables" / "conversions.txt"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (
        DOCS.read_text()
        .partition("begin of the table")[2]
        .partition("<!-- end")[0]
        .splitlines()[3:]
    )
    if line.startswith("| ")
]


def test_the_table_of_exports_has_every_family_with_small_divergences_and_large_controls() -> None:
    rules = {name: by_model_type()[name].gguf for name in EXPORTED}
    assert [(row[0], row[1]) for row in ROWS] == [
        (name, rule.arch) for name, rule in rules.items() if rule
    ]
    for row in ROWS:
        measured = [float(cell) for cell in row[2:-1] if cell != "-"]
        assert max(measured) <= 2e-5, (
            row
        )  # gemma2's activation is a table of 16-bit floats in llama.cpp
        assert float(row[-1]) > 100 * max(measured), row


ROOT = Path(__file__).parents[3]
EXCERPTS = ROOT / "tests" / "data" / "llama.cpp"
DEMANDS = json.loads((ROOT / "ropeconv" / "convert" / "to_gguf" / "demands.json").read_text())


def test_the_generator_gives_what_is_committed() -> None:
    extracted = gguf_demands.extract(EXCERPTS)
    assert sorted(extracted) == ["falcon-h1", "gemma4", "glm4moe", "qwen3"]
    assert extracted == {arch: DEMANDS[arch] for arch in extracted}


def test_what_the_converter_keeps_in_f32_is_read_from_its_list() -> None:
    assert gguf_demands.float32(EXCERPTS) == {
        "qwen3": set(),
        "glm4": set(),
        "falcon-h1": {"blk.{}.ssm_conv1d.weight"},
        "gemma4": {"blk.{}.ffn_gate_inp.weight"},
        "glm4moe": {"blk.{}.ffn_gate_inp.weight"},
        "lfm2": {"blk.{}.shortconv.conv.weight"},
    }


LOADED = ("falcon_h1", "glm4_moe", "qwen3", "gemma4_text")
CASES = [(model_type, kind) for model_type in LOADED for kind in ("required", "keys")]


@pytest.mark.parametrize(("model_type", "kind"), sample(CASES, 1))
def test_llamacpp_loads_nothing_without_what_is_demanded(
    tmp_path: Path, model_type: str, kind: str
) -> None:
    pytest.importorskip("llama_cpp")
    whole = tmp_path / "whole.gguf"
    less = tmp_path / "less.gguf"
    bake(checkpoint(model_type, tmp_path / "source"), recipe_of("as-is"), whole)
    assert why_not_run(whole) == ("", "")
    file = GgufFile.open(whole)
    arch = file.get("general.architecture")
    for name in sample(list(DEMANDS[arch][kind]), 3):
        lost = frozenset({name.format(0) if kind == "required" else f"{arch}.{name}"})
        write_new(file, 0, Edit(removed=lost) if kind == "required" else Edit(dropped=lost), less)
        assert why_not_run(less)[0], f"{arch} loads without {name}"
        less.unlink()


# Every field of a config class that changes logits is read by the conversion, refused, or warned
# about


LEFT_OUT = {
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_dim",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
}
"""Fields of the RoPE, and those that say what is returned."""
TOKENS = torch.randint(4, VOCABULARY, (1, 96), generator=torch.Generator().manual_seed(0))
WORDS = {
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "activation": "relu",
    "topk_method": "group_limited_greedy",
}


def others(name: str, value: Any) -> list[Any]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return list(dict.fromkeys([value + 1, max(1, value // 2)]))
    if isinstance(value, float):
        return [value * 3 + 0.5]
    if value is None:
        return [True, 16, 2.0]
    return [WORDS[name]] if name in WORDS else []


def logits(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Logits of a config with weights, or states of an encoder; None where it takes others, or none
    at all.
    """
    try:
        model = from_config(AutoConfig.for_model(**config)).to(torch.float32).eval()
        model.load_state_dict(weights)
        with torch.no_grad():
            if config["model_type"] in ENCODERS:
                return model(input_ids=TOKENS).last_hidden_state
            return model(input_ids=TOKENS, use_cache=False).logits
    except Exception:  # of transformers, for values that make no model
        return None


def conversion(plan: Any) -> tuple[Any, ...]:
    """The metadata, every tensor with the places of its rows and what they are multiplied by, and
    the warnings.
    """
    values = {
        key: value
        for key, value in plan.exported.model.header.values.items()
        if not key.startswith("general.")
    }
    parts = {
        t.name: [(part.start, part.rows, part.factors) for part in t.parts]
        for t in plan.exported.tensors
    }
    return values, parts, plan.warnings


@pytest.mark.parametrize("model_type", sample(EXPORTED, 1))
def test_fields_that_change_logits_are_read_or_refused(tmp_path: Path, model_type: str) -> None:
    source = checkpoint(model_type, tmp_path / "source")
    model = load_stock(source, "cpu")
    config = model.config.to_dict()
    weights = model.state_dict()

    def converted(config: dict[str, Any]) -> tuple[Any, ...] | None:
        (source / "config.json").write_text(json.dumps(config))
        try:
            return conversion(make_plan(source, AS_IS, to="gguf"))
        except RopeconvError:
            return None

    plain = logits(config, weights)
    before = converted(config)
    assert plain is not None
    assert before is not None
    changed = [
        (name, other) for name in config.keys() - LEFT_OUT for other in others(name, config[name])
    ]
    moved = [
        (name, other)
        for name, other in changed
        if (then := logits({**config, name: other}, weights)) is not None
        and (then - plain).abs().max() >= 1e-3
    ]
    assert moved, "no field of the class moved logits, so that nothing was tested"
    assert [
        (name, other) for name, other in moved if converted({**config, name: other}) == before
    ] == []
