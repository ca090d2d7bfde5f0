"""The parsers of ropeconv that read what others have written, each with the file that is changed and
the function that reads it.

Add a parser to PARSERS, with a seed in `corpus/NAME/`.
"""

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ropeconv.bake.apply import make_plan
from ropeconv.bake.hidden import OutputJournal
from ropeconv.convert.target import Target
from ropeconv.errors import BadSource
from ropeconv.features.compare.compatibility import open_models
from ropeconv.features.evaluation.cases import EVAL
from ropeconv.features.graphs.inspection import inspect_graph
from ropeconv.features.graphs.model import open_graph
from ropeconv.features.run.plan_file import read_plan
from ropeconv.formats.files import journal_of
from ropeconv.formats.gguf import inplace
from ropeconv.formats.journal import Journal
from ropeconv.inspection.adapter import read_adapter
from ropeconv.inspection.receipts.storage import (
    commands,
    facts_of,
    parse_receipt,
    read_recipe,
)
from ropeconv.models.gguf import GgufSource
from ropeconv.models.meta import MetaSource, peek_dtype
from ropeconv.models.open import open_source
from ropeconv.models.reference import modelfile_of, resolve_reference
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.verbs.opened import inspect_opened

from ..inputs.folders import data_bytes, safetensors, small_header, write_checkpoint
from ..inputs.kinds import TOKENIZER

Read = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """A folder without other files."""


@dataclass(frozen=True)
class Parser:
    """How a kind of file is read.

    file: its path in a folder. read: reads it, and raises RopeconvError for a wrong one. scene:
    writes the other files of the folder. wrap: makes the content of the file from an input, where
    a checksum keeps changes from being read. modules: the source files whose branches are counted. needs: a package that
    reads the file.
    """

    file: str
    read: Read
    modules: tuple[str, ...]
    scene: Callable[[Path], object] = nothing
    wrap: Callable[[bytes], bytes] = bytes
    needs: str = ""

    def write(self, folder: Path, content: bytes) -> None:
        """Write an input in its place."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.wrap(content))


def checkpoint(folder: Path) -> None:
    write_checkpoint(folder / "model")


def with_length(content: bytes) -> bytes:
    """A safetensors file with this header; with another beginning the whole file."""
    return safetensors(content, DATA) if content.startswith(b"{") else content


def with_data(content: bytes) -> bytes:
    """A GGUF file with this header."""
    return content + bytes(-len(content) % 32 + 2 * DATA)


DATA = data_bytes(small_header())
"""Bytes of data behind a header, those of the tensors of the seeds."""


def read_config(folder: Path) -> None:
    inspect_opened(open_source(folder / "config.json"))


def read_headers(folder: Path) -> None:
    source = open_source(folder / "model")
    assert not isinstance(source, GgufSource)
    source.config()
    for header in source.headers:
        str(header)


def read_gguf(folder: Path) -> None:
    source = open_source(folder / "m.gguf")
    if not isinstance(source, GgufSource):
        return
    for value in source.file.header.values.values():
        value.decode()
    inspect_opened(source)


def read_for_gguf(folder: Path) -> None:
    source = open_source(folder / "model")
    plan = make_plan(
        source, Recipe(REGISTRY["yarn"](4.0)), Target(to="gguf", out=folder / "o.gguf")
    )
    for file in plan.files:
        str(file.size)


def read_graph(name: str) -> Read:
    def read(folder: Path) -> None:
        inspect_graph(open_graph(str(folder / name)))

    return read


def graph_scene(folder: Path) -> None:
    from ...support import graphs

    graphs.small_graph(folder / "graph")


def openvino_scene(folder: Path) -> None:
    graph_scene(folder)
    (folder / "graph" / "model.onnx").unlink()
    inv_freq = 10000.0 ** (-np.arange(8, dtype=np.float32) / 8)
    (folder / "graph" / "model.bin").write_bytes(inv_freq.astype(np.float32).tobytes())


def meta_scene(folder: Path) -> None:
    folder.joinpath("meta").mkdir()
    (folder / "meta" / "params.json").write_text(
        '{"dim": 32, "n_layers": 1, "n_heads": 2, "norm_eps": 1e-5, "vocab_size": 8, "multiple_of": 16}'
    )
    (folder / "meta" / "tokenizer.model").write_bytes(b"YQ== 0\nYg== 1\n")
    (folder / "meta" / "consolidated.00.pth").write_bytes(archive(SMALL_PICKLE))


SMALL_PICKLE = pickle.dumps({"tok_embeddings.weight": "BFloat16Storage"}, 2)


def archive(content: bytes) -> bytes:
    """A .pth file with this pickle, whose checksum is right."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", content)
        file.writestr("archive/data/0", bytes(64))
    return raw.getvalue()


def read_pth(folder: Path) -> None:
    peek_dtype(folder / "meta" / "consolidated.00.pth")


def read_params(folder: Path) -> None:
    source = open_source(folder / "meta")
    assert isinstance(source, MetaSource)
    source.params  # noqa: B018  reads the file
    source.config()
    str(source.requirements)


def tokenizer_scene(folder: Path) -> None:
    checkpoint(folder)
    (folder / "model" / "tokenizer.json").write_text(json.dumps(TOKENIZER))


