"""Models that llama.cpp's own converter converts: whose code runs, what it is given, and what
becomes of its file.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest

import ropeconv
from ropeconv.bake.gguf import ExportPlan
from ropeconv.bake.restore import restore, restore_plan
from ropeconv.convert.to_gguf import stock, stock_export
from ropeconv.convert.to_gguf.stock import StockConverter, find_again, find_converter
from ropeconv.engines.llamacpp import DecodeTest
from ropeconv.errors import BadSource, Disagreement, UnsupportedBake, UsageError
from ropeconv.formats.gguf.edit import RESERVED
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.inspection.receipts.places import remember_converter, remembered_converter
from ropeconv.inspection.receipts.storage import commands, read_receipt
from ropeconv.rope.errors import RopeconvError

from ...support.baking import AS_IS, MIXED, YARN, apply, make_plan, recipe_of, stored_as
from ...support.corruptions import verified
from ...support.extent import sample
from ...support.hub_server import serving, talk_to
from ...support.llamacpp import bake, beyond, checkpoint, of_llamacpp, of_transformers
from ...support.models import TRAINED
from ...support.optional import MISSING, skip
from ...support.quantised import CASES as QUANTISED
from ...support.quantised import SIZES, write_both
from ...support.stock_tree import published

UNKNOWN = "dbrx"
"""A model type that only llama.cpp's converter knows."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(UNKNOWN, tmp_path_factory.mktemp("source") / "Tiny-Dbrx")


# What becomes of its file


def shape_of(tensor: Any) -> list[int]:
    """A shape without trailing ones, which ggml does not tell apart."""
    sizes = [int(size) for size in tensor.shape]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return sizes


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a file (shape, type and bytes), and its keys, by name."""
    reader = gguf.GGUFReader(path)
    tensors = {}
    for tensor in reader.tensors:
        tensors[tensor.name] = (shape_of(tensor), tensor.tensor_type, tensor.data.tobytes())
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return tensors, keys


OURS_ALONE = (
    "general.basename",
    "{arch}.vocab_size",
    "{arch}.rope.freq_base",
    "{arch}.rope.dimension_count",
    "{arch}.attention.head_count_kv",
    "{arch}.attention.key_length",
    "{arch}.attention.value_length",
    "{arch}.attention.sliding_window_pattern",
    "{arch}.nextn_predict_layers",
    "{arch}.expert_shared_count",
    "{arch}.expert_shared_feed_forward_length",
    "{arch}.leading_dense_block_count",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_sep_token",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.eot_token_id",
)
"""Keys that only ropeconv writes, with the values that llama.cpp takes without them. It leaves out
the number of dense layers where it is 0, and the base of MiniCPM 3 where it is 10,000. `tree`
replaces the code that writes the special tokens of ModernBERT, GLM and Solar Open;
test_tokenizer_keys.py compares these with the converter's own code.
"""
STOCK_ALONE = "eurobert.classifier.pooling_type"
"""A key that only the converter writes, for a classifier that llama.cpp does not have."""
APART = ("GGUF.", "ropeconv.")
FACTOR_1 = ("glm_moe_dsa", "hunyuan_v1_moe", "llama4_text")
"""Model types that take the attention factor 1 alone."""
OWN_FACTOR = ("mimo_v2_flash", "modernbert")
"""Model types that take YaRN's own factor alone: the key of another one would reach the layers with a
window, which are not scaled.
"""
CASES = [
    (model_type, outtype, method)
    for model_type in (
        "afmoe",
        "cohere2_moe",
        "deepseek_v32",
        "eurobert",
        "exaone_moe",
        "gemma3_text",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "granite_swa",
        "granitemoe_swa",
        "granitemoeshared",
        "hunyuan_v1_moe",
        "hy_v3",
        "internlm3",
        "iquestcoder",
        "jais2",
        "laguna",
        "llama",
        "llama4_text",
        "mellum",
        "mimo_v2_flash",
        "minicpm3",
        "mistral4",
        "modernbert",
        "phi3",
        "qwen3",
        "qwen3_moe",
        "solar_open",
    )
    for outtype in ("bf16", "q8_0", "f32")
    for method in ("as-is", "yarn", "yarn, factor 1")
    if method != "yarn" or model_type not in FACTOR_1
    if method != "yarn, factor 1" or model_type not in OWN_FACTOR
]
METHODS_OF = {
    "afmoe": ("as-is", "yarn"),
    "exaone_moe": ("as-is", "mixed"),
    "glm4_moe_lite": ("as-is", "yarn"),
    "gpt_neox": ("as-is", "yarn"),
    "hunyuan_v1_moe": ("as-is", "yarn, factor 1"),
    "granitemoeshared": ("as-is", "yarn", "mixed"),
    "hrm_text": ("as-is", "yarn"),
    "internlm3": ("as-is", "yarn", "mixed"),
    "jais2": ("as-is", "yarn"),
    "llama4_text": ("as-is", "yarn, factor 1"),
    "solar_open": ("as-is", "yarn"),
    "cohere2_moe": ("as-is", "yarn"),
    "dbrx": ("as-is", "yarn"),
    "granite_swa": ("as-is", "yarn", "mixed"),
    "granitemoe_swa": ("as-is", "yarn", "mixed"),
    "hy_v3": ("as-is", "yarn"),
    "laguna": ("as-is", "yarn"),
    "deepseek_v32": ("as-is", "yarn"),
    "eurobert": ("as-is", "yarn"),
    "mellum": ("as-is", "yarn"),
    "mistral4": ("as-is", "yarn"),
    "nomic_bert": ("as-is", "yarn"),
    "youtu": ("as-is", "yarn"),
    "minicpm3": ("as-is", "yarn", "mixed"),
    "modernbert": ("as-is", "yarn"),
    "qwen3_next": ("as-is", "yarn"),
}
"""Model types that llama.cpp's converter converts, and methods that their architectures have.

