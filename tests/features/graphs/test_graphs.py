"""Compiled graphs: which RoPE their constants hold, and that runtimes compute the extended ones."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.features.graphs.inspection import GraphRope, inspect_graph
from ropeconv.features.graphs.model import open_graph
from ropeconv.rope.forms import Plain, base_inv_freq
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.spec import RopeSpec

from ...conftest import Run
from ...support import graphs, models
from ...support.baking import YARN, apply, make_plan
from ...support.in_process import command

pytest.importorskip("onnx", reason="onnx is not installed; pip install 'ropeconv[graphs]'")
SPEC = RopeSpec(64, 64, Plain(10_000.0), 4096, 4096)
BASE = base_inv_freq(10_000.0, 64)
TRAINED = models.TRAINED


def ropes(path: Path) -> tuple[GraphRope, ...]:
    return inspect_graph(open_graph(str(path))).ropes


def tables(
    inv_freq: np.ndarray, rows: int, factor: float = 1.0, dtype: Any = np.float32
) -> tuple[np.ndarray, ...]:
    """Cosines and sines as runtimes compute them, in float32."""
    phases = np.outer(np.arange(rows, dtype=np.float32), inv_freq.astype(np.float32))
    return tuple((factor * function(phases)).astype(dtype) for function in (np.cos, np.sin))


FORMULAS = {
    "yarn": "yarn, theta 10000, factor 4, original_context 4096",
    "linear": "linear, theta 10000, factor 4",
    "llama3": "llama3, theta 10000, factor 4, original_context 4096",
    "mixed": "mixed, theta 10000, factor 4",
}


@pytest.mark.parametrize(("method", "formula"), FORMULAS.items())
def test_the_method_of_a_vector_is_recognised(method: str, formula: str, tmp_path: Path) -> None:
    inv_freq = REGISTRY[method](4.0).schedule(SPEC).inv_freq
    known = (10_000.0,) if method == "mixed" else ()  # whose first pairs do not tell the base
    (rope,) = ropes(graphs.rotating(tmp_path / "a.onnx", inv_freq.astype(np.float32)))
    assert rope.formula_of(known) == formula
    (half,) = ropes(graphs.rotating(tmp_path / "b.onnx", inv_freq.astype(np.float16)))
    assert half.holds(inv_freq)
    assert not half.holds(1.01 * inv_freq)
    (other,) = ropes(
        graphs.rotating(
            tmp_path / "c.onnx", (inv_freq * np.linspace(1, 0.9, 32)).astype(np.float32)
        )
    )
    assert other.formula_of(known) == "custom inv_freq"


def test_bases_are_recognised_and_other_vectors_are_not(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    vectors = [base_inv_freq(theta, 128) for theta in (1e4, 5e5, 1e6, 8_000_000.0)]
    vectors += [np.sort(generator.uniform(1e-4, 1, 64))[::-1], np.append(BASE[:16], np.zeros(16))]
    names = [rope.formula_of() for rope in ropes(graphs.rotating(tmp_path / "a.onnx", *vectors))]
    plain = [f"default, theta {theta}" for theta in (10_000, 500_000, 1_000_000, 8_000_000)]
    (steep,) = ropes(
        graphs.rotating(tmp_path / "b.onnx", np.append(1.0, np.linspace(1e-20, 1e-21, 63)))
    )
    assert steep.formula_of() == "custom inv_freq"
    assert names == [
        *plain,
        "custom inv_freq",
        "proportional, theta 10000, factor 1, partial_rotary_factor 0.5",
    ]


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float32, 1e-5), (np.float16, 0.02)])
@pytest.mark.parametrize("repeat", ["", "half", "interleaved"])
def test_tables_give_their_frequencies(
    dtype: Any, accuracy: float, repeat: Any, tmp_path: Path
) -> None:
    from ropeconv.features.graphs.inspection import with_repeat

    schedule = REGISTRY["yarn"](4.0).schedule(SPEC)
    cos, sin = (
        with_repeat(table, repeat)
        for table in tables(schedule.inv_freq, 3000, schedule.attention_factor, dtype)
    )
    (rope,) = ropes(graphs.with_tables(tmp_path / "a.onnx", cos, sin, external=True))
    assert (rope.positions, rope.repeat, rope.name) == (3000, repeat, "cos_cache and sin_cache")
    assert rope.attention_factor == pytest.approx(schedule.attention_factor, rel=1e-3)
    assert np.abs(rope.inv_freq / schedule.inv_freq - 1).max() < accuracy
    assert rope.holds(schedule.inv_freq)
    assert not rope.holds(schedule.inv_freq * 1.05)
    assert "yarn" in rope.formula_of()


def test_tables_of_other_functions_are_not_rope(tmp_path: Path) -> None:
    cos, sin = tables(BASE, 100)
    sin[50] += 0.01  # a row that is no rotation of the first one
    graphs.with_tables(tmp_path / "a.onnx", cos[:65], sin[:65])
    assert len(ropes(tmp_path / "a.onnx")) == 1  # row 50 is not read
    sin[64] += 0.01
    done = command(tmp_path, "inspect", graphs.with_tables(tmp_path / "a.onnx", cos, sin))
    assert (done.returncode, "no constants" in done.stderr) == (
        1,
        True,
    )


def test_onnxruntime_computes_the_extended_export_of_torch(run: Run, tmp_path: Path) -> None:
    """Its logits beyond the trained length are those of transformers with the checkpoint that was
    baked by itself.
    """
    source = graphs.exported(tmp_path)
    baked = apply(make_plan(tmp_path / "checkpoint", YARN, tmp_path / "baked"))
    assert run("apply", "onnx/model.onnx", "--yarn", 4, "-o", "out").returncode == 0
    tokens = np.random.default_rng(0).integers(0, models.VOCABULARY, (1, 4 * TRAINED))
    inputs = {"input_ids": tokens, graphs.POSITIONS: np.arange(4 * TRAINED)[None]}
    expected = graphs.logits(baked, tokens)
    (extended,), (control,) = (
        graphs.run(path, **inputs) for path in (tmp_path / "out/model.onnx", source)
    )
    assert np.abs(extended - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(control - expected)[:, TRAINED:].max() > 0.01 * np.abs(expected).max()
    assert (
        json.loads((tmp_path / "out/config.json").read_text())["max_position_embeddings"]
        == 4 * TRAINED
    )
    assert (tmp_path / "out/model.onnx.data").read_bytes() == (
        tmp_path / "onnx/model.onnx.data"
    ).read_bytes()
    done = run("compare", "out", "baked", "--exit-code")
    assert (done.returncode, "the same RoPE" in done.stdout) == (0, True)
    done = run("compare", "baked", "onnx/model.onnx", "--exit-code")
    assert (done.returncode, "up to 4 times" in done.stdout) == (3, True)
    again = run("apply", "out", "--yarn", 2, "--replace", "--context", 4 * TRAINED, "-o", "again")
    assert again.returncode == 0, again.stderr
    (rope,) = ropes(tmp_path / "again")  # the factor was replaced, not multiplied
    assert rope.attention_factor == pytest.approx(0.1 * np.log(2) + 1)
    assert np.abs(graphs.run(tmp_path / "again/model.onnx", **inputs)[0] - extended).max() > 0.01


def test_openvino_computes_the_extended_graph(run: Run, tmp_path: Path) -> None:
    openvino = pytest.importorskip(
        "openvino", reason="openvino is not installed; pip install 'ropeconv[graphs]'"
    )
    source = graphs.rotating(tmp_path / "model.onnx", BASE.astype(np.float32))
    converted = openvino.convert_model(source)
    openvino.save_model(converted, tmp_path / "ir/openvino_model.xml", compress_to_fp16=False)
    graphs.write_config(tmp_path / "ir")
    assert "default, theta 10000" in run("inspect", "ir").stdout
    assert run("apply", "ir", "--yarn", 4, "-o", "out").returncode == 0
    schedule = make_plan(tmp_path / "ir/config.json", YARN).schedule
    positions = np.arange(4 * TRAINED)[None]
    expected = schedule.attention_factor * np.cos(np.outer(positions, schedule.inv_freq))
    plain = np.cos(np.outer(positions, BASE))
    for folder, values in (("out", expected), ("ir", plain)):
        path = tmp_path / folder / "openvino_model.xml"
        precision = {"INFERENCE_PRECISION_HINT": "f32"}
        model = openvino.Core().compile_model(path, "CPU", precision)
        assert np.abs(model([positions])[0][0] - values).max() < 1e-4, folder
    assert np.abs(plain - expected).max() > 0.1
    assert (
        run(
            "apply", "out", "--yarn", 2, "--replace", "--context", 4 * TRAINED, "-o", "again"
        ).returncode
        == 0
    )
    (rope,) = ropes(tmp_path / "again")
    assert rope.attention_factor == pytest.approx(0.1 * np.log(2) + 1)
    openvino.save_model(converted, tmp_path / "ir/openvino_model.xml")
    assert "frequencies in float16" in run("apply", "ir", "--yarn", 4, "--dry-run").stderr


@pytest.mark.parametrize("external", [False, True])
def test_tables_get_the_rows_of_the_new_context(external: bool, run: Run, tmp_path: Path) -> None:
    source = graphs.with_tables(
        tmp_path / "m/model.onnx", *tables(BASE, TRAINED), external=external
    )
    graphs.write_config(tmp_path / "m")
    limits = {"model": {"context_length": TRAINED}, "search": {"max_length": TRAINED}}
    (tmp_path / "m/genai_config.json").write_text(json.dumps(limits))
    assert run("apply", source, "--yarn", 4, "-o", "out").returncode == 0
    raised = json.loads((tmp_path / "out/genai_config.json").read_text())
    assert raised == {
        "model": {"context_length": 4 * TRAINED},
        "search": {"max_length": 4 * TRAINED},
    }
    schedule = make_plan(tmp_path / "m/config.json", YARN).schedule
    position = 4 * TRAINED - 1
    x = np.random.default_rng(0).standard_normal((1, 1, 1, 64)).astype(np.float32)
    inputs = {graphs.X: x, graphs.POSITIONS: np.array([[position]])}
    (rotated,) = graphs.run(tmp_path / "out/model.onnx", **inputs)
    cos, sin = (
        schedule.attention_factor * each(position * schedule.inv_freq) for each in (np.cos, np.sin)
    )
    left = x[0, 0, 0, :32]
    right = x[0, 0, 0, 32:]
    expected = np.concatenate([left * cos - right * sin, right * cos + left * sin])
    assert np.abs(rotated.ravel() - expected).max() < 1e-5
    with pytest.raises(Exception, match="out of range"):
        graphs.run(source, **inputs)
    done = run("compare", source, "out/config.json")
    assert re.search(f"{TRAINED} rows, .* {4 * TRAINED}", done.stdout)


def test_window_layers_and_other_widths_stay(
    tiny: Callable[[str], Path], run: Run, tmp_path: Path
) -> None:
    config = json.loads((tiny("gemma3_text") / "config.json").read_text())
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    inspection = make_plan(tmp_path / "m/config.json", YARN).source_spec
    vectors = [inspection.current().inv_freq, inspection.local_inv_freq, base_inv_freq(1e4, 32)]
    assert vectors[1] is not None
    assert not np.allclose(vectors[0], vectors[1])
    graphs.rotating(
        tmp_path / "m/model.onnx",
        *(vector.astype(np.float32) for vector in vectors if vector is not None),
    )
    shown = run("inspect", "m").stdout
    assert ("in window layers" in shown, "another RoPE" in shown) == (True, True)
    compared = run("compare", "m/model.onnx", tiny("gemma3_text"))
    assert "inv_freq2 has 32 dimensions, not 64" in compared.stdout
    assert run("apply", "m", "--linear", 4, "-o", "out").returncode == 0
    extended = [rope.inv_freq for rope in ropes(tmp_path / "out")]
    for before, after, factor in zip(vectors, extended, (4, 1, 1), strict=True):
        assert before is not None
        assert after == pytest.approx(before / factor, rel=1e-6)
    graphs.rotating(tmp_path / "m/model.onnx", vectors[1].astype(np.float32))
    assert "of other layers" in run("compare", "m/model.onnx", tiny("gemma3_text")).stdout
    graphs.rotating(tmp_path / "m/half.onnx", vectors[1].astype(np.float16))
    assert "the same RoPE" in run("compare", "m/model.onnx", "m/half.onnx").stdout


def test_both_lists_in_branches_are_told_apart(run: Run, tmp_path: Path) -> None:
    short = BASE / 1.5
    long = BASE / 6
    lists = {"short_factor": [1.5] * 32, "long_factor": [6.0] * 32, "rope_type": "longrope"}
    graphs.with_two_lists(tmp_path / "m/model.onnx", tables(short, 64), tables(long, 256))
    graphs.write_config(
        tmp_path / "m",
        rope_scaling={**lists, "attention_factor": 1.0},
        max_position_embeddings=256,
        original_max_position_embeddings=64,
    )
    rows = json.loads(run("inspect", "m", "--json").stdout)["ropes"]
    assert {row["positions"]: row["config"] for row in rows} == {
        256: "the same",
        64: "the same, as its short list",
    }
    assert {row["formula"] for row in rows} == {"longrope, theta 10000, original_context 64"}
    assert run("apply", "m", "--yarn", 8, "--replace", "-o", "out").returncode == 0
    rows = json.loads(run("inspect", "out", "--json").stdout)["ropes"]
    assert [(row["positions"], row["config"], row["formula"][:4]) for row in rows] == [
        (512, "the same", "yarn")
    ] * 2


def test_a_graph_that_was_exported_without_the_scaling_gets_it(run: Run, tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
    vector(graphs.write_config(tmp_path, rope_scaling=scaling, max_position_embeddings=4 * TRAINED))
    assert "another RoPE" in run("inspect", "model.onnx").stdout
    done = run("apply", "model.onnx", "--yarn", 8, "--replace", "-o", "out")
    assert (done.returncode, "--as-is" in done.stderr) == (
        1,
        True,
    )
    assert run("apply", "model.onnx", "--as-is", "-o", "out").returncode == 0
    assert "the same RoPE" in run("compare", "out", "config.json").stdout
    assert "They differ" in run("compare", "model.onnx", "config.json").stdout


def test_both_branches_of_a_merged_decoder_change(run: Run, tmp_path: Path) -> None:
    graphs.in_branches(tmp_path / "m/model.onnx", VECTOR)
    graphs.write_config(tmp_path / "m")
    assert run("apply", "m", "--yarn", 4, "-o", "out").returncode == 0
    schedule = make_plan(tmp_path / "m/config.json", YARN).schedule
    positions = np.arange(200)[None]
    expected = schedule.attention_factor * np.cos(np.outer(positions, schedule.inv_freq))
    for first in (True, False):
        cos, _ = graphs.run(
            tmp_path / "out/model.onnx", first=np.array(first), position_ids=positions
        )
        assert np.abs(cos[0] - expected).max() < 1e-4


def test_a_graph_that_does_not_hold_the_schedule_is_not_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector(graphs.write_config(tmp_path))
    monkeypatch.setattr("ropeconv.features.graphs.model.OnnxGraph.replace", lambda *given: None)
    done = run("apply", "model.onnx", "--yarn", 4, "-o", "out")
    assert (done.returncode, "does not hold" in done.stderr) == (3, True)
    assert not (tmp_path / "out").exists()


def vector(m: Path, **settings: Any) -> None:
    graphs.rotating(m / "model.onnx", VECTOR, **settings)


def cut_tables(m: Path, data: bytes | None) -> None:
    """Tables in a file of their own that is cut, or missing for None."""
    graphs.with_tables(m / "model.onnx", *tables(BASE, 64), external=True)
    (m / "model.onnx.data").unlink()
    if data is not None:
        (m / "model.onnx.data").write_bytes(data)


def linked_data(m: Path) -> None:
    """The weights of a graph as a link that leads outside its folder."""
    cut_tables(m, None)
    (m.parent / "other").write_bytes(b"1")
    (m / "model.onnx.data").symlink_to(m.parent / "other")


def nothing(m: Path) -> None:
    pass


VECTOR = BASE.astype(np.float32)
GRAPHS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another config": (
        lambda m: graphs.write_config(m, rope_theta=5e5),
        "config.json has default, theta 500000",
    ),
    "no config": (lambda m: (m / "config.json").unlink(), "copy that of the checkpoint there"),
    "fixed input": (lambda m: vector(m, length=128), "position_ids has 128 tokens"),
    "mask": (lambda m: vector(m, mask=np.tri(64, dtype=bool)), "mask of 64 tokens"),
    "old opset": (lambda m: vector(m, opset=14), "needs opset 15"),
    "old opset, one factor for two": (
        lambda m: graphs.rotating(m / "model.onnx", VECTOR, VECTOR[:16], factor=1.0, opset=14),
        "needs opset 15",
    ),
    "damaged": (
        lambda m: (m / "model.onnx").write_bytes(b"\x08\x08ropeconv"),
        "is not an ONNX model",
    ),
    "no data": (lambda m: cut_tables(m, None), "model.onnx.data, which is missing"),
    "data elsewhere": (lambda m: linked_data(m), "model.onnx.data leads to"),
    "too large": (
        lambda m: os.truncate(m / "model.onnx", 1 << 31),
        "is larger than 2 GB, the limit of ONNX",
    ),
    "cut data": (lambda m: cut_tables(m, b"1"), "cannot be read"),
    "occupied": (
        lambda m: (m.parent / "out").mkdir(),
        "out exists; choose another place with -o, or remove it",
    ),
}
OPTIONS: dict[str, tuple[int, tuple[object, ...]]] = {
    "its operations do not scale queries by position": (1, ("--log-n", "clamped")),
    "its operations do not choose between them": (1, ("--keep-short", "--attention-factor", 1)),
    "--runtime does not go with a compiled graph": (2, ("--runtime", "vllm")),
    "--to does not go with a compiled graph": (2, ("--to", "gguf")),
    "--push does not go with a compiled graph": (2, ("--push", "me/model")),
    "--force does not go with a compiled graph": (2, ("--force",)),
    "--encoding does not go with a compiled graph": (2, ("--encoding", "factors")),
    "--validate does not go with a compiled graph": (2, ("--validate", "cpu")),
    "--all-files does not go with a compiled graph": (2, ("--all-files",)),
    "run apply once for each": (2, ("m",)),
    "is not a name for a folder": (2, ("-o", "out.onnx")),
}
REFUSALS = [(prepare, words, 1, ()) for prepare, words in GRAPHS.values()]
REFUSALS += [(nothing, words, code, options) for words, (code, options) in OPTIONS.items()]


@pytest.mark.parametrize(("prepare", "words", "code", "options"), REFUSALS, ids=[*GRAPHS, *OPTIONS])
def test_what_constants_cannot_express_is_refused(
    prepare: Callable[[Path], object],
    words: str,
    code: int,
    options: tuple[object, ...],
    run: Run,
    tmp_path: Path,
) -> None:
    graphs.rotating(tmp_path / "m/model.onnx", VECTOR)
    prepare(graphs.write_config(tmp_path / "m"))
    before = sorted(tmp_path.rglob("*"))
    done = run("apply", "m/model.onnx", "--yarn", 4, "-o", "out", *options)
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (
        code,
        True,
        1,
    ), done.stderr
    assert sorted(tmp_path.rglob("*")) == before


NUMBERS = {
    "more than 64 bits": ("offset", "99999999999999999999"),
    "64 bits": ("offset", str((1 << 63) - 1)),
    "thousands of digits": ("offset", "9" * 5000),
    "beyond the file": ("offset", "1000000"),
    "an offset below zero": ("offset", "-4"),
    "a decimal": ("offset", "1e3"),
    "digits of another script": ("offset", "\u0661\u0662"),
    "an empty offset": ("offset", ""),
    "a long length": ("length", "99999999999999999999"),
    "a length below zero": ("length", "-1"),
    "a length that the shape contradicts": ("length", "12"),
    "a word": ("length", "all"),
}


@pytest.mark.parametrize(("key", "number"), NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("command", ["inspect", "apply"])
def test_numbers_that_a_graph_writes_as_text_are_checked(
    command: str, key: str, number: str, run: Run, tmp_path: Path
) -> None:
    import onnx

    path = graphs.with_tables(tmp_path / "m/model.onnx", *tables(BASE, 64), external=True)
    graphs.write_config(tmp_path / "m")
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = number
    onnx.save(model, path)
    options = ("--yarn", 4, "-o", "out") if command == "apply" else ()
    done = run(command, "m/model.onnx", *options)
    assert (done.returncode, done.stderr.count("\n"), "cos_cache" in done.stderr) == (1, 1, True)
    assert "unexpected" not in done.stderr
    assert len(done.stderr) < 400
    assert not (tmp_path / "out").exists()


SHAPES = {
    "a product of more than 64 bits": [1 << 40, 1 << 40],
    "more bytes than the file": [1 << 30, 32],
    "below zero": [-1, 32],
    "a hundred dimensions": [1] * 100,
}


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes_that_the_data_contradict_are_refused(
    shape: list[int], external: bool, run: Run, tmp_path: Path
) -> None:
    import onnx

    path = graphs.with_tables(tmp_path / "m/model.onnx", *tables(BASE, 64), external=external)
    graphs.write_config(tmp_path / "m")
    model = onnx.load(path, load_external_data=False)
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(shape)
    onnx.save(model, path)
    done = run("inspect", "m/model.onnx")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "unexpected" not in done.stderr


def test_an_offset_into_the_data_is_followed(run: Run, tmp_path: Path) -> None:
    """The negative control: numbers that fit the file are accepted, with or without a length."""
    import onnx

    path = graphs.with_tables(tmp_path / "m/model.onnx", *tables(BASE, 64), external=True)
    graphs.write_config(tmp_path / "m")
    model = onnx.load(path, load_external_data=False)
    data = tmp_path / "m/model.onnx.data"
    data.write_bytes(b"\0" * 4096 + data.read_bytes())
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + 4096)
    del model.graph.initializer[1].external_data[2:]
    onnx.save(model, path)
    assert "default, theta 10000" in run("inspect", "m/model.onnx").stdout


def test_what_is_not_refused_is_written(run: Run, tmp_path: Path) -> None:
    """The negative control of the refusals: the same graph with its config, and an old opset
    without a factor.
    """
    graphs.rotating(tmp_path / "m/model.onnx", VECTOR)
    graphs.write_config(tmp_path / "m")
    planned = json.loads(run("apply", "m/model.onnx", "--yarn", 4, "--dry-run", "--json").stdout)
    assert [file["name"] for file in planned["files"]] == ["config.json", "model.onnx"]
    assert run("apply", "m/model.onnx", "--yarn", 4, "-q").stdout == "model-yarn4\n"
    vector(tmp_path / "m", mask=np.zeros((8, 3, 14, 14), np.float32))  # of a convolution
    assert run("apply", "m/model.onnx", "--yarn", 4, "--dry-run").returncode == 0
    graphs.rotating(tmp_path / "m/model.onnx", VECTOR, opset=14)
    assert run("apply", "m/model.onnx", "--linear", 4, "-o", "linear").returncode == 0
    graphs.rotating(tmp_path / "m/model.onnx", VECTOR, opset=14, factor=1.0)  # as optimum exports
    assert run("apply", "m/model.onnx", "--yarn", 4, "-o", "yarn").returncode == 0
    cos, _ = graphs.run(tmp_path / "yarn/model.onnx", position_ids=np.array([[0]]))
    assert cos.ravel() == pytest.approx(np.full(32, 0.1 * np.log(4) + 1), rel=1e-6)
    graphs.rotating(tmp_path / "m/model.onnx", VECTOR, factor=1.25)
    assert "attention factor 1.25" in run("inspect", "m/model.onnx").stdout


def test_formats_that_are_final_say_what_to_do_at_export(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.pte").write_bytes(b"\x1c\x00\x00\x00ET12")
    for words in (("inspect", "model.pte"), ("apply", "model.pte", "--yarn", 4)):
        done = run(*words)
        assert (
            done.returncode,
            "`ropeconv apply`" in done.stderr,
        ) == (
            1,
            True,
        )
    graphs.rotating(tmp_path / "a.onnx", VECTOR)
    assert "inspect, compare and apply" in run("advise", "a.onnx", "--context", "4k").stderr


def test_a_checkpoint_in_a_folder_with_the_name_of_a_graph_is_a_checkpoint(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "x.onnx").mkdir()
    assert "x.onnx has no config.json" in run("inspect", "x.onnx").stderr
    graphs.write_config(tmp_path / "x.onnx")
    assert "default, theta 10000" in run("inspect", "x.onnx").stdout


def test_options_of_a_comparison_without_effect_are_refused(run: Run, tmp_path: Path) -> None:
    vector(tmp_path)
    for options in (("--explain",), ("--family", "llama"), ("model.onnx",)):
        done = run("compare", "model.onnx", "model.onnx", *options)
        assert (done.returncode, done.stdout) == (2, ""), options
    assert run("compare", "model.onnx", "model.onnx").returncode == 0


def test_a_missing_library_is_named_with_its_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs.rotating(tmp_path / "model.onnx", VECTOR)
    monkeypatch.setattr("ropeconv.environment.installed", lambda package: package != "onnx")
    assert "pip install 'ropeconv[graphs]'" in run("inspect", "model.onnx").stderr
