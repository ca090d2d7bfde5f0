"""Files beside a receipt: compared with it, and how a receipt gets to its place, whatever the disk
does.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.files import try_lock
from ropeconv.inspection.receipts.receipt import EvaluationRecord, MeasuredRecord
from ropeconv.inspection.receipts.storage import (
    add_evaluation,
    add_validation,
    check_files,
    clear_drafts,
    parse_receipt,
    read_receipt,
    validations,
    write_receipt,
)
from ropeconv.models.gguf import GgufSource
from ropeconv.models.source import RECEIPT

from ...support.baking import apply, make_plan, recipe_of
from ...support.gguf_files import write
from .test_folders import receipt, written

BESIDE = ".out.ropeconv.json.new"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("config.json", "code.py", "model.safetensors", "notes.txt"):
        (folder / name).write_text(f"{name} as written")
    return folder


# Files compared with a receipt


@pytest.mark.parametrize("name", ["config.json", "code.py", "model.safetensors"])
def test_a_file_that_was_edited_is_not_the_one_that_was_written(out: Path, name: str) -> None:
    out_receipt = receipt(files=written(out, *sorted(os.listdir(out))))
    check_files(out, out_receipt)
    text = (out / name).read_text()
    message = f"{name} is not the file that ropeconv wrote; run apply again"
    for weights in (True, False):
        (out / name).write_text(text + "!")
        with pytest.raises(BadSource, match=message):
            check_files(out, out_receipt, weights)
        (out / name).write_text(text[:-1] + "!")  # of the same size
        with (
            nullcontext()
            if name == "model.safetensors" and not weights
            else pytest.raises(BadSource, match=message)
        ):
            check_files(out, out_receipt, weights)
    (out / name).unlink()
    with pytest.raises(BadSource, match=f"{name} no longer exists"):
        check_files(out, out_receipt, weights=False)


# How a receipt gets to its place


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EACCES])
def test_a_draft_is_inside_where_none_can_be_beside(
    out: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    opened = Path.open

    def refuse(path: Path, *given: Any, **named: Any) -> Any:
        if path.name == BESIDE:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)
    write_receipt(out, receipt())
    assert read_receipt(out) == receipt()
    assert [
        path.name for path in (*out.iterdir(), *out.parent.iterdir()) if "new" in path.name
    ] == []


def test_a_draft_that_took_the_place_of_an_earlier_one_stays(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = out.with_name(BESIDE)
    draft.write_text("of a process that is about to rename it")

    def late(file: BinaryIO) -> str:
        draft.replace(out / RECEIPT)
        draft.write_text("of a process that writes now")
        return try_lock(file)

    with monkeypatch.context() as patch:
        patch.setattr("ropeconv.inspection.receipts.storage.try_lock", late)
        clear_drafts(out)
    assert draft.read_text() == "of a process that writes now"
    clear_drafts(out)
    assert not draft.exists()


# Results of validations


def write_output(tmp_path: Path, method: str = "yarn") -> Path:
    """Write out.gguf anew, by another program than ropeconv, so that results beside it stay."""
    source = write(tmp_path / "source.gguf", "llama")
    made = tmp_path / "made.gguf"
    apply(make_plan(source, recipe_of(method, 4.0), made))
    source.unlink()
    return made.replace(tmp_path / "out.gguf")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_output(tmp_path)


@pytest.mark.parametrize("server", ["", "vllm@0.33"])
def test_a_result_is_added_to_those_that_are_there(out: Path, gguf: Path, server: str) -> None:
    write_receipt(out, receipt())
    for place in (out, gguf):
        original = read_receipt(place)
        add_validation(place, original, {"agrees": False}, "other")
        add_validation(place, original, {"agrees": True}, server)
    servers = {"other": {"agrees": False}, server: {"agrees": True}}
    stored = read_receipt(out)
    assert (stored.validation, stored.servers) == (
        (None, servers) if server else ({"agrees": True}, {"other": {"agrees": False}})
    )
    added: dict[str, Any] = {"servers": servers}
    if not server:
        added = {"validation": {"agrees": True}, "servers": {"other": {"agrees": False}}}
    header = GgufSource(gguf).file.header
    assert json.loads(gguf.with_name("out.gguf.validation.json").read_text()) == {
        "schema": 2,
        "size": header.size,
        "header_sha256": hashlib.sha256(gguf.read_bytes()[: header.data_start]).hexdigest(),
        **added,
    }
    assert validations(gguf) == added


def test_results_beside_a_gguf_file_are_those_of_the_file_as_it_is(gguf: Path) -> None:
    assert validations(gguf) == {}
    add_validation(gguf, read_receipt(gguf), {"agrees": True})
    add_validation(gguf, read_receipt(gguf), {"agrees": False}, "vllm")
    assert validations(gguf) == {
        "validation": {"agrees": True},
        "servers": {"vllm": {"agrees": False}},
    }
    gguf.write_bytes(gguf.read_bytes() + b"5")
    assert validations(gguf) == {}
    add_validation(gguf, read_receipt(gguf), {"agrees": False}, "vllm")
    assert validations(gguf) == {"servers": {"vllm": {"agrees": False}}}


def test_results_are_not_those_of_another_file_of_the_same_size(gguf: Path) -> None:
    earlier = read_receipt(gguf)
    size = gguf.stat().st_size
    add_validation(gguf, earlier, {"agrees": True})
    add_evaluation(gguf, earlier, ONE)
    write_output(gguf.parent, "linear")
    assert gguf.stat().st_size == size
    now = read_receipt(gguf)
    assert (now.method, now.validation, now.evaluations) == ("linear", None, ())


def test_results_that_do_not_name_their_file_do_not_count(gguf: Path) -> None:
    """Those that an earlier version of ropeconv wrote."""
    add_validation(gguf, read_receipt(gguf), {"agrees": True})
    path = gguf.with_name("out.gguf.validation.json")
    results = json.loads(path.read_text())
    del results["header_sha256"]
    path.write_text(json.dumps(results))
    assert read_receipt(gguf).validation is None


def test_a_result_is_not_added_to_an_output_that_replaced_the_one_that_was_run(
    out: Path, gguf: Path
) -> None:
    write_receipt(out, receipt())
    earlier = {place: read_receipt(place) for place in (out, gguf)}
    write_output(gguf.parent, "linear")
    write_receipt(out, receipt(encoding="another"))
    for place, held in earlier.items():
        with pytest.raises(BadSource, match="was replaced"):
            add_validation(place, held, {"agrees": True})
        with pytest.raises(BadSource, match="was replaced"):
            add_evaluation(place, held, ONE)
        assert read_receipt(place).validation is None
    shutil.rmtree(out)
    with pytest.raises(BadSource, match=r"ropeconv\.json"):
        add_validation(out, earlier[out], {"agrees": True})
    assert not out.exists()


@pytest.mark.parametrize("first", ["validation", "evaluation"])
def test_a_run_keeps_what_another_one_wrote_meanwhile(out: Path, gguf: Path, first: str) -> None:
    write_receipt(out, receipt())
    for place in (out, gguf):
        held = read_receipt(place)  # by both runs, at their start
        if first == "validation":
            add_validation(place, held, {"agrees": True})
        add_evaluation(place, held, ONE)
        add_validation(place, held, {"agrees": False}, "vllm")
        if first == "evaluation":
            add_validation(place, held, {"agrees": True})
        now = read_receipt(place)
        assert (now.validation, now.evaluations) == ({"agrees": True}, (ONE,))
        assert now.servers == {"vllm": {"agrees": False}}


def in_processes_at_once(count: int, work: Callable[[int], None]) -> list[int]:
    """The exit codes of processes that run a function at the same time, each with its number."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(number)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return [os.WEXITSTATUS(os.waitpid(child, 0)[1]) for child in children]


