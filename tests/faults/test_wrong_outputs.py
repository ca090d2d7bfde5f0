"""Outputs of which one thing is wrong, with a renewed receipt: no forward pass is needed to refuse them.

Every corruption is tried on an output that is accepted before. The right outputs are in test_right_outputs.py.
"""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import ropeconv
from ropeconv.errors import BadSource, Disagreement
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import Source, open_source
from ropeconv.validate.checks.files import check_tokenizer
from ropeconv.verify import Options, verify_output

from ..support.baking import apply, make_plan
from ..support.corruptions import (
    Corruption,
    add,
    data,
    drop,
    edit,
    put,
    remove,
    renew,
    replaced,
    scale,
    tensor,
    tensors,
    text,
)
from ..support.extent import sample, tally
from ..support.models import make

YARN = Recipe(REGISTRY["yarn"](16.0))
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
INDEX, ONE = "model.safetensors.index.json", "model.safetensors"
K, K1, Q = (f"model.layers.{name}_proj.weight" for name in ("0.self_attn.k", "1.self_attn.k", "1.self_attn.q"))
UP, GATE = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
STORED = "model-rope.safetensors"
BOTH = Options(), Options(edited=True)

# name: model type, options of the bake, whether the source has two shards
BAKES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "native": ("llama", {}, False),
    "folded": ("llama", {"encoding": "weights"}, False),
    "widened": ("qwen3", {"encoding": "weights", "fold_dtype": "f32"}, False),
    "stored": ("llama", {"encoding": "buffers"}, False),
    "shards": ("llama", {}, True),
    "windows": ("gemma2", {}, False),
    "partial": ("phi", {}, False),
    "latent": ("deepseek_v3", {}, False),
}  # fmt: skip


def swap(one: str, other: str) -> Callable[[dict[str, np.ndarray]], object]:
    def change(found: dict[str, np.ndarray]) -> None:
        found[one], found[other] = found[other], found[one]

    return change


def exchange(out: Path) -> None:
    """The two shards under each other's names."""
    first = (out / FIRST).read_bytes()
    (out / FIRST).write_bytes((out / SECOND).read_bytes())
    (out / SECOND).write_bytes(first)


def move_a_tensor(out: Path) -> None:
    """A tensor in the other shard, with an index that says so."""
    one, other = (safetensors.numpy.load_file(out / name) for name in (FIRST, SECOND))
    name = sorted(one)[0]
    other[name] = one.pop(name)
    for file, held in ((FIRST, one), (SECOND, other)):
        safetensors.numpy.save_file(held, out / file, {"format": "pt"})
    edit(out, INDEX, lambda index: index["weight_map"].update({name: SECOND}))


def shadow(out: Path) -> None:
    """model.safetensors beside shards, which readers prefer."""
    shutil.copy(out / FIRST, out / ONE)


def of_the_source(out: Path) -> None:
    """Weights without the factor that the config leaves to them."""
    shutil.copy(out.parent / "source" / ONE, out / ONE)


def as_bfloat16(numbers: np.ndarray) -> None:
    numbers[:] = (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32)


def in_16_bits(found: dict[str, np.ndarray]) -> None:
    found.update({name: numbers.astype(np.float16) for name, numbers in found.items()})


def unlisted(index: dict[str, Any]) -> None:
    del index["weight_map"]["lm_head.weight"]


def relaid(out: Path) -> None:
    (out / CONFIG).write_text(json.dumps(json.loads((out / CONFIG).read_text())))


def last(change: Callable[[int], int]) -> Callable[[bytearray], None]:
    def apply_to(found: bytearray) -> None:
        found[-1] = change(found[-1])

    return apply_to


