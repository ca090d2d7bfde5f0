"""Whether models can be merged and adapters applied: judged by PEFT's logits, by the repairs, and
by hand.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.features.compare.compatibility import (
    Compatibility,
    compatibility,
    is_merge,
    open_models,
    read_merge,
)
from ropeconv.inspection.adapter import read_adapter
from ropeconv.models.folder import FolderSource

from ...support.adapters import logits, lora
from ...support.baking import apply, inspected, make_plan, recipe_of
from ...support.gguf_files import write
from ...support.in_process import command
from ...support.models import TRAINED, make
from ...support.rotary import rotary
from .test_side_by_side import GEMMA, LLAMA, LLAMA3, SMOL, YARN, config

PLAIN = {**LLAMA, "vocab_size": 320}
LINEAR = {"rope_type": "linear", "factor": 4.0}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "the same": ({}, {}, ()),
    "a shorter context": ({"max_position_embeddings": 8192}, {}, ()),
    "a longer context": ({}, {"max_position_embeddings": 8192}, ("context",)),
    "yarn over nothing": ({}, {"rope_scaling": YARN, "max_position_embeddings": 16384}, ("rope",)),
    "nothing over yarn": ({"rope_scaling": YARN, "max_position_embeddings": 16384}, {}, ("rope",)),
    "nothing over llama3": (
        {"rope_scaling": LLAMA3, "max_position_embeddings": 32768},
        {},
        ("rope",),
    ),
    "linear over yarn": ({"rope_scaling": YARN}, {"rope_scaling": LINEAR}, ("rope",)),
    "another base": ({}, {"rope_theta": 5e5}, ("rope",)),
    "another width": ({}, {"head_dim": 64}, ("structure",)),
    "another layout": ({"model_type": "cohere", "head_dim": 64}, {"head_dim": 64}, ("family",)),
    "fewer layers": ({}, {"num_hidden_layers": 1}, ("sizes",)),
    "other layers without rotation": (
        SMOL,
        SMOL | {"no_rope_layers": [1, 1, 1, 1]},
        ("structure",),
    ),
    "other windows": (
        GEMMA | {"rope_local_base_freq": 1e4},
        GEMMA | {"rope_local_base_freq": 2e4},
        ("rope",),
    ),
    "another vocabulary": ({}, {"vocab_size": 384}, ("vocabulary",)),
    "another hidden size": ({}, {"hidden_size": 256, "head_dim": 128}, ("sizes",)),
}


def merged(*folders: Path) -> Compatibility:
    return compatibility([inspected(folder) for folder in folders])


@pytest.mark.parametrize("name", CASES)
def test_what_keeps_models_from_being_merged(name: str, tmp_path: Path) -> None:
    """Two configs do not say that a RoPE was edited after training, so none of them gets a command
    as its fix.
    """
    base, other, expected = CASES[name]
    paths = [
        config(tmp_path / side, **PLAIN | changes)
        for side, changes in (("base", base), ("other", other))
    ]
    conclusion = merged(*paths)
    assert tuple(misfit.about for misfit in conclusion.misfits) == expected
    assert conclusion.fits == (not expected)
    assert [
        misfit.repair for misfit in conclusion.misfits if misfit.repair.startswith("ropeconv ")
    ] == []


@pytest.mark.parametrize(
    ("base", "other"),
    [
        ({}, {"rope_theta": 1e6}),
        ({"rope_theta": 1e6}, {}),
        ({"rope_theta": 1e6, "max_position_embeddings": 32768}, {"rope_scaling": YARN}),
        ({"rope_scaling": YARN}, {"rope_scaling": YARN, "rope_theta": 1e6}),
    ],
)
def test_weights_that_were_trained_with_other_bases_get_no_command(
    base: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    paths = [
        config(tmp_path / side, **PLAIN | changes)
        for side, changes in (("base", base), ("other", other))
    ]
    shown = command(tmp_path, "compare", "--merge", *paths, "--exit-code", code=3).stdout
    assert (
        "one base" in shown,
        "Fix:" in shown,
        "ropeconv apply" in shown,
    ) == (True, False, False)
    three = command(tmp_path, "compare", paths[0], paths[1], paths[0], code=0).stdout
    assert ("one base" in three, "ropeconv apply" in three) == (True, False)


ADDABLE = {
    "yarn": YARN,
    "linear": LINEAR,
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
}


@pytest.mark.parametrize("scaled", [0, 1])
@pytest.mark.parametrize("name", ADDABLE)
def test_a_scaling_on_the_same_base_is_taken_off_only_if_it_was_added_after_training(
    name: str, scaled: int, tmp_path: Path
) -> None:
    changes: list[dict[str, Any]] = [{}, {}]
    changes[scaled] = {"rope_scaling": ADDABLE[name]}
    if name != "dynamic":
        changes[scaled]["max_position_embeddings"] = 16384
    paths = [config(tmp_path / str(side), **PLAIN | changes[side]) for side in (0, 1)]
    (misfit,) = merged(*paths).misfits
    condition, line, _ = misfit.repair.split("`")
    assert condition.startswith("if its scaling")
    assert str(paths[scaled]) in line
    command(tmp_path, *shlex.split(line)[1:], "-o", "repaired", "-q", code=0)
    frequencies, factor = rotary(tmp_path / "repaired" / "config.json")
    assert np.allclose(frequencies, 10000.0 ** (-np.arange(64) / 64), rtol=2e-7)
    assert factor == 1
    written = json.loads((tmp_path / "repaired" / "config.json").read_text())
    assert written["max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3,  # Llama 3.1 was trained with it
        {**YARN, "finetuned": True},  # Yarn-Llama-2
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 64,
            "long_factor": [4.0] * 64,
            "factor": 4.0,
            "original_max_position_embeddings": 4096,
        },
    ],
)
def test_a_scaling_that_belongs_to_the_training_is_not_taken_off(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    scaled = config(tmp_path / "a", **PLAIN, rope_scaling=scaling)
    plain = config(tmp_path / "b", **PLAIN)
    for pair in ((scaled, plain), (plain, scaled)):
        (misfit,) = merged(*pair).misfits
        assert "one RoPE" in misfit.repair
        assert "ropeconv" not in misfit.repair


def test_what_ropeconv_extended_is_restored_to_the_rope_of_its_training(
    llama: Path, tmp_path: Path
) -> None:
    expected, _ = rotary(llama / "config.json")
    extended = apply(make_plan(llama, recipe_of("yarn", 4.0), tmp_path / "extended"))
    other_base = apply(
        make_plan(llama, recipe_of("theta", 1e6, context=TRAINED), tmp_path / "other-base")
    )
    pairs = {
        (llama, extended): [extended],
        (extended, llama): [extended],
        (extended, other_base): [extended, other_base],
    }
    for pair, changed in pairs.items():
        misfits = merged(*pair).misfits
        assert [misfit.repair for misfit in misfits] == [
            f"ropeconv restore {path}" for path in changed
        ]
        restored = {}
        for path, misfit in zip(changed, misfits, strict=True):
            out = tmp_path / f"{path.name}-restored-{len(list(tmp_path.iterdir()))}"
            command(tmp_path, *shlex.split(misfit.repair)[1:], "-o", out, code=0)
            restored[path] = out
            assert np.array_equal(rotary(out / "config.json")[0], expected)
            assert not np.array_equal(rotary(path / "config.json")[0], expected)
        assert merged(*(restored.get(path, path) for path in pair)).fits
    assert len(merged(extended, llama, llama).misfits) == 1


def test_a_receipt_does_not_make_weights_of_another_base_fit(llama: Path, tmp_path: Path) -> None:
    """A config that was edited after the bake has a receipt that counts no more, and weights of
    others have none.
    """
    extended = apply(make_plan(llama, recipe_of("yarn", 4.0), tmp_path / "extended"))
    other = make("llama", tmp_path / "other", rope_theta=500000.0)
    (misfit,) = merged(extended, other).misfits
    assert misfit.repair.endswith("training at one base")
    settings = json.loads((extended / "config.json").read_text())
    (extended / "config.json").write_text(json.dumps(settings | {"edited": True}))
    assert [
        misfit.repair.startswith("ropeconv ") for misfit in merged(llama, extended).misfits
    ] == [False]


def test_gguf_files_of_which_one_was_extended(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.gguf")
    extended = apply(make_plan(plain, recipe_of("yarn", 4.0), tmp_path / "extended.gguf"))
    rope = [misfit for misfit in merged(plain, extended).misfits if misfit.about == "rope"]
    assert [misfit.repair for misfit in rope] == [f"ropeconv restore {extended}"]
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "model.gguf", extra={"rope.freq_base": 1e6})
    rope = [misfit for misfit in merged(plain, other).misfits if misfit.about == "rope"]
    assert [misfit.repair for misfit in rope] == [
        "they cannot be merged without training at one base"
    ]


@pytest.mark.parametrize(("declared", "reached"), [(16384, True), (32768, False)])
def test_a_longer_context_is_declared_only_where_the_rope_of_the_base_reaches_it(
    declared: int, reached: bool, tmp_path: Path
) -> None:
    base = config(
        tmp_path / "base", **PLAIN | {"rope_scaling": YARN, "max_position_embeddings": 8192}
    )
    other = config(
        tmp_path / "other", **PLAIN | {"rope_scaling": YARN, "max_position_embeddings": declared}
    )
    (misfit,) = merged(base, other).misfits
    assert (misfit.about, misfit.repair.startswith("ropeconv ")) == ("context", reached)
    if reached:
        command(tmp_path, *shlex.split(misfit.repair)[1:], "-o", "repaired", "-q", code=0)
        assert merged(tmp_path / "repaired" / "config.json", other).fits
        assert np.array_equal(rotary(tmp_path / "repaired" / "config.json")[0], rotary(base)[0])


def tokenizer(folder: Path, vocab: object, added: list[dict[str, Any]]) -> Path:
    text = json.dumps({"model": {"type": "BPE", "vocab": vocab}, "added_tokens": added})
    (folder / "tokenizer.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("vocab", "added", "moved"),
    [
        ({"a": 0, "b": 1}, [{"id": 2, "content": "<s>"}], 0),
        ([["a", -1.0], ["b", -2.0], ["<s>", 0.0]], [], 0),
        ({"a": 1, "b": 0}, [{"id": 2, "content": "<s>"}], 2),
        ({"a": 0, "b": 1}, [{"id": 2, "content": "<s>"}, {"id": 3, "content": "<tool>"}], 1),
    ],
)
def test_tokens_with_other_ids(
    vocab: object, added: list[dict[str, Any]], moved: int, tmp_path: Path
) -> None:
    folders = [config(tmp_path / side, **PLAIN).parent for side in ("a", "b")]
    tokenizer(folders[0], {"a": 0, "b": 1}, [{"id": 2, "content": "<s>"}])
    conclusion = merged(folders[0], tokenizer(folders[1], vocab, added))
    assert [misfit.message.split(" of ")[0] for misfit in conclusion.misfits] == (
        [f"{moved} token{'s' if moved > 1 else ''}"] if moved else []
    )


def test_factors_in_the_weights_of_one_model(llama: Path, tmp_path: Path) -> None:
    yarn = recipe_of("yarn", 4.0)
    folded = apply(make_plan(llama, yarn, tmp_path / "folded", encoding="weights"))
    native = apply(make_plan(llama, yarn, tmp_path / "native"))
    assert [(misfit.about, misfit.name) for misfit in merged(native, folded).misfits] == [
        ("folded", str(folded))
    ]
    assert merged(folded, folded).fits
    (misfit,) = merged(native, folded).misfits
    # weights that were multiplied are not restored
    assert command(tmp_path, "restore", folded, "-o", "restored").returncode == 1
    assert (
        misfit.repair.startswith("take its source"),
        repr(llama.name) in misfit.repair,
    ) == (True, True)


MERGE = "merge_method: linear\n{base}models:\n  - model: {a}\n  - model: {b}\n"


@pytest.mark.parametrize(("base", "noted"), [("", True), ("base_model: {a}\n", False)])
def test_a_merge_without_a_base(base: str, noted: bool, tmp_path: Path) -> None:
    places = {
        name: config(tmp_path / name, **PLAIN | {"rope_theta": theta})
        for name, theta in (("a", 1e4), ("b", 1e6))
    }
    file = tmp_path / "merge.yaml"
    file.write_text(MERGE.format(base=base.format(**places), **places))
    conclusion = compatibility(*open_models([str(file)]))
    assert [misfit.about for misfit in conclusion.misfits] == ["rope"]
    assert any("names no base_model" in note for note in conclusion.notes) == noted
    file.write_text(f"models: [{{model: {places['a']}}}]")
    assert compatibility(*open_models([str(file)])).fits


@pytest.fixture
def adapter(llama: Path, tmp_path: Path) -> Path:
    """A LoRA adapter with random matrices, as PEFT saves it, over a Llama that was extended with
    YaRN by 4.
    """
    return lora(
        apply(make_plan(llama, recipe_of("yarn", 4.0), tmp_path / "extended")), tmp_path / "adapter"
    )


def test_an_adapter_whose_base_is_on_a_hub_that_cannot_be_reached(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "owner/base",
        "r": 4,
        "target_modules": ["q_proj"],
    }
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(config))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    models, adapters, _ = open_models((str(llama), str(tmp_path / "lora")), "")
    (note,) = compatibility(models, adapters).notes
    assert "owner/base, which cannot be read" in note


def test_an_adapter_over_a_base_without_its_scaling(
    llama: Path, adapter: Path, tmp_path: Path
) -> None:
    right = compatibility(*open_models([str(tmp_path / "extended"), str(adapter)]))
    wrong = compatibility(*open_models([str(llama), str(adapter)]))
    assert (right.fits, "applied" in right.sentence) == (True, True)
    assert [misfit.about for misfit in wrong.misfits] == ["rope"]
    stranger = make(
        "llama", tmp_path / "stranger", rope_theta=500000.0
    )  # has other weights, trained with another base
    (misfit,) = compatibility(*open_models([str(stranger), str(adapter)])).misfits
    assert misfit.repair == f"apply it over {tmp_path / 'extended'}"
    done = command(tmp_path, *shlex.split(wrong.misfits[0].repair)[1:], "-o", "repaired", "-q")
    assert done.returncode == 0, done.stderr
    expected = logits(tmp_path / "extended", adapter)
    assert (logits(tmp_path / "repaired", adapter) - expected).abs().max() < 1e-5
    assert (logits(llama, adapter) - expected).abs().max() > 1e-3


def test_an_adapter_over_other_weights_of_the_same_rope_is_noted(
    llama: Path, tmp_path: Path
) -> None:
    """A fine-tuned model of the same base has the same config, and other weights."""
    folder = lora(llama, tmp_path / "adapter")
    own = compatibility(*open_models([str(llama), str(folder)]))
    assert (own.fits, own.notes) == (True, ())
    tuned = make("llama", tmp_path / "tuned")
    over_tuned = compatibility(*open_models([str(tuned), str(folder)]))
    (note,) = over_tuned.notes
    assert over_tuned.fits
    assert f"and not on {tuned}" in note


def test_an_adapter_over_its_own_base_extended_later(llama: Path, tmp_path: Path) -> None:
    folder = lora(llama, tmp_path / "adapter")
    yarn = recipe_of("yarn", 4.0)
    native = apply(make_plan(llama, yarn, tmp_path / "native"))
    conclusion = compatibility(*open_models([str(native), str(folder)]))
    assert conclusion.fits
    assert "trained before" in conclusion.notes[0]
    folded = apply(make_plan(llama, yarn, tmp_path / "folded", encoding="weights"))
    assert [
        misfit.about for misfit in compatibility(*open_models([str(folded), str(folder)])).misfits
    ] == ["folded"]
    later = lora(folded, tmp_path / "later")  # was trained on the scaled weights
    assert compatibility(*open_models([str(folded), str(later)])).fits
    assert [
        misfit.about for misfit in compatibility(*open_models([str(native), str(later)])).misfits
    ] == ["folded"]


def test_an_adapter_for_other_shapes_and_one_of_an_unknown_base(
    adapter: Path, tmp_path: Path
) -> None:
    other = make(
        "llama", tmp_path / "other", hidden_size=128, num_attention_heads=2, num_key_value_heads=2
    )
    conclusion = compatibility(*open_models([str(other), str(adapter)]))
    assert [misfit.about for misfit in conclusion.misfits] == ["tensors"]
    path = adapter / "adapter_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "./nowhere"})
    )
    unknown = compatibility(*open_models([str(tmp_path / "extended"), str(adapter)]))
    assert (unknown.fits, "No difference" in unknown.sentence) == (True, True)
    assert "not known" in unknown.notes[0]
    with pytest.raises(BadSource, match="base './nowhere'"):
        open_models([str(adapter)])


def test_adapters_in_a_file_of_mergekit(llama: Path, adapter: Path, tmp_path: Path) -> None:
    file = tmp_path / "merge.yaml"
    file.write_text(f"models: [{{model: {llama}}}, {{model: {tmp_path / 'extended'}+{adapter}}}]")
    conclusion = compatibility(*open_models([str(file)]))
    assert [over.source.reference for _, over in conclusion.adapters] == [
        str(tmp_path / "extended")
    ]
    assert {misfit.name for misfit in conclusion.misfits} == {str(tmp_path / "extended")}
    for text, words in (
        (f"models: [{{model: {llama}+{llama}}}]", "is not a PEFT adapter"),
        (f"models: [{{model: {llama}}}, {{model: {adapter}}}]", "write it as MODEL"),
    ):
        file.write_text(text)
        with pytest.raises(BadSource, match=words):
            open_models([str(file)])


def test_a_config_beside_an_adapter_is_that_of_its_training(
    adapter: Path, tmp_path: Path, llama: Path
) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "./nowhere"})
    )
    (adapter / "config.json").write_bytes((tmp_path / "extended" / "config.json").read_bytes())
    assert [
        misfit.about for misfit in compatibility(*open_models([str(llama), str(adapter)])).misfits
    ] == ["rope"]
    with pytest.raises(BadSource, match="is a PEFT adapter"):
        inspected(adapter)
    assert read_adapter(FolderSource(llama)) is None


FORMS = {
    "models": ("models: [{model: a}, {model: b@v2}]", ("a", "b@v2"), ()),
    "a base": ("base_model: c\nmodels: [{model: a}, {model: c}]", ("c", "a"), ()),
    "slices": (
        "slices: [{sources: [{model: a, layer_range: [0, 2]}, {model: b, layer_range: [0, 2]}]}]",
        ("a", "b"),
        (),
    ),
    "modules": (
        "modules: {text: {slices: [{sources: [{model: a}]}]}, vision: {models: [{model: b}]}}",
        ("a", "b"),
        (),
    ),
    "adapters": (
        "base_model: a+x\nmodels: [{model: b+y@v1}]",
        ("a", "b"),
        (("a", "x"), ("b", "y@v1")),
    ),
    "objects": (
        "models: [{model: {model: {path: a, revision: v1}, lora: x}}, {model: {model: b}}]",
        ("a@v1", "b"),
        (("a@v1", "x"),),
    ),
    "experts": (
        (
            "base_model: a\nexperts: [{source_model: b}, {source_model: c}]\nshared_experts:"
            " [{source_model: d}]"
        ),
        ("a", "b", "c", "d"),
        (),
    ),
    "aliases": ("models: &m [{model: a}]\nslices: *m", ("a",), ()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, tmp_path: Path) -> None:
    text, models, adapters = FORMS[form]
    (tmp_path / "merge.yml").write_text(text)
    merge = read_merge(tmp_path / "merge.yml")
    assert (merge.models, merge.adapters) == (models, adapters)
    assert (merge.base, merge.sliced) == (
        models[0] if "base_model" in text else "",
        "slices" in text,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "names no models"),
        ("models: []", "names no models"),
        ("a: [", "not one YAML document"),
        ("models: [{model: a}]\n---\nmodels: [{model: b}]", "not one YAML document"),
        ("models: [{model: a+b+c}]", "write it as PATH, or as PATH.ADAPTER"),
        ("[" * 5000, "not one YAML document"),
        ("models: [{model: 3}]", "names the model 3"),
        ("models: 2024-99-99", "not one YAML document"),
        ("models: [{model: {model: {path: ''}}}]", "names the model"),
        ("models: [{model: +x}]", "names the model"),
        ("models: [{model: {model: a, lora: 3}}]", "names the model"),
    ],
)
def test_what_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "merge.yaml").write_text(text)
    assert is_merge(str(tmp_path / "merge.yaml"))
    assert not is_merge(str(tmp_path / "merge.json"))
    with pytest.raises(BadSource, match=words):
        read_merge(tmp_path / "merge.yaml")


def test_a_file_that_repeats_itself_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 {models: [{model: a}]}"]
    lines += [f"a{n}: &a{n} {{models: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    (tmp_path / "merge.yaml").write_text("\n".join([*lines, "models: [*a29, *a29]"]))
    assert read_merge(tmp_path / "merge.yaml").models == ("a",)
