"""Adapters and graphs have a receipt of every file, and `validate` says which one differs."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ropeconv.inspection.receipts.companion import read_companion
from ropeconv.inspection.receipts.storage import read_receipt

from ..conftest import hashes
from ..support.adapters import lora
from ..support.in_process import Done, command
from ..support.models import make

LINE = ("apply", "model", "--yarn", "4", "-o", "out", "--adapter", "lora", "--validate", "off")
WEIGHTS = "adapter_model.safetensors"
Damage = Callable[[Path], object]


def set_number(path: Path, value: float) -> None:
    """One number of the last matrix of a file."""
    content = bytearray(path.read_bytes())
    content[-4:] = struct.pack("<f", value)
    path.write_bytes(content)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


WRONG: dict[str, tuple[Damage, str]] = {
    "a number of a matrix is 50": (lambda place: set_number(place / WEIGHTS, 50.0), WEIGHTS),
    "a matrix is cut": (lambda place: (place / WEIGHTS).write_bytes(b"x"), WEIGHTS),
    "no weights": (lambda place: (place / WEIGHTS).unlink(), WEIGHTS),
    "another rank": (lambda place: edit(place / "adapter_config.json", r=2), "adapter_config.json"),
    "pickled weights": (
        lambda place: (place / "adapter_model.bin").write_bytes(b"\x80\x02."),
        "adapter_model.bin",
    ),
    "code": (lambda place: (place / "setup.py").write_text("x = 1"), "setup.py"),
    "another schedule": (
        lambda place: edit(place / "ropeconv.json", schedule="0" * 64),
        "another schedule",
    ),
    "a file outside": (
        lambda place: edit(
            place / "ropeconv.json",
            files=[{"name": "../model/config.json", "action": "copy", "size": 1, "sha256": ""}],
        ),
        "outside",
    ),
    "not a receipt": (
        lambda place: edit(place / "ropeconv.json", files="none"),
        "is not a receipt of ropeconv",
    ),
}
RIGHT: dict[str, Damage] = {
    "nothing": lambda place: None,
    "a card of the user": lambda place: (place / "README.md").write_text("mine"),
    "a picture": lambda place: (place / "loss.png").write_bytes(b"x"),
    "a time": lambda place: (place / WEIGHTS).touch(),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an adapter of it, and the outputs of both."""
    folder = tmp_path_factory.mktemp("adapters")
    lora(make("llama", folder / "model"), folder / "lora")
    command(folder, *LINE, "-q", code=0)
    return folder