ropeconv has no conversion of DBRX, HRM, NomicBERT and Youtu.
"""
ELSEWHERE = [(name, method) for name, methods in METHODS_OF.items() for method in methods]
METHODS = {
    "as-is": AS_IS,
    "yarn": YARN,
    "yarn, factor 1": recipe_of("yarn", 4.0, attention_factor=1.0),
    "mixed": MIXED,
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("model_type", "outtype", "method"), sample(CASES, 2))
def test_a_family_that_both_know_becomes_the_same_file(
    model_type: str, outtype: str, method: str, tree: Path, tmp_path: Path
) -> None:
    folder = published(model_type, tmp_path / "Tiny")
    stored_as(folder, "bfloat16")
    recipe = METHODS[method]
    bake(folder, recipe, tmp_path / "ours.gguf", outtype=outtype)
    bake(folder, recipe, tmp_path / "stock.gguf", outtype=outtype, converter=tree)
    our_tensors, our_keys = contents(tmp_path / "ours.gguf")
    tensors, keys = contents(tmp_path / "stock.gguf")
    assert tensors == our_tensors
    arch = our_keys["general.architecture"]
    allowed = {name.format(arch=arch) for name in OURS_ALONE}
    for name in {*our_keys, *keys}:
        if name.startswith(APART) or name == STOCK_ALONE:
            continue
        if our_keys.get(name) != keys.get(name):
            assert name in allowed
            assert name not in keys or keys[name] == 0


@pytest.mark.parametrize("model_type", OWN_FACTOR)
def test_a_factor_that_layers_with_a_window_would_have_too_is_refused(
    model_type: str, tmp_path: Path
) -> None:
    folder = published(model_type, tmp_path / "Tiny")
    with pytest.raises(UnsupportedBake, match="window"):
        bake(folder, METHODS["yarn, factor 1"], tmp_path / "out.gguf", outtype="f32")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("model_type", "method"), sample(ELSEWHERE, 2))
def test_llama_cpp_computes_what_transformers_does_beyond_the_trained_length(
    model_type: str, method: str, tree: Path, tmp_path: Path
) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    folder = published(model_type, tmp_path / "Tiny")
    out = tmp_path / "out.gguf"
    plan = bake(folder, METHODS[method], out, converter=tree)
    expected = of_transformers(folder, plan)
    computed = of_llamacpp(out)
    unscaled = of_transformers(folder, None)
    for right, wrong in zip(beyond(expected, computed), beyond(expected, unscaled), strict=True):
        assert right.kl_mean < (1e-5 if model_type == "modernbert" else 2e-6)  # GELU is a table
        if method != "as-is":
            assert wrong.kl_mean > 1000 * right.kl_mean


@pytest.mark.usefixtures("quick")
def test_the_quantiser_of_llama_cpp_follows(source: Path, tree: Path, tmp_path: Path) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    out = tmp_path / "out.gguf"
    bake(source, YARN, out, outtype="q4_0", converter=tree)
    file = GgufFile.open(out)
    assert file.get("general.file_type") == 2
    assert file.tensors["blk.0.attn_qkv.weight"].type == gguf.GGMLQuantizationType.Q4_0
    assert file.get("dbrx.rope.scaling.factor") == 4.0
    assert verified(out, source).files == 1


@pytest.mark.usefixtures("quick")
def test_a_scaling_of_the_source_is_taken_away_and_written_back(
    source: Path, tree: Path, tmp_path: Path
) -> None:
    """The converter drops the attention factor of a config, and writes stale keys for others."""
    scaled = shutil.copytree(source, tmp_path / "scaled")
    config = json.loads((scaled / "config.json").read_text())
    rope = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3, "rope_theta": 10000.0}
    rope["original_max_position_embeddings"] = TRAINED
    config |= {"rope_parameters": rope, "max_position_embeddings": 4 * TRAINED}
    (scaled / "config.json").write_text(json.dumps(config))
    bake(scaled, AS_IS, tmp_path / "scaled.gguf", converter=tree)
    bake(
        source,
        recipe_of("yarn", 4.0, attention_factor=1.3),
        tmp_path / "baked.gguf",
        converter=tree,
    )
    tensors, keys = contents(tmp_path / "scaled.gguf")
    expected_tensors, expected = contents(tmp_path / "baked.gguf")
    assert tensors == expected_tensors
    of_rope = [name for name in {*keys, *expected} if ".rope." in name]
    assert len(of_rope) >= 5
    for name in of_rope:
        assert keys.get(name) == expected.get(name), name


@pytest.mark.usefixtures("quick")
def test_layers_that_llama_cpp_has_otherwise_are_refused(tree: Path, tmp_path: Path) -> None:
    """Its converter writes the file all the same: llama.cpp has a global layer every fourth time."""
    layers = {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    folder = checkpoint("afmoe", tmp_path / "Tiny", **layers)
    with pytest.raises(UnsupportedBake, match="window"):
        make_plan(folder, AS_IS, tmp_path / "out.gguf", to="gguf", converter=tree)


# A config whose keys transformers renames


def test_a_published_config_is_read_where_transformers_renames_its_keys(
    tree: Path, tmp_path: Path
) -> None:
    """transformers 5 makes partial_rotary_factor of rotary_pct, for which the converter looks."""
    converter = find_converter(tree)
    assert converter is not None
    source = published("gpt_neox", tmp_path / "Tiny")
    out = tmp_path / "out.gguf"
    converter.convert(source, out, "f32", header_only=True)
    # half of 64 dimensions rotate
    assert GgufFile.open(out).get("gptneox.rope.dimension_count") == 32

    # the control: transformers 5 saves a config without the key
    config = json.loads((source / "config.json").read_text())
    config["rope_parameters"] = {
        "rope_theta": 10000.0,
        "partial_rotary_factor": config["rotary_pct"],
    }
    del config["rotary_pct"]
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(RopeconvError, match="KeyError: 'rotary_pct'"):
        converter.convert(source, tmp_path / "none.gguf", "f32", header_only=True)


def test_layers_that_transformers_renames_keep_their_published_type(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers with attention of a Qwen 4 choose blocks of 4 tokens; AutoConfig renames them."""
    converter = find_converter(tree)
    assert converter is not None
    source = published("qwen4_exp_text", tmp_path / "Tiny")
    converter.convert(source, tmp_path / "out.gguf", "f32", header_only=True)
    ratios = GgufFile.open(tmp_path / "out.gguf").get("qwen4exp.attention.compress_ratios")
    assert ratios == [0, 4]

    # the control: what the converter writes of the renamed layers
    monkeypatch.setattr(stock, "RENAMED_LAYERS", ())
    converter.convert(source, tmp_path / "other.gguf", "f32", header_only=True)
    ratios = GgufFile.open(tmp_path / "other.gguf").get("qwen4exp.attention.compress_ratios")
    assert ratios == [0, 0]


