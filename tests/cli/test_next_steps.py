"""What a command prints to be run next works as printed, in the folder where it was printed."""

import json
import shutil
from pathlib import Path

import pytest

from ..models.test_meta import release
from ..support.graphs import small_graph
from ..support.in_process import command
from ..support.llamacpp import checkpoint
from ..support.models import make
from ..support.printed import printed_commands, run_line
from ..support.tiny_gguf import make as make_gguf

PLACES = {
    "FILE": "text.txt",
    "MODEL": "../data/model",
    "CHECKPOINT": "../data/model",
    "TARGET": "../data/model",
}
"""Words in capitals of printed lines, which the reader replaces."""

PRINTS = {
    "a checkpoint": "apply ../data/model --yarn 2",
    "a checkpoint for a runtime": "apply ../data/model --yarn 2 --runtime vllm",
    "a place of its own": "apply ../data/model --yarn 2 -o 'sub folder/longer one'",
    "without a method": "apply ../data/model --context 128",
    "far": "apply ../data/model --yarn 64",
    "far, to GGUF": "apply ../data/text --yarn 16 --to gguf --outtype f32 -o far.gguf",
    "nothing changed": "apply ../data/model --as-is",
    "frequencies of a file": "apply ../data/model --inv-freq frequencies.json --context 128",
    "several": "apply ../data/model ../data/text --yarn 2 -o several/",
    "two formats": "apply ../data/text --yarn 2 --to safetensors --to gguf --outtype f32",
    "GGUF": "apply ../data/file.gguf --yarn 2",
    "GGUF, far": "apply ../data/file.gguf --yarn 64",
    "GGUF of a diffusion model": "apply ../data/diffusion.gguf --yarn 2",
    "GGUF of an encoder": "apply ../data/encoder.gguf --yarn 64",
    "advice for GGUF of an encoder": "advise ../data/encoder.gguf --context 8k",
    "GGUF in place": "apply own.gguf --yarn 2 --in-place",
    "GGUF for Ollama": "apply ../data/file.gguf --yarn 2 --ollama",
    "from GGUF": "apply ../data/file.gguf --yarn 2 --to safetensors",
    "Meta's layout": "apply ../data/meta --ntk 2",
    "a draft": "apply ../data/model --yarn 2 --draft ../data/draft -o target",
    "an encoder": "apply ../data/encoder --yarn 2",
    "an encoder, far": "apply ../data/encoder --yarn 64",
    "further": "apply ../data/done --yarn 2 --on-top",
    "again": "apply ../data/done --yarn 4 --replace",
    "a source beside it": "apply beside --yarn 2",
    "a plan": "apply ../data/model --yarn 2 --dry-run",
    "a config": "apply ../data/model/config.json --yarn 2 -o config",
    "profiles": "profiles ../data/model base yarn:2 yarn:64",
    "profiles of GGUF": "profiles ../data/file.gguf base yarn:2",
    "a model": "inspect ../data/model",
    "a model with problems": "inspect ../data/stale",
    "an encoder with problems": "inspect ../data/encoder",
    "a folder without weights": "inspect ../data/bare",
    "a folder without weights, with problems": "inspect ../data/bare_stale",
    "a GGUF file": "inspect ../data/file.gguf",
    "an output": "inspect ../data/done --explain",
    "advice": "advise ../data/model --context 128",
    "advice for far": "advise ../data/model --context 8k",
    "a model of an unknown type": "inspect ../data/unknown --family llama",
    "advice for a model of an unknown type": "advise ../data/unknown --context 128 --family llama",
    "advice for a config": "advise ../data/model/config.json --context 128",
    "advice for GGUF": "advise ../data/file.gguf --context 8k",
    "advice for an encoder": "advise ../data/encoder --context 8k",
    "the same": "compare ../data/model ../data/done",
    "a graph": "inspect ../data/onnx",
    "a restored one": "restore ../data/done",
    "an unfit command": "apply ../data/done --yarn 2",
    "too far without a method": "apply ../data/model --context 8k",
    "no source": "validate ../data/alone",
    "a bound": "bound 8k",
    "the methods": "list methods",
    "the runtimes": "list runtimes",
    "the families": "list families",
    "a trainer": "train-config ../data/done --for trl",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models in a folder beside that of a command: no output is beside its source."""
    folder = tmp_path_factory.mktemp("world") / "data"
    folder.mkdir()
    checkpoint("llama", folder / "model")
    checkpoint("qwen3", folder / "text")
    checkpoint("llama", folder / "stale")
    make("modernbert", folder / "encoder")
    release(folder / "meta")
    make_gguf("llama", folder / "file.gguf")
    make_gguf("nomic-bert", folder / "encoder.gguf")
    make_gguf("llada", folder / "diffusion.gguf")
    small_graph(folder / "onnx")
    config = json.loads((folder / "stale" / "config.json").read_text())
    config["rope_scaling"] = {"type": "linear", "factor": 2.0}
    (folder / "stale" / "config.json").write_text(json.dumps(config))
    command(folder, "apply", "model", "--yarn", 2, "-q", "-o", "done", code=0)
    command(folder, "apply", "model", "--yarn", 2, "-q", "-o", folder.parent / "alone", code=0)
    shutil.copytree(folder.parent / "alone", folder / "alone")
    for name, whole in (("bare", "model"), ("bare_stale", "stale")):
        (folder / name).mkdir()
        shutil.copyfile(folder / whole / "config.json", folder / name / "config.json")
    shutil.copytree(folder / "model", folder / "unknown")
    unknown = json.loads((folder / "model" / "config.json").read_text())
    unknown["model_type"] = "nobody_knows_it"
    (folder / "unknown" / "config.json").write_text(json.dumps(unknown))
    draft = json.loads((folder / "model" / "config.json").read_text())
    shutil.copytree(folder / "model", folder / "draft")
    draft["max_position_embeddings"] = 32
    (folder / "draft" / "config.json").write_text(json.dumps(draft))
    return folder


@pytest.fixture
def here(data: Path, tmp_path: Path) -> Path:
    """A folder of the test's own with `../data` beside it."""
    folder = data.parent / tmp_path.name
    folder.mkdir()
    shutil.copyfile(data / "file.gguf", folder / "own.gguf")
    shutil.copytree(data / "model", folder / "beside")
    (folder / "sub folder").mkdir()
    (folder / "text.txt").write_text((Path(__file__).parents[2] / "LICENSE").read_text())
    (folder / "frequencies.json").write_text(
        json.dumps([10000.0 ** (-2 * pair / 64) / 2 for pair in range(32)])
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("line", PRINTS.values(), ids=PRINTS.keys())
def test_what_is_printed_runs_where_it_is_printed(here: Path, line: str) -> None:
    (first,) = run_line(here, f"ropeconv {line}")
    for printed in printed_commands(first.stdout + first.stderr):
        done = run_line(here, printed, PLACES)
        assert done[-1].returncode == 0, (printed, done[-1].stdout + done[-1].stderr)


def test_a_refusal_names_a_command_that_takes_the_model(here: Path) -> None:
    refusal = command(here, "inspect", "../data/unknown", code=1).stderr
    (printed,) = printed_commands(refusal)
    places = {**PLACES, "MODEL": "../data/unknown"}
    assert run_line(here, printed, places)[-1].returncode == 0


def test_advice_for_a_folder_without_weights_is_that_for_its_config(here: Path) -> None:
    screen = command(here, "inspect", "../data/bare", code=0).stdout
    (advise,) = printed_commands(screen)
    bake = run_line(here, advise)[-1].stdout
    assert "Bake:" in bake
    assert "cannot be written" not in bake
