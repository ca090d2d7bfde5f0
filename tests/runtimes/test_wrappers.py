"""Models around a text model: what is known of the text model says nothing of a model around it
that nobody saw.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.errors import BadSource
from ropeconv.models.config import detect, modality_note, sample_config
from ropeconv.models.parts import other_parts, text_path
from ropeconv.models.registry import by_name
from ropeconv.models.wrappers import wrapper_of, wrapper_types
from ropeconv.runtimes import verdict as verdict_module
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import find, runtimes
from ropeconv.runtimes.verdict import PlannedConfig, Verdict
from scripts.laboratory.wrapper_types import computes_from, reads_flat

from ..support.extent import sample
from ..support.in_process import command

RUN = next(known.run for known in wrapper_types().values() if known.run)
"""The version of transformers whose classes were run."""
TEXT: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 1000000.0,
}


def verdicts(config: dict[str, Any]) -> tuple[Verdict, ...]:
    family = detect(config)
    spec = read_spec(config, family)
    return PlannedConfig(config, family, spec.current(), spec).verdicts


def of(name: str, config: dict[str, Any]) -> Verdict:
    (row,) = find(name) if "@" in name else find(name)[-1:]
    return next(verdict for verdict in reversed(verdicts(config)) if verdict.covers(row))


UNKNOWN = {
    "vision": {
        "model_type": "my_vlm",
        "text_config": TEXT,
        "vision_config": {"model_type": "siglip"},
    },
    "speech": {"model_type": "my_asr", "thinker_config": {"text_config": TEXT, "audio_config": {}}},
    "remote code": {
        "model_type": "my_vlm",
        "text_config": TEXT,
        "auto_map": {"AutoModel": "modeling.MyVlm"},
    },
    "without a name": {"text_config": TEXT},
    # transformers has this model type since 5.13, and its class reads text_config
    "Qwen3-ASR as published": {"model_type": "qwen3_asr", "thinker_config": {"text_config": TEXT}},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_model_that_nobody_saw_is_exact_in_no_runtime(name: str) -> None:
    statuses = {verdict.status for verdict in verdicts(UNKNOWN[name])}
    assert statuses <= {"unknown", "unsupported"}
    assert {verdict.status for verdict in verdicts(TEXT)} >= {"exact"}
    assert len(verdicts(TEXT)) >= len(runtimes())


@pytest.mark.parametrize(
    ("runtime", "config", "status", "grade"),
    [
        ("transformers", {"model_type": "qwen3_asr", "text_config": TEXT}, "exact", "read"),
        (
            "transformers@5.12",
            {"model_type": "qwen3_asr", "text_config": TEXT},
            "unknown",
            "",
        ),  # before it had it
        ("transformers", {"model_type": "internvl", "text_config": TEXT}, "exact", "run"),
        ("vllm", {"model_type": "internvl", "text_config": TEXT}, "exact", "run"),
        ("candle", {"model_type": "internvl", "text_config": TEXT}, "unknown", ""),
        ("mistralrs", {"model_type": "internvl", "text_config": TEXT}, "unknown", ""),
        # a known model type around a text model that its class does not take
        ("transformers", {"model_type": "gemma3", "text_config": TEXT}, "unknown", ""),
        ("transformers", TEXT, "exact", "run"),
        ("candle", TEXT, "exact", "read"),
    ],
)
def test_a_known_model_counts_where_it_was_executed_or_is_stated(
    runtime: str, config: dict[str, Any], status: str, grade: str
) -> None:
    verdict = of(runtime, config)
    assert (verdict.status, verdict.grade) == (status, grade), verdict.reason


def test_models_that_a_runtime_states_by_name_keep_their_status() -> None:
    family = by_name()["gemma3"]
    inner = {**sample_config(family), "model_type": "gemma3_text"}
    config = {"model_type": "gemma3", "text_config": inner}
    assert wrapper_of(config, family) == "gemma3"
    assert wrapper_of(inner, family) is None
    assert of("mistralrs", config).grade == "read"
    # candle-transformers/src/models/gemma3.rs: its Config has the keys of the text model at the top
    assert (of("candle", config).status, of("candle", inner).status) == ("unknown", "exact")


VISION: dict[str, Any] = {
    "model_type": "siglip",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "patch_size": 14,
}
TALKER = {**TEXT, "rope_theta": 5000.0, "max_position_embeddings": 512}
ELSEWHERE: dict[str, dict[str, Any]] = {
    "language_config": {"model_type": "my_vlm", "language_config": TEXT, "vision_config": VISION},
    "llm_config": {"model_type": "internvl_chat", "llm_config": TEXT, "vision_config": VISION},
    "text_config.text_config": {
        "model_type": "my_vlm",
        "text_config": {"model_type": "my_lm", "text_config": TEXT},
    },
    "thinker_config.llm_config": {
        "model_type": "my_omni",
        "thinker_config": {"model_type": "my_thinker", "llm_config": TEXT, "audio_config": VISION},
        "talker_config": {"text_config": TALKER, "code_predictor_config": TALKER},
    },
    "thinker_config": {"model_type": "my_omni", "thinker_config": TEXT, "talker_config": TALKER},
    "decoder": {
        "model_type": "speech-encoder-decoder",
        "encoder": {"model_type": "wav2vec2", **VISION},
        "decoder": TEXT,
    },
    "model.llm": {"model_type": "my_vlm", "model": {"llm": TEXT, "vision_tower": VISION}},
}
"""Wrappers by the place of their text model."""


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_text_model_is_found_by_its_structure(place: str, tmp_path: Path) -> None:
    """Its RoPE is extended where the user says so, and everything else stays."""
    config = ELSEWHERE[place]
    assert ".".join(text_path(config)) == place
    assert read_spec(config, detect(config)).rope_theta == 1000000.0
    assert {verdict.status for verdict in verdicts(config)} <= {"unknown", "unsupported"}

    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("apply", "config.json", "--yarn", 4, "-o", "out")
    assert "no runtime was seen" in command(tmp_path, *words, code=1).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]

    command(tmp_path, *words, "--family", "qwen3", code=0)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    part = written
    for key in place.split("."):
        part = part[key]
    assert part["rope_scaling"]["factor"] == 4
    assert part["max_position_embeddings"] == 16384
    for key in ("rope_scaling", "rope_parameters", "max_position_embeddings", "head_dim"):
        part[key] = TEXT.get(key)
        if part[key] is None:
            del part[key]
    assert written == config


@pytest.mark.parametrize(
    ("config", "others"),
    [
        (ELSEWHERE["llm_config"], ["vision_config"]),
        (ELSEWHERE["thinker_config"], ["talker_config"]),
        (
            ELSEWHERE["thinker_config.llm_config"],
            ["talker_config", "thinker_config.audio_config"],
        ),
        ({**TEXT, "vision_config": VISION}, ["vision_config"]),
        (TEXT, []),
    ],
)
def test_each_other_part_is_named_with_its_own_rope(
    config: dict[str, Any], others: list[str]
) -> None:
    assert [part.name for part in other_parts(config)] == others
    note = modality_note(config, ())
    assert ("theta 5000" in note) == ("talker_config" in others)
    assert all(name in note for name in others)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "my_pair", "first_config": TEXT, "second_config": TEXT},
        {"model_type": "my_tts", "talker_config": TALKER, "speaker_encoder_config": VISION},
        {"model_type": "my_vlm", "vision_config": VISION},
    ],
)
def test_nothing_is_taken_for_a_text_model_where_none_can_be_told(config: dict[str, Any]) -> None:
    assert text_path(config) == ()
    with pytest.raises(BadSource):
        detect(config)


def test_several_language_models_are_named(tmp_path: Path) -> None:
    config = {"model_type": "my_pair", "first_config": TEXT, "second_config": TEXT}
    with pytest.raises(BadSource, match="first_config and second_config"):
        detect(config)


@pytest.mark.parametrize(
    "config",
    [
        {"a": {"b": {"c": {"d": {"e": {"f": {"llm_config": TEXT}}}}}}},
        {f"part{index}_config": {} for index in range(5000)},
    ],
)
def test_the_search_ends_soon(config: dict[str, Any]) -> None:
    assert text_path({"model_type": "x", **config}) == ()


@pytest.mark.parametrize(
    "name", ["internvl", "llava", "mistral3", "ovis2", "qwen3_asr", "smolvlm", "voxtral"]
)
def test_the_classes_of_transformers_keep_the_text_model_there(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[name](text_config=dict(TEXT))
    assert config.text_config.rope_parameters["rope_theta"] == 1000000
    assert (wrapper_types()[name].path, wrapper_types()[name].text) == ("text_config", "")


def test_the_class_for_qwen3_asr_does_not_read_the_published_place() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING["qwen3_asr"](
        **{"thinker_config": {"text_config": dict(TEXT)}}
    )
    assert config.get_text_config().rope_parameters["rope_theta"] != 1000000
    for name, path in (
        ("qwen2_5_omni", "thinker_config.text_config"),
        ("qwen3_asr", "text_config"),
    ):
        assert wrapper_types()[name].path == path


@pytest.mark.parametrize("name", sample(tuple(wrapper_types()), 8))
def test_a_wrapper_counts_only_where_its_own_class_was_run(name: str) -> None:
    """The classes around text models are built with two bases, and their frequencies compared."""
    transformers = pytest.importorskip("transformers")
    known = wrapper_types()[name]
    if transformers.__version__ == RUN:
        assert computes_from(name, known.path, not known.text) == bool(known.run)
    if name in ("internvl", "llava", "qwen3_asr", "qwen3_vl"):
        assert known.run


def test_a_class_that_reads_its_text_model_elsewhere_does_not_count() -> None:
    pytest.importorskip("transformers")
    assert computes_from("qwen3_asr", "text_config", any_text=True)
    assert not computes_from("qwen3_asr", "audio_config", any_text=True)
    assert not computes_from("clip", "text_config", any_text=False)


def test_a_class_that_was_not_run_supports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "qwen3_asr", "text_config": TEXT}
    assert of("transformers", config).status == "exact"
    types = {**wrapper_types()}
    types["qwen3_asr"] = msgspec.structs.replace(types["qwen3_asr"], run="")
    monkeypatch.setattr(verdict_module, "wrapper_types", lambda: types)
    assert of("transformers", config).status == "unknown"


# What `apply` does


def wrapped(llama: Path, **outer: Any) -> Path:
    path = llama / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({"model_type": "my_vlm", "text_config": config, **outer}))
    return llama


OUTPUTS = (
    ("-o", "out"),
    ("-o", "out", "--encoding", "native"),
    ("-o", "out", "--runtime", "vllm"),
    ("-o", "out.gguf", "--to", "gguf"),
    ("--to", "overrides"),
    ("-o", "out", "--runtime", "all"),
)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("options", OUTPUTS, ids=" ".join)
def test_apply_refuses_it_with_the_way_out(
    options: tuple[str, ...],
    installed: bool,
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    wrapped(llama)
    done = command(tmp_path, "apply", llama, "--yarn", 4, *options)
    assert (done.returncode, "'my_vlm' around" in done.stderr) == (
        1,
        True,
    ), done.stderr
    assert "--family llama" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [llama.name]
    shown = command(tmp_path, "inspect", llama, code=0).stdout
    assert ("supported" in shown, "my_vlm" in shown) == (False, True)


def test_the_user_may_say_of_which_family_the_text_model_is(llama: Path, tmp_path: Path) -> None:
    wrapped(llama)
    done = command(
        tmp_path, "apply", llama, "--yarn", 4, "--family", "llama", "-o", "out", "--json", code=0
    )
    reasons = [
        verdict["reason"]
        for verdict in json.loads(done.stdout)["runtimes"]
        if verdict["status"] == "exact"
    ]
    assert reasons
    assert all("if it runs my_vlm as llama" in reason for reason in reasons)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["text_config"]["rope_scaling"]["factor"] == 4
    assert (
        json.loads((tmp_path / "out" / "ropeconv.json").read_text())["check"]["read_as"] == "llama"
    )


def test_the_installed_transformers_is_asked_about_a_type_that_it_has(tmp_path: Path) -> None:
    """With the user's word the plan goes on, and the check of its output finds the default base."""
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN["Qwen3-ASR as published"]))
    done = command(tmp_path, "apply", "config.json", "--yarn", 4, "-o", "out")
    assert (done.returncode, "reads text_config" in done.stderr) == (1, True)
    assumed = command(
        tmp_path, "apply", "config.json", "--yarn", 4, "--family", "qwen3", "-o", "out"
    )
    assert (assumed.returncode, "nothing was kept" in assumed.stderr) == (3, True), assumed.stderr
    assert not (tmp_path / "out").exists()