def test_processes_that_add_results_at_once_keep_those_of_all(out: Path, gguf: Path) -> None:
    write_receipt(out, receipt())
    held = {place: read_receipt(place) for place in (out, gguf)}

    def add(number: int) -> None:
        for round_number in range(3):
            for place in (out, gguf):
                name = f"server {number}.{round_number}"
                add_validation(place, held[place], {"agrees": True}, name)

    assert in_processes_at_once(4, add) == [0] * 4
    assert [len(read_receipt(place).servers) for place in (out, gguf)] == [12, 12]


def test_processes_that_write_results_at_once_leave_one_whole_result(out: Path, gguf: Path) -> None:
    for path in out.iterdir():
        path.unlink()
    write_receipt(out, receipt())
    held = {place: read_receipt(place) for place in (out, gguf)}

    def write(number: int) -> None:
        for _ in range(15):
            for place in (out, gguf):
                figures = [number] * 100 * (number + 1)
                add_validation(place, held[place], {"figures": figures})

    assert in_processes_at_once(4, write) == [0] * 4
    for validation in (read_receipt(out).validation, validations(gguf)["validation"]):
        assert validation is not None
        number = validation["figures"][0]
        assert validation == {"figures": [number] * 100 * (number + 1)}
    assert sorted(os.listdir(out.parent)) == ["out", "out.gguf", "out.gguf.validation.json"]
    assert os.listdir(out) == ["ropeconv.json"]


