"""Carrying out a plan: what arrives, what is left behind, and errors on the way as sentences."""

import errno
import json
import os
from pathlib import Path

import pytest

import ropeconv
from ropeconv.bake import execution, hidden
from ropeconv.bake.execution import ApplyOptions, execute_plan
from ropeconv.bake.plan import Plan
from ropeconv.errors import Disagreement
from ropeconv.inspection.receipts.receipt import CheckRecord
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe

from ..conftest import CONFIGS, hashes
from ..support.baking import YARN, apply, make_plan, recipe_of
from .writing.plans import SmallPlan, small_plan, source_folder, tree, write

LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"


def plan_of(folder: Path, out: Path, recipe: Recipe = YARN, **more: object) -> Plan:
    return make_plan(folder, recipe, out, **more)


@pytest.fixture
def small(tmp_path: Path) -> SmallPlan:
    return small_plan(source_folder(tmp_path), tmp_path / "out")


def furnish(folder: Path) -> None:
    """What a published folder holds beside its weights."""
    for name, data in (
        ("tokenizer_config.json", b'{\n  "model_max_length": 64,\n  "unk_token": "<unk>"\n}\n'),
        ("chat_template.jinja", b"{{ messages }}"),
        ("LICENSE", b"terms"),
        ("pytorch_model.bin", b"pickle"),
        ("original/consolidated.00.pth", b"pickle"),
        ("model-Q4.gguf", b"GGUF"),
        ("assets/picture.png", b"png"),
        (".cache/lock", b""),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


# What arrives


def test_what_arrives(llama: Path, tmp_path: Path) -> None:
    furnish(llama)
    before = hashes(llama)
    plan = plan_of(llama, tmp_path / "out")
    out = apply(plan)
    arrived = hashes(out)
    same = {
        "LICENSE",
        "assets/picture.png",
        "chat_template.jinja",
        "generation_config.json",
        "model.safetensors",
    }
    assert set(arrived) == same | {
        "README.md",
        "config.json",
        "tokenizer_config.json",
        "ropeconv.json",
    }
    assert all(arrived[name] == before[name] for name in same)
    assert plan.skipped == ("model-Q4.gguf", "original/consolidated.00.pth", "pytorch_model.bin")
    assert plan_of(llama, tmp_path / "out", all_files=True).skipped == ()
    assert hashes(llama) == before
    assert (
        out / "tokenizer_config.json"
    ).read_text() == '{\n  "model_max_length": 256,\n  "unk_token": "<unk>"\n}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_the_receipt_has_the_check_and_the_digest_of_every_file(
    llama: Path, tmp_path: Path
) -> None:
    plan = plan_of(llama, tmp_path / "out")
    execute_plan(plan, ApplyOptions(checksum=True), verify=lambda folder: CheckRecord("5", 1, 1.0))
    receipt = json.loads((tmp_path / "out" / "ropeconv.json").read_text())
    assert Recipe.from_dict(receipt["recipe"]) == YARN
    assert receipt["schedule"]["digest"] == plan.schedule.digest
    assert receipt["check"] == {
        "transformers": "5",
        "max_ulp": 1,
        "attention_factor": 1.0,
        "read_as": "",
        "layers": None,
    }
    digests = {file["name"]: file["sha256"] for file in receipt["files"]}
    assert {**digests, "ropeconv.json": hashes(tmp_path / "out")["ropeconv.json"]} == hashes(
        tmp_path / "out"
    )
    assert str(tmp_path) not in json.dumps(receipt)


def test_linked_files_share_their_blocks_and_changed_ones_do_not(
    llama: Path, tmp_path: Path
) -> None:
    apply(plan_of(llama, tmp_path / "out"), link=True)
    linked = {
        name for name in os.listdir(llama) if (llama / name).samefile(tmp_path / "out" / name)
    }
    assert linked == {"generation_config.json", "model.safetensors"}


def test_a_staged_output_is_what_is_not_copied(small: SmallPlan) -> None:
    out = write(small, staged=True)
    assert tree(out).keys() == {"config.json", "more/made.bin", "patched.bin"}
    names = {file.name: file.sha256 for file in ropeconv.read_receipt(out).files}
    assert names.keys() == {*tree(out), "LICENSE", "model.safetensors"}
    assert {name for name, digest in names.items() if digest} == {"config.json", "more/made.bin"}


def test_the_name_of_the_output() -> None:
    assert make_plan(LLAMA_2, recipe_of("ntk-fixed", 2.5)).out == Path(
        f"{LLAMA_2.stem}-ntk-fixed2.5"
    )


# Errors on the way


FULL = r"the disk is full; .* are needed at .*, free some or use -o"
FAILS = (
    r"out cannot be written \(.*\); check the disk and its permissions, or choose another place"
    r" with -o"
)


@pytest.mark.parametrize("place", ["copy", "rename"])
@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, FULL), (errno.EDQUOT, FULL), (errno.EIO, FAILS)]
)
def test_disk_errors_are_sentences(
    small: SmallPlan, monkeypatch: pytest.MonkeyPatch, place: str, number: int, message: str
) -> None:
    def fails(*given: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(
        *{"copy": (execution, "copy_file"), "rename": (hidden, "rename_new")}[place], fails
    )
    with pytest.raises(RopeconvError, match=message):
        write(small)
    assert not small.out.exists()


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            OSError(errno.EACCES, "Permission denied", "/dev/x"),
            r"cannot be written \(Permission denied: /dev/x\)",
        ),
        (
            OSError(errno.EACCES, "Permission denied"),
            r"cannot be written \(Permission denied: /.*\); check the disk",
        ),
        (ConnectionError("network"), None),
        (TimeoutError(110, "late"), None),
        (OSError("no number"), None),
        (Disagreement("no"), None),
    ],
)
def test_errors_name_their_file_and_those_of_the_network_stay_what_they_are(
    small: SmallPlan, problem: Exception, message: str | None
) -> None:
    def verify(folder: Path) -> None:
        assert (folder / "config.json").exists()
        raise problem

    with pytest.raises(RopeconvError if message else type(problem), match=message) as error:
        execute_plan(small, ApplyOptions(), verify)
    assert (error.value is problem) is (message is None)
    assert [path.name for path in small.out.parent.iterdir()] == ["model"]