def adapter_scene(folder: Path) -> None:
    from safetensors.numpy import save_file

    checkpoint(folder)
    (folder / "adapter").mkdir()
    query = "base_model.model.model.layers.0.self_attn.q_proj"
    save_file(
        {f"{query}.lora_A.weight": np.ones((2, 32), np.float32)},
        folder / "adapter" / "adapter_model.safetensors",
    )


def read_an_adapter(folder: Path) -> None:
    adapter = read_adapter(open_source(folder / "adapter"))
    if adapter is not None:
        adapter.to_dict()
        str(adapter.sentence)


def read_merge(folder: Path) -> None:
    with chdir(folder):  # where a merge names models
        open_models(["merge.yaml"])


def modelfile_scene(folder: Path) -> None:
    from ...support.gguf_files import write

    write(folder / "m.gguf")


def read_modelfile(folder: Path) -> None:
    path = str(folder / "Modelfile")
    modelfile_of(path)
    resolve_reference(path)


def read_a_receipt(folder: Path) -> None:
    try:
        text = (folder / "ropeconv.json").read_text()
    except UnicodeDecodeError:
        raise BadSource("not UTF-8") from None
    receipt = parse_receipt(text, "ropeconv.json")
    facts_of(receipt)
    commands(receipt)


def read_journal(folder: Path) -> None:
    Journal(folder / "j.jsonl", EVAL, "a" * 64).close()


def read_output_journal(folder: Path) -> None:
    """A damaged line of the journal of an output is left out; nothing is refused."""
    OutputJournal.read(folder / "journal")


def read_change_journal(folder: Path) -> None:
    """A damaged journal of a change in place is refused before anything is undone."""
    model = folder / "m.gguf"
    content = model.stat().st_ino.to_bytes(8, "little") + (folder / "change").read_bytes()
    journal = journal_of(model)
    journal.write_bytes(inplace.MAGIC + hashlib.sha256(content).digest() + content)
    with model.open("rb") as file, journal.open("rb") as kept:
        inplace._read_journal(model, file.fileno(), kept.fileno())


PARSERS: dict[str, Parser] = {
    "config": Parser(
        "config.json",
        read_config,
        ("models/config.py", "models/schema.py", "models/layers.py", "inspection/inspection.py"),
    ),
    "safetensors": Parser(
        "model/model.safetensors",
        read_headers,
        ("formats/safetensors.py",),
        checkpoint,
        with_length,
    ),
    "gguf": Parser(
        "m.gguf",
        read_gguf,
        ("formats/gguf/header.py", "formats/gguf/file.py", "models/gguf.py"),
        wrap=with_data,
    ),
    "index": Parser(
        "model/model.safetensors.index.json", read_headers, ("formats/safetensors.py",), checkpoint
    ),
    "tokenizer": Parser(
        "model/tokenizer.json",
        read_for_gguf,
        ("convert/to_gguf/tokenizer.py", "convert/to_gguf/vocabulary.py"),
        checkpoint,
    ),
    "tokenizer_config": Parser(
        "model/tokenizer_config.json",
        read_for_gguf,
        ("convert/to_gguf/tokenizer.py", "models/length_limits.py"),
        tokenizer_scene,
    ),
    "onnx": Parser(
        "graph/model.onnx",
        read_graph("graph/model.onnx"),
        ("features/graphs/model.py", "features/graphs/inspection.py"),
        graph_scene,
        needs="onnx",
    ),
    "openvino": Parser(
        "graph/model.xml",
        read_graph("graph/model.xml"),
        ("features/graphs/model.py", "features/graphs/inspection.py"),
        openvino_scene,
        needs="openvino",
    ),
    "pth": Parser("meta/consolidated.00.pth", read_pth, ("models/meta.py",), meta_scene),
    "pth_pickle": Parser(
        "meta/consolidated.00.pth", read_pth, ("models/meta.py",), meta_scene, archive
    ),
    "params": Parser(
        "meta/params.json", read_params, ("models/meta.py", "models/meta_layout.py"), meta_scene
    ),
    "adapter": Parser(
        "adapter/adapter_config.json", read_an_adapter, ("inspection/adapter.py",), adapter_scene
    ),
    "mergekit": Parser(
        "merge.yaml", read_merge, ("features/compare/compatibility.py",), checkpoint
    ),
    "modelfile": Parser(
        "Modelfile", read_modelfile, ("models/reference.py", "models/modelfile.py"), modelfile_scene
    ),
    "plan": Parser(
        "plan.toml", lambda folder: read_plan(folder / "plan.toml"), ("features/run/plan_file.py",)
    ),
    "recipe": Parser(
        "recipe.json",
        lambda folder: read_recipe(folder / "recipe.json"),
        ("rope/recipe.py", "models/vectors.py"),
    ),
    "receipt": Parser(
        "ropeconv.json",
        read_a_receipt,
        ("inspection/receipts/storage.py", "inspection/receipts/receipt.py"),
    ),
    "journal": Parser("j.jsonl", read_journal, ("formats/journal.py",)),
    "output_journal": Parser("journal", read_output_journal, ("bake/hidden.py",)),
    "change_journal": Parser(
        "change", read_change_journal, ("formats/gguf/inplace.py",), modelfile_scene
    ),
}