# Evaluations in receipts: beside a GGUF file, in a folder, and beside earlier ones


ONE = EvaluationRecord(
    against="base",
    runtime="transformers@5.23.0",
    device="cpu",
    dtype="bfloat16",
    trained=8192,
    texts=("a.txt",),
    tokens_sha256="3f",
    price=0.03,
    price_error=0.004,
    holds_to=32768,
    measured=(
        MeasuredRecord(
            measure="growth", metric="loss", column=8192, value=3.1, error=0.1, difference=0.03
        ),
    ),
)


def changed(**fields: Any) -> EvaluationRecord:
    return msgspec.structs.replace(ONE, **fields)


def measured(**values: float) -> tuple[MeasuredRecord, ...]:
    return tuple(
        MeasuredRecord(measure=name, metric="loss", column=8192, value=loss)
        for name, loss in values.items()
    )


def test_it_is_beside_a_gguf_file_with_the_validation(tmp_path: Path) -> None:
    gguf = write_output(tmp_path)
    add_evaluation(gguf, read_receipt(gguf), ONE)
    add_validation(gguf, read_receipt(gguf), {"agrees": True})
    results = validations(gguf)
    assert set(results) == {"evaluations", "validation"}
    assert parse_receipt(json.dumps(receipt().to_dict()), "x", results).evaluations == (ONE,)
    gguf.write_bytes(b"another file")
    assert validations(gguf) == {}


@pytest.mark.parametrize("name", ["runtime", "dtype", "tokens_sha256", "against"])
def test_one_of_another_runtime_precision_text_or_base_is_another(
    tmp_path: Path, name: str
) -> None:
    other = changed(**{name: "other"})
    newer = changed(price=0.05)
    write_receipt(tmp_path, receipt(evaluations=(ONE, other)))
    add_evaluation(tmp_path, receipt(), newer)
    assert read_receipt(tmp_path).evaluations == (other, newer)


def test_one_of_other_measures_stays_beside_it(tmp_path: Path) -> None:
    other = changed(measured=measured(niah=2.0))
    both = changed(measured=measured(growth=1.0, niah=2.0))
    write_receipt(tmp_path, receipt(evaluations=(other, both)))
    add_evaluation(tmp_path, receipt(), ONE)
    niah_of_both = changed(measured=measured(niah=2.0), price=None, price_error=None, holds_to=None)
    assert read_receipt(tmp_path).evaluations == (other, niah_of_both, ONE)


def test_lengths_that_are_not_measured_again_stay(tmp_path: Path) -> None:
    at_8k, at_32k = (
        MeasuredRecord(measure="growth", metric="loss", column=length, value=3.0)
        for length in (8192, 32768)
    )
    both = changed(measured=(at_8k, at_32k), trained=8192)
    shorter = changed(measured=(at_8k,), trained=8192, price=0.05, holds_to=8192)
    write_receipt(tmp_path, receipt(evaluations=(both,)))
    add_evaluation(tmp_path, receipt(), shorter)
    older, newer = read_receipt(tmp_path).evaluations
    assert newer == shorter
    assert older.measured == (at_32k,)
    assert (older.price, older.price_error, older.holds_to) == (None, None, None)


@pytest.mark.parametrize(
    "odd", [[1], "x", [{"runtime": "vllm"}], [{**msgspec.to_builtins(ONE), "trained": "many"}]]
)
def test_what_no_evaluation_writes_is_refused(odd: object) -> None:
    with pytest.raises(BadSource, match="not a receipt"):
        parse_receipt(json.dumps(receipt().to_dict() | {"evaluations": odd}), "x")
