"""Profiles compute what separately written outputs do, and have their weights once, all of them or
none.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ropeconv.bake.apply import OutputCheck
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.findings import Options
from ropeconv.bake.source_check import SourceCheck
from ropeconv.bake.verify import verify_output
from ropeconv.convert.target import Target
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.load import load_stock
from ropeconv.errors import BadSource, Disagreement
from ropeconv.features.profiles import plan as profiles
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.open import open_source
from ropeconv.validate.comparison import Comparison

from ...conftest import hashes
from ...support.baking import AS_IS, MIXED, YARN, apply, inspected, make_plan, recipe_of
from ...support.gguf_files import contents, plain_tensors, write
from ...support.in_process import command
from ...support.models import TRAINED, VOCABULARY

WEIGHTS = "model.safetensors"
LENGTH = 4 * TRAINED
IDS = [int(token) for token in np.random.default_rng(0).integers(VOCABULARY, size=LENGTH)]


def on_disk(folder: Path) -> int:
    """Bytes of all files, as `du` counts them: those with several names once."""
    files = {
        status.st_ino: status.st_size
        for path in folder.rglob("*")
        if path.is_file()
        for status in [path.stat()]
    }
    return sum(files.values())


def computed(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The frequencies of the first rotary module in transformers, and the logits at four times the
    trained length.
    """
    model = load_stock(folder, "cpu")
    inv_freq = next(buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq"))
    with torch.no_grad():
        return inv_freq, model(torch.tensor([IDS])).logits[0]


def test_transformers_computes_what_separate_outputs_do_from_one_copy_of_weights(
    llama: Path, tmp_path: Path
) -> None:
    source = hashes(llama)
    done = command(
        tmp_path, "profiles", "model", "base", "yarn:2", "--yarn", 4, "-o", "out", code=0
    )
    assert "yarn4: vllm serve out/yarn4 --max-model-len 256" in done.stdout
    assert "transformers computes the frequencies of base, yarn2, yarn4." in done.stdout
    out = tmp_path / "out"
    names = ["base", "yarn2", "yarn4"]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "ropeconv.json"])
    assert {(out / name / WEIGHTS).stat().st_ino for name in names} == {
        (llama / WEIGHTS).stat().st_ino
    }
    assert on_disk(out) < 1.2 * (llama / WEIGHTS).stat().st_size
    links = {path.name: path.stat().st_nlink for path in out.rglob("*") if path.is_file()}
    assert [name for name, count in links.items() if count > 1] == [WEIGHTS], (
        "only weights are shared"
    )
    results = {name: computed(out / name) for name in names}
    for name, recipe in {"base": AS_IS, "yarn2": recipe_of("yarn", 2.0), "yarn4": YARN}.items():
        alone = apply(make_plan(llama, recipe, tmp_path / f"alone-{name}"))
        for ours, theirs in zip(results[name], computed(alone), strict=True):
            assert torch.equal(ours, theirs)
        assert read_receipt(out / name).check is not None
        verify_output(Comparison.open(out / name, str(llama)), Options())
    assert float((results["yarn2"][1] - results["yarn4"][1]).abs().max()) > 0.1, (
        "the profiles differ"
    )
    command(tmp_path, "restore", "out/yarn4", "-o", "back", "-q", code=0)
    assert hashes(tmp_path / "back") == hashes(llama) == source


def test_a_copy_is_shared_by_the_profiles_alone(llama: Path, tmp_path: Path) -> None:
    command(tmp_path, "profiles", "model", "base", "yarn:4", "--copy", "-o", "out", "-q", code=0)
    shared = (tmp_path / "out/base" / WEIGHTS).stat()
    alone = (llama / WEIGHTS).stat()
    assert (shared.st_nlink, alone.st_nlink) == (2, 1)


