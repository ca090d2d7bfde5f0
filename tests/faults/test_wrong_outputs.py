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
from ropeconv.verify import Options, Verified, verify_output

from ..support.baking import apply, make_plan
from ..support.corruptions import (
    Corruption,
    add,
    data,
    drop,
    edit,
    grown,
    halved,
    last_bit,
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
from ..support.models import TRAINED, make

YARN = Recipe(REGISTRY["yarn"](16.0))
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
INDEX, ONE, STORED = "model.safetensors.index.json", "model.safetensors", "model-rope.safetensors"
K, K1, Q = (f"model.layers.{name}_proj.weight" for name in ("0.self_attn.k", "1.self_attn.k", "1.self_attn.q"))
UP, GATE = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
EMBEDDINGS, NORM, ALL_ROWS = "model.embed_tokens.weight", "model.norm.weight", slice(None)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
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
}


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


def schema(**values: Any) -> Corruption:
    """Changes both places where a config has its scaling."""
    return lambda out: edit(out, CONFIG, lambda it: [it[key].update(values) for key in SCHEMAS])


def receipt(change: Callable[[dict[str, Any]], object]) -> Corruption:
    return lambda out: edit(out, "ropeconv.json", change)


SCHEMAS = ("rope_scaling", "rope_parameters")
Table = dict[str, tuple[str, Corruption]]
WEIGHTS: Table = {
    "a row of the embeddings is zero": ("native", tensor(EMBEDDINGS, scale(7, 0))),
    "a norm x 1.0000002": ("native", tensor(NORM, scale(0, 1.0000002))),
    "one number is NaN": ("native", tensor(UP, lambda it: it.__setitem__((3, 3), np.nan))),
    "one number is -0": ("native", tensor(NORM, lambda it: np.negative(it, out=it))),
    "two tensors are exchanged": ("native", tensors(lambda it: it.update({UP: it[GATE], GATE: it[UP]}))),
    "a tensor is missing": ("native", tensors(lambda it: it.pop(K1))),
    "a tensor has another name": ("native", tensors(lambda it: it.__setitem__("model.other", it.pop(K1)))),
    "a tensor too many": ("native", tensors(lambda it: it.__setitem__("model.other", it[K1]))),
    "a tensor is transposed": ("native", tensors(lambda it: it.__setitem__(UP, it[UP].T.copy()))),
    "a tensor is in 16 bits": ("native", tensors(lambda it: it.__setitem__(K1, it[K1].astype(np.float16)))),
    "numbers are read as others": ("native", data(replaced(b'"dtype":"F32"', b'"dtype":"I32"'))),
    "a shape is another": ("native", data(replaced(b'"shape":[96,128]', b'"shape":[128,96]'))),
    "the metadata is another": ("native", data(replaced(b'"format":"pt"', b'"format":"tf"'))),
    "the last bit": ("native", data(last_bit)),
    "half of the file": ("native", data(halved)),
    "only zeros": ("native", data(lambda it: it.__setitem__(ALL_ROWS, bytes(len(it))))),
    "more bytes than tensors": ("native", data(grown)),
    "no weights": ("native", remove(ONE)),
    "the factor is not in the weights": ("folded", lambda out: shutil.copy(out.parent / "source" / ONE, out / ONE)),
    "the factor is in them twice": ("folded", tensor(K, scale(ALL_ROWS, 1.63))),
    "the factor is in a row less": ("folded", tensor(K, scale(5, 1 / 1.63))),
    "one folded number": ("folded", tensor(K1, scale((9, 9), 1.0001))),
    "a tensor that is not folded": ("folded", tensor(Q, scale(0, 1.01))),
    "a widened norm": ("widened", tensor("model.layers.0.self_attn.k_norm.weight", scale(3, 1.0001))),
    "a stored frequency": ("stored", tensor("model.rotary_emb.inv_freq", scale(4, 1.01), STORED)),
    "stored frequencies in 16 bits": (
        "stored", tensors(lambda it: it.update({name: one.astype(np.float16) for name, one in it.items()}), STORED)
    ),
    "a tensor beside the frequencies": ("stored", tensors(lambda it: it.update({K: np.zeros(3, np.float32)}), STORED)),
    "the code": ("stored", text("modeling_stored_rope.py", "attention_factor", "attention_factors")),
    "the factor of the code": ("stored", put(CONFIG, "stored_rope.attention_factor", 1.0)),
    "the shards are exchanged": ("shards", exchange),
    "a tensor is in the other shard": ("shards", move_a_tensor),
    "one file beside the shards": ("shards", lambda out: shutil.copy(out / FIRST, out / ONE)),
    "a shard is missing": ("shards", remove(SECOND)),
    "the index leaves a tensor out": ("shards", lambda out: edit(out, INDEX, lambda it: it["weight_map"].popitem())),
    "the index has another size": ("shards", put(INDEX, "metadata.total_size", 1)),
    "no index": ("shards", remove(INDEX)),
    "a number of the second shard": ("shards", data(last_bit, SECOND)),
}  # fmt: skip
VALUES: dict[tuple[str, str], dict[str, Any]] = {
    ("native", CONFIG): {
        "rope_scaling.factor": 8.0, "rope_theta": 10001.0, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "bos_token_id": 5, "eos_token_id": [2, 3], "dtype": "float16", "tie_word_embeddings": True,
        "num_key_value_heads": 2, "num_hidden_layers": 1, "hidden_act": "gelu", "sliding_window": 32,
        "quantization_config": {"quant_method": "fp8"}, "transformers_weights": "other.safetensors",
        "attn_implementation": "someone/kernels", "auto_map": {"AutoModel": "x--y.Z"}, "architectures": ["LlamaModel"],
        "model_type": "mistral",
    },
    ("windows", CONFIG): {"sliding_window": 64, "query_pre_attn_scalar": 32},
    ("partial", CONFIG): {"partial_rotary_factor": 0.25},
    ("latent", CONFIG): {"qk_rope_head_dim": 32},
    ("native", GENERATION): {"eos_token_id": 7, "temperature": 0.1},
    ("native", TOKENIZER): {
        "model_max_length": 64, "chat_template": "{{ x }}", "auto_map": {"AutoTokenizer": ["x--y.T", None]},
    },
    ("native", "vocab.json"): {"a": 1},
}  # fmt: skip
CONFIGS: Table = {
    **{
        f"{bake} {file}: {key}": (bake, put(file, key, value))
        for (bake, file), values in VALUES.items()
        for key, value in values.items()
    },
    **{f"{CONFIG} has no {key}": ("native", drop(CONFIG, key)) for key in (*SCHEMAS, "pad_token_id")},
    "another factor": ("native", schema(factor=8.0)),
    "another attention factor": ("native", schema(attention_factor=1.0)),
    "another ramp": ("native", schema(beta_fast=16.0)),
    "another trained length": ("native", schema(original_max_position_embeddings=128)),
    "another kind": ("native", schema(rope_type="linear")),
    "true for one": ("native", put(CONFIG, "bos_token_id", True)),
    "a key twice": ("native", text(CONFIG, '"model_type"', '"rms_norm_eps": 0.5,\n  "model_type"')),
    "no JSON": ("native", data(halved, CONFIG)),
}
HEADER, PICKLE = b"\x02\0\0\0\0\0\0\0{}", b"\x80\x02."
ADDED = {
    "CONFIG.JSON": b"{}", "Model.SafeTensors": HEADER, "openvino_model.xml": b"<net/>", "model.onnx": b"x",
    "adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": HEADER, "pytorch_model.bin": PICKLE,
    "training_args.bin": PICKLE, "pytorch_model.bin.index.json": b"{}", "tokenizer.model": b"x",
    "added_tokens.json": b'{"<x>": 5}', "special_tokens_map.json": b'{"eos_token": "x"}', "params.json": b"{}",
    "additional_chat_templates/rag.jinja": b"x", "preprocessor_config.json": b"{}", "helper.py": b"x = 1\n",
    "custom_generate/generate.py": b"x = 1\n", "kernels.so": b"\x7fELF", "model.gguf": b"GGUF",
    "original/consolidated.00.pth": b"x", "LICENSE.safetensors": HEADER, "NOTICE.bin": PICKLE, "LICENSE.jinja": b"x",
    "USE_POLICY.gguf": b"GGUF", "LICENSE.py": b"x = 1\n",
}  # fmt: skip
"""Files that some runtime may load, under names of documents too."""
FILES: Table = {
    **{f"{name} is added": ("native", add(name, content)) for name, content in ADDED.items()},
    **{f"{name} is missing": ("native", remove(name)) for name in (GENERATION, "chat_template.jinja")},
    "another merge": ("native", text("merges.txt", "a b", "b a")),
    "another tokenizer": ("native", text("tokenizer.json", '"a"', '"b"')),
    "another template": ("native", text("chat_template.jinja", "content", "role")),
}
RECEIPTS: Table = {
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
}
TABLE: Table = {**WEIGHTS, **CONFIGS, **FILES, **RECEIPTS}


