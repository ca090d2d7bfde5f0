"""Published configs, as their publishers shipped them: what `inspect` says, and what a plan
does.
"""

import json
from pathlib import Path

import pytest

from ropeconv.errors import UnsupportedBake
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models.config import detect, modality_note
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import find, newest

from ..conftest import CONFIGS, DATA
from ..support.baking import YARN, inspected, make_plan, recipe_of, write_config
from ..support.extent import sample

# family, rope_type, theta, head_dim, rotary_dim, trained context, declared context, problems
# fmt: off
FACTS = {
    "01-ai--Yi-34B": ("llama", "default", 5e06, 128, 128, 4096, 4096, []),
    "EleutherAI--gpt-j-6b": ("gptj", "default", 10000, 256, 64, 2048, 2048, ["generation"]),
    "HuggingFaceTB--SmolLM3-3B": ("smollm3", "default", 5e06, 128, 128, 65536, 65536, []),
    "LGAI-EXAONE--EXAONE-3.5-7.8B-Instruct": ("exaone", "llama3", 1e06, 128, 128, 8192, 32768, []),
    "MiniMaxAI--MiniMax-M2.5": ("minimax_m2", "default", 5e06, 128, 64, 196608, 196608, []),
    "Qwen--Qwen2-7B": ("qwen2", "default", 1e06, 128, 128, 131072, 131072, ["trained"]),
    "Qwen--Qwen2.5-7B-Instruct-1M": ("qwen2", "default", 1e07, 128, 128, 262144, 1010000, []),
    "Qwen--Qwen2.5-VL-7B-Instruct": ("qwen2_5_vl", "default", 1e06, 128, 128, 128000, 128000, []),
    "Qwen--Qwen3-8B": ("qwen3", "default", 1e06, 128, 128, 32768, 40960, []),
    "Qwen--Qwen3.5-27B": ("qwen3_5", "default", 1e07, 256, 64, 262144, 262144, []),
    "THUDM--chatglm3-6b": ("chatglm", "default", 10000, 128, 64, 8192, 8192, []),
    "baichuan-inc--Baichuan2-7B": ("baichuan", "default", 10000, 128, 128, 4096, 4096, []),
    "deepseek-ai--DeepSeek-R1-0528-Qwen3-8B": ("qwen3", "yarn", 1e06, 128, 128, 32768, 131072, ["attn-factor"]),
    "deepseek-ai--DeepSeek-V3": ("deepseek_v3", "yarn", 10000, 64, 64, 4096, 163840, []),
    "google--gemma-3-1b-it": ("gemma3", "default", 1e06, 256, 256, 32768, 32768, []),
    "google--gemma-3-27b-it": ("gemma3", "linear", 1e06, 128, 128, 16384, 131072, []),
    "hfl--chinese-alpaca-2-13b-16k": ("llama", "linear", 10000, 128, 128, 4096, 16384, []),
    "internlm--internlm2_5-7b-chat": ("internlm2", "dynamic", 1e06, 128, 128, 32768, 32768, ["dynamic"]),
    "meta-llama--Llama-2-7b-hf.first": ("llama", "default", 10000, 128, 128, 2048, 2048, ["trained"]),
    "meta-llama--Llama-2-7b-hf": ("llama", "default", 10000, 128, 128, 4096, 4096, []),
    "meta-llama--Llama-3.2-1B-Instruct": ("llama", "llama3", 500000, 64, 64, 8192, 131072, []),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct.first": ("llama4", "llama3", 500000, 128, 128, 8192, 10485760, []),
    "meta-llama--Meta-Llama-3-8B": ("llama", "default", 500000, 128, 128, 8192, 8192, []),
    "microsoft--Phi-3-mini-128k-instruct": ("phi3", "longrope", 10000, 96, 96, 4096, 131072, []),
    "microsoft--Phi-4-mini-instruct": ("phi3", "longrope", 10000, 128, 96, 4096, 131072, []),
    "mistralai--Ministral-3-3B-2512": ("ministral3", "yarn", 1e06, 128, 128, 16384, 262144, ["load"]),
    "mistralai--Mistral-7B-v0.1": ("mistral", "default", 10000, 128, 128, 32768, 32768, []),
    "openai--gpt-oss-20b": ("gpt_oss", "yarn", 150000, 64, 64, 4096, 131072, []),
    "openbmb--MiniCPM-2B-128k": ("minicpm", "dynamic", 1e06, 64, 64, 65536, 65536, ["dynamic"]),
    "stabilityai--stablelm-3b-4e1t": ("stablelm", "default", 10000, 80, 20, 4096, 4096, []),
}
# fmt: on
REFUSED = {"gptj", "exaone", "chatglm", "baichuan", "internlm2", "minicpm"}
BAKED = [name for name, facts in FACTS.items() if facts[0] not in REFUSED]