def cut(found: bytearray) -> None:
    del found[len(found) // 2 :]


def zeros(found: bytearray) -> None:
    found[:] = bytes(len(found))


def grown(found: bytearray) -> None:
    found += bytes(64)


def schema(change: Callable[[dict[str, Any]], object]) -> Corruption:
    """Changes both places where a config has its scaling."""

    def both(config: dict[str, Any]) -> None:
        for key in ("rope_scaling", "rope_parameters"):
            change(config[key])

    return lambda out: edit(out, CONFIG, both)


def receipt(change: Callable[[dict[str, Any]], object]) -> Corruption:
    return lambda out: edit(out, "ropeconv.json", change)


WEIGHTS: dict[str, tuple[str, Corruption]] = {
    "a row of the embeddings is zero": ("native", tensor("model.embed_tokens.weight", scale(7, 0))),
    "keys of one layer x 1.01": ("native", tensor(K1, scale(slice(None), 1.01))),
    "one head of queries x 1.003": ("native", tensor(Q, scale(slice(0, 64), 1.003))),
    "a norm x 1.0000002": ("native", tensor("model.norm.weight", scale(0, 1.0000002))),
    "one number is NaN": ("native", tensor(UP, lambda it: it.__setitem__((3, 3), np.nan))),
    "one number is -0": ("native", tensor("model.norm.weight", lambda it: np.negative(it, out=it))),
    "the head is negative": ("native", tensor("lm_head.weight", scale(slice(None), -1))),
    "two rows are exchanged": ("native", tensor(UP, lambda it: it.__setitem__([0, 1], it[[1, 0]]))),
    "weights are rounded to bfloat16": ("native", tensor(K, as_bfloat16)),
    "two tensors are exchanged": ("native", tensors(swap(UP, GATE))),
    "a tensor is missing": ("native", tensors(lambda it: it.pop(K1))),
    "a tensor has another name": ("native", tensors(lambda it: it.__setitem__("model.other", it.pop(K1)))),
    "a tensor too many": ("native", tensors(lambda it: it.__setitem__("model.other", it[K1]))),
    "a tensor is transposed": ("native", tensors(lambda it: it.__setitem__(UP, it[UP].T.copy()))),
    "a tensor is in 16 bits": ("native", tensors(lambda it: it.__setitem__(K1, it[K1].astype(np.float16)))),
    "numbers are read as others": ("native", data(replaced(b'"dtype":"F32"', b'"dtype":"I32"'))),
    "a shape is another": ("native", data(replaced(b'"shape":[96,128]', b'"shape":[128,96]'))),
    "the metadata is another": ("native", data(replaced(b'"format":"pt"', b'"format":"tf"'))),
    "the last bit": ("native", data(last(lambda byte: byte ^ 1))),
    "half of the file": ("native", data(cut)),
    "only zeros": ("native", data(zeros)),
    "more bytes than tensors": ("native", data(grown)),
    "no weights": ("native", remove(ONE)),
    "the factor is not in the weights": ("folded", of_the_source),
    "the factor is in them twice": ("folded", tensor(K, scale(slice(None), 1.63))),
    "the factor is in a row less": ("folded", tensor(K, scale(5, 1 / 1.63))),
    "one folded number": ("folded", tensor(K1, scale((9, 9), 1.0001))),
    "a tensor that is not folded": ("folded", tensor(Q, scale(0, 1.01))),
    "a widened norm": ("widened", tensor("model.layers.0.self_attn.k_norm.weight", scale(3, 1.0001))),
    "a stored frequency": ("stored", tensor("model.rotary_emb.inv_freq", scale(4, 1.01), STORED)),
    "stored frequencies in 16 bits": ("stored", tensors(in_16_bits, STORED)),
    "a tensor beside the frequencies": ("stored", tensors(lambda it: it.update({K: np.zeros(3, np.float32)}), STORED)),
    "the code": ("stored", text("modeling_stored_rope.py", "attention_factor", "attention_factors")),
    "the factor of the code": ("stored", put(CONFIG, "stored_rope.attention_factor", 1.0)),
    "the shards are exchanged": ("shards", exchange),
    "a tensor is in the other shard": ("shards", move_a_tensor),
    "one file beside the shards": ("shards", shadow),
    "a shard is missing": ("shards", remove(SECOND)),
    "the index leaves a tensor out": ("shards", lambda out: edit(out, INDEX, unlisted)),
    "the index has another size": ("shards", put(INDEX, "metadata.total_size", 1)),
    "no index": ("shards", remove(INDEX)),
    "a number of the second shard": ("shards", data(last(lambda byte: byte ^ 64), SECOND)),
}  # fmt: skip
CONFIGS: dict[str, tuple[str, Corruption]] = {
    "no legacy rope_scaling": ("native", drop(CONFIG, "rope_scaling")),
    "no rope_parameters": ("native", drop(CONFIG, "rope_parameters")),
    "the schemas disagree": ("native", put(CONFIG, "rope_scaling.factor", 8.0)),
    "another factor": ("native", schema(lambda it: it.update(factor=8.0))),
    "another attention factor": ("native", schema(lambda it: it.update(attention_factor=1.0))),
    "another ramp": ("native", schema(lambda it: it.update(beta_fast=16.0))),
    "another trained length": ("native", schema(lambda it: it.update(original_max_position_embeddings=128))),
    "another kind": ("native", schema(lambda it: it.update(rope_type="linear"))),
    "another base": ("native", put(CONFIG, "rope_theta", 10001.0)),
    "max_position_embeddings": ("native", put(CONFIG, "max_position_embeddings", 2048)),
    "eps": ("native", put(CONFIG, "rms_norm_eps", 1e-5)),
    "bos": ("native", put(CONFIG, "bos_token_id", 5)),
    "eos": ("native", put(CONFIG, "eos_token_id", [2, 3])),
    "no pad": ("native", drop(CONFIG, "pad_token_id")),
    "dtype": ("native", put(CONFIG, "dtype", "float16")),
    "tied embeddings": ("native", put(CONFIG, "tie_word_embeddings", True)),
    "key-value heads": ("native", put(CONFIG, "num_key_value_heads", 2)),
    "layers": ("native", put(CONFIG, "num_hidden_layers", 1)),
    "activation": ("native", put(CONFIG, "hidden_act", "gelu")),
    "a window": ("native", put(CONFIG, "sliding_window", 32)),
    "a key twice": ("native", text(CONFIG, '"model_type"', '"rms_norm_eps": 0.5,\n  "model_type"')),
    "a quantisation": ("native", put(CONFIG, "quantization_config", {"quant_method": "fp8"})),
    "other weights": ("native", put(CONFIG, "transformers_weights", "other.safetensors")),
    "kernels of the Hub": ("native", put(CONFIG, "attn_implementation", "someone/kernels")),
    "a map to code": ("native", put(CONFIG, "auto_map", {"AutoModel": "x--y.Z"})),
    "another class": ("native", put(CONFIG, "architectures", ["LlamaModel"])),
    "another model type": ("native", put(CONFIG, "model_type", "mistral")),
    "true for one": ("native", put(CONFIG, "bos_token_id", True)),
    "no JSON": ("native", data(cut, CONFIG)),
    "a window of another size": ("windows", put(CONFIG, "sliding_window", 64)),
    "a scale of queries": ("windows", put(CONFIG, "query_pre_attn_scalar", 32)),
    "the share that rotates": ("partial", put(CONFIG, "partial_rotary_factor", 0.25)),
    "the width that rotates": ("latent", put(CONFIG, "qk_rope_head_dim", 32)),
}  # fmt: skip

FILES: dict[str, tuple[str, Corruption]] = {
    "another end of generation": ("native", put(GENERATION, "eos_token_id", 7)),
    "another temperature": ("native", put(GENERATION, "temperature", 0.1)),
    "no generation_config": ("native", remove(GENERATION)),
    "a length of the tokenizer": ("native", put(TOKENIZER, "model_max_length", 64)),
    "a template of the tokenizer": ("native", put(TOKENIZER, "chat_template", "{{ x }}")),
    "code of the tokenizer": ("native", put(TOKENIZER, "auto_map", {"AutoTokenizer": ["x--y.T", None]})),
    "another merge": ("native", text("merges.txt", "a b", "b a")),
    "another vocabulary": ("native", put("vocab.json", "a", 1)),
    "another tokenizer": ("native", text("tokenizer.json", '"a"', '"b"')),
    "another template": ("native", text("chat_template.jinja", "content", "role")),
    "no template": ("native", remove("chat_template.jinja")),
    "a config in capitals": ("native", add("CONFIG.JSON")),
    "weights in capitals": ("native", add("Model.SafeTensors", b"\x02\0\0\0\0\0\0\0{}")),
    "a page for OpenVINO": ("native", add("openvino_model.xml", b"<net/>")),
    "an adapter": ("native", add("adapter_config.json", b'{"peft_type": "LORA"}')),
    "an adapter's weights": ("native", add("adapter_model.safetensors", b"\x02\0\0\0\0\0\0\0{}")),
    "pickled weights": ("native", add("pytorch_model.bin", b"\x80\x02.")),
    "a pickle": ("native", add("training_args.bin", b"\x80\x02.")),
    "an index of pickles": ("native", add("pytorch_model.bin.index.json")),
    "a tokenizer that was not there": ("native", add("tokenizer.model", b"x")),
    "tokens that were not there": ("native", add("added_tokens.json", b'{"<x>": 5}')),
    "special tokens that were not there": ("native", add("special_tokens_map.json", b'{"eos_token": "x"}')),
    "a template in a folder": ("native", add("additional_chat_templates/rag.jinja", b"x")),
    "a processor": ("native", add("preprocessor_config.json")),
    "a module": ("native", add("helper.py", b"x = 1\n")),
    "code for generation": ("native", add("custom_generate/generate.py", b"x = 1\n")),
    "a library": ("native", add("kernels.so", b"\x7fELF")),
    "GGUF": ("native", add("model.gguf", b"GGUF")),
    "Meta's settings": ("native", add("params.json")),
    "another folder of weights": ("native", add("original/consolidated.00.pth", b"x")),
    "weights named as a licence": ("native", add("LICENSE.safetensors", b"\x02\0\0\0\0\0\0\0{}")),
    "a pickle named as a notice": ("native", add("NOTICE.bin", b"\x80\x02.")),
    "GGUF named as a policy": ("native", add("USE_POLICY.gguf", b"GGUF")),
    "a template named as a licence": ("native", add("LICENSE.jinja", b"x")),
    "a module named as a licence": ("native", add("LICENSE.py", b"x = 1\n")),
    "weights of another framework": ("native", add("model.onnx", b"x")),
}  # fmt: skip

RECEIPTS: dict[str, tuple[str, Corruption]] = {
    "another encoding": ("native", receipt(lambda it: it.update(encoding="factors"))),
    "other frequencies": ("native", receipt(lambda it: it["schedule"]["inv_freq"].__setitem__(3, 0.5))),
    "another context": ("native", receipt(lambda it: it["schedule"].update(context=128))),
    "another factor of the config": ("folded", receipt(lambda it: it["in_config"].update(attention_factor=1.2))),
    "fewer folded tensors": ("folded", receipt(lambda it: it["fold"]["tensors"].pop())),
    "another width of folds": ("folded", receipt(lambda it: it["target"].update(fold_into="q"))),
    "another encoding asked for": ("native", receipt(lambda it: it["target"].update(encoding="buffers"))),
    "no files": ("native", receipt(lambda it: it.update(files=[]))),
    "a file twice": ("native", receipt(lambda it: it["files"].append(it["files"][0]))),
    "weights that were made": ("native", receipt(lambda it: it["files"][4].update(action="patch"))),
    "a file outside": ("native", receipt(lambda it: it["files"][0].update(name="../source/config.json"))),
    "another original": ("native", receipt(lambda it: it["original"]["folder"].update(added=["x"]))),
}  # fmt: skip

TABLE = {**WEIGHTS, **CONFIGS, **FILES, **RECEIPTS}


def furnish(folder: Path) -> None:
    """Files beside the weights that a published checkpoint has."""
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "tokenizer_config.json").write_text('{\n  "model_max_length": 64,\n  "bos_token": "a"\n}\n')
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "README.md").write_text("# A model\n")
    (folder / "LICENSE").write_text("MIT\n")