def test_llama_cpp_computes_what_separate_files_do_from_one_copy_of_tensors(tmp_path: Path) -> None:
    from ...support.llamacpp import bake, checkpoint

    source = tmp_path / "tiny.gguf"
    out = tmp_path / "out"
    bake(checkpoint("llama", tmp_path / "model"), AS_IS, source)
    done = command(tmp_path, "profiles", "tiny.gguf", "yarn:4", "mixed:4", "-o", "out", code=0)
    assert "base: llama-server -m out/base/tiny-00001-of-00002.gguf -c 64" in done.stdout
    assert "yarn4: llama-server -m out/yarn4/tiny-yarn4-00001-of-00002.gguf -c 256" in done.stdout
    logits: dict[str, Any] = {}
    for name, recipe in {"base": AS_IS, "yarn4": YARN, "mixed4": recipe_of("mixed", 4.0)}.items():
        (first,) = (out / name).glob("*-00001-of-00002.gguf")
        shared = first.with_name(first.name.replace("00001", "00002", 1))
        assert (first.stat().st_size < 70_000, shared.stat().st_nlink) == (True, 3)
        alone = tmp_path / f"{name}.gguf"
        apply(make_plan(source, recipe, alone))
        logits[name] = LlamaCppEngine(first).logits(IDS, range(LENGTH))
        assert np.array_equal(logits[name], LlamaCppEngine(alone).logits(IDS, range(LENGTH)))
        if name != "base":
            verify_output(
                Comparison.open(first, str(next((out / "base").glob("*-00001-*")))), Options()
            )
    assert np.abs(logits["yarn4"] - logits["mixed4"]).max() > 0.1, "the profiles differ"
    assert on_disk(out) < 1.2 * source.stat().st_size


@pytest.mark.parametrize("first", ["the conversion without scaling", "another file"])
def test_an_output_of_apply_becomes_profiles_that_llama_cpp_loads_and_that_are_restored(
    first: str, tmp_path: Path
) -> None:
    """Its receipt has a first source without shards. `mixed` adds a tensor, which the shards' keys
    count.
    """
    from ...support.llamacpp import bake, checkpoint

    source = checkpoint("llama", tmp_path / "model")
    plain = tmp_path / "plain.gguf"
    bake(source, AS_IS, plain)
    bake(source if first != "another file" else plain, MIXED, tmp_path / "tiny.gguf")
    command(tmp_path, "profiles", "tiny.gguf", "yarn:4", "--replace", "-o", "out", "-q", code=0)
    yarn, base = (next((tmp_path / "out" / name).glob("*-00001-*")) for name in ("yarn4", "base"))
    scaled = apply(make_plan(plain, YARN, tmp_path / "yarn.gguf"))
    command(tmp_path, "restore", yarn, "-o", "back.gguf", "-q", code=0)
    command(tmp_path, "apply", base, "--yarn", 4, "--replace", "-o", "again.gguf", "-q", code=0)
    command(tmp_path, "restore", base, "--in-place", "-q", code=0)
    back, again = (tmp_path / f"{name}-00001-of-00002.gguf" for name in ("back", "again"))
    for path, alone in ((yarn, scaled), (again, scaled), (back, plain), (base, plain)):
        logits = LlamaCppEngine(path).logits(IDS, range(LENGTH))
        assert np.array_equal(logits, LlamaCppEngine(alone).logits(IDS, range(LENGTH))), path.name


@pytest.mark.parametrize("split", ["no", "tensors first", "metadata first"])
def test_every_shape_of_a_gguf_file_keeps_its_tensors_and_moves_rope_tensors(
    split: str, tmp_path: Path
) -> None:
    """`metadata first` is what `llama-gguf-split --no-tensor-first-split` writes: its shards are
    linked as they are.
    """
    tensors = (
        plain_tensors()
        if split == "metadata first"
        else {
            **plain_tensors(),
            "rope_freqs.weight": np.ones(32, np.float32),
        }
    )
    write_split(tmp_path / "model.gguf", split, tensors)
    (source,) = (
        tmp_path.glob("model*.gguf") if split == "no" else tmp_path.glob("model-00001-*.gguf")
    )
    command(tmp_path, "profiles", source.name, "mixed:4", "-o", "out", "-q", code=0)
    linked = split == "metadata first"
    for folder in (tmp_path / "out/base", tmp_path / "out/mixed4"):
        (first,) = folder.glob("*-00001-of-*.gguf")
        assert (
            first.name
            == f"model{'-mixed4' if folder.name == 'mixed4' else ''}-00001-of-{first.name[-10:]}"
        )
        file = GgufFile.open(first)
        rope = {"rope_freqs.weight"} & (
            {*tensors} if folder.name == "base" else {"rope_freqs.weight"}
        )
        assert set(file.header.tensors) == rope
        actual = {name: data for path in file.paths for name, data in contents(path).items()}
        expected = {name: tensor.tobytes() for name, tensor in tensors.items()}
        same = [name for name in expected if actual[name] != expected[name]]
        assert same == (
            ["rope_freqs.weight"]
            if folder.name == "mixed4" and "rope_freqs.weight" in tensors
            else []
        )
        assert file.get("split.tensors.count") == len(actual) == len(expected.keys() | rope)
        assert [path.stat().st_nlink for path in file.paths[1:]] == [3 if linked else 2] * (
            len(file.paths) - 1
        )