def furnish(folder: Path) -> None:
    """Files beside the weights that a published checkpoint has."""
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "tokenizer_config.json").write_text('{\n  "model_max_length": 64,\n  "bos_token": "a"\n}\n')
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "README.md").write_text("# A model\n")
    (folder / "LICENSE").write_text("MIT\n")


def shard(folder: Path, below: str = "") -> None:
    """Divides the weights of a checkpoint into two files. below: the folder that they go to."""
    held = safetensors.numpy.load_file(folder / ONE)
    names = sorted(held)
    parts = {below + FIRST: names[: len(names) // 2], below + SECOND: names[len(names) // 2 :]}
    for file, inside in parts.items():
        (folder / file).parent.mkdir(exist_ok=True)
        safetensors.numpy.save_file({name: held[name] for name in inside}, folder / file, {"format": "pt"})
    places = {name: file for file, inside in parts.items() for name in inside}
    total = sum(numbers.nbytes for numbers in held.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))
    (folder / ONE).unlink()


def verified(folder: Path, options: Options = BOTH[0]) -> Verified:
    return verify_output(ropeconv.Comparison.open(folder / "out", str(folder / "source")), options)


def refused(folder: Path, options: Options = BOTH[0]) -> bool:
    try:
        verified(folder, options)
    except (BadSource, Disagreement):
        return True
    return False


Baked = Callable[..., Path]


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Baked:
    """Copies the folder with `source` and `out` of a bake, whose output is accepted."""
    made: dict[str, Path] = {}

    def get(place: Path, name: str = "native") -> Path:
        if name not in made:
            model_type, options, divided = BAKES[name]
            folder = made[name] = tmp_path_factory.mktemp(name)
            source = make(model_type, folder / "source")
            furnish(source)
            if divided:
                shard(source)
            apply(make_plan(source, YARN, folder / "out", **options))
            for how in BOTH:
                assert (verified(folder, how).notes, verified(folder, how).unverified) == ((), ())
        return Path(shutil.copytree(made[name], place / "case"))

    return get


def test_what_is_wrong_is_refused(baked: Baked, tmp_path: Path) -> None:
    """With a renewed receipt, and with --ignore-receipt."""
    passed, names = [], sample(list(TABLE), 25)
    for name in names:
        bake, corrupt = TABLE[name]
        folder = baked(tmp_path, bake)
        corrupt(folder / "out")
        if name not in RECEIPTS:
            renew(folder / "out")
        passed += [(name, how) for how in BOTH if not refused(folder, how)]
        shutil.rmtree(folder)
    tally("wrong output", "folders, each twice", 2 * len(names), len(passed))
    assert passed == []


def unplanned(folder: Path, encoding: str, original: bool = False) -> Path:
    """Makes a right output one whose receipt says too little for a plan. original: whether it has that of `restore`."""

    def forget(it: dict[str, Any]) -> None:
        it.pop("target")
        it.update(encoding=encoding, original=it["original"] if original else None)
        for file in it["files"]:
            file["action"] = "copy"

    for name in (GENERATION, TOKENIZER):  # texts that the bake has changed: nothing says how
        shutil.copy(folder / "source" / name, folder / "out" / name)
    edit(folder / "out", "ropeconv.json", forget)
    renew(folder / "out")
    return folder


def test_without_a_plan_what_is_right_passes_with_a_note(baked: Baked, tmp_path: Path) -> None:
    folder = unplanned(baked(tmp_path), "ministral3", original=True)
    with pytest.raises(Disagreement, match="what its receipt says of the first source was not compared"):
        verified(folder)
    edit(folder / "out", "ropeconv.json", lambda it: it.update(original=None))
    found = verified(folder)
    assert [note.split(" (")[0] for note in found.notes] == ["the plan of this older output cannot be made again"]
    assert (found.unverified, found.bytes) == ((), (folder / "out" / ONE).stat().st_size)


SOME = ("the last bit", "a tensor too many", f"native {CONFIG}: rms_norm_eps", f"native {GENERATION}: eos_token_id",
        "chat_template.jinja is missing", "tokenizer.model is added")  # fmt: skip


@pytest.mark.parametrize("encoding", ["factors", "weights", "buffers", "ministral3"])
def test_a_receipt_without_its_target_hides_nothing(encoding: str, baked: Baked, tmp_path: Path) -> None:
    for name in sample(SOME, 2):
        folder = unplanned(baked(tmp_path), encoding)
        TABLE[name][1](folder / "out")
        renew(folder / "out")
        assert [refused(folder, how) for how in BOTH] == [True, True], name
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "forge",
    [
        lambda it: it["original"]["folder"].update(added=["x"]),
        lambda it: it["original"]["folder"]["texts"][0].update(text="x"),
        lambda it: it["before"].update(context=8),
        lambda it: it["before"].update(original_context=8),
    ],
)
def test_the_receipt_of_another_version_has_the_same_original(
    forge: Callable[[dict[str, Any]], object], baked: Baked, tmp_path: Path
) -> None:
    """`restore` and `apply --replace` take the first source from it. An older receipt may say nothing of it."""
    folder = baked(tmp_path)
    edit(folder / "out", "ropeconv.json", lambda it: it.update(ropeconv="0.0.9"))
    assert not refused(folder)
    edit(folder / "out", "ropeconv.json", forge)
    with pytest.raises(Disagreement, match=r"its receipt has another (original|before)"):
        verified(folder)
    edit(folder / "out", "ropeconv.json", lambda it: it.update(original=None))
    edit(folder / "out", "ropeconv.json", lambda it: it["before"].update(rope="plain", reach=0, original_context=0))
    edit(folder / "out", "ropeconv.json", lambda it: it["before"].update(context=TRAINED))
    assert not refused(folder)


