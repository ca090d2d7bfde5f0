"""`ropeconv apply` with several sources, and with several outputs of one source."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf import LlamaFileType

from ropeconv.bake import apply as baking
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.gguf_check import run_converted_layers
from ropeconv.bake.source_check import SourceCheck
from ropeconv.engines.probe import Probe
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.inspection.receipts.receipt import LayersRecord
from ropeconv.inspection.receipts.storage import read_receipt

from ..conftest import Run, hashes
from ..support.gguf_files import write
from ..support.hub_writing import serving_writes
from ..support.in_process import command
from ..support.models import make
from .conftest import Refuses


@pytest.fixture
def qwen2(tmp_path: Path) -> Path:
    """A second model, with a tokenizer that GGUF can have."""
    from ..support.llamacpp import checkpoint

    return checkpoint("qwen2", tmp_path / "qwen2")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A second model without a tokenizer."""
    return make("llama", tmp_path / "second", seed=1)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_several_sources_are_as_if_each_were_alone(
    run: Run, llama: Path, second: Path, tmp_path: Path
) -> None:
    given = ("apply", "model", "second", "--yarn", "4", "-o", "out/")
    planned = run(*given, "--dry-run")
    assert "model: 64 -> 256 tokens with --yarn 4" in planned.stdout
    assert "second: 64 -> 256 tokens with --yarn 4" in planned.stdout
    data = json.loads(run(*given, "--dry-run", "--json").stdout)
    assert [output["out"] for output in data["outputs"]] == ["out/model-yarn4", "out/second-yarn4"]
    assert not (tmp_path / "out").exists()
    done = run(*given, "-q")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["out/model-yarn4", "out/second-yarn4"]
    assert _names(tmp_path / "out") == {"model-yarn4", "second-yarn4"}
    for name in ("model", "second"):
        assert run("apply", name, "--yarn", "4", "-q").stdout == f"{name}-yarn4\n"
        assert hashes(tmp_path / "out" / f"{name}-yarn4") == hashes(tmp_path / f"{name}-yarn4")
    assert (read_receipt(tmp_path / "out" / "second-yarn4").check is not None) is Probe.available()


def test_several_outputs_of_one_source(run: Run, qwen2: Path, tmp_path: Path) -> None:
    outputs = (
        "--to",
        "safetensors",
        "--to",
        "gguf",
        "--outtype",
        "q8_0",
        "--outtype",
        "bf16",
        "--pre",
        "gpt-2",
    )
    readers = ("--runtime", "transformers", "--runtime", "llama.cpp")
    done = run("apply", "qwen2", "--yarn", "4", *outputs, *readers, "--all-files", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["schema"], data["failed"]) == (2, [])
    folder, *files = (output["out"] for output in data["outputs"])
    assert folder == "qwen2-yarn4"
    assert [name.rpartition("-")[2] for name in files] == ["Q8_0.gguf", "BF16.gguf"]
    file_types = [GgufFile.open(tmp_path / name).get("general.file_type") for name in files]
    assert file_types == [LlamaFileType.MOSTLY_Q8_0, LlamaFileType.MOSTLY_BF16]
    single = json.loads(run("apply", "qwen2", "--yarn", "4", "--force", "--json").stdout)
    assert single.keys() == data["outputs"][0].keys()


def test_a_failure_of_one_leaves_the_others(
    run: Run, llama: Path, second: Path, tmp_path: Path
) -> None:
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    done = run("apply", "second", "nowhere", "model", "--yarn", "4", "--json")
    assert done.returncode == 1
    assert done.stderr.startswith("ropeconv: second: ")
    assert "\nropeconv: nowhere is neither" in done.stderr
    assert re.search("1 of 3 outputs .* refused: second, nowhere", done.stderr)
    data = json.loads(done.stdout)
    assert [output["out"] for output in data["outputs"]] == ["model-yarn4"]
    assert [(failure["source"], failure["exit_code"]) for failure in data["failed"]] == [
        ("second", 1),
        ("nowhere", 1),
    ]
    assert (tmp_path / "model-yarn4" / "config.json").is_file()


def test_the_same_command_goes_on_where_it_ended(
    run: Run, llama: Path, second: Path, tmp_path: Path
) -> None:
    given = ("apply", "model", "second", "--yarn", "4")
    assert run(*given, "-q").returncode == 0
    whole = hashes(tmp_path / "second-yarn4")
    written = (tmp_path / "model-yarn4" / "config.json").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "second-yarn4")
    again = run(*given)
    assert again.returncode == 0, again.stderr
    assert "model-yarn4 is complete" in again.stderr
    assert re.findall("^(?:Wrote|Unchanged:) .*", again.stdout, re.MULTILINE) == [
        "Unchanged: model-yarn4",
        "Wrote second-yarn4",
    ]
    assert hashes(tmp_path / "second-yarn4") == whole
    assert (tmp_path / "model-yarn4" / "config.json").stat().st_mtime_ns == written
    weights = tmp_path / "model-yarn4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    changed = run(*given)
    assert (changed.returncode, "--force" in changed.stderr) == (
        3,
        True,
    ), "nor what was changed"
    other = run("apply", "model", "second", "--yarn", "4", "--beta-fast", "16")
    assert other.returncode == 1
    assert other.stderr.count("exists;") == 2, "what another command wrote is not taken"