@pytest.fixture
def adapter(made: Path, tmp_path: Path) -> Path:
    """An adapter beside its output."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out-adapter"


def test_members_name_each_other(adapter: Path) -> None:
    assert validated(adapter).returncode == 0
    receipt = read_companion(adapter)
    assert receipt is not None
    output = read_receipt(adapter.with_name("out"))
    assert (receipt.output, output.target.adapter) == ("out", adapter.name)
    assert receipt.schedule == output.schedule.digest
    digests = hashes(adapter)
    assert {file.name: file.sha256 for file in receipt.files} == {
        name: digest for name, digest in digests.items() if name != "ropeconv.json"
    }


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT)
def test_a_right_adapter_is_accepted(change: Damage, adapter: Path) -> None:
    change(adapter)
    done = command(adapter.parent, "validate", "out-adapter", code=0)
    assert "as it was" in done.stdout
    document = json.loads(command(adapter.parent, "validate", "out-adapter", "--json").stdout)
    assert document["agrees"] is True


def validated(adapter: Path) -> Done:
    return command(adapter.parent, "validate", "out", "--against", "model", "--tokens", 32, "-q")


@pytest.mark.parametrize(("damage", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_adapter_is_refused_by_itself_and_with_its_output(
    damage: Damage, words: str, adapter: Path
) -> None:
    damage(adapter)
    done = command(adapter.parent, "validate", "out-adapter")
    assert done.returncode in (1, 3)
    assert words in done.stderr
    whole = validated(adapter)
    assert whole.returncode in (1, 3)
    assert words in whole.stderr


def test_an_adapter_that_was_changed_is_not_taken_for_written(adapter: Path) -> None:
    place = adapter.parent
    before = hashes(place)
    command(place, *LINE, "-q", code=0)
    assert hashes(place) == before
    set_number(adapter / WEIGHTS, 50.0)
    assert "out-adapter exists; remove it" in command(place, *LINE, code=1).stderr


def test_it_is_not_an_output_of_its_own(adapter: Path) -> None:
    for words in (("push", "out-adapter", "me/x"), ("restore", "out-adapter")):
        done = command(adapter.parent, *words, code=1)
        assert "the receipt of" in done.stderr
    done = command(adapter.parent, "validate", "out-adapter", "--quick", code=2)
    assert "--quick has no" in done.stderr
    command(adapter.parent, "inspect", "out-adapter", code=0)
    again = (*LINE[:5], "again", "--adapter", "out-adapter", "--validate", "off", "-q")
    command(adapter.parent, *again, code=0)


def test_a_draft_beside_its_output_is_checked_with_it(llama: Path, tmp_path: Path) -> None:
    line = ("apply", "model", "--yarn", "4", "-o", "out", "--draft", "draft", "--validate", "off")
    llama_copy = tmp_path / "draft"
    llama_copy.mkdir()
    for path in llama.iterdir():
        (llama_copy / path.name).write_bytes(path.read_bytes())
    command(tmp_path, *line, "-q", code=0)
    against = ("validate", "out", "--against", "model", "--tokens", 32, "-q")
    assert command(tmp_path, *against).returncode == 0
    edit(tmp_path / "out-draft" / "config.json", rope_theta=5.0)
    done = command(tmp_path, *against)
    assert (done.returncode, "out-draft" in done.stderr) == (3, True)


GRAPHS: dict[str, tuple[Damage, str]] = {
    "its graph": (lambda out: change_last_byte(out / "model.onnx"), "model.onnx"),
    "its weights": (lambda out: change_last_byte(out / "model.onnx.data"), "model.onnx.data"),
    "no weights": (lambda out: (out / "model.onnx.data").unlink(), "model.onnx.data"),
    "its config": (lambda out: edit(out / "config.json", rope_theta=5.0), "config.json"),
    "another graph": (lambda out: (out / "decoder.onnx").write_bytes(b"x"), "decoder.onnx"),
    "an engine": (lambda out: (out / "model.engine").write_bytes(b"x"), "model.engine"),
}


def change_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A folder with an extended graph, whose weights lie in a file beside it."""
    pytest.importorskip("onnx", reason="onnx is not installed; pip install 'ropeconv[graphs]'")
    from ..support import graphs

    vector = (10_000.0 ** (-np.arange(32) / 32)).astype(np.float32)
    graphs.rotating(tmp_path / "m/model.onnx", vector)
    graphs.write_config(tmp_path / "m")
    keep_outside(tmp_path / "m/model.onnx")
    command(tmp_path, "apply", "m/model.onnx", "--linear", 4, "-o", "out", "-q", code=0)
    return tmp_path / "out"


def keep_outside(path: Path) -> None:
    """Move the constants of an ONNX model into a file beside it."""
    import onnx

    model = onnx.load(path)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "weights")
    )
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        location=f"{path.name}.data",
        size_threshold=200,
    )


def test_a_right_graph_is_accepted(graph: Path) -> None:
    assert "as it was" in command(graph.parent, "validate", "out", code=0).stdout
    (graph / "README.md").write_text("mine")
    command(graph.parent, "validate", "out", code=0)
    command(graph.parent, "inspect", "out", code=0)
    line = ("apply", "out/model.onnx", "--linear", 8, "--replace", "-o", "more", "-q")
    command(graph.parent, *line, code=0)
    command(graph.parent, "validate", "more", code=0)


@pytest.mark.parametrize(("damage", "words"), GRAPHS.values(), ids=GRAPHS)
def test_a_wrong_graph_is_refused(damage: Damage, words: str, graph: Path) -> None:
    damage(graph)
    done = command(graph.parent, "validate", "out")
    assert (done.returncode, words in done.stderr) == (3, True), done.stderr


def test_the_same_graph_again_is_done_already(graph: Path) -> None:
    before = hashes(graph.parent)
    line = ("apply", "m/model.onnx", "--linear", 4, "-o", "out", "-q")
    command(graph.parent, *line, code=0)
    assert hashes(graph.parent) == before
    other = ("apply", "m/model.onnx", "--linear", 8, "-o", "out", "-q")
    assert "out exists" in command(graph.parent, *other, code=1).stderr
    assert hashes(graph.parent) == before
