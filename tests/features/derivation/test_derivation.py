"""Families that are derived from classes: what they say is compared with files of the package, with
the buffers of the classes, and with models whose code is written here.
"""

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv.engines.probe import Probe
from ropeconv.errors import BadSource, UnknownModelType
from ropeconv.features.derivation import derivation
from ropeconv.features.derivation.derivation import DerivationProcess, derive_family, describe
from ropeconv.features.derivation.description import describe_in_toml
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models import config as config_module
from ropeconv.models import registry
from ropeconv.models.config import detect
from ropeconv.models.family import Family
from ropeconv.models.open import open_source
from ropeconv.models.registry import read_family
from ropeconv.models.source import Source
from ropeconv.runtimes.read_config import read_spec

from ...conftest import CONFIGS
from ...support.extent import sample
from ...support.in_process import command

MORE = CONFIGS.parent / "more_configs"
OWN = Path(__file__).with_name("modeling_own.py")
AUTO_MAP = {
    "AutoConfig": "modeling_own.OwnConfig",
    "AutoModelForCausalLM": "modeling_own.OwnModelForCausalLM",
}


@pytest.fixture(scope="module")
def process() -> Iterator[DerivationProcess]:
    with DerivationProcess() as started:
        yield started


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make model types unknown."""
    known = registry.by_model_type()

    def hide(*names: str) -> None:
        rest = {name: family for name, family in known.items() if name not in names}
        for module in (registry, config_module):
            monkeypatch.setattr(module, "by_model_type", lambda: rest)

    return hide


def own_model(folder: Path, **settings: Any) -> Path:
    """A checkpoint with its own code, without weights."""
    folder.mkdir(exist_ok=True)
    shutil.copy(OWN, folder)
    whole = {"model_type": "own_model", "auto_map": AUTO_MAP, **settings}
    (folder / "config.json").write_text(json.dumps(whole))
    return folder


def asked(process: DerivationProcess, folder: Path) -> Family:
    """The family that the code in a folder shows."""
    source = open_source(folder)
    assert isinstance(source, Source)
    answer = process.ask(folder, own_code=True)
    assert answer.error == ""
    return describe(source, answer)


# Published configs, as if their types were unknown

REFUSED = {
    "EleutherAI--gpt-j-6b": "fixed in code",
    "mistralai--Ministral-3-3B-Instruct-2512": "scales its queries by the position",
}
"""Configs that no family describes, and why."""
PUBLISHED = {path.stem: path for path in (*CONFIGS.glob("*.json"), *MORE.glob("*.json"))}
ALIKE = (
    "CohereForAI--aya-23-8B",
    "CohereForAI--c4ai-command-r7b-12-2024",
    "EleutherAI--pythia-14m",
    "HuggingFaceTB--SmolLM3-3B",
    "LGAI-EXAONE--EXAONE-4.0-32B",
    "Qwen--Qwen2-VL-7B-Instruct",
    "Qwen--Qwen2.5-7B-Instruct",
    "Qwen--Qwen2.5-VL-7B-Instruct",
    "Qwen--Qwen3-30B-A3B",
    "Qwen--Qwen3-8B",
    "Qwen--Qwen3-VL-8B-Instruct",
    "Qwen--Qwen3.5-27B",
    "Qwen--Qwen3.5-35B-A3B",
    "XiaomiMiMo--MiMo-V2-Flash",
    "allenai--OLMo-2-1124-7B-Instruct",
    "bigcode--starcoder2-7b",
    "deepseek-ai--DeepSeek-V3.2",
    "google--gemma-2-9b",
    "google--gemma-3-4b-it",
    "google--gemma-7b",
    "ibm-granite--granite-3.3-8b-instruct",
    "meta-llama--Llama-2-70b-hf",
    "meta-llama--Llama-3.2-11B-Vision-Instruct",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct.first",
    "microsoft--Phi-3-mini-4k-instruct",
    "mistralai--Mistral-7B-v0.1",
    "mistralai--Mixtral-8x7B-v0.1",
    "openai--gpt-oss-20b",
    "stabilityai--stablelm-3b-4e1t",
    "tencent--Hunyuan-7B-Instruct",
    "tiiuae--falcon-40b",
)
"""Configs of as many families."""


@pytest.mark.parametrize("name", sample(ALIKE, 2))
def test_an_unknown_type_is_read_as_its_file_says(
    name: str, process: DerivationProcess, tmp_path: Path
) -> None:
    """Its RoPE is that of the package's family, and that of the buffers of its class."""
    shutil.copy(PUBLISHED[name], tmp_path / "config.json")
    source = open_source(tmp_path)
    assert isinstance(source, Source)
    known = source.family
    answer = process.ask(tmp_path, own_code=False)
    assert answer.error == ""
    derived = describe(source, answer)

    config = source.config()
    ours = read_spec(config, derived)
    theirs = read_spec(config, known)
    for part in ("layers", "rotary_dim", "head_dim", "layout", "mla", "context"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert np.allclose(ours.current().inv_freq, theirs.current().inv_freq, rtol=1e-12)
    for part in ("q", "k", "fused", "fused_order", "rows", "input"):
        assert getattr(derived.weights, part) == getattr(known.weights, part), part

    with Probe() as probe:
        buffers = probe.ask(tmp_path, ours.context)
    inv_freq = buffers["modules"]["global"]["inv_freq"]
    assert np.allclose(ours.current().inv_freq, inv_freq, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_class_that_cannot_be_described_is_refused_with_the_reason(
    name: str, process: DerivationProcess, tmp_path: Path
) -> None:
    shutil.copy(PUBLISHED[name], tmp_path / "config.json")
    assert REFUSED[name] in refusal(process, tmp_path, own_code=False)


def refusal(process: DerivationProcess, folder: Path, own_code: bool) -> str:
    """Why no family is derived for the model in a folder."""
    source = open_source(folder)
    assert isinstance(source, Source)
    answer = process.ask(folder, own_code)
    if answer.error:
        return answer.error
    with pytest.raises(BadSource) as caught:
        describe(source, answer)
    return str(caught.value)


# Models of their own code


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"layout": "half"}),
        ({"pairs": "interleaved"}, {"layout": "interleaved"}),
        ({"rotary_share": 0.5}, {"rotary_dim": 8}),
        ({"rotary_share": 0.5, "pairs": "interleaved"}, {"rotary_dim": 8, "layout": "interleaved"}),
        ({"still_every": 2}, {"layers": ("global", "none") * 2}),
        ({"rope_base": 7777.0}, {"theta": 7777.0}),
        ({"n_kv_heads": 4, "max_seq_len": 1024}, {"context": 1024}),
    ],
)
def test_code_of_its_own_is_read_by_running_it(
    settings: dict[str, Any],
    expected: dict[str, Any],
    process: DerivationProcess,
    tmp_path: Path,
) -> None:
    stated = {"d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 256, "rope_base": 5e4}
    folder = own_model(tmp_path / "model", **{**stated, **settings})
    family = asked(process, folder)
    spec = read_spec(json.loads((folder / "config.json").read_text()), family)
    found = {
        "layout": spec.layout,
        "rotary_dim": spec.rotary_dim,
        "layers": spec.layers,
        "theta": spec.rope_theta,
        "context": spec.context,
    }
    assert {key: found[key] for key in expected} == expected
    assert spec.head_dim == 16
    assert family.keys.theta == ("rope_base",)
    assert (family.weights.q, family.weights.k) == ("attn.Wq", "attn.Wk")
    assert family.weights.layer == ("body.layers.{layer}.",)
    assert (family.weights.input, family.weights.input_norm) == ("layer-norm", ("norm",))
    assert "yarn" not in family.writing.types
    by_hand = found["theta"] ** -(np.arange(spec.rotary_dim // 2) / (spec.rotary_dim // 2))
    assert np.allclose(spec.current().inv_freq, by_hand, rtol=1e-12)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ("alibi", "no layer rotates"),
        ("learned", "no layer rotates"),
        ("fixed", "fixed in code"),
        ("growing", "position"),
        ("axial", "not proportional"),
    ],
)
def test_other_positions_are_refused_with_the_true_reason(
    position: str, reason: str, process: DerivationProcess, tmp_path: Path
) -> None:
    folder = own_model(tmp_path / "model", position=position)
    assert reason in refusal(process, folder, own_code=True)


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"score_scale": 1.0}, "scale of its scores, which is 1"),
        ({"position": "still-growing", "still_every": 2}, "in layers that do not rotate"),
    ],
)
def test_scales_that_no_field_describes_are_named(
    settings: dict[str, Any], fact: str, process: DerivationProcess, tmp_path: Path
) -> None:
    family = asked(process, own_model(tmp_path / "model", **settings))
    assert any(fact in item for item in family.not_derived), family.not_derived
    plain = asked(process, own_model(tmp_path / "plain", still_every=2))
    assert plain.not_derived == ()