def test_the_same_command_prints_the_same_check_of_what_transformers_does_not_compute(
    llama: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointPlan, "transformers_status", lambda self, version: "unsupported")
    given = ("apply", "model", "second", "--yarn", "4", "--runtime", "vllm")
    first = command(tmp_path, *given, code=0)
    again = command(tmp_path, *given, code=0)
    checks = re.findall("ropeconv validate .*", first.stdout)
    assert len(checks) == 2
    assert re.findall("ropeconv validate .*", again.stdout) == checks
    for done in (first, again):
        assert done.stdout.count("--server http://localhost:8000") == 2
        assert "Not checked" in done.stdout + done.stderr


def test_the_same_command_prints_no_check_of_a_source_that_does_not_load(
    llama: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("apply", "model", "second", "--yarn", "4")
    command(tmp_path, *given, code=0)
    monkeypatch.setattr(SourceCheck, "__call__", lambda self: "it does not load the source (why)")
    again = command(tmp_path, *given, code=0)
    assert again.stdout.count("Unchanged:") == 2
    assert "ropeconv validate" not in again.stdout + again.stderr


def test_the_same_command_keeps_what_another_transformers_does_not_compute(
    llama: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("apply", "model", "second", "--yarn", "4")
    command(tmp_path, *given, code=0)
    written = hashes(tmp_path / "model-yarn4")
    monkeypatch.setattr(CheckpointPlan, "transformers_status", lambda self, version: "ignored")
    again = command(tmp_path, *given, code=3)
    assert "nothing was kept" not in again.stderr
    assert hashes(tmp_path / "model-yarn4") == written
    command(tmp_path, *given, "--no-check", code=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("model", "model/", "--yarn", "4"),
            "model and model/ would both be written to model-yarn4",
        ),
        (("model", "second", "--yarn", "4", "-o", "a.gguf"), "-o a.gguf is one file"),
        (
            ("model", "second", "--yarn", "4", "--push", "me/x"),
            "--push publishes the output of one SOURCE",
        ),
        (
            ("model", "--to", "gguf", "--to", "safetensors", "--yarn", "4", "--push", "me/x"),
            "--push publishes one folder",
        ),
        (
            ("second", "a.gguf", "--to", "gguf", "--outtype", "q8_0", "--yarn", "4"),
            "a.gguf: a GGUF file keeps",
        ),
        (("a.gguf", "b.gguf", "--yarn", "4", "--in-place", "-o", "out"), "leave -o out"),
        (
            (
                "model",
                "model-yarn4",
                "--theta",
                "20000",
                "--replace",
                "--force",
                "-o",
                "model-theta",
            ),
            "",
        ),
    ],
)
def test_a_wrong_command_line_writes_nothing(
    arguments: tuple[str, ...],
    words: str,
    refuses: Refuses,
    llama: Path,
    second: Path,
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.gguf")
    write(tmp_path / "b.gguf")
    if not words:  # the output of the first would replace the second
        shutil.copytree(llama, tmp_path / "model-theta" / "model-theta20000")
        arguments = ("model", "model-theta/model-theta20000", *arguments[2:])
        words = "which is another SOURCE"
    refuses(2, words, "apply", *arguments)


def test_quantisations_go_into_one_repository_in_one_commit(
    process: Run, qwen2: Path, tmp_path: Path
) -> None:
    arguments = (
        "apply",
        "qwen2",
        "--yarn",
        "4",
        "--to",
        "gguf",
        "--outtype",
        "q8_0",
        "--outtype",
        "f16",
    )
    with serving_writes(tmp_path / "hub") as hub:
        environment = {**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"}
        shown = process(*arguments, "--push", "me/quants", "--dry-run", "--json", env=environment)
        assert shown.returncode == 0, shown.stderr
        uploads = json.loads(shown.stdout)["publication"]["uploads"]
        assert (
            len(
                [
                    upload
                    for upload in uploads
                    if upload["name"].endswith(".gguf") and upload["bytes"]
                ]
            )
            == 2
        )
        done = process(*arguments, "--push", "me/quants", env=environment)
        assert done.returncode == 0, done.stderr
        assert (
            done.stdout.splitlines()[-1] == f"{hub.url}/me/quants/commit/{hub.commit('me/quants')}"
        )
        assert len(hub.messages) == 1
        names = {name for name in _names(hub.repos["me/quants"]) if name.endswith(".gguf")}
        assert {name.rpartition("-")[2] for name in names} == {"Q8_0.gguf", "F16.gguf"}
        by = {
            GgufFile.open(path).get("general.quantized_by") for path in tmp_path.glob("*Q8_0.gguf")
        }
        assert by == {"me"}
        assert {
            GgufFile.open(path).get("general.quantized_by") for path in tmp_path.glob("*F16.gguf")
        } == {None}
        assert {path.read_bytes() for path in hub.repos["me/quants"].glob("*.gguf")} == {
            path.read_bytes() for path in tmp_path.glob("*.gguf")
        }


def test_a_batch_is_short_and_ends_with_one_summary(run: Run, tmp_path: Path) -> None:
    """Thirteen models, of which one is refused: two lines for each, what they share once, and the
    count last.
    """
    names = [f"m{number:02d}" for number in range(12)]
    for number, name in enumerate(names):
        make("llama", tmp_path / name, seed=number)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(
        '{"model_type": "gpt2", "n_embd": 64, "n_head": 4}'
    )
    given = ("apply", *names, "odd", "--yarn", "64", "-o", "long/")

    planned = run(*given, "--dry-run")
    assert planned.returncode == 1
    assert len(planned.stdout.splitlines()) <= 2 * 12 + 8
    assert re.search("12 of 13 outputs would .*refused: odd", planned.stderr)
    done = run(*given)
    assert done.returncode == 1
    assert len((done.stdout + done.stderr).splitlines()) <= 3 * 12 + 14
    assert done.stdout.count("Wrote ") == 12
    assert done.stderr.count("Fine-tun") == 1, "what holds for all is said once"
    assert done.stderr.count("ropeconv: odd") == 1
    assert (
        done.stderr.rstrip().splitlines()[-1]
        == "12 of 13 outputs were made, in long; refused: odd."
    )
    full = run(*given, "--explain", "--dry-run")
    assert full.stdout.count("Encodings") == 12, "with --explain each has all of it"


def test_a_note_of_some_names_them(run: Run, llama: Path, second: Path, tmp_path: Path) -> None:
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    done = run("apply", "model", "second", "--yarn", "1k")
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if "Fine-tun" in line]
    assert [note.partition(":")[0] for note in notes] == ["Note (model)"], (
        "16 times 64, and 4 times 256"
    )
    assert done.stderr.rstrip().splitlines()[-1].startswith("2 of 2 outputs")


def test_a_failure_of_a_run_is_not_a_refusal(
    run: Run, llama: Path, second: Path, tmp_path: Path
) -> None:
    """What an earlier run of the same command wrote was changed since, which only the run finds."""
    given = ("apply", "model", "second", "nowhere", "--yarn", "4")
    assert run(*given).returncode == 1
    weights = tmp_path / "second-yarn4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    done = run(*given)
    assert done.returncode == 3
    assert (
        done.stderr.rstrip().splitlines()[-1]
        == "1 of 3 outputs were made; refused: nowhere; failed: second."
    )


@pytest.mark.parametrize("sources", [("model",), ("model", "second")])
def test_a_dry_run_says_that_a_place_is_taken(
    sources: tuple[str, ...], run: Run, llama: Path, second: Path, tmp_path: Path
) -> None:
    (tmp_path / "model-yarn4").mkdir()
    (tmp_path / "model-yarn4" / "mine.txt").write_text("text")
    planned = run("apply", *sources, "--yarn", "4", "--dry-run")
    done = run("apply", *sources, "--yarn", "4")
    complaints = [
        [line for line in each.stderr.splitlines() if "exists" in line] for each in (planned, done)
    ]
    assert complaints[0] == complaints[1] != []
    assert (planned.returncode, done.returncode) == (1, 1)


def test_several_conversions_import_transformers_once(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layers of each are compared in the same process."""
    if not Probe.available():
        pytest.skip("transformers is not installed")
    pytest.importorskip("llama_cpp")
    started = []
    start = Probe.start

    def note_start(probe: Probe) -> None:
        started.append(probe)
        start(probe)

    compared = []

    def note_result(*given: Any) -> LayersRecord:
        compared.append(run_converted_layers(*given))
        return compared[-1]

    monkeypatch.setattr(Probe, "start", note_start)
    monkeypatch.setattr(baking, "run_converted_layers", note_result)
    words = ("apply", "qwen2", "--yarn", "4", "--to", "gguf", "--validate", "off", "-q")
    outtypes = ("--outtype", "f16", "--outtype", "f32", "-o", "out/")
    command(tmp_path, *words, *outtypes, code=0)
    assert len(started) == 1
    assert [result.reason for result in compared] == ["", ""]
