"""The examples of the help run, on small models of the names that they have."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from ropeconv.cli.app import all_commands, find
from scripts.readme_commands import make_checkpoint, make_gguf

from ..support.extent import sample
from ..support.in_process import command

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "--server": "a running server: tests/features/servers",
    "--push": "the Hub: tests/hub",
    "--text": "a text, for minutes: tests/features/evaluation/test_command.py",
    "--on": "Ray: tests/features/run/executors",
    "--draft": "an EAGLE head: tests/bake/test_companions.py",
    "--family": "another family: tests/models",
    "mlx-lm": "mlx-lm, which few machines have: tests/engines/test_runtime_probes.py",
    "result.json": "a result of eval: tests/features/evaluation/test_evidence_command.py",
    "items.jsonl.gz": "the numbers of an evaluation: tests/features/evaluation/test_evidence_command.py",
    "--measured": "a result of eval: tests/bake/test_advice.py",
    "--recipe": "a result of tune: tests/features/evaluation/tune",
    "--outtype": "a tokenizer: tests/convert/to_gguf",
    "model-F16.gguf": "a vocabulary: tests/convert/to_gguf/test_checkpoint.py",
    "model-Q4_K_M-yarn4.gguf": "a vocabulary: tests/validate/test_gguf_against_gguf.py",
    "my-lora": "an adapter: tests/features/compare/test_compatibility.py",
    "onnx": "a graph: tests/features/graphs/test_graphs.py",
    "calibration.txt": "a long text: tests/features/imatrix",
    "--save": "a type that ropeconv does not know: tests/features/derivation/test_derivation.py",
    "merge.yaml": "a YAML file of mergekit: tests/features/compare/test_compatibility.py",
    "plan.toml": "a plan file: tests/features/run",
    "HuggingFaceTB": "a trained model: tests/real_model",
    "push": "the Hub: tests/hub",
    "update-data": "a network: tests/features/updates",
    "ui": "a server that does not end: tests/features/ui",
    "vllm": "vLLM, which few machines have: tests/engines/test_runtime_probes.py",
}
"""Words of examples that need more than a small model, and where the tests of these are."""
OUTPUT = re.compile(r"(?P<source>.+?)-(?P<method>yarn|mixed)(?P<factor>\d+)(?P<suffix>\.gguf)?")


def examples() -> list[str]:
    """The commands in the help of all commands that a small model is enough for."""
    lines = [
        line
        for name in all_commands()
        for line in find(name).examples
        if line.startswith("ropeconv ")
    ]
    return [line for line in lines if not elsewhere(line)]


def elsewhere(line: str) -> str:
    """Where a command is tested that needs more than a small model; empty for others."""
    words = shlex.split(line)
    for word, place in ELSEWHERE.items():
        if (
            word in words
            or (word == "onnx" and "onnx" in line)
            or (word == "HuggingFaceTB" and word in line)
        ):
            return place
    return ""


def make_model(folder: Path, name: str) -> None:
    """Make the model or the output that a command names, where it is not there."""
    path = folder / name
    if path.exists() or name.endswith("config.json"):
        if not path.exists():
            make_model(folder, str(Path(name).parent))
        return
    output = OUTPUT.fullmatch(name)
    if output:
        source = output["source"] + (output["suffix"] or "")
        make_model(folder, source)
        command(
            folder, "apply", source, f"--{output['method']}", output["factor"], "-o", name, code=0
        )
    elif name.endswith(".gguf"):
        make_gguf(path)
    else:
        make_checkpoint(path)
    if "Llama-2" in name and (path / "config.json").exists() and not output:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))


def models_of(line: str) -> list[str]:
    """The models that a command names: its arguments that look like one, and the value of
    --against.
    """
    words = shlex.split(line)[2:]
    named = []
    for place, word in enumerate(words):
        value_of = words[place - 1] if place else ""
        is_value = value_of.startswith("-") and value_of != "--against"
        is_model = "/" in word or word.endswith(".gguf")
        if is_model and not is_value and not word.startswith("-"):
            named.append(word.removeprefix("./"))
    return named


def test_most_examples_run_here() -> None:
    assert len(examples()) >= 25


def test_the_tests_of_the_other_examples_are_there() -> None:
    places = [ROOT / place.rpartition(": ")[2] for place in ELSEWHERE.values()]
    assert [path for path in places if not path.exists()] == []


@pytest.mark.parametrize("line", sample(examples(), 4))
def test_an_example_of_the_help_runs(line: str, tmp_path: Path) -> None:
    words = shlex.split(line)[1:]
    if ">" in words:
        words = words[: words.index(">")]
    for name in models_of(line):
        make_model(tmp_path, name)
    if words[0] == "restore" and "--in-place" in words:
        command(tmp_path, "apply", words[1], "--yarn", "4", "--in-place", code=0)
    if words[0] == "restore" and "-o" in words:
        shutil.rmtree(
            tmp_path / words[words.index("-o") + 1]
        )  # the source is gone, which is why it is restored

    done = command(tmp_path, *words)
    expected = (0, 3) if "--exit-code" in words else (0,)
    assert done.returncode in expected, done.stderr
