"""The attention of single layers of an output: right ones agree, and every wrong one is noticed.

A wrong output is one in which a writer made a mistake: its files are changed after they were
written, as a defect in a fold, an encoding or a copy would leave them.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.layer_check import layer_runner, refuse_difference, refuse_other_source
from ropeconv.convert import fold
from ropeconv.engines.probe import SharedProbe
from ropeconv.engines.transformers.first_layers import FirstLayers, NoLayerRuns, with_few_layers
from ropeconv.errors import Disagreement, UnsupportedBake
from ropeconv.inspection.receipts.receipt import LayerRecord, LayersRecord
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.rope.recipe import Recipe

from ..conftest import hashes
from ..hub.conftest import BAKE, WEIGHTS, Push, hub, push
from ..support.baking import apply, make_plan, recipe_of
from ..support.extent import sample
from ..support.hub_writing import WritingHub
from ..support.in_process import command
from ..support.models import TINY, make

__all__ = ["hub", "push"]  # fixtures

YARN = recipe_of("yarn", 4.0)
Change = Callable[[Path], None]


def checked(
    model_type: str,
    recipe: Recipe,
    folder: Path,
    probe: SharedProbe,
    change: Change = lambda out: None,
    **target: Any,
) -> LayersRecord:
    """The check of an output, of which something was changed after it was written."""
    source = make(model_type, folder / "source")
    plan = make_plan(source, recipe, folder / "out", **target)
    assert isinstance(plan, CheckpointPlan)
    out = apply(plan)
    change(out)
    return layer_runner(plan, probe)(out)


# Right outputs

FAMILIES = sorted(TINY)


@pytest.mark.parametrize("model_type", sample(FAMILIES))
def test_a_right_output_of_any_family_agrees(
    model_type: str, tmp_path: Path, probe: SharedProbe
) -> None:
    record = checked(model_type, YARN, tmp_path, probe)
    assert record.differing is None, record
    assert record.reason or record.is_distinguished, record


METHODS = {
    "linear": recipe_of("linear", 4.0),
    "ntk": recipe_of("ntk", 4.0),
    "ntk-fixed": recipe_of("ntk-fixed", 4.0),
    "yarn": YARN,
    "llama3": recipe_of("llama3", 8.0),
    "mixed": recipe_of("mixed", 4.0),
    "log-n": recipe_of("yarn", 4.0, log_n="clamped"),
}


@pytest.mark.parametrize("encoding", ["auto", "weights", "buffers"])
@pytest.mark.parametrize("method", METHODS)
def test_a_right_output_agrees_in_every_encoding(
    method: str, encoding: str, tmp_path: Path, probe: SharedProbe
) -> None:
    # there is nothing to multiply where the attention factor is 1, and log-n has no constant factor
    if encoding == "weights" and method != "yarn":
        with pytest.raises(UnsupportedBake):
            checked("llama", METHODS[method], tmp_path, probe, encoding=encoding)
        return
    record = checked("llama", METHODS[method], tmp_path, probe, encoding=encoding)
    assert (record.differing, record.reason) == (None, "")
    assert record.is_distinguished


def test_layers_of_every_kind_run(tmp_path: Path, probe: SharedProbe) -> None:
    record = checked("gemma3_text", YARN, tmp_path, probe)
    changed = {layer.layer: layer.is_changed for layer in record.layers}
    assert changed == {"0 (sliding_attention)": False, "1 (full_attention)": True}
    assert record.reached == 255
    assert "layers 0 and 1" in record.sentence


@pytest.mark.parametrize("model_type", sample(FAMILIES, 6))
def test_a_source_runs_as_it_is_read(model_type: str, tmp_path: Path, probe: SharedProbe) -> None:
    """With --as-is the control is the source itself, which must agree with what was read."""
    record = checked(model_type, recipe_of("as-is"), tmp_path, probe)
    refuse_other_source(record, "5.23.0")
    assert record.unchanged or record.reason


# Wrong outputs


def test_a_source_that_runs_otherwise_than_it_is_read() -> None:
    layer = LayerRecord(layer="0", last=63, error=1e-9, allowed=1e-6, control=1e-3)
    record = LayersRecord(layers=(layer,), unchanged=True)
    with pytest.raises(Disagreement, match=r"source.*layer 0 .*0\.001"):
        refuse_other_source(record, "5.23.0")
    refuse_other_source(LayersRecord(layers=(layer,)), "5.23.0")  # the control of another method


def in_config(**keys: Any) -> Change:
    """Changes settings of the RoPE in config.json."""

    def change(out: Path) -> None:
        path = out / "config.json"
        config = json.loads(path.read_text())
        text = config.get("text_config", config)
        for name in ("rope_parameters", "rope_scaling"):
            scaling = text.get(name) or {}
            scaling.get("full_attention", scaling).update(keys)
        if "rope_theta" in text and "rope_theta" in keys:
            text["rope_theta"] = keys["rope_theta"]
        path.write_text(json.dumps(config))

    return change


def in_weights(name: str, alter: Callable[[Tensor], Tensor]) -> Change:
    """Changes the tensors whose names match, as a wrong fold or a wrong copy would."""

    def change(out: Path) -> None:
        count = 0
        for path in out.glob("*.safetensors"):
            tensors = safetensors.torch.load_file(path)
            for key, tensor in tensors.items():
                if re.search(name, key):
                    tensors[key] = alter(tensor).contiguous()
                    count += 1
            safetensors.torch.save_file(tensors, path, {"format": "pt"})
        assert count

    return change


def exchange_pairs(weight: Tensor) -> Tensor:
    """The rows of heads of 64 in the order of interleaved pairs, as in Meta's layout."""
    heads = weight.reshape(-1, 2, 32, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def exchange_first_heads(weight: Tensor) -> Tensor:
    return torch.cat([weight[64:128], weight[:64], weight[128:]])


def set_first(value: float) -> Callable[[Tensor], Tensor]:
    def alter(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return alter


QUERIES = r"layers\.0\.self_attn\.q_proj\.weight"
KEYS = r"layers\.0\.self_attn\.k_proj\.weight"
MISTAKES: dict[str, tuple[str, Change]] = {
    "no attention factor": ("auto", in_config(attention_factor=1.0)),
    "another factor": ("auto", in_config(factor=3.9)),
    "another original length": ("auto", in_config(original_max_position_embeddings=60)),
    "another beta": ("auto", in_config(beta_slow=0.25)),
    "another base": ("auto", in_config(rope_theta=10050.0)),
    "linear for yarn": ("auto", in_config(rope_type="linear")),
    "no scaling": ("auto", in_config(rope_type="default")),
    "fold twice": ("weights", in_weights(f"{QUERIES}|{KEYS}", lambda weight: weight * 1.139)),
    "fold of keys left out": ("weights", in_weights(KEYS, lambda weight: weight / 1.139)),
    "queries in Meta's layout": ("auto", in_weights(QUERIES, exchange_pairs)),
    "keys in Meta's layout": ("auto", in_weights(KEYS, exchange_pairs)),
    "heads exchanged": ("auto", in_weights(QUERIES, exchange_first_heads)),
    "one number": ("auto", in_weights(KEYS, set_first(50.0))),
    "stored frequencies": ("buffers", in_weights("inv_freq", lambda table: table * 1.01)),
    "first stored frequency": ("buffers", in_weights("inv_freq", set_first(0.9))),
    "last stored frequency": ("buffers", in_weights("inv_freq", lambda table: table.flip(0))),
    "weights of another layer": ("auto", in_weights(QUERIES, lambda weight: weight.roll(1, 1))),
    "scaled norm": ("auto", in_weights(r"0\.input_layernorm", lambda weight: weight + 0.1)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_output_is_noticed(mistake: str, tmp_path: Path, probe: SharedProbe) -> None:
    encoding, change = MISTAKES[mistake]
    record = checked("llama", YARN, tmp_path, probe, change, encoding=encoding)
    assert record.reason == ""
    assert record.differing is not None, record
    with pytest.raises(Disagreement, match="layer 0"):
        refuse_difference(record, "5.23.0")


# families whose classes read yarn from the config; Phi 3 takes its frequencies as factors only
SOME = ["qwen2", "qwen3", "mistral", "gemma3_text", "glm4", "olmo2", "smollm3", "granite"]
CONFIG_MISTAKES = [name for name in MISTAKES if "config" in MISTAKES[name][1].__qualname__]


@pytest.mark.parametrize("mistake", sample(CONFIG_MISTAKES, 3))
@pytest.mark.parametrize("model_type", sample(SOME, 2))
def test_a_wrong_config_of_any_family_is_noticed(
    model_type: str, mistake: str, tmp_path: Path, probe: SharedProbe
) -> None:
    _, change = MISTAKES[mistake]
    record = checked(model_type, YARN, tmp_path, probe, change, encoding="native")
    assert record.differing is not None, record


def test_nothing_is_kept_of_a_wrong_output(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold that is written wrongly: the frequencies are right, and the weights are not."""
    scale = fold.scale_numbers

    def scale_twice(numbers: Any, dtype: str, factor: float, plus_one: bool = False) -> Any:
        return scale(numbers, dtype, factor * factor, plus_one)

    monkeypatch.setattr(fold, "scale_numbers", scale_twice)
    before = sorted(path.name for path in tmp_path.iterdir())
    done = command(
        tmp_path, "apply", "model", "--yarn", 4, "--encoding", "weights", "-o", "out", code=3
    )
    assert "layer 0" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_output_that_does_not_run_is_refused(tmp_path: Path, probe: SharedProbe) -> None:
    """Its source does, so the output is broken."""

    def widen_heads(out: Path) -> None:
        path = out / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"head_dim": 128}))

    with pytest.raises(Disagreement, match="the output does not"):
        checked("llama", YARN, tmp_path, probe, widen_heads)


def test_a_method_for_another_width_is_refused(
    llama: Path, tmp_path: Path, probe: SharedProbe
) -> None:
    """The source does not run with frequencies for heads of another width."""
    plan = make_plan(llama, YARN, tmp_path / "out")
    assert isinstance(plan, CheckpointPlan)
    out = apply(plan)
    narrow = replace(plan.schedule, inv_freq=plan.schedule.inv_freq[::2])
    with pytest.raises(Disagreement, match="new RoPE"):
        layer_runner(replace(plan, schedule=narrow), probe)(out)


# What is read, and what does not run


def read_names(folder: Path) -> list[str]:
    """The tensors that running every kind of layer reads."""
    [file] = folder.glob("*.safetensors")
    tensors = safetensors.torch.load_file(file)
    names = []

    def read(name: str, rows: int | None) -> Tensor:
        names.append(name)
        return tensors[name][:rows]

    layers = FirstLayers(folder, list(tensors), read)
    for kind in layers.kinds:
        with layers.with_weights(kind.layer):
            layers.attention(range(8), range(8), kind.layer)
    return names


def test_only_attention_is_read(tmp_path: Path) -> None:
    names = read_names(make("mixtral", tmp_path / "model"))
    in_layers = {name.split(".", 3)[3] for name in names if ".layers." in name}
    assert in_layers == {
        "input_layernorm.weight",
        *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    }
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"0"}
    assert "lm_head.weight" not in names


@pytest.mark.parametrize(
    ("model_type", "config", "word"),
    [
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ("t5gemma", {}, "encoder"),
    ],
)
def test_why_no_layer_runs(
    model_type: str, config: dict[str, Any], word: str, tmp_path: Path
) -> None:
    folder = make(model_type, tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(NoLayerRuns, match=word):
        read_names(folder)


def test_layers_that_need_others_are_left_out(tmp_path: Path, probe: SharedProbe) -> None:
    """The last layers of Gemma 3n use keys of earlier ones."""
    record = checked("gemma3n_text", YARN, tmp_path, probe)
    assert (record.reason, record.differing) == ("", None)
    assert record.left_out


def test_weights_that_the_class_makes_at_random_show_nothing(
    tmp_path: Path, probe: SharedProbe
) -> None:
    """The lambdas of DiffLlama are made at random where the files do not have them."""

    def leave_out(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        kept = {name: tensor for name, tensor in tensors.items() if "lambda" not in name}
        safetensors.torch.save_file(kept, path, {"format": "pt"})

    record = checked("diffllama", YARN, tmp_path, probe, leave_out)
    assert (record.layers, "lambda" in record.reason) == ((), True)


@pytest.mark.parametrize(
    ("types", "kept"),
    [
        (["full", "full", "full"], 1),
        (["sliding", "sliding", "full"], 3),
        (["sliding", "full", "sliding"], 2),
    ],
)
def test_as_few_layers_as_show_every_kind(types: Sequence[str], kept: int) -> None:
    from transformers import Gemma3TextConfig

    kinds = [f"{kind}_attention" for kind in types]
    config = Gemma3TextConfig(num_hidden_layers=len(kinds), layer_types=kinds)
    few = with_few_layers(config)
    assert (few.num_hidden_layers, few.layer_types) == (kept, kinds[:kept])
    assert config.num_hidden_layers == len(kinds)


# On the command line, and on the Hub


def test_the_receipt_has_it_unless_it_is_left_out(llama: Path, tmp_path: Path) -> None:
    command(tmp_path, "apply", "model", "--yarn", 4, "-o", "out", "--validate", "off", code=0)
    check = read_receipt(tmp_path / "out").check
    assert check is not None
    assert check.layers is not None
    assert (check.layers.reached, check.layers.reason) == (255, "")
    command(tmp_path, "apply", "model", "--yarn", 4, "-o", "b", "--no-check", "-q", code=0)
    assert read_receipt(tmp_path / "b").check is None


@pytest.mark.parametrize("encoding", ["native", "weights"])
def test_weights_on_the_hub_are_read_by_range(
    encoding: str, push: Push, hub: WritingHub, llama: Path, tmp_path: Path
) -> None:
    """Without -o nothing is downloaded but the attention of a layer, and a part of embeddings."""
    push(f"{BAKE} --encoding {encoding} --push me/tiny-1k")
    check = read_receipt(hub.repos["me/tiny-1k"]).check
    assert check is not None
    assert check.layers is not None
    assert (check.layers.differing, check.layers.reason) == (None, "")
    assert check.layers.is_distinguished
    whole = (llama / WEIGHTS).stat().st_size
    if encoding == "native":
        assert 0 < hub.sent[WEIGHTS] < whole / 2
        assert hashes(hub.repos["me/tiny-1k"])[WEIGHTS] == hashes(llama)[WEIGHTS]