@pytest.mark.parametrize("name", FACTS)
def test_inspect(name: str) -> None:
    report = inspected(CONFIGS / f"{name}.json").to_dict()
    fields = (
        report["family"],
        report["rope_type"],
        report["rope_theta"],
        report["head_dim"],
        report["rotary_dim"],
    )
    lengths = (report["original_context"], report["context"])
    assert (*fields, *lengths, sorted(problem["code"] for problem in report["problems"])) == FACTS[
        name
    ]


@pytest.mark.parametrize("name", sample(list(FACTS), 8))
def test_plan(name: str) -> None:
    """Unscaled models get 4 times their trained context; the others are refused, each with its way
    out.
    """
    family, kind, *_, trained, _, _ = FACTS[name]
    source = open_source(str(CONFIGS / f"{name}.json"))
    if family in REFUSED:
        with pytest.raises(UnsupportedBake, match="cannot be baked"):
            make_plan(source, YARN)
    elif kind != "default":
        with pytest.raises(
            RopeconvError, match=r"is scaled already .* pass --on-top .* --as-is .* or --replace"
        ):
            make_plan(source, YARN)
    else:
        plan = make_plan(source, YARN)
        assert 4 * trained <= plan.schedule.context < 4 * trained + 200
        assert plan.result.verdict_of(newest("transformers")).status == "exact"


@pytest.mark.parametrize("name", sample(BAKED, 5, seed=1))
@pytest.mark.parametrize("method", ["mixed", "theta"])
def test_what_is_written_reads_back_alike_in_both_schemas(name: str, method: str) -> None:
    """transformers 4 (legacy keys), transformers 5 and the precedence of other runtimes see one and
    the same.
    """
    source = open_source(str(CONFIGS / f"{name}.json"))
    value, encoding = (4.0, "factors") if method == "mixed" else (2e6, "native")
    recipe = recipe_of(method, value, context=4 * FACTS[name][6])
    plan = make_plan(source, recipe, replace=True, encoding=encoding)
    family = detect(plan.result.config)
    readers = [*find("transformers"), *find("exllamav3")]
    if family.since.get("transformers", "").startswith("5"):
        readers = [row for row in readers if row.rule_set(family.name).nested]
    specs = [read_spec(plan.result.config, family, reader) for reader in readers]
    assert len({repr((spec.form, spec.local_form)) for spec in specs}) == 1
    before = source.config()
    after = plan.result.config
    ours = {"rope", "rotary", "max_position", "original_max", "head_dim", "partial"}
    for old, new in (
        (before, after),
        (before.get("text_config", {}), after.get("text_config", {})),
    ):
        kept = [
            key for key in old if key != "text_config" and not any(word in key for word in ours)
        ]
        assert [key for key in new if key in kept] == kept, "other keys stay where they were"
        assert all(new[key] == old[key] for key in kept)


