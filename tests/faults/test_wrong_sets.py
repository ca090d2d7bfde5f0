"""Outputs of every kind of which one thing is wrong, or nothing: adapters, drafts, graphs, profiles,
GGUF files, shards and chains of them.

The wrong cases are generated: another bit of each tensor, another value of each key, each file
removed, files added that a loader could read, members of another run, and edited receipts. Those of
folders alone are in test_wrong_outputs.py.
"""

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.companion_check import check_companion
from ropeconv.bake.set_check import check_set
from ropeconv.bake.verify import verify_output
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import GgufValue
from ropeconv.inspection.receipts.companion import read_companion
from ropeconv.inspection.receipts.storage import add_validation, read_receipt
from ropeconv.rope.errors import RopeconvError
from ropeconv.validate.comparison import Comparison

from ..support.extent import few, sample, tally
from ..support.gguf_files import plain_tensors, write
from ..support.in_process import command
from . import scenes

RECEIPT = "ropeconv.json"
Damage = Callable[[Path], object]
"""Changes one thing in a folder with all models and outputs."""


def compare(output: str, source: str, place: Path) -> None:
    verify_output(Comparison.open(place / output, str(place / source)))


def companion(output: str, place: Path) -> None:
    check_companion(place / output)


def profile_set(output: str, source: str, place: Path) -> None:
    receipt = read_companion(place / output)
    assert receipt is not None
    check_set(place / output, receipt, str(place / source))


@dataclass(frozen=True)
class Kind:
    """A kind of output.

    check: raises RopeconvError for a wrong one. parts: folders and files of the output. swaps: names
    of what it has, with those of what another run left in their place.
    """

    check: Callable[[Path], None]
    parts: tuple[str, ...]
    swaps: tuple[tuple[str, str], ...] = ()


GGUF_SET = ("model-00001-of-00002.gguf", "model-00002-of-00002.gguf")
SHARDS = ("wide-00001-of-00002.gguf", "wide-00002-of-00002.gguf")
CHAIN = ("chain-00001-of-00002.gguf", "chain-00002-of-00002.gguf")
OTHER = ("other-wide-00001-of-00002.gguf", "other-wide-00002-of-00002.gguf")
KINDS: dict[str, Kind] = {
    "adapter": Kind(partial(companion, "out-adapter"), ("out-adapter",)),
    "an output with its adapter": Kind(
        partial(compare, "out", "model"),
        ("out-adapter",),
        (("out-adapter", "wider-adapter"), ("out-adapter", "theirs-adapter")),
    ),
    "an output with its draft": Kind(
        partial(compare, "pair", "model"),
        ("pair-draft",),
        (("pair-draft", "wide-draft"), ("pair-draft", "out")),
    ),
    "a draft with its output": Kind(
        partial(compare, "pair-draft", "second"), (), (("pair", "wide"),)
    ),
    "graph": Kind(partial(companion, "rotated"), ("rotated",)),
    "profiles": Kind(
        partial(profile_set, "set", "model"),
        ("set",),
        (("set/yarn4", "set/linear2"), ("set/base", "out")),
    ),
    "GGUF profiles": Kind(
        partial(profile_set, "gguf", "model.gguf"),
        ("gguf",),
        (("gguf/yarn4", "gguf/linear2"), ("gguf/base", "gguf/linear2")),
    ),
    "GGUF file": Kind(
        partial(compare, "wide.gguf", "model.gguf"), ("wide.gguf",), (("wide.gguf", "theirs.gguf"),)
    ),
    "GGUF shards": Kind(
        partial(compare, SHARDS[0], "split-00001-of-00002.gguf"),
        SHARDS,
        ((SHARDS[1], OTHER[1]), (SHARDS[0], OTHER[0]), (SHARDS[0], CHAIN[0])),
    ),
    "a chain of shards": Kind(
        partial(compare, CHAIN[0], SHARDS[0]), CHAIN, ((CHAIN[1], OTHER[1]), (CHAIN[0], SHARDS[0]))
    ),
}


def build(folder: Path) -> None:
    """Models, and the outputs of all kinds."""
    scenes.checkpoint_with_adapter(folder)
    shutil.copytree(folder / "model", folder / "second")
    shutil.copytree(folder / "adapter", folder / "another")
    flip(folder / "another" / "adapter_model.safetensors", -1)
    scenes.compiled_graph(folder)
    write(folder / "model.gguf")
    write(folder / "split.gguf", split=2)
    others = {name: -tensor for name, tensor in plain_tensors().items()}
    write(folder / "other.gguf", split=2, tensors=others)
    write(folder / "negative.gguf", tensors=others)
    for line in (
        "apply model --yarn 4 --adapter adapter -o out",
        "apply model --yarn 8 --adapter adapter -o wider",
        "apply model --yarn 4 --adapter another -o theirs",
        "apply model --yarn 4 --draft second -o pair",
        "apply model --yarn 8 --draft second -o wide",
        "apply graph/model.onnx --linear 4 -o rotated",
        "profiles model base,yarn:4,linear:2 -o set",
        "profiles model.gguf yarn:4,linear:2 -o gguf",
        "apply model.gguf --yarn 4 -o wide.gguf",
        "apply negative.gguf --yarn 4 -o theirs.gguf",
        "apply split-00001-of-00002.gguf --yarn 4 -o wide.gguf",
        "apply other-00001-of-00002.gguf --yarn 4 -o other-wide.gguf",
        f"apply {SHARDS[0]} --yarn 2 --on-top -o chain.gguf",
    ):
        more = ("--validate", "off") if line.startswith("apply model ") else ()
        command(folder, *line.split(), *more, "-q", code=0)


