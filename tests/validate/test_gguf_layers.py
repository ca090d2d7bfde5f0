"""The first layers of a GGUF file in llama.cpp: right files agree, planted mistakes do not, and
what cannot be compared has a reason.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ropeconv
from ropeconv.bake import gguf_check
from ropeconv.bake.gguf import ExportPlan
from ropeconv.bake.gguf_check import run_converted_layers, run_first_layers
from ropeconv.bake.plan import GgufOutput
from ropeconv.bake.row_check import refuse_other_rows
from ropeconv.engines.probe import SharedProbe
from ropeconv.errors import Disagreement
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.inspection.receipts.receipt import LayerRecord, LayersRecord
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.llamacpp.read_header import FREQS
from ropeconv.validate.gguf_layers import compare_gguf_layers

from ..support.baking import MIXED, make_plan, recipe_of
from ..support.embedding_gemma import embedding_gemma, with_projections
from ..support.extent import ALL, sample
from ..support.gguf_files import write
from ..support.llamacpp import EXPORTED, bake, checkpoint
from ..support.models import TRAINED
from ..support.tiny_gguf import make
from .test_gguf_against_gguf import CALM, WRONG, Plain, plain, with_divisors, with_keys

pytest.importorskip("llama_cpp")
__all__ = ["plain"]
YARN = recipe_of("yarn", 4.0, attention_factor=1.1)
WAYS: dict[str, tuple[str, Recipe, dict[str, Any]]] = {
    "keys": ("llama", YARN, {"encoding": "keys"}),
    "tensor": ("llama", MIXED, {"encoding": "tensor"}),
    "yarn as a tensor": ("llama", YARN, {"encoding": "tensor"}),
    "theta": ("qwen2", recipe_of("theta", 80000.0), {}),
    "experts": ("qwen3_moe", YARN, {"encoding": "keys"}),
}
"""Family, recipe and options."""
OUTTYPES = ("f32", "f16", "q8_0", "q4_k_m")


def extended(
    source: Path, recipe: Recipe, out: Path, **options: Any
) -> tuple[LayersRecord, Callable[[Path], LayersRecord]]:
    """Write an output, and return its layers, and the function that compares another file."""
    plan = make_plan(source, recipe, out, **options)
    assert isinstance(plan, GgufOutput)
    written = ropeconv.apply(plan, check=False).path  # of several shards the first
    assert written is not None

    def compare(path: Path) -> LayersRecord:
        return run_first_layers(plan, path)

    return compare(written), compare


@pytest.mark.parametrize(
    ("way", "outtype"), sample([(way, outtype) for way in WAYS for outtype in OUTTYPES], 3, seed=4)
)
def test_a_right_file_computes_the_method_up_to_its_context(
    way: str, outtype: str, plain: Plain, tmp_path: Path
) -> None:
    family, recipe, options = WAYS[way]
    source = plain(family, outtype)
    layers, _ = extended(source, recipe, tmp_path / "out.gguf", **options)
    assert layers.reason == ""
    assert layers.differing is None
    assert layers.is_distinguished
    out = GgufFile.open(tmp_path / "out.gguf")
    assert layers.reached == out.get(f"{out.get('general.architecture')}.context_length") - 1


@pytest.mark.parametrize(
    ("wrong", "outtype"),
    sample([(wrong, outtype) for wrong in WRONG for outtype in OUTTYPES[1:]], 4, seed=6),
)
def test_a_planted_mistake_is_seen(wrong: str, outtype: str, plain: Plain, tmp_path: Path) -> None:
    recipe = recipe_of("mixed", 4.0, attention_factor=1.1)
    layers, compare = extended(plain("llama", outtype), recipe, tmp_path / "out.gguf")
    assert layers.differing is None
    WRONG[wrong](tmp_path / "out.gguf", tmp_path / "wrong.gguf")
    assert compare(tmp_path / "wrong.gguf").differing is not None


@pytest.mark.parametrize("arch", ["granitehybrid", "falcon-h1", "qwen3next"])
def test_layers_with_states_run_without_gaps(arch: str, tmp_path: Path) -> None:
    """llama.cpp aborts where a state is continued at a far position."""
    source = make(arch, tmp_path / "source.gguf", context_length=512)
    layers, compare = extended(source, YARN, tmp_path / "out.gguf", encoding="keys")
    assert layers.reason == ""
    assert layers.differing is None
    assert layers.is_distinguished
    assert (layers.tokens, layers.reached) == (2048, 2047)
    assert layers.ends_early == ""
    with_keys(tmp_path / "out.gguf", tmp_path / "wrong.gguf", "scaling.factor", 2.5)
    assert compare(tmp_path / "wrong.gguf").differing is not None


@pytest.mark.parametrize(
    ("arch", "keys", "recipe"),
    [
        ("hunyuan_vl", {"rope__scaling__alpha": 100.0}, recipe_of("ntk", 2.0)),
        ("grok", {}, YARN),
        ("grok", {"rope__scaling__yarn_ext_factor": 1.0}, recipe_of("linear", 4.0)),
        ("mistral3", {"rope__scaling__yarn_beta_fast": 8.0}, YARN),
        ("muse-glimmer", {"rope__freq_base_swa": 10000.0}, recipe_of("ntk", 2.0)),
        ("gemma2", {"rope__freq_base_swa": 10000.0}, recipe_of("ntk", 2.0)),
    ],
)
def test_keys_that_only_the_source_has_do_not_change_the_reference(
    arch: str, keys: dict[str, Any], recipe: Recipe, tmp_path: Path
) -> None:
    source = make(arch, tmp_path / "source.gguf", context_length=512, **keys)
    layers, _ = extended(source, recipe, tmp_path / "out.gguf", encoding="keys")
    assert layers.reason == ""
    assert layers.differing is None
    assert layers.is_distinguished


def test_layers_with_states_end_at_a_length_that_is_soon_read(tmp_path: Path) -> None:
    source = make("granitehybrid", tmp_path / "source.gguf", context_length=131072)
    layers, _ = extended(source, YARN, tmp_path / "out.gguf", encoding="keys")
    assert layers.differing is None
    assert layers.is_distinguished
    assert [layer.last for layer in layers.layers] == [2047]
    assert "position 2,047 (of 524,288, and trained on 131,072: with states" in layers.sentence

    # without states the end of the context is run
    source = make("llama", tmp_path / "llama.gguf", context_length=131072)
    layers, _ = extended(source, YARN, tmp_path / "no_states.gguf", encoding="keys")
    assert (layers.reached, layers.ends_early) == (4 * 131072 - 1, "")


def test_weights_that_were_changed_are_seen(plain: Plain, tmp_path: Path) -> None:
    _, compare = extended(plain("llama", "f16"), MIXED, tmp_path / "out.gguf")
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes((tmp_path / "out.gguf").read_bytes())
    reader = gguf.GGUFReader(wrong, "r+")
    [keys] = [tensor for tensor in reader.tensors if tensor.name == "blk.0.attn_k.weight"]
    keys.data[:] = keys.data[::-1].copy()
    reader.data.flush()
    assert compare(wrong).differing is not None


def test_a_conversion_is_compared_with_its_own_weights(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source", **CALM)
    options = {"to": "gguf", "outtype": "q8_0"}
    layers, compare = extended(source, MIXED, tmp_path / "out.gguf", **options)
    assert layers.differing is None
    assert layers.is_distinguished
    with_divisors(tmp_path / "out.gguf", tmp_path / "wrong.gguf", lambda d: 1 + (d - 1) * 2.5 / 3)
    assert compare(tmp_path / "wrong.gguf").differing is not None


def test_a_change_in_place_is_compared_before_it_is_final(plain: Plain, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    write_new(GgufFile.open(plain("llama", "f16")), 0, Edit(), model)
    done = ropeconv.apply(make_plan(model, YARN, in_place=True))
    assert done.check is not None
    assert done.check.layers is not None
    assert done.check.layers.is_distinguished
    assert done.check.layers.differing is None


def test_shards_and_lists_by_layer_are_cut(tmp_path: Path) -> None:
    """llama.cpp refuses a list of another length than the layers, and a wrong count of tensors."""
    source = checkpoint("llama", tmp_path / "source", **CALM, num_hidden_layers=4)
    bake(source, recipe_of("as-is"), tmp_path / "plain.gguf", outtype="f16")
    whole = GgufFile.open(tmp_path / "plain.gguf")
    heads = gguf.GGUFReader(tmp_path / "plain.gguf").fields["llama.attention.head_count"]
    count = int(heads.parts[-1][0])
    writer = gguf.GGUFWriter(None, "llama", split_max_tensors=9)
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.name == "llama.attention.head_count":
            writer.add_array(field.name, [count] * 4)
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file(tmp_path / "split.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    first = sorted(tmp_path.glob("split-*-of-*.gguf"))[0]
    assert len(GgufFile.open(first).paths) >= 4, "two of them have no tensor of layer 0"
    assert len(GgufFile.open(first).tensors) == len(whole.tensors)
    layers, _ = extended(first, MIXED, tmp_path / "out.gguf")
    assert layers.reason == ""
    assert layers.differing is None
    assert layers.is_distinguished
    assert layers.layers[0].layer == "0"


def test_log_n_has_no_second_way(plain: Plain, tmp_path: Path) -> None:
    recipe = recipe_of("linear", 4.0, log_n="full")
    layers, _ = extended(plain("llama", "f32"), recipe, tmp_path / "out.gguf", carrier="mistral3")
    assert "scale its attention" in layers.reason
    assert layers.layers == ()


def test_a_conversion_without_divisors_is_compared_by_keys(tmp_path: Path) -> None:
    source = checkpoint("gemma3_text", tmp_path / "source")
    out = tmp_path / "out.gguf"
    recipe = recipe_of("linear", 4.0)
    layers, compare = extended(source, recipe, out, to="gguf", outtype="f32")
    assert layers.differing is None
    assert layers.is_distinguished
    with_keys(out, tmp_path / "wrong.gguf", "scaling.factor", 3.0)
    assert compare(tmp_path / "wrong.gguf").differing is not None


def test_window_layers_with_a_copy_of_the_factor_are_compared_by_divisors(tmp_path: Path) -> None:
    """Llama 4: the reference is the output's own file, whose factor no layer may keep."""
    source = checkpoint("llama4_text", tmp_path / "source")
    out = tmp_path / "out.gguf"
    recipe = recipe_of("yarn", 4.0, attention_factor=1.0)
    layers, compare = extended(source, recipe, out, to="gguf", outtype="f32")
    assert layers.differing is None
    assert layers.is_distinguished
    assert layers.reached == 4 * TRAINED - 1
    with_keys(out, tmp_path / "wrong.gguf", "scaling.factor", 3.5)
    assert compare(tmp_path / "wrong.gguf").differing is not None