def test_the_table_covers_every_bake() -> None:
    assert len(TABLE) == sum(map(len, (WEIGHTS, CONFIGS, FILES, RECEIPTS))) >= 110, "two have one name"
    assert {bake for bake, _ in TABLE.values()} == set(BAKES)


def relaid(out: Path) -> None:
    (out / CONFIG).write_text(json.dumps(json.loads((out / CONFIG).read_text())))


HARMLESS: dict[str, Corruption] = {
    "README.md is another one": text("README.md", "A model", "My model"),
    "figure.png is not among the files that ropeconv wrote": add("figure.png", b"x"),
    "notes.md is not among the files that ropeconv wrote": add("notes.md", b"x"),
    "LICENSE-MODEL.txt is not among the files": add("LICENSE-MODEL.txt", b"x"),
    "USE_POLICY.md is not among the files": add("USE_POLICY.md", b"x"),
    "NOTICE-2.0 is not among the files": add("NOTICE-2.0", b"x"),
    "it has no LICENSE": remove("LICENSE"),
}
EDITED: dict[str, Corruption] = {
    "config.json has the same values in another layout": relaid,
    "config.json has _name_or_path": put(CONFIG, "_name_or_path", "x"),
    "config.json has transformers_version": put(CONFIG, "transformers_version", "4.0"),
}