def test_layers_that_rotate_without_a_softmax_do_not_count_as_still(
    process: DerivationProcess, tmp_path: Path
) -> None:
    folder = own_model(tmp_path / "model", outside_every=4)
    assert "layer 3 uses positions" in refusal(process, folder, own_code=True)


def test_a_norm_with_a_weight_for_each_head_is_no_projection(
    process: DerivationProcess, tmp_path: Path
) -> None:
    weights = asked(process, own_model(tmp_path / "model", head_norms=True)).weights
    assert (weights.q, weights.k) == ("attn.Wq", "attn.Wk")
    assert (weights.q_norm, weights.norm) == ("attn.q_norm", "layer-norm")


def test_code_for_transformers_4_is_run_with_stand_ins(
    process: DerivationProcess, tmp_path: Path
) -> None:
    """Removed names do not keep it from being run, and are named; other mistakes do."""
    imports = (
        "from transformers.utils.import_utils import is_torch_fx_available\n"
        "from transformers.utils import add_start_docstrings_to_no_model\n"
        "assert is_torch_fx_available() is False\n"
    )
    folder = own_model(tmp_path / "model")
    code = (folder / OWN.name).read_text()
    (folder / OWN.name).write_text(code.replace("import torch\n", f"import torch\n{imports}", 1))
    family = asked(process, folder)
    assert "is_torch_fx_available" in family.not_derived[0]
    assert family.keys.theta == ("rope_base",)

    (folder / OWN.name).write_text(f"from math import no_such_name\n{code}")
    assert "no_such_name" in refusal(process, folder, own_code=True)