@pytest.mark.parametrize(
    ("last_line", "runs"),
    [
        ("KeyError: 'rotary_pct'", 2),
        ("TypeError: 'int' object is not iterable", 2),
        ("ValueError: Can not map tensor 'lm_head.weight'", 1),
    ],
)
def test_only_missing_keys_let_the_converter_run_again(
    last_line: str, runs: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run cannot repair anything else."""
    script = tmp_path / "llama.cpp" / stock.SCRIPT
    script.parent.mkdir()
    script.write_text(
        "import os, sys\n"
        "with open(os.environ['SEEN'], 'a') as seen:\n"
        "    seen.write('a run\\n')\n"
        f"sys.exit({last_line!r})\n"
    )
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    converter = find_converter(script)
    assert converter is not None
    with pytest.raises(RopeconvError) as problem:
        converter.convert(source, tmp_path / "out.gguf", "f32")
    assert last_line in str(problem.value)
    assert seen.read_text().count("a run") == runs


# The plan, the receipt, and the check of an output


def test_the_plan_and_the_receipt_name_the_converter_and_not_its_place(
    source: Path, tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    plan = bake(source, YARN, out, converter=tree)
    converter = find_converter(tree)
    assert converter is not None
    assert plan.to_dict()["converter"] == {"version": "", "sha256": converter.sha256}
    assert any(converter.described in warning for warning in plan.warnings)
    receipt = read_receipt(out)
    assert receipt.converter is not None
    assert receipt.converter.sha256 == converter.sha256
    assert receipt.source.name == source.name
    assert str(tree).encode() not in out.read_bytes()
    (command,) = commands(receipt)
    assert "--converter" in command


@pytest.mark.usefixtures("quick")
def test_the_plan_has_the_size_of_the_output(source: Path, tree: Path, tmp_path: Path) -> None:
    plan = bake(source, YARN, tmp_path / "out.gguf", outtype="f16", converter=tree)
    assert plan.bytes == (tmp_path / "out.gguf").stat().st_size


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.usefixtures("quick")
def test_an_output_is_verified_by_digests_or_by_converting_again(
    source: Path, tree: Path, tmp_path: Path, again: bool
) -> None:
    """Another process does not have the digests."""
    out = tmp_path / "out.gguf"
    bake(source, YARN, out, converter=tree)
    forget = stock_export.DIGESTS.clear if again else lambda: None
    forget()
    assert verified(out, source).bytes > 0
    assert verified(out, source, quick=True).files == 1
    file = GgufFile.open(out)
    place = file.header.data_start + file.tensors["blk.1.ffn_up_exps.weight"].offset
    with out.open("r+b") as opened:
        opened.seek(place + 100)
        opened.write(b"\x00\x00\x00\x40")
    forget()
    with pytest.raises(Disagreement, match=r"blk\.1\.ffn_up_exps\.weight"):
        verified(out, source)


def test_a_header_is_the_same_in_every_run(
    source: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gguf-py lists the names of chat templates from a set, whose order depends on the seed."""
    model = shutil.copytree(source, tmp_path / "model")
    names = ("tool_use", "rag", "zeta", "beta", "eta", "alpha")
    templates = [{"name": name, "template": name} for name in names]
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": templates})
    )
    converter = stock.find_converter(tree)
    assert converter is not None
    headers = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        target = tmp_path / f"{seed}.gguf"
        converter.convert(model, target, "f32", header_only=True)
        headers.append(GgufFile.open(target).header.values)
    first, second = headers
    assert sorted(first["tokenizer.chat_templates"].decode()) == sorted(names)
    assert first == second