@pytest.mark.parametrize("sentence", [*HARMLESS, *EDITED])
def test_what_changes_nothing_is_a_note(sentence: str, baked: Baked, tmp_path: Path) -> None:
    """Documents always, and edits without effect with --ignore-receipt."""
    folder = baked(tmp_path)
    {**HARMLESS, **EDITED}[sentence](folder / "out")
    if sentence in EDITED:
        renew(folder / "out")
        assert refused(folder)
    notes = verified(folder, Options(edited=sentence in EDITED)).notes
    assert len(notes) == 1
    assert notes[0].startswith(sentence)


def test_a_long_file_is_refused_without_reading_it_whole(baked: Baked, tmp_path: Path) -> None:
    folder = baked(tmp_path)
    os.truncate(folder / "out" / "vocab.json", 200 << 20)
    tracemalloc.start()
    with pytest.raises(Disagreement, match="vocab.json is another one"):
        verified(folder, Options(edited=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_windows_line_ends_of_a_tokenizer_are_compared_as_they_are(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    (source / "tokenizer.json").write_bytes(b'{\r\n"model": {}\r\n}\r\n')
    apply(make_plan(source, YARN, tmp_path / "out"))
    assert not refused(tmp_path)
    opened = open_source(str(source))
    assert isinstance(opened, Source)
    check_tokenizer(tmp_path / "out", opened)
    for content, words in ((b'{\n"model": {}\n}\n', "is not the tokenizer of"), (b"\xff{}", "is not UTF-8 text")):
        (tmp_path / "out" / "tokenizer.json").write_bytes(content)
        with pytest.raises(BadSource, match=words):
            check_tokenizer(tmp_path / "out", opened)


@pytest.mark.parametrize("options", [{}, {"encoding": "weights"}, {"encoding": "buffers"}])
def test_shards_may_be_in_folders(options: dict[str, Any], tmp_path: Path) -> None:
    shard(make("llama", tmp_path / "source"), "weights/")
    apply(make_plan(tmp_path / "source", YARN, tmp_path / "out", **options))
    assert not refused(tmp_path)
    data(last_bit, f"weights/{SECOND}")(tmp_path / "out")
    assert refused(tmp_path)