def first_of(folder: Path) -> Path:
    """The first shard of a GGUF profile."""
    (first,) = folder.glob("*-00001-of-*.gguf")
    return first


@pytest.mark.parametrize("split", ["no", "metadata first", "tensors first"])
@pytest.mark.parametrize("quick", [False, True])
def test_a_gguf_profile_is_verified_with_the_file_that_it_was_made_from(
    quick: bool, split: str, tmp_path: Path
) -> None:
    """Its tensors are in other shards than those of that file, and are the same."""
    tensors = plain_tensors()
    write_split(tmp_path / "model.gguf", split, tensors)
    (source, *_) = sorted(tmp_path.glob("model*.gguf"))
    command(tmp_path, "profiles", source.name, "yarn:4", "mixed:4", "-o", "out", "-q", code=0)
    for name in ("yarn4", "mixed4"):
        profile = first_of(tmp_path / "out" / name)
        done = verify_output(Comparison.open(profile, str(source)), Options(quick))
        assert (done.bytes > 0) is not quick


def changed_tensor(profile: Path) -> None:
    file = GgufFile.open(profile)
    shard, header = file.paths[-1], file.headers[-1]
    data = bytearray(shard.read_bytes())
    data[header.data_start + 8] ^= 1
    shard.unlink()  # the others have the same file by links
    shard.write_bytes(data)


def changed_factors(profile: Path) -> None:
    header = GgufFile.open(profile).header
    data = bytearray(profile.read_bytes())
    data[header.data_start + header.tensors["rope_freqs.weight"].offset + 2] ^= 1
    profile.write_bytes(data)


def another_key(profile: Path) -> None:
    data = profile.read_bytes()
    assert data.count(b"token 3") == 1
    profile.write_bytes(data.replace(b"token 3", b"token 9"))


def bytes_at_the_end(profile: Path) -> None:
    shard = GgufFile.open(profile).paths[-1]
    with shard.open("ab") as file:
        file.write(bytes(1 << 12))