@pytest.mark.parametrize(
    ("model_type", "kind", "factor"),
    [("gpt_oss", "yarn", 32.0), ("apertus", "llama3", 8.0), ("ministral3", "yarn", 16.0)],
)
def test_scaling_that_stands_only_in_the_class(
    tmp_path, model_type: str, kind: str, factor: float
) -> None:
    """A config without any RoPE key: the stock class scales, so the model counts as scaled, and
    --as-is writes it down.
    """
    sizes = {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 131072,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **sizes}))
    source = open_source(str(tmp_path / "config.json"))
    inspection = inspect_source(source)
    assert (inspection.spec.form.kind, inspection.spec.form.factor) == (kind, factor)
    assert "default-scaling" in {problem.code for problem in inspection.problems}
    with pytest.raises(RopeconvError, match="is scaled already"):
        make_plan(source, YARN)
    written = make_plan(source, recipe_of("as-is")).result.config
    assert written["rope_scaling"]["rope_type"] == written["rope_parameters"]["rope_type"] == kind
    removed = make_plan(source, recipe_of("theta", 1e6, context=131072), replace=True).result.config
    assert removed["rope_scaling"]["rope_type"] == "default"
    assert read_spec(removed, detect(removed)).form.kind == "default"


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
def test_sizes_that_a_wrapper_leaves_to_the_class_of_its_text_model(
    tmp_path: Path, model_type: str
) -> None:
    """llava-hf/llava-1.5-7b-hf and llava-v1.6-mistral-7b-hf have no hidden_size, and no number of
    heads or layers.
    """
    from transformers import LlavaConfig

    text = {"model_type": model_type, "max_position_embeddings": 4096}
    stock = LlavaConfig(text_config=dict(text)).text_config
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llava", "text_config": text}))
    inspection = inspected(path)
    assert inspection.spec.head_dim == stock.hidden_size // stock.num_attention_heads
    assert len(inspection.spec.layers) == stock.num_hidden_layers
    statuses = {verdict.runtime: verdict.status for verdict in inspection.verdicts}
    assert statuses[newest("transformers").key] == "exact"
    assert statuses[newest("mlx-lm").key] != "exact", "its ModelArgs require hidden_size"


# The parts of multimodal models that a method changes, told apart from those that it leaves: by
# published configs


MORE = DATA / "more_configs"
NOTES = {
    MORE / "Qwen--Qwen2-VL-7B-Instruct.json": (
        "methods leave vision_config as it is; time, height and width (mrope_section 16, 24, 24)"
        " share the scaled frequencies"
    ),
    MORE / "google--gemma-4-26B-A4B.json": (
        "methods leave vision_config (its own RoPE, theta 100) as it is"
    ),
    MORE / "moonshotai--Kimi-K2.5.json": "methods leave vision_config as it is",
    CONFIGS / "Qwen--Qwen3-8B.json": "",
}


@pytest.mark.parametrize("path", NOTES, ids=lambda path: path.stem)
def test_the_note_on_a_published_config(path: Path) -> None:
    config = json.loads(path.read_text())
    assert modality_note(config, inspected(path).spec.mrope_section) == NOTES[path]


def test_several_towers_of_an_omni_model() -> None:
    parts = {"text_config": {}, "vision_config": {}, "audio_config": {}, "quantization_config": {}}
    assert modality_note(parts, ()) == "methods leave vision_config and audio_config as they are"
    talks = {"thinker_config": parts, "talker_config": {"text_config": {"rope_theta": 5000}}}
    others = (
        "talker_config (its own RoPE, theta 5000)",
        "thinker_config.vision_config",
        "thinker_config.audio_config",
    )
    assert modality_note(talks, ()) == f"methods leave {' and '.join(others)} as they are"


def test_a_bake_does_what_the_note_says(tmp_path: Path) -> None:
    import torch
    from transformers import Qwen2VLConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

    source = MORE / "Qwen--Qwen2-VL-7B-Instruct.json"
    plan = make_plan(source, recipe_of("linear", 4.0), tmp_path / "out")
    assert NOTES[source] in plan.notes
    (tmp_path / "baked").mkdir()
    write_config(plan, tmp_path / "baked")
    baked, before = (
        json.loads(path.read_text()) for path in (tmp_path / "baked" / "config.json", source)
    )
    assert baked["vision_config"] == before["vision_config"]
    places, sections = (
        (8, 16, 24),
        (
            16,
            24,
            24,
        ),
    )  # of one token in time, height and width, and their pairs
    position = torch.tensor(
        [place for place, pairs in zip(places, sections, strict=True) for _ in range(pairs)]
    )
    for scale, config in ((1, before), (4, baked)):
        rotary = Qwen2VLRotaryEmbedding(Qwen2VLConfig(**config).text_config)
        cosines = rotary(torch.zeros(1, 1, 8), torch.tensor(places)[:, None, None])[0][0, 0]
        expected = torch.cos(position * 1e6 ** (-torch.arange(64) / 64) / scale)
        assert torch.allclose(cosines[:64], expected, atol=1e-5)