def test_a_flat_config_of_a_class_that_reads_text_config_is_refused() -> None:
    """transformers would compute the defaults of its text model, whatever the config says."""
    flat = {**TEXT, "model_type": "qwen3_vl"}
    with pytest.raises(BadSource, match=r"reads a text model from text_config.*defaults"):
        detect(flat)
    text = {**TEXT, "model_type": "qwen3_vl_text"}
    assert detect({"model_type": "qwen3_vl", "text_config": text}).name == "qwen3_vl"
    # published so before there was a text_config, which its class still reads
    assert detect({**TEXT, "model_type": "qwen2_vl"}).name == "qwen2_vl"
    assert detect({"model_type": "qwen3_vl"}).name == "qwen3_vl", "all of it is the class's default"


@pytest.mark.parametrize("name", sample(list(wrapper_types()), 8, seed=2))
def test_the_classes_that_read_flat_configs_are_marked(name: str) -> None:
    pytest.importorskip("torch")
    assert reads_flat(name) == wrapper_types()[name].flat


@pytest.mark.parametrize(
    ("part", "is_named"),
    [
        ({"model_type": "whisper", "d_model": 1280, "encoder_layers": 32}, True),
        ({"d_model": 1280}, True),
        ({"sampling": "greedy"}, False),
    ],
)
def test_a_tower_is_named_by_its_key_and_what_it_holds(
    part: dict[str, Any], is_named: bool
) -> None:
    config = {"model_type": "sonus", "audio_encoder": part, "llm_config": TEXT}
    assert ("audio_encoder" in [other.name for other in other_parts(config)]) == is_named