def flip(path: Path, place: int) -> None:
    """Another bit of a file, which no link of it has."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.unlink()
    path.write_bytes(content)


def safetensors_places(path: Path) -> dict[str, int]:
    length = struct.unpack("<Q", path.read_bytes()[:8])[0]
    header = json.loads(path.read_bytes()[8 : 8 + length])
    header.pop("__metadata__", None)
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: 8 + length + (start + stop) // 2 for name, (start, stop) in spans.items()}


def gguf_places(path: Path) -> dict[str, int]:
    header = GgufFile.open(path).headers[0] if "-of-" not in path.name else None
    if header is None:
        from ropeconv.formats.gguf.header import read_header

        header = read_header(path)
    return {
        name: header.data_start + info.offset + info.size // 2
        for name, info in header.tensors.items()
    }


def other_value(value: GgufValue) -> GgufValue:
    """A value of the same type with another last byte."""
    raw = bytearray(value.raw)
    raw[-1] ^= 1
    return GgufValue(value.kind, bytes(raw))


def another_key(name: str, key: str, place: Path) -> None:
    path = place / name
    value = GgufFile.open(path).headers[0].values[key]
    spare = place / "spare.gguf"
    write_new(GgufFile.open(path), 0, Edit({key: other_value(value)}), spare)
    path.unlink()
    spare.rename(path)


def leaves(document: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from leaves(value, (*place, key))
        else:
            yield (*place, key)


def put(name: str, keys: tuple[str, ...], place: Path) -> None:
    path = place / name
    document = json.loads(path.read_text())
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    value = inner[keys[-1]]
    inner[keys[-1]] = not value if isinstance(value, bool) or value is None else [value, "x"]
    path.unlink()
    path.write_text(json.dumps(document, indent=2) + "\n")


def swap(name: str, other: str, place: Path) -> None:
    """What another run left, under the name of what this one did."""
    target, source = place / name, place / other
    if source.is_dir():
        shutil.rmtree(target)
        shutil.copytree(source, target)
        return
    target.unlink()
    shutil.copy(source, target)


ADDED = (
    "CONFIG.JSON",
    "model.onnx.data",
    "pytorch_model.bin",
    "tokenizer.model",
    "helper.py",
    "libkernels.so.1",
    "model.engine",
    "Modelfile",
    "bpe.codes",
    "weights",
)
"""Files that some loader could read."""
NOTED = ("_name_or_path", "transformers_version")
RECEIPT_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no files": lambda it: it.update(files=[]),
    "a file less": lambda it: it["files"].pop(),
    "a file outside": lambda it: it["files"][0].update(name="../model/config.json"),
    "another size": lambda it: [file.update(size=1) for file in it["files"]],
    "no schema": lambda it: it.pop("ropeconv"),
    "files that are none": lambda it: it.update(files="none"),
}
DOCUMENTS = ("README.md", "LICENSE", "NOTICE.txt", "loss.png", "paper.pdf", "CITATION.cff")


def edit_receipt(name: str, change: Callable[[dict[str, Any]], object], place: Path) -> None:
    path = place / name
    document = json.loads(path.read_text())
    change(document)
    path.unlink()
    path.write_text(json.dumps(document))


def files_in(place: Path, kind: Kind) -> list[str]:
    """The files of an output, relative to the folder with all of them."""
    names = []
    for part in kind.parts:
        path = place / part
        found = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        names += [file.relative_to(place).as_posix() for file in found]
    return sorted(names)


def wrong_cases(place: Path, kind: Kind) -> dict[str, Damage]:
    """What can be wrong in an output, by name."""
    cases: dict[str, Damage] = {}
    for name in files_in(place, kind):
        path = place / name
        if path.suffix in (".md",):
            continue
        if path.name == RECEIPT:
            for words, change in RECEIPT_EDITS.items():
                is_set = "members" in json.loads(path.read_text())
                if is_set or words in ("no schema", "files that are none", "a file outside"):
                    cases[f"{name}: {words}"] = partial(
                        lambda it, name, change: edit_receipt(name, change, it),
                        name=name,
                        change=change,
                    )
            continue
        cases[f"no {name}"] = lambda it, name=name: (it / name).unlink()  # type: ignore[misc]
        cases[f"{name} is empty"] = lambda it, name=name: (  # type: ignore[misc]
            (it / name).unlink(),
            (it / name).touch(),
        )
        if path.suffix == ".safetensors":
            for tensor, at in list(safetensors_places(path).items())[:4]:
                cases[f"{name}: {tensor}"] = lambda it, name=name, at=at: flip(it / name, at)  # type: ignore[misc]
        elif path.suffix == ".gguf":
            for tensor, at in list(gguf_places(path).items())[:4]:
                cases[f"{name}: {tensor}"] = lambda it, name=name, at=at: flip(it / name, at)  # type: ignore[misc]
        elif path.suffix == ".json":
            for keys in list(leaves(json.loads(path.read_text())))[:6]:
                if keys[-1] not in NOTED:
                    cases[f"{name}: {'.'.join(keys)}"] = partial(
                        lambda it, name, keys: put(name, keys, it), name=name, keys=keys
                    )
        else:
            cases[f"{name}: a bit"] = lambda it, name=name: flip(it / name, -1)  # type: ignore[misc]
        if path.suffix == ".gguf" and ("-00001-of-" in name or "-of-" not in name):
            model = GgufFile.open(path)
            for key in list(model.headers[0].values):
                is_number = model.headers[0].values[key].kind not in (8, 9)
                if is_number and not key.startswith(("split.", "general.", "ropeconv")):
                    cases[f"{name}: {key}"] = partial(
                        lambda it, name, key: another_key(name, key, it), name=name, key=key
                    )
    for part in kind.parts:
        folders = [part] if (place / part).is_dir() else []
        folders += [f"{part}/{path.name}" for path in (place / part).glob("*/")] if folders else []
        for folder in folders:
            for name in ADDED:
                cases[f"{folder}/{name} is added"] = partial(
                    lambda it, target: (it / target).write_bytes(b"x"), target=f"{folder}/{name}"
                )
    for name, other in kind.swaps:
        cases[f"{name} is {other}"] = partial(
            lambda it, name, other: swap(name, other, it), name=name, other=other
        )
    return cases


def record(name: str, place: Path) -> None:
    """A result of a validation, in the receipt."""
    for path in (place / name, *(place / name).glob("*/")):
        if (path / RECEIPT).is_file() and read_companion(path) is None:
            add_validation(path, read_receipt(path), {"agrees": True})


def right_cases(place: Path, kind: Kind) -> dict[str, Damage]:
    """What may be otherwise in an output, by name."""
    cases: dict[str, Damage] = {
        "nothing": lambda it: None,
        "times": lambda it: [(it / name).touch() for name in files_in(it, kind)],
        "copies in place of links": lambda it: [
            flip_twice(it / name) for name in files_in(it, kind)
        ],
        "results of a validation": lambda it: [record(part, it) for part in kind.parts],
        "hidden files": lambda it: [
            (it / part / ".cache").mkdir() for part in kind.parts if (it / part).is_dir()
        ],
    }
    for part in kind.parts:
        if (place / part).is_dir():
            for name in DOCUMENTS:
                cases[f"{part}/{name} is added"] = partial(
                    lambda it, target: (it / target).write_bytes(b"x"), target=f"{part}/{name}"
                )
    return cases


def flip_twice(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx", reason="onnx is not installed; pip install 'ropeconv[graphs]'")
    folder = tmp_path_factory.mktemp("built")
    build(folder)
    return folder


def copied(built: Path, place: Path) -> Path:
    """A copy of all models and outputs, as links where nothing is written into files."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(built, place, copy_function=link)
    return place