DAMAGES = {
    "a tensor": (changed_tensor, "differs from byte"),
    "factors": (changed_factors, "rope_freqs.weight"),
    "a key": (another_key, "tokenizer.ggml.tokens"),
    "bytes after the last tensor": (bytes_at_the_end, "after its last tensor"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES)
def test_a_wrong_gguf_profile_is_not_verified(damage: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    command(tmp_path, "profiles", "model.gguf", "mixed:4", "-o", "out", "-q", code=0)
    profile = first_of(tmp_path / "out/mixed4")
    damage(profile)
    with pytest.raises(Disagreement, match=words):
        verify_output(Comparison.open(profile, str(tmp_path / "model.gguf")), Options())


def test_an_output_that_was_split_or_merged_since_is_the_same(tmp_path: Path) -> None:
    """As `llama-gguf-split` does with a file: the shards are another output's, and its keys."""
    write(tmp_path / "model.gguf")
    command(tmp_path, "profiles", "model.gguf", "yarn:4", "-o", "out", "-q", code=0)
    first = first_of(tmp_path / "out/base")
    command(tmp_path, "apply", first, "--yarn", 4, "-o", "longer.gguf", "-q", code=0)
    split = tmp_path / "longer-00001-of-00002.gguf"
    verify_output(Comparison.open(split, str(first)), Options())
    verify_output(Comparison.open(split, str(tmp_path / "model.gguf")), Options())
    command(tmp_path, "apply", "model.gguf", "--yarn", 4, "-o", "whole.gguf", "-q", code=0)
    verify_output(Comparison.open(tmp_path / "whole.gguf", str(first)), Options())


def write_split(path: Path, split: str, tensors: dict[str, Any]) -> None:
    """A GGUF file in one piece or in shards, as gguf-py writes them."""
    original = gguf.GGUFWriter.__init__

    def small_first(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named, small_first_shard=split == "metadata first")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "__init__", small_first)
        write(path, tensors=tensors, split=0 if split == "no" else 2)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (
            "model yarn:4 --encoding weights",
            1,
            "yarn4 cannot share weights, since its factor is multiplied into",
        ),
        (
            "model yarn:4 yarn:4:attention_factor=1",
            2,
            "two profiles would be named yarn4; leave one out",
        ),
        ("model/config.json yarn:4", 2, "has no weights in the format of its profiles"),
        ("model", 2, "name the profiles after MODEL, such as base yarn:2 yarn:4"),
        (
            "model yarn:4 -o model",
            1,
            "model exists; choose another place with -o, or add one profile to it with",
        ),
        ("model yarn:x", 2, "yarn"),
        ("model yarn:4 --private", 2, "--private goes with --push OWNER/NAME"),
        (
            "file.gguf yarn:4 --push me/x",
            2,
            "--push is for checkpoints; write GGUF profiles with -o",
        ),
        ("file.gguf base", 2, "base of a GGUF file is always written; name a profile beside it"),
        (
            "q.gguf mixed:4",
            1,
            "mixed4 cannot share weights, since its encoding in GGUF, carrier, changes tensors",
        ),
    ],
)
def test_a_refusal_is_a_sentence_and_nothing_is_written(
    line: str, code: int, message: str, llama: Path, tmp_path: Path
) -> None:
    write(tmp_path / "file.gguf")
    write(tmp_path / "q.gguf", "qwen2")
    before = hashes(tmp_path)
    assert message in command(tmp_path, "profiles", *line.split(), code=code).stderr
    assert hashes(tmp_path) == before


def test_base_keeps_a_scaling_that_the_other_profiles_replace(llama: Path, tmp_path: Path) -> None:
    command(tmp_path, "apply", "model", "--yarn", 4, "-o", "long", "-q", code=0)
    refused = command(tmp_path, "profiles", "long", "base", "yarn:8", code=1).stderr
    assert (
        "pass --replace to start from its unscaled RoPE, which leaves base unchanged\n" in refused
    )
    command(tmp_path, "profiles", "long", "base", "yarn:8", "--replace", "-o", "out", "-q", code=0)
    contexts = {name: inspected(tmp_path / "out" / name).spec for name in ("base", "yarn8")}
    assert [(spec.context, spec.form.factor) for spec in contexts.values()] == [(256, 4), (512, 8)]


def test_a_profile_that_transformers_does_not_compute_is_compared_with_a_server(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointPlan, "transformers_status", lambda self, version: "unsupported")
    words = ("--runtime", "vllm", "-o", "set")
    done = command(tmp_path, "profiles", llama, "base", "yarn:4", *words, code=0)
    checks = re.findall("ropeconv validate .*", done.stdout)
    assert checks
    for line in checks:
        assert "--server http://localhost:8000" in line