def test_a_file_that_llama_cpp_does_not_run_has_a_reason(tmp_path: Path) -> None:
    source = write(tmp_path / "model.gguf")  # without the epsilon of its norms
    layers, _ = extended(source, YARN, tmp_path / "out.gguf")
    assert "llama.attention.layer_norm_rms_epsilon" in layers.reason


def test_wrong_layers_leave_nothing(
    plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = LayerRecord("0", 255, error=0.5, allowed=0.01, control=1.0)
    wrong = LayersRecord(tokens=8, reached=255, layers=(layer,))
    monkeypatch.setattr(gguf_check, "compare_gguf_layers", lambda *given: wrong)
    with pytest.raises(Disagreement, match=r"layer 0 differ by 0\.5"):
        ropeconv.apply(make_plan(plain("llama", "f16"), MIXED, tmp_path / "out.gguf"))
    assert list(tmp_path.glob("*out*")) == []


@pytest.mark.parametrize("family", list(EXPORTED) if ALL else sample(list(EXPORTED), 2, seed=8))
def test_no_right_file_of_a_family_is_refused(family: str, tmp_path: Path) -> None:
    source = checkpoint(family, tmp_path / "source")
    try:
        layers, _ = extended(source, YARN, tmp_path / "out.gguf", to="gguf", outtype="f32")
    except ropeconv.RopeconvError as problem:
        pytest.skip(f"it is not written: {problem}")
    assert layers.differing is None
    assert layers.layers or layers.reason


def test_a_method_that_changes_nothing_has_no_control(plain: Plain) -> None:
    file = GgufFile.open(plain("llama", "f16"))
    inspection = ropeconv.inspect_source(ropeconv.open_source(str(plain("llama", "f16"))))
    spec = inspection.spec
    same = compare_gguf_layers(file, file, spec, spec.current())
    assert same.unchanged
    assert same.differing is None
    assert not same.is_distinguished
    assert FREQS not in file.tensors, "and divisors are another way than that of the file"
    assert max(layer.error for layer in same.layers) < np.float32(1e-2)


@pytest.mark.parametrize("family", list(EXPORTED) if ALL else sample(list(EXPORTED), 1, seed=9))
def test_no_right_conversion_of_a_family_is_refused(
    family: str, tmp_path: Path, probe: SharedProbe
) -> None:
    """Beside its checkpoint in transformers, and by the places that its rows come from."""
    source = checkpoint(family, tmp_path / "source")
    try:
        plan = make_plan(source, YARN, tmp_path / "out.gguf", to="gguf", outtype="f16")
        ropeconv.apply(plan, check=False)
    except ropeconv.RopeconvError as problem:
        pytest.skip(f"it is not written: {problem}")
    assert isinstance(plan, ExportPlan)
    refuse_other_rows(plan, tmp_path / "out.gguf")
    layers = run_converted_layers(plan, tmp_path / "out.gguf", probe)
    assert layers.differing is None, layers
    assert layers.layers or layers.reason


ENCODERS: dict[str, Callable[[Path], Path]] = {
    "embedding_gemma": embedding_gemma,
    "with projections": lambda folder: with_projections(folder)[0],
    "modernbert": lambda folder: checkpoint("modernbert", folder),
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_the_conversion_of_an_encoder_is_compared_by_hidden_states(
    name: str, outtype: str, tmp_path: Path, probe: SharedProbe
) -> None:
    source = ENCODERS[name](tmp_path / "source")
    out = tmp_path / "out.gguf"
    plan = make_plan(source, recipe_of("yarn", 4.0), out, to="gguf", outtype=outtype)
    ropeconv.apply(plan)
    assert isinstance(plan, ExportPlan)
    right = run_converted_layers(plan, out, probe)
    assert right.differing is None
    assert right.is_distinguished
    assert right.reached == TRAINED - 1

    # the pairs of queries and keys side by side, as GPT-J has them
    wrong = tmp_path / "wrong.gguf"
    with_rows_in_another_order(out, wrong)
    assert run_converted_layers(plan, wrong, probe).differing is not None


def with_rows_in_another_order(path: Path, wrong: Path) -> None:
    """A copy of a file whose first two thirds of QKV, or Q and K, are in pairs and not in halves."""
    wrong.write_bytes(path.read_bytes())
    reader = gguf.GGUFReader(wrong, "r+")
    arch = reader.fields["general.architecture"].contents()
    heads = reader.fields[f"{arch}.attention.head_count"].contents()
    for tensor in reader.tensors:
        rows = tensor.data
        if tensor.name.endswith("attn_qkv.weight"):
            rows = rows[: 2 * len(rows) // 3]
            width = len(rows) // heads // 2
        elif tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            width = reader.fields[f"{arch}.attention.key_length"].contents()
        else:
            continue
        halves = rows.reshape(-1, 2, width // 2, rows.shape[-1])
        rows[:] = halves.swapaxes(1, 2).reshape(rows.shape).copy()
    reader.data.flush()