def link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def problem(kind: Kind, place: Path) -> str:
    """Why an output is refused; empty where it is accepted."""
    try:
        kind.check(place)
    except RopeconvError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("name", sample(list(KINDS), 4, seed=7))
def test_a_wrong_output_of_every_kind_is_refused(name: str, built: Path, tmp_path: Path) -> None:
    kind = KINDS[name]
    cases = wrong_cases(built, kind)
    chosen = few(list(cases), 10, seed=len(name))
    passed = []
    for case in chosen:
        place = copied(built, tmp_path / "case")
        cases[case](place)
        if not problem(kind, place):
            passed.append(case)
    tally("wrong set", name, len(chosen), len(passed))
    assert passed == []


@pytest.mark.parametrize("name", sample(list(KINDS), 4, seed=8))
def test_a_right_output_of_every_kind_is_accepted(name: str, built: Path, tmp_path: Path) -> None:
    kind = KINDS[name]
    cases = right_cases(built, kind)
    refused = {}
    for case in few(list(cases), 4, seed=len(name)):
        place = copied(built, tmp_path / "case")
        cases[case](place)
        if found := problem(kind, place):
            refused[case] = found
    tally("right set", name, len(cases), len(refused))
    assert refused == {}


def test_there_are_hundreds_of_wrong_cases_and_dozens_of_right_ones(built: Path) -> None:
    wrong = {name: len(wrong_cases(built, kind)) for name, kind in KINDS.items()}
    right = {name: len(right_cases(built, kind)) for name, kind in KINDS.items()}
    assert sum(wrong.values()) >= 200, wrong
    assert sum(right.values()) >= 60, right
    assert min(wrong.values()) >= 1, wrong