def test_a_profile_whose_source_does_not_load_is_not_compared(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("profiles", llama, "base", "yarn:4", "-o")
    assert "ropeconv validate" in command(tmp_path, *words, "set", code=0).stdout
    monkeypatch.setattr(SourceCheck, "__call__", lambda self: "it does not load the source (why)")
    done = command(tmp_path, *words, "other", code=0)
    assert "ropeconv validate" not in done.stdout + done.stderr


def test_the_command_that_adds_a_profile_can_be_pasted(llama: Path, tmp_path: Path) -> None:
    llama.rename(tmp_path / "my model")
    command(tmp_path, "profiles", "my model", "yarn:4", "-o", "my profiles", "-q", code=0)
    done = command(tmp_path, "profiles", "my model", "yarn:8", "-o", "my profiles", code=1)
    assert "with `ropeconv apply 'my model' METHOD --link -o 'my profiles/NAME'`" in done.stderr
    for heading in (
        "1 profile, which shares",
        "The profiles and my model share their weight files (hard links)",
    ):
        assert (
            heading
            in command(
                tmp_path, "profiles", "my model", "yarn:4", "-o", "x", "--dry-run", code=0
            ).stdout
        )


@pytest.mark.parametrize("fails", ["check", "links"])
def test_all_profiles_are_written_or_none(
    fails: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disagree(self: OutputCheck, folder: Path) -> None:
        if folder.name == "yarn4":
            raise Disagreement("it computes something else; nothing was kept")

    if fails == "check":
        monkeypatch.setattr(OutputCheck, "__call__", disagree)
    else:
        monkeypatch.setattr(profiles, "link_file", lambda source, target: False)
    before = hashes(tmp_path)
    done = command(
        tmp_path,
        "profiles",
        "model",
        "base",
        "yarn:4",
        "-o",
        "out",
        code=3 if fails == "check" else 1,
    )
    assert (
        "something else" if fails == "check" else "hard links, which the disk of out does not have"
    ) in done.stderr
    assert (hashes(tmp_path), os.listdir(tmp_path)) == (before, ["model"])


def test_gguf_profiles_continue_after_a_kill_between_their_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: Path, target: Path) -> bool:
        raise KeyboardInterrupt

    write(tmp_path / "model.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(profiles, "link_file", killed)
        command(tmp_path, "profiles", "model.gguf", "yarn:4", "-o", "out", code=130)
    command(tmp_path, "profiles", "model.gguf", "yarn:4", "-o", "out", "-q", code=0)
    assert sorted(os.listdir(tmp_path)) == ["model.gguf", "out"]
    assert len(GgufFile.open(next((tmp_path / "out/yarn4").glob("*-00001-of-*.gguf"))).shards) == 2


def test_frequencies_from_a_file_are_a_profile(llama: Path, tmp_path: Path) -> None:
    inv_freq = [1 / (7 * 10_000 ** (pair / 32)) for pair in range(32)]
    (tmp_path / "v.json").write_text(json.dumps({"inv_freq": inv_freq}))
    line = ("profiles", "model", "--inv-freq", "v.json", "--yarn", 4, "--dry-run", "--json")
    schedules = [
        profile["schedule"]
        for profile in json.loads(command(tmp_path, *line, code=0).stdout)["profiles"]
    ]
    assert schedules[1]["inv_freq"] == pytest.approx(inv_freq)


def test_the_plan_as_json_and_a_dry_run_write_nothing(llama: Path, tmp_path: Path) -> None:
    data = json.loads(
        command(
            tmp_path, "profiles", "model", "base", "yarn:4", "--dry-run", "--json", code=0
        ).stdout
    )
    assert (data["out"], data["shared_bytes"]) == (
        "model-profiles",
        (llama / WEIGHTS).stat().st_size,
    )
    rows = [
        (profile["name"], profile["schedule"]["context"], profile["out"])
        for profile in data["profiles"]
    ]
    assert rows == [("base", 64, "model-profiles/base"), ("yarn4", 256, "model-profiles/yarn4")]
    assert os.listdir(tmp_path) == ["model"]
    command(tmp_path, "profiles", "model", "yarn:4", "-q", code=0)
    pushed = command(
        tmp_path, "profiles", "model", "base", "yarn:4", "--push", "me/x", "--dry-run", code=0
    )
    assert (
        "Would publish me/x: main, yarn4" in pushed.stdout
    )  # where model-profiles exists, since nothing is written


def test_the_first_source_of_a_chain_is_told_that_it_is_not_the_last(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    command(tmp_path, "apply", "model.gguf", "--yarn", 2, "-o", "one.gguf", "-q", code=0)
    command(tmp_path, "apply", "one.gguf", "--yarn", 2, "--on-top", "-o", "two.gguf", "-q", code=0)
    verify_output(Comparison.open(tmp_path / "two.gguf", str(tmp_path / "one.gguf")), Options())
    with pytest.raises(BadSource, match="the local file 'one'"):
        Comparison.open(tmp_path / "two.gguf", str(tmp_path / "model.gguf"))


def test_profiles_of_a_file_are_read_back(tmp_path: Path) -> None:
    opened = open_source(str(write(tmp_path / "model.gguf")))
    recipes = [AS_IS, recipe_of("yarn", 2.0)]
    out = tmp_path / "profiles"
    plans = profiles.plan_each_profile(opened, recipes, Target(out=out))
    outputs = profiles.write_profiles(profiles.plan_shared_folder(opened, plans, out, copied=False))
    assert {name: done.check is not None for name, done in outputs.items()} == {
        "base": True,
        "yarn2": True,
    }