def test_one_header_and_one_file_are_converted_for_an_output_and_its_checks(
    source: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    model = shutil.copytree(source, tmp_path / "Tiny")
    runs = []
    convert = StockConverter.convert

    def counted(self: Any, *given: Any, header_only: bool = False, **settings: Any) -> None:
        runs.append(header_only)
        convert(self, *given, header_only=header_only, **settings)

    monkeypatch.setattr(StockConverter, "convert", counted)
    out = ropeconv.apply(model, to="gguf", yarn=4, converter=tree, out=tmp_path / "out.gguf").path
    assert runs == [True, False]
    assert verified(out, model).bytes > 0
    assert runs == [True, False]

    # another file of the checkpoint is another conversion
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    verified(out, model)
    assert runs == [True, False, True, False]


@pytest.mark.usefixtures("quick")
def test_the_source_comes_back_from_the_output(source: Path, tree: Path, tmp_path: Path) -> None:
    bake(source, AS_IS, tmp_path / "plain.gguf", converter=tree)
    plan = bake(source, YARN, tmp_path / "out.gguf", converter=tree)
    output = ropeconv.open_source(str(tmp_path / "out.gguf"))
    restore(restore_plan(output, tmp_path / "back.gguf"))
    tensors, _ = contents(tmp_path / "back.gguf")
    plain_tensors, _ = contents(tmp_path / "plain.gguf")
    assert tensors == plain_tensors

    # the keys are those of the converter, also the ones that a method removes
    assert isinstance(plan, ExportPlan)
    values = GgufFile.open(tmp_path / "back.gguf").header.values
    assert {key: value for key, value in values.items() if key != RESERVED} == (
        plan.exported.unlabelled.values
    )


def test_a_converter_that_changes_between_plan_and_output_is_noticed(
    source: Path, tree: Path, tmp_path: Path
) -> None:
    changing = tmp_path / "llama.cpp"
    shutil.copytree(tree, changing, symlinks=True)
    script = changing / "convert_hf_to_gguf.py"
    plan = make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf", converter=changing)
    script.write_text(
        "import gguf\nadd = gguf.GGUFWriter.add_block_count\n"
        "gguf.GGUFWriter.add_block_count = lambda self, count: add(self, count + 1)\n"
        + script.read_text()
    )
    with pytest.raises(BadSource, match="another header"):
        apply(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["llama.cpp"]


# Whose code runs, and what it is given

SPY = """
import json, os, sys
from pathlib import Path

model = Path(sys.argv[1])
files = [path.relative_to(model).as_posix() for path in model.rglob("*") if not path.is_dir()]
seen = {
    "files": sorted(files),
    "config": json.loads((model / "config.json").read_text()),
    "tokenizer": json.loads((model / "tokenizer_config.json").read_text()),
    "environment": dict(os.environ),
    "modules": [str(getattr(module, "__file__", "")) for module in sys.modules.values()],
}
Path(os.environ["SEEN"]).write_text(json.dumps(seen))
sys.exit("Error: the spy converts nothing")
"""


def spy(folder: Path) -> Path:
    """A checkout whose converter only says what it was given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / stock.SCRIPT).write_text(SPY)
    return folder


def seen_by_spy(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> dict[str, Any]:
    """The files and settings that a converter is given of a source."""
    monkeypatch.setenv("SEEN", str(folder / "seen.json"))
    with pytest.raises(RopeconvError, match="the spy converts nothing"):
        make_plan(source, AS_IS, folder / "out.gguf", to="gguf", **options)
    seen: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return seen


def test_it_gets_neither_secrets_nor_code_of_the_model(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(source, tmp_path / "model")
    (model / "modeling_evil.py").write_text("raise SystemExit('model code')")
    (model / "pytorch_model.bin").write_bytes(b"a pickle")
    (model / "extra.safetensors").write_bytes(b"other weights")
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((model / name).read_text())
        settings["auto_map"] = {"AutoConfig": "them/code--modeling_evil.Evil"}
        (model / name).write_text(json.dumps(settings))
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_user")
    seen = seen_by_spy(model, tmp_path, monkeypatch, converter=spy(tmp_path / "spy"))
    assert seen["files"] == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert "auto_map" not in seen["config"]
    assert "auto_map" not in seen["tokenizer"]
    assert "hf_secret_of_the_user" not in seen["environment"].values()
    assert seen["environment"]["HF_HUB_OFFLINE"] == "1"


def test_it_gets_the_unscaled_rope(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(source, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    config |= {"rope_parameters": rope, "max_position_embeddings": 4 * TRAINED}
    (model / "config.json").write_text(json.dumps(config))
    seen = seen_by_spy(model, tmp_path, monkeypatch, converter=spy(tmp_path / "spy"))
    assert seen["config"]["rope_parameters"]["rope_type"] == "default"
    assert "factor" not in seen["config"]["rope_parameters"]
    assert json.loads((model / "config.json").read_text()) == config


def test_modules_of_the_working_directory_are_not_imported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("gguf.py", "conversion.py", "json.py"):
        (here / name).write_text("raise SystemExit('code of the working directory')")
    monkeypatch.chdir(here)
    seen = seen_by_spy(source, tmp_path, monkeypatch, converter=spy(tmp_path / "spy"))
    assert not [name for name in seen["modules"] if name.startswith(str(here))]


def test_a_script_in_the_model_or_the_working_directory_is_not_found(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(source, tmp_path / "model")
    spy(model)
    here = spy(tmp_path / "here")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(stock.sysconfig, "get_path", lambda name: str(tmp_path / "empty"))
    with pytest.raises(UnsupportedBake, match="--converter"):
        make_plan(model, AS_IS, tmp_path / "out.gguf", to="gguf")


def install(folder: Path, *files: str) -> None:
    """Write the record of a package, as pip does."""
    info = folder / "nimble-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nimble\nVersion: 1.5\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))


def test_the_script_of_an_installed_package_is_found(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    install(packages, f"nimble/{stock.SCRIPT}")
    spy(packages / "nimble")
    monkeypatch.setattr(stock.sysconfig, "get_path", lambda name: str(packages))
    converter = find_converter()
    assert converter is not None
    assert converter.version == "nimble 1.5"
    seen_by_spy(source, tmp_path, monkeypatch)


def test_a_package_cannot_name_a_script_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    install(packages, f"../elsewhere/{stock.SCRIPT}")
    spy(tmp_path / "elsewhere")
    monkeypatch.setattr(stock.sysconfig, "get_path", lambda name: str(packages))
    assert find_converter() is None


def test_a_family_that_ropeconv_knows_needs_no_converter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stock.VARIABLE, str(spy(tmp_path / "spy")))
    folder = checkpoint("llama", tmp_path / "Tiny")
    plan = make_plan(folder, AS_IS, tmp_path / "out.gguf", to="gguf")
    assert plan.to_dict()["converter"] is None


# Where it is, and what it is called


def test_the_version_is_that_of_the_checkout_or_the_package_around_it(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    checkout = spy(tmp_path / "checkout")
    (checkout / ".git" / "refs" / "heads").mkdir(parents=True)
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/master\n")
    (checkout / ".git" / "refs" / "heads" / "master").write_text(f"{commit}\n")
    sdist = tmp_path / "some_package-0.3"
    spy(sdist / "vendor" / "llama.cpp")
    (sdist / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 0.3\n")
    found = [find_converter(place) for place in (checkout, sdist, checkout / stock.SCRIPT)]
    versions = [converter.version for converter in found if converter is not None]
    assert versions == ["commit 012345678", "some-package 0.3", "commit 012345678"]


def test_the_digest_is_of_all_code(tmp_path: Path) -> None:
    checkout = spy(tmp_path / "checkout")
    (checkout / "conversion").mkdir()
    (checkout / "conversion" / "base.py").write_text("first")
    digests = set()
    for text in ("first", "second"):
        (checkout / "conversion" / "base.py").write_text(text)
        converter = find_converter(checkout)
        assert converter is not None
        digests.add(converter.sha256)
    assert len(digests) == 2


def test_a_path_without_a_converter_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="convert_hf_to_gguf"):
            find_converter(path)


def test_a_converter_is_found_again_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock.sysconfig, "get_path", lambda name: str(tmp_path / "empty"))
    converter = find_converter(spy(tmp_path / "spy"))
    assert converter is not None
    digest = converter.sha256
    with pytest.raises(BadSource, match=stock.VARIABLE):
        find_again(digest, None)
    assert find_again(digest, converter.script) == converter
    remember_converter(digest, converter.script)
    assert remembered_converter(digest) == converter.script

    # other code at the same place is not run
    converter.script.write_text("print('something else')")
    with pytest.raises(BadSource, match=stock.VARIABLE):
        find_again(digest, remembered_converter(digest))
    assert remembered_converter("../../somewhere") is None


def test_options_that_have_no_effect_with_it_are_refused(tmp_path: Path, tree: Path) -> None:
    folder = checkpoint("llama", tmp_path / "Tiny")
    with pytest.raises(UsageError, match="--converter"):
        make_plan(folder, AS_IS, tmp_path / "out", converter=tree)


def test_its_last_line_is_quoted_and_nothing_is_left(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path / "spy" / "seen.json"))
    with pytest.raises(RopeconvError, match="Error: the spy converts nothing"):
        make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf", converter=spy(tmp_path / "spy"))
    assert [path.name for path in tmp_path.iterdir()] == ["spy"]


def test_the_repair_is_our_own_converter_where_there_is_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path / "spy" / "seen.json"))
    given = {"to": "gguf", "converter": spy(tmp_path / "spy")}
    known = checkpoint("llama", tmp_path / "known")
    with pytest.raises(RopeconvError, match="; leave --converter out"):
        make_plan(known, AS_IS, tmp_path / "known.gguf", **given)
    # the control: nothing else converts this family
    with pytest.raises(RopeconvError, match="; keep safetensors, or name another"):
        make_plan(source, AS_IS, tmp_path / "out.gguf", **given)


def test_an_unknown_pre_tokenizer_can_be_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The converter's last line is that of get_vocab_base_pre (conversion/base.py)."""
    monkeypatch.setenv("SEEN", str(tmp_path / "spy" / "seen.json"))
    given = {"to": "gguf", "converter": spy(tmp_path / "spy")}
    with pytest.raises(RopeconvError) as other:
        make_plan(source, AS_IS, tmp_path / "out.gguf", **given)
    assert "--pre" not in str(other.value)

    script = tmp_path / "spy" / stock.SCRIPT
    last_line = "NotImplementedError: BPE pre-tokenizer was not recognized - update it"
    script.write_text(SPY.replace("Error: the spy converts nothing", last_line))
    with pytest.raises(RopeconvError, match="; pass --pre NAME .* keep safetensors"):
        make_plan(source, AS_IS, tmp_path / "out.gguf", **given)


@pytest.mark.usefixtures("quick")
def test_a_file_without_rotation_is_left_to_our_own_converter(tree: Path, tmp_path: Path) -> None:
    """conversion/granite.py takes every Granite 4 with Mamba for one without positions."""
    layers = {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}
    source = checkpoint("granitemoehybrid", tmp_path / "Tiny", **layers)
    with pytest.raises(BadSource, match="finetuned = false.*; leave --converter out"):
        make_plan(source, YARN, tmp_path / "stock.gguf", to="gguf", converter=tree)
    # the repair works
    plan = make_plan(source, YARN, tmp_path / "own.gguf", to="gguf")
    assert plan.schedule.context == 4 * TRAINED


@pytest.mark.usefixtures("quick")
def test_a_file_that_llama_cpp_cannot_run_is_left_to_our_own_converter(
    source: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_cpp")
    failure = DecodeTest(failure="tensor 'blk.0.ffn_gate_exps.weight' has wrong shape")
    monkeypatch.setattr("ropeconv.bake.apply.why_not_run", lambda path: failure)
    known = checkpoint("llama", tmp_path / "known")
    out = tmp_path / "out.gguf"
    repairs = []
    for given in (known, tree), (source, tree), (known, None):
        plan = make_plan(given[0], AS_IS, out, to="gguf", converter=given[1])
        with pytest.raises(RopeconvError, match="wrong shape") as problem:
            ropeconv.apply(plan)
        repairs.append(str(problem.value))
    assert "leave --converter out" in repairs[0]
    assert "name another checkout" in repairs[1]
    assert "convert it with llama.cpp" in repairs[2]
    assert "convert it with llama.cpp" not in repairs[0] + repairs[1]


def test_quantised_weights_are_left_to_our_own_converter(tree: Path, tmp_path: Path) -> None:
    _, pack, settings = QUANTISED["AWQ"]
    folder, _ = write_both("llama", pack, settings, tmp_path, shards=False, **SIZES)
    with pytest.raises(BadSource, match="AWQ; leave --converter out"):
        make_plan(folder, AS_IS, tmp_path / "stock.gguf", to="gguf", converter=tree)
    # the repair works
    assert isinstance(make_plan(folder, AS_IS, tmp_path / "own.gguf", to="gguf"), ExportPlan)


@pytest.mark.usefixtures("quick")
def test_only_headers_of_a_model_on_the_hub_are_fetched_for_a_plan(
    source: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (source / "model.safetensors").stat().st_size
    options: dict[str, Any] = {"to": "gguf", "outtype": "f16", "converter": tree}
    with serving() as hub:
        hub.repos["them/Tiny-Dbrx"] = source
        talk_to(hub, tmp_path / "home" / "hub", monkeypatch)
        plan = make_plan("them/Tiny-Dbrx", YARN, tmp_path / "hub.gguf", **options)
        assert 0 < hub.sent["model.safetensors"] < size / 2
        assert isinstance(plan, ExportPlan)
        assert plan.exported.model.header.tensors.keys() >= {"blk.1.ffn_up_exps.weight"}
        apply(plan)
        assert hub.sent["model.safetensors"] >= size
    apply(make_plan(source, YARN, tmp_path / "disk.gguf", **options))
    assert contents(tmp_path / "hub.gguf")[0] == contents(tmp_path / "disk.gguf")[0]


@pytest.mark.usefixtures("quick")
def test_a_small_tensor_that_a_method_changes_must_be_that_of_the_plan(
    tree: Path, tmp_path: Path
) -> None:
    """Window layers of Gemma 3 get another norm of queries, which undoes the attention factor."""
    folder = published("gemma3_text", tmp_path / "Tiny")
    options: dict[str, Any] = {"to": "gguf", "outtype": "f32", "converter": tree}
    method = METHODS["yarn, factor 1"]
    apply(make_plan(folder, method, tmp_path / "right.gguf", **options))
    plan = make_plan(folder, method, tmp_path / "out.gguf", **options)
    assert isinstance(plan, ExportPlan)
    assert isinstance(plan.exported, stock_export.StockExport)
    name = "blk.0.attn_q_norm.weight"
    right = plan.exported.small[name]
    try:
        plan.exported.small[name] = bytes(len(right))
        with pytest.raises(BadSource, match=name):
            apply(plan)
    finally:
        plan.exported.small[name] = right
