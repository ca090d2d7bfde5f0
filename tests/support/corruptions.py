"""Edits of finished outputs, as an attacker or an accident makes them."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from ropeconv.bake.findings import Options, Verification
from ropeconv.bake.verify import verify_output
from ropeconv.errors import BadSource, Disagreement
from ropeconv.validate.comparison import Comparison

Corruption = Callable[[Path], object]


def renew(out: Path) -> None:
    """Writes the sizes and sha256 of the files as they are into the receipt, as an attacker
    would.
    """
    path = out / "ropeconv.json"
    receipt = json.loads(path.read_text())
    receipt["files"] = [file for file in receipt["files"] if (out / file["name"]).is_file()]
    for file in receipt["files"]:
        data = (out / file["name"]).read_bytes()
        file.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    path.write_text(json.dumps(receipt))


def edit(out: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a JSON file in the layout that it has; one that is not there begins empty."""
    path = out / name
    data = json.loads(path.read_text()) if path.exists() else {}
    change(data)
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def config(**keys: Any) -> Corruption:
    return lambda out: edit(out, "config.json", lambda document: document.update(keys))


Place = str | tuple[str, ...]


def at(data: dict[str, Any], place: Place) -> tuple[dict[str, Any], str]:
    """The dictionary that holds a key, and its name there. place: keys joined by points, or one by
    one.
    """
    *outer, name = place.split(".") if isinstance(place, str) else place
    for key in outer:
        data = data[key]
    return data, name


def put(file: str, place: Place, value: Any) -> Corruption:
    """Sets a key of a JSON file to another value than it has."""

    def change(data: dict[str, Any]) -> None:
        part, name = at(data, place)
        assert repr(part.get(name, ...)) != repr(value), f"{place} is {value} already"
        part[name] = value

    return lambda out: edit(out, file, change)


def drop(file: str, place: Place) -> Corruption:
    """Deletes a key of a JSON file."""

    def change(data: dict[str, Any]) -> None:
        part, name = at(data, place)
        del part[name]

    return lambda out: edit(out, file, change)


def add(name: str, data: bytes = b"{}\n") -> Corruption:
    def change(out: Path) -> None:
        path = out / name
        assert not path.exists(), name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    return change


def remove(name: str) -> Corruption:
    return lambda out: (out / name).unlink()


def text(name: str, old: str, new: str) -> Corruption:
    def change(out: Path) -> None:
        before = (out / name).read_text()
        assert old in before, old
        (out / name).write_text(before.replace(old, new, 1))

    return change


def tensor(
    name: str, change: Callable[[np.ndarray], object], file: str = "model.safetensors"
) -> Corruption:
    """Changes the numbers of a float32 tensor in place, and nothing else of its file."""

    def corrupt(out: Path) -> None:
        path = out / file
        data = bytearray(path.read_bytes())

        # safetensors: the length of the header in 8 bytes, the header in JSON, and the tensors,
        # whose places are counted from their beginning
        tensors_start = 8 + int.from_bytes(data[:8], "little")
        entry = json.loads(data[8:tensors_start])[name]
        assert entry["dtype"] == "F32", entry
        first, end = entry["data_offsets"]
        start = tensors_start + first
        stop = tensors_start + end

        before = np.frombuffer(bytes(data[start:stop]), "<f4").reshape(entry["shape"])
        numbers = before.copy()
        change(numbers)
        assert not np.array_equal(before, numbers), "nothing was changed"
        data[start:stop] = numbers.tobytes()
        path.write_bytes(bytes(data))

    return corrupt


def tensors(
    change: Callable[[dict[str, np.ndarray]], object], file: str = "model.safetensors"
) -> Corruption:
    """Changes the tensors of a file, which is written again by safetensors."""

    def corrupt(out: Path) -> None:
        arrays = safetensors.numpy.load_file(out / file)
        change(arrays)
        safetensors.numpy.save_file(arrays, out / file, {"format": "pt"})

    return corrupt


def data(change: Callable[[bytearray], object], file: str = "model.safetensors") -> Corruption:
    def corrupt(out: Path) -> None:
        path = out / file if out.is_dir() else out
        content = bytearray(path.read_bytes())
        before = bytes(content)
        change(content)
        assert bytes(content) != before, "nothing was changed"
        path.write_bytes(bytes(content))

    return corrupt


def replaced(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    """Replaces bytes by as many others, once."""

    def change(content: bytearray) -> None:
        assert len(old) == len(new)
        place = content.index(old)
        content[place : place + len(old)] = new

    return change


def scale(rows: Any, factor: float) -> Callable[[np.ndarray], None]:
    def change(numbers: np.ndarray) -> None:
        numbers[rows] *= numbers.dtype.type(factor)

    return change


def flipped(place: int) -> Callable[[bytearray], None]:
    return lambda content: content.__setitem__(place, content[place] ^ 1)


last_bit = flipped(-1)


def halved(content: bytearray) -> None:
    del content[len(content) // 2 :]


def grown(content: bytearray) -> None:
    content += bytes(64)


def verified(out: Path, source: Path | str, **options: Any) -> Verification:
    """What the comparison of the files of an output says. options: of `Options`."""
    return verify_output(Comparison.open(out, str(source)), Options(**options))


def refused(out: Path, source: Path, **options: Any) -> bool:
    """Whether that comparison ends in a refusal."""
    try:
        verified(out, source, **options)
    except (BadSource, Disagreement):
        return True
    return False