# What people type


def test_code_of_a_model_runs_only_with_permission(tmp_path: Path) -> None:
    """Without it, the message names the command that runs it."""
    folder = own_model(tmp_path / "model", d_model=64, n_heads=4)
    proof = tmp_path / "ran"
    with (folder / OWN.name).open("a") as file:
        file.write(f"\nopen({str(proof)!r}, 'w').close()\n")
    with pytest.raises(UnknownModelType, match="family MODEL"):
        inspect_source(open_source(folder))
    with pytest.raises(BadSource, match="--trust-remote-code"):
        derive_family(str(folder))
    assert not proof.exists()
    derive_family(str(folder), trust_remote_code=True)
    assert proof.exists()


def test_a_saved_family_is_one_of_the_user(process: DerivationProcess, tmp_path: Path) -> None:
    folder = own_model(tmp_path / "model", d_model=64, n_heads=4, still_every=4)
    family = asked(process, folder)
    file = tmp_path / "own_model.toml"
    file.write_text(describe_in_toml(family))
    read = read_family(file)
    config = json.loads((folder / "config.json").read_text())
    assert read_spec(config, read) == read_spec(
        config, msgspec.structs.replace(family, derived="", not_derived=())
    )
    assert read.weights == family.weights


def test_a_description_is_saved_whole_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one does not replace it, and a full disk leaves nothing."""
    folder = own_model(tmp_path / "model", d_model=64, n_heads=4)
    families = tmp_path / "families"
    families.mkdir()
    monkeypatch.setenv("ROPECONV_FAMILIES", str(families))
    family = derive_family(str(folder), trust_remote_code=True)
    monkeypatch.setattr(derivation, "derive_family", lambda *given, **more: family)
    words = ("family", str(folder), "--trust-remote-code", "--save")

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("os.write", full)
        disk.setattr("os.fsync", full)
        command(tmp_path, *words, code=1)
    assert list(families.iterdir()) == []

    command(tmp_path, *words, code=0)
    (file,) = families.iterdir()
    assert read_family(file).weights == family.weights
    assert "exists" in command(tmp_path, *words, code=1).stderr


def test_an_unknown_type_of_transformers_is_asked(
    hide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inspection, plan and receipt say so; a second command has the answer from the cache."""
    shutil.copy(PUBLISHED["Qwen--Qwen3-8B"], tmp_path / "config.json")
    before = inspect_source(open_source(tmp_path)).spec
    hide("qwen3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UnknownModelType):
        detect(json.loads((tmp_path / "config.json").read_text()))

    inspection = inspect_source(open_source(tmp_path))
    assert "Qwen3ForCausalLM" in inspection.assumption
    assert np.array_equal(inspection.spec.current().inv_freq, before.current().inv_freq)
    assert inspection.source.derived.startswith("transformers 5")

    monkeypatch.setattr(DerivationProcess, "start", lambda self: pytest.fail("asked again"))
    assert inspect_source(open_source(tmp_path)).assumption == inspection.assumption