def shard(folder: Path) -> None:
    """Divides the weights of a checkpoint into two files."""
    held = safetensors.numpy.load_file(folder / ONE)
    names = sorted(held)
    parts = {FIRST: names[: len(names) // 2], SECOND: names[len(names) // 2 :]}
    for file, inside in parts.items():
        safetensors.numpy.save_file({name: held[name] for name in inside}, folder / file, {"format": "pt"})
    places = {name: file for file, inside in parts.items() for name in inside}
    total = sum(numbers.nbytes for numbers in held.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    (folder / ONE).unlink()


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with `source` and `out` of a bake, made on first use, whose output is accepted."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            model_type, options, divided = BAKES[name]
            folder = tmp_path_factory.mktemp(name)
            source = make(model_type, folder / "source")
            furnish(source)
            if divided:
                shard(source)
            apply(make_plan(source, YARN, folder / "out", **options))
            for how in BOTH:
                verified = verify_output(ropeconv.Comparison.open(folder / "out", str(source)), how)
                assert (verified.notes, verified.unverified) == ((), ())
            made[name] = folder
        return made[name]

    return get


def refused(out: Path, source: Path, options: Options) -> bool:
    try:
        verify_output(ropeconv.Comparison.open(out, str(source)), options)
    except (BadSource, Disagreement):
        return True
    return False


def test_what_is_wrong_is_refused(baked: Callable[[str], Path], tmp_path: Path) -> None:
    """With a renewed receipt, and with --ignore-receipt."""
    passed, names = [], sample(list(TABLE), 40)
    for name in names:
        bake, corrupt = TABLE[name]
        folder = tmp_path / "case"
        shutil.copytree(baked(bake), folder)
        corrupt(folder / "out")
        if name not in RECEIPTS:
            renew(folder / "out")
        passed += [(name, how) for how in BOTH if not refused(folder / "out", folder / "source", how)]
        shutil.rmtree(folder)
    tally("wrong output", "folders, each twice", 2 * len(names), len(passed))
    assert passed == []


@pytest.fixture(scope="module")
def unplanned(baked: Callable[[str], Path]) -> Callable[[Path, str], Path]:
    """Copies a right output, with a receipt that says too little for a plan. encoding: that it says."""

    def copy(folder: Path, encoding: str) -> Path:
        shutil.copytree(baked("native"), folder)

        def forget(it: dict[str, Any]) -> None:
            it.pop("target")
            it["encoding"] = encoding
            for file in it["files"]:
                file["action"] = "patch" if file["name"] == ONE else file["action"]

        edit(folder / "out", "ropeconv.json", forget)
        return folder

    return copy


def test_without_a_plan_what_is_right_passes_with_a_note(
    unplanned: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    folder = unplanned(tmp_path / "case", "ministral3")
    for name in (GENERATION, TOKENIZER):  # texts that the bake has changed: nothing says how
        shutil.copy(folder / "source" / name, folder / "out" / name)
    edit(folder / "out", "ropeconv.json", lambda it: [file.update(action="copy") for file in it["files"]])
    renew(folder / "out")
    with pytest.raises(Disagreement, match="what its receipt says of the first source was not compared"):
        verify_output(ropeconv.Comparison.open(folder / "out", str(folder / "source")))
    edit(folder / "out", "ropeconv.json", lambda it: it.update(original=None))
    found = verify_output(ropeconv.Comparison.open(folder / "out", str(folder / "source")))
    assert [note.split(" (")[0] for note in found.notes] == ["the plan of this older output cannot be made again"]
    assert found.unverified == ()
    assert found.bytes == (folder / "out" / ONE).stat().st_size


@pytest.mark.parametrize("encoding", ["factors", "weights", "buffers", "ministral3"])
@pytest.mark.parametrize(
    "corrupt",
    [
        tensor(K1, scale(slice(None), 1.01)),
        tensor("model.embed_tokens.weight", scale(7, 0)),
        tensors(lambda it: it.__setitem__("model.other", it[K1])),
        put(CONFIG, "rms_norm_eps", 1e-5),
        put(GENERATION, "eos_token_id", 7),
        remove("chat_template.jinja"),
        add("chat_template.json"),
    ],
    ids=["keys", "embeddings", "a tensor too many", "eps", "end of generation", "no template", "another template"],
)
def test_a_receipt_without_its_target_hides_nothing(
    encoding: str, corrupt: Corruption, unplanned: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    folder = unplanned(tmp_path / "case", encoding)
    edit(folder / "out", "ropeconv.json", lambda it: it.update(original=None))
    for name in (GENERATION, TOKENIZER):
        shutil.copy(folder / "source" / name, folder / "out" / name)
    corrupt(folder / "out")
    edit(folder / "out", "ropeconv.json", lambda it: [file.update(action="copy") for file in it["files"]])
    renew(folder / "out")
    for how in BOTH:
        assert refused(folder / "out", folder / "source", how)


@pytest.mark.parametrize(
    "forge",
    [
        lambda it: it["original"]["folder"].update(added=["x"]),
        lambda it: it["original"]["folder"]["texts"][0].update(text="x"),
        lambda it: it["before"].update(context=8),
        lambda it: it["before"].update(original_context=8),
    ],
    ids=["added", "text", "context", "original context"],
)
def test_the_receipt_of_another_version_has_the_same_original(
    forge: Callable[[dict[str, Any]], object], baked: Callable[[str], Path], tmp_path: Path
) -> None:
    """`restore` and `apply --replace` take the first source from it."""
    folder = tmp_path / "case"
    shutil.copytree(baked("native"), folder)
    edit(folder / "out", "ropeconv.json", lambda it: it.update(ropeconv="0.0.9"))
    assert not refused(folder / "out", folder / "source", Options())
    edit(folder / "out", "ropeconv.json", forge)
    with pytest.raises(Disagreement, match=r"its receipt has another (original|before)"):
        verify_output(ropeconv.Comparison.open(folder / "out", str(folder / "source")))


def test_an_older_receipt_may_say_nothing_of_the_original(baked: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(baked("native"), folder)

    def older(it: dict[str, Any]) -> None:
        it.update(ropeconv="0.0.9", original=None)
        it["before"].update(rope="plain", reach=0, original_context=0)

    edit(folder / "out", "ropeconv.json", older)
    assert not refused(folder / "out", folder / "source", Options())


def test_the_table_has_more_than_sixty_corruptions() -> None:
    assert len(TABLE) >= 100
    assert len(TABLE) == sum(map(len, (WEIGHTS, CONFIGS, FILES, RECEIPTS))), "two have one name"
    assert {bake for bake, _ in TABLE.values()} == set(BAKES)


HARMLESS: dict[str, tuple[Corruption, str]] = {
    "another card": (text("README.md", "A model", "My model"), "README.md is another one"),
    "a picture": (add("figure.png", b"x"), "figure.png is not among the files that ropeconv wrote"),
    "notes": (add("notes.md", b"x"), "notes.md is not among the files that ropeconv wrote"),
    "a licence for people": (add("LICENSE-MODEL.txt", b"x"), "LICENSE-MODEL.txt is not among the files"),
    "a policy": (add("USE_POLICY.md", b"x"), "USE_POLICY.md is not among the files"),
    "a licence without an end": (add("NOTICE-2.0", b"x"), "NOTICE-2.0 is not among the files"),
    "no licence": (remove("LICENSE"), "it has no LICENSE"),
}  # fmt: skip
EDITED: dict[str, tuple[Corruption, str]] = {
    "another layout": (relaid, "config.json has the same values in another layout"),
    "another name": (put(CONFIG, "_name_or_path", "x"), "config.json has _name_or_path"),
    "another version": (put(CONFIG, "transformers_version", "4.0"), "config.json has transformers_version"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*HARMLESS, *EDITED])
def test_what_changes_nothing_is_a_note(name: str, baked: Callable[[str], Path], tmp_path: Path) -> None:
    """Documents always, and edits without effect with --ignore-receipt."""
    folder = tmp_path / "case"
    shutil.copytree(baked("native"), folder)
    corrupt, sentence = {**HARMLESS, **EDITED}[name]
    corrupt(folder / "out")
    opened = ropeconv.Comparison.open(folder / "out", str(folder / "source"))
    if name in EDITED:
        renew(folder / "out")
        assert refused(folder / "out", folder / "source", Options())
    verified = verify_output(opened, Options(edited=name in EDITED))
    assert [note for note in verified.notes if note.startswith(sentence)] == list(verified.notes) != []


def test_quick_leaves_the_weights_out_and_says_so(baked: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(baked("native"), folder)
    tensor(K1, scale(slice(None), 1.01))(folder / "out")
    opened = ropeconv.Comparison.open(folder / "out", str(folder / "source"))
    with pytest.raises(Disagreement, match=r"model.layers.1.self_attn.k_proj.weight of model.safetensors differs"):
        verify_output(opened)
    quick = verify_output(opened, Options(quick=True))
    assert (quick.quick, quick.bytes) == (True, 0)
    assert "--quick" in quick.sentence
    data(replaced(b'"format":"pt"', b'"format":"tf"'))(folder / "out")
    with pytest.raises(Disagreement, match="model.safetensors has another header"):
        verify_output(opened, Options(quick=True))


def test_a_long_file_is_refused_without_reading_it_whole(baked: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(baked("native"), folder)
    os.truncate(folder / "out" / "vocab.json", 200 << 20)
    tracemalloc.start()
    with pytest.raises(Disagreement, match="vocab.json is another one"):
        verify_output(ropeconv.Comparison.open(folder / "out", str(folder / "source")), Options(edited=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_windows_line_ends_of_a_tokenizer_are_compared_as_they_are(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    (source / "tokenizer.json").write_bytes(b'{\r\n"model": {}\r\n}\r\n')
    apply(make_plan(source, YARN, tmp_path / "out"))
    assert not refused(tmp_path / "out", source, Options())
    opened = open_source(str(source))
    assert isinstance(opened, Source)
    check_tokenizer(tmp_path / "out", opened)
    (tmp_path / "out" / "tokenizer.json").write_bytes(b'{\n"model": {}\n}\n')
    with pytest.raises(BadSource, match="is not the tokenizer of"):
        check_tokenizer(tmp_path / "out", opened)
    (tmp_path / "out" / "tokenizer.json").write_bytes(b"\xff{}")
    with pytest.raises(BadSource, match="tokenizer.json is not UTF-8 text"):
        check_tokenizer(tmp_path / "out", opened)


@pytest.mark.parametrize("options", [{}, {"encoding": "weights"}, {"encoding": "buffers"}])
def test_shards_may_be_in_folders(options: dict[str, Any], tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    shard(source)
    (source / "weights").mkdir()
    for name in (FIRST, SECOND):
        (source / name).rename(source / "weights" / name)
    edit(
        source,
        INDEX,
        lambda it: it.update(weight_map={key: f"weights/{it['weight_map'][key]}" for key in it["weight_map"]}),
    )
    apply(make_plan(source, YARN, tmp_path / "out", **options))
    assert not refused(tmp_path / "out", source, Options())
    data(last(lambda byte: byte ^ 64), f"weights/{SECOND}")(tmp_path / "out")
    assert refused(tmp_path / "out", source, Options())
