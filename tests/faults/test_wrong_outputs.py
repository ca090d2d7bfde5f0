"""Outputs of which one thing is wrong, with a renewed receipt: no forward pass is needed to refuse
them.

Every corruption is tried on an output that is accepted before. The right outputs are in
test_right_outputs.py.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy

from ropeconv.bake.findings import Verification
from ropeconv.errors import Disagreement
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support import corruptions as of
from ..support.baking import apply, make_plan
from ..support.corruptions import (
    Corruption,
    add,
    data,
    edit,
    put,
    remove,
    renew,
    replaced,
    tensor,
    tensors,
    text,
)
from ..support.extent import few, tally
from ..support.gguf_files import write
from ..support.models import in_two_files, make

YARN = Recipe(REGISTRY["yarn"](16.0))
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
INDEX, ONE, STORED = "model.safetensors.index.json", "model.safetensors", "model-rope.safetensors"
K, K1 = (f"model.layers.{layer}.self_attn.k_proj.weight" for layer in (0, 1))
UP, GATE = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
RECEIPT = "ropeconv.json"
DOCUMENTS = ("README.md", "README-source.md", "LICENSE")
NOTED = ("_name_or_path", "transformers_version")
"""Keys of config.json that change nothing, see EDITED."""
BOTH: tuple[dict[str, Any], ...] = ({}, {"edited": True})

# name: model type, options of the bake, whether the source has two shards
BAKES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "native": ("llama", {}, False),
    "folded": ("llama", {"encoding": "weights"}, False),
    "norms": ("qwen3", {"encoding": "weights"}, False),
    "stored": ("llama", {"encoding": "buffers"}, False),
    "shards": ("llama", {}, True),
    "windows": ("gemma2", {}, False),
    "partial": ("phi", {}, False),
}


def exchange(out: Path) -> None:
    first = (out / FIRST).read_bytes()
    (out / FIRST).write_bytes((out / SECOND).read_bytes())
    (out / SECOND).write_bytes(first)


def move_a_tensor(out: Path) -> None:
    """A tensor in the other shard, with an index that says so."""
    shard, other = (safetensors.numpy.load_file(out / name) for name in (FIRST, SECOND))
    name = sorted(shard)[0]
    other[name] = shard.pop(name)
    for file, held in ((FIRST, shard), (SECOND, other)):
        safetensors.numpy.save_file(held, out / file, {"format": "pt"})
    edit(out, INDEX, lambda index: index["weight_map"].update({name: SECOND}))


Table = dict[str, tuple[str, Corruption]]
WEIGHTS: Table = {
    "a norm x 1.0000002": ("native", tensor("model.norm.weight", of.scale(0, 1.0000002))),
    "one number is -0": ("native", tensor("model.norm.weight", lambda it: np.negative(it, out=it))),
    "one number is NaN": ("native", tensor(UP, lambda it: it.__setitem__((3, 3), np.nan))),
    "two tensors are exchanged": (
        "native",
        tensors(lambda it: it.update({UP: it[GATE], GATE: it[UP]})),
    ),
    "a tensor is missing": ("native", tensors(lambda it: it.pop(K1))),
    "a tensor has another name": (
        "native",
        tensors(lambda it: it.__setitem__("model.other", it.pop(K1))),
    ),
    "a tensor too many": ("native", tensors(lambda it: it.__setitem__("model.other", it[K1]))),
    "a tensor is transposed": ("native", tensors(lambda it: it.__setitem__(UP, it[UP].T.copy()))),
    "a tensor is in 16 bits": (
        "native",
        tensors(lambda it: it.__setitem__(K1, it[K1].astype(np.float16))),
    ),
    "a shape is another": ("native", data(replaced(b'"shape":[96,128]', b'"shape":[128,96]'))),
    "the metadata is another": ("native", data(replaced(b'"format":"pt"', b'"format":"tf"'))),
    "half of the file": ("native", data(of.halved)),
    "more bytes than tensors": ("native", data(of.grown)),
    "the factor is not in the weights": (
        "folded",
        lambda out: shutil.copy(out.parent / "source" / ONE, out / ONE),
    ),
    "the factor is in them twice": ("folded", tensor(K, of.scale(slice(None), 1.63))),
    "the factor is in a row less": ("folded", tensor(K, of.scale(5, 1 / 1.63))),
    "a tensor beside the frequencies": (
        "stored",
        tensors(lambda it: it.update({K: np.zeros(3, np.float32)}), STORED),
    ),
    "the code": (
        "stored",
        text("modeling_stored_rope.py", "attention_factor", "attention_factors"),
    ),
    "the shards are exchanged": ("shards", exchange),
    "a tensor is in the other shard": ("shards", move_a_tensor),
}
SCHEMAS = ("rope_scaling", "rope_parameters")
KEYS: dict[str, Any] = {
    "sliding_window": 32,
    "quantization_config": {"quant_method": "fp8"},
    "transformers_weights": "other.safetensors",
    "attn_implementation": "someone/kernels",
    "auto_map": {"AutoModel": "x--y.Z"},
    "bos_token_id": True,
}
CONFIGS: Table = {
    **{
        f"{CONFIG}: {key} = {value}": ("native", put(CONFIG, key, value))
        for key, value in KEYS.items()
    },
    "another factor in both schemas": (
        "native",
        lambda out: edit(out, CONFIG, lambda it: [it[key].update(factor=8.0) for key in SCHEMAS]),
    ),
    "a key twice": ("native", text(CONFIG, '"model_type"', '"rms_norm_eps": 0.5,\n  "model_type"')),
    "code of the tokenizer": (
        "native",
        put(TOKENIZER, "auto_map", {"AutoTokenizer": ["x--y.T", None]}),
    ),
}
HEADER, PICKLE = b"\x02\0\0\0\0\0\0\0{}", b"\x80\x02."
ADDED = {
    "CONFIG.JSON": b"{}",
    "Model.SafeTensors": HEADER,
    "model.onnx": b"x",
    "params.json": b"{}",
    "pytorch_model.bin": PICKLE,
    "tokenizer.model": b"x",
    "added_tokens.json": b'{"<x>": 5}',
    "additional_chat_templates/rag.jinja": b"x",
    "helper.py": b"x = 1\n",
    "custom_generate/generate.py": b"x = 1\n",
    "kernels.so": b"\x7fELF",
    "model.gguf": b"GGUF",
    "LICENSE.safetensors": HEADER,
    "USE_POLICY.gguf": b"GGUF",
    "Modelfile": b"FROM .\n",
    "model.onnx.data": b"x",
    "bpe.codes": b"x",
    "libkernels.so.1": b"\x7fELF",
    "model.engine": b"x",
    "weights": HEADER,
}
"""Files that some runtime may load, under names of documents too."""
FILES: Table = {
    f"{name} is added": ("native", add(name, content)) for name, content in ADDED.items()
}
OF_RECEIPTS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "another encoding": ("native", lambda it: it.update(encoding="factors")),
    "other frequencies": ("native", lambda it: it["schedule"]["inv_freq"].__setitem__(3, 0.5)),
    "another factor of the config": (
        "folded",
        lambda it: it["in_config"].update(attention_factor=1.2),
    ),
    "fewer folded tensors": ("folded", lambda it: it["fold"]["tensors"].pop()),
    "another encoding asked for": ("native", lambda it: it["target"].update(encoding="buffers")),
    "no files": ("native", lambda it: it.update(files=[])),
    "weights that were made": ("native", lambda it: it["files"][4].update(action="patch")),
    "a file outside": ("native", lambda it: it["files"][0].update(name="../source/config.json")),
    "another original": ("native", lambda it: it["original"]["folder"].update(added=["x"])),
}
RECEIPTS: Table = {
    name: (bake, partial(edit, name=RECEIPT, change=it)) for name, (bake, it) in OF_RECEIPTS.items()
}
TABLE: Table = {**WEIGHTS, **CONFIGS, **FILES, **RECEIPTS}


def other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    return (
        [*value, 1]
        if isinstance(value, list)
        else f"{value}x"
        if isinstance(value, str)
        else value * 1.01 + 0.01
    )


def leaves(document: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in document.items():
        yield from (
            leaves(value, (*place, key)) if isinstance(value, dict) else [((*place, key), value)]
        )


def everything(out: Path) -> dict[str, Corruption]:
    """Another value of every key of the JSON files, and none; other bytes of every tensor and file,
    and no file.
    """
    corruptions: dict[str, Corruption] = {}
    for path in (path for path in sorted(out.iterdir()) if path.name not in (RECEIPT, *DOCUMENTS)):
        corruptions[f"the end of {path.name}"] = data(of.last_bit, path.name)
        corruptions[f"no {path.name}"] = remove(path.name)
        if path.suffix == ".json":
            for place, value in leaves(json.loads(path.read_text())):
                if place[-1] not in NOTED:
                    corruptions[f"{path.name}: another {place}"] = put(
                        path.name, place, other(value)
                    )
                    corruptions[f"{path.name}: no {place}"] = of.drop(path.name, place)
        elif path.suffix == ".safetensors":
            length = int.from_bytes(path.read_bytes()[:8], "little")
            header = json.loads(path.read_bytes()[8 : 8 + length])
            for name in header.keys() - {"__metadata__"}:
                start, stop = header[name]["data_offsets"]
                corruptions[f"{path.name}: {name}"] = data(
                    of.flipped(8 + length + (start + stop) // 2), path.name
                )
    return corruptions


def furnish(folder: Path) -> None:
    """Files beside the weights that a published checkpoint has."""
    texts = {
        "tokenizer.json": '{"model": {"vocab": {"a": 0}}}',
        "vocab.json": '{"a": 0}',
        "README.md": "# A model\n",
        TOKENIZER: '{\n  "model_max_length": 64,\n  "bos_token": "a"\n}\n',
        "merges.txt": "#version: 0.2\na b\n",
        "chat_template.jinja": "{{ messages[0].content }}",
        "LICENSE": "MIT\n",
    }
    for name, content in texts.items():
        (folder / name).write_text(content)


def verified(folder: Path, **options: Any) -> Verification:
    return of.verified(folder / "out", folder / "source", **options)


def refused(folder: Path, **options: Any) -> bool:
    return of.refused(folder / "out", folder / "source", **options)


Baked = Callable[..., Path]


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Baked:
    """Copies the folder with `source` and `out` of a bake, whose output is accepted."""
    folders: dict[str, Path] = {}

    def get(place: Path, name: str = "native") -> Path:
        if name not in folders:
            model_type, options, divided = BAKES[name]
            folder = folders[name] = tmp_path_factory.mktemp(name)
            source = make(model_type, folder / "source")
            furnish(source)
            if divided:
                in_two_files(source)
            apply(make_plan(source, YARN, folder / "out", **options))
            for kwargs in BOTH:
                assert (
                    verified(folder, **kwargs).notes,
                    verified(folder, **kwargs).unverified,
                ) == ((), ())
        shutil.rmtree(place / "case", ignore_errors=True)
        return Path(shutil.copytree(folders[name], place / "case"))

    return get


@pytest.mark.parametrize("bake", few(list(BAKES), 3))
def test_what_is_wrong_is_refused(bake: str, baked: Baked, tmp_path: Path) -> None:
    """With a renewed receipt, and with --ignore-receipt."""
    special = {name: corrupt for name, (kind, corrupt) in TABLE.items() if kind == bake}
    every = everything(baked(tmp_path, bake) / "out")
    names = [*few(list(every), 4), *few(list(special), 3)]
    passed = []
    for name in names:
        folder = baked(tmp_path, bake)
        (special | every)[name](folder / "out")
        if name not in RECEIPTS:
            renew(folder / "out")
        passed += [(name, kwargs) for kwargs in BOTH if not refused(folder, **kwargs)]
    tally("wrong output", "folders, each twice", 2 * len(names), len(passed))
    assert passed == []


@pytest.mark.parametrize(
    "forge",
    [
        lambda it: it["original"]["folder"]["texts"][0].update(text="x"),
        lambda it: it["before"].update(context=8),
        lambda it: it.update(original=None),
    ],
)
def test_the_receipt_of_another_version_has_the_same_original(
    forge: Callable[[dict[str, Any]], object], baked: Baked, tmp_path: Path
) -> None:
    """`restore` and `apply --replace` take the first source from it."""
    folder = baked(tmp_path)
    edit(folder / "out", RECEIPT, lambda it: it.update(ropeconv="0.0.9"))
    assert not refused(folder)
    edit(folder / "out", RECEIPT, forge)
    with pytest.raises(Disagreement, match=r"its receipt has another (original|before)"):
        verified(folder)


def relaid(out: Path) -> None:
    (out / CONFIG).write_text(json.dumps(json.loads((out / CONFIG).read_text())))


HARMLESS: dict[str, Corruption] = {
    "README.md has other contents": text("README.md", "A model", "My model"),
    "figure.png is not among the files that ropeconv wrote": add("figure.png", b"x"),
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
    notes = verified(folder, edited=sentence in EDITED).notes
    assert len(notes) == 1
    assert notes[0].startswith(sentence)


# GGUF files: keys, tensors, places. All are refused without running llama.cpp

RECIPES = {"keys": Recipe(REGISTRY["yarn"](16.0)), "tensor": Recipe(REGISTRY["mixed"](4.0))}
EXTRA: dict[str, Any] = {
    "general.name": "A model",
    "general.file_type": 0,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 32,
    "ropeconv.note": "x",
    "general.sampling.sequence": "top_k;temp",
}
TEXTS = {
    b"\4\0\0\0\0\0\0\0yarn": b"\4\0\0\0\0\0\0\0none",
    b"token 3": b"token X",
    b'["rope_freqs.weight"]': b'["rope_freqX.weight"]',
    b'"factor": 16.0': b'"factor": 18.0',
    b'"encoding": "keys"': b'"encoding": "keyz"',
    b'"context": 1024': b'"context": 1025',
}
CHANGES: dict[str, Corruption] = {
    "another architecture": data(
        lambda it: it.__setitem__(slice(None), it.replace(b"llama", b"qwen2"))
    ),
    "bytes after the tensors": data(of.grown),
    "one byte after the tensors": data(lambda it: it.append(1)),
    "fewer bytes": data(lambda it: it.__delitem__(slice(-8, None))),
}


def parts(path: Path) -> dict[str, list[np.ndarray]]:
    """The numbers and letters of the header and of the tensors, which gguf-py writes where they are
    changed.
    """
    reader = gguf.GGUFReader(path, "r+")
    arrays = {name: field.parts for name, field in reader.fields.items()}
    arrays |= {f"entry {tensor.name}": tensor.field.parts for tensor in reader.tensors}
    return arrays | {f"tensor {tensor.name}": [tensor.data] for tensor in reader.tensors}


def change(path: Path, name: str, place: int) -> None:
    """Changes a bit in the last byte of a part, which is small in text and a sign in numbers."""
    flat = parts(path)[name][place].reshape(-1).view(np.uint8)
    flat[-1] ^= 1


def everything_of_gguf(path: Path) -> dict[str, Corruption]:
    """The changes of the tables that this file can have, and one of every part."""
    content = path.read_bytes()
    corruptions = CHANGES | {
        f"{new!r}": data(replaced(old, new)) for old, new in TEXTS.items() if old in content
    }
    for name, places in parts(path).items():
        corruptions |= {
            f"{name}, {place}": partial(change, name=name, place=place)
            for place in range(len(places))
        }
    return corruptions


@pytest.mark.parametrize("bake", RECIPES)
def test_what_is_wrong_in_a_gguf_file_is_refused(bake: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source.gguf", extra=EXTRA)
    out = tmp_path / "out.gguf"
    right = apply(make_plan(source, RECIPES[bake], tmp_path / "right.gguf"))
    verification = of.verified(right, source)
    assert (verification.files, verification.notes, verification.unverified) == (1, (), ())
    every = everything_of_gguf(right)
    passed = []
    names = few(list(every), 6)
    for name in names:
        shutil.copy(right, out)
        every[name](out)
        passed += [] if of.refused(out, source) else [name]
    tally("wrong output", "GGUF files", len(names), len(passed))
    assert passed == []


def test_a_wrong_second_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path / "source.gguf", split=1)
    source = sorted(tmp_path.glob("source-*.gguf"))[0]
    out = apply(make_plan(source, RECIPES["keys"], tmp_path / "out.gguf"))
    assert not of.refused(out, source)
    second = sorted(tmp_path.glob("out-*.gguf"))[1]
    data(of.last_bit)(second)
    with pytest.raises(Disagreement, match=second.name):
        of.verified(out, source)
    assert of.verified(out, source, quick=True).bytes == 0
