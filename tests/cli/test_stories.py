"""What newcomers type first: each command works, or its answer has the command that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.gguf_files import write
from ..support.in_process import command

WORKS = {
    "look at a model": ("inspect model", "RoPE"),
    "extend it to a length, without a method": (
        "apply model --context 1k --original-context 512",
        "Wrote model-yarn1k",
    ),
    "for vLLM": ("apply model --yarn 4 --runtime vllm", "Next: vllm serve model-yarn4 --max-model-len 256"),
    "for a Mac": ("apply model --yarn 4 --runtime mlx", "Next: mlx_lm.server --model model-yarn4"),
    "a GGUF file": ("apply small.gguf --yarn 4", "Next: llama-server -m small-yarn4.gguf -c 256"),
    "for Ollama": ("apply small.gguf --yarn 4 --to ollama", "Next: ollama create small-yarn4 -f small-yarn4.Modelfile"),
    "for Ollama, by its runtime": ("apply small.gguf --yarn 4 --runtime ollama", "ollama create small-yarn4"),
    "several models": ("apply model small.gguf --yarn 4 -q -o out/", "out/small-yarn4.gguf"),
    "only look": ("apply model --yarn 4 --dry-run", "64 -> 256 tokens with --yarn 4"),
    "which method": ("advise model --context 256", "Bake:    ropeconv apply model --yarn 4"),
    "the frequencies": ("plot model --yarn 4", "divided by"),
    "what changed": ("compare model model", "They compute the same RoPE."),
    "what there is": ("list methods", "--yarn"),
}
ANSWERED = {
    "undo model-yarn4": "use `ropeconv restore`",
    "runtimes": "use `ropeconv list runtimes`",
    "verify model-yarn4": "use `ropeconv validate`",
    "apply model": "such as --yarn 4, or a length, such as --context 128k",
    "apply model --context 128k": "name a method, such as --yarn 128k",
    "apply model --context 300": "not a multiple of 1k",
    "apply model --yarn 4 --runtime ollama": "add --to gguf",
    "apply model --yarn 4 --ntk 4": "choose one",
    "apply model --yarn 4x": "a factor such as 4, or a length such as 128k",
    "apply nowhere --yarn 4": "give a path, or owner/name",
    "advise model": "Missing option '--context'",
    "validate model": "Missing option '--against'",
    "train-config model --for trl": "run `ropeconv apply` first",
    "restore model": "give the folder `apply` made",
}


@pytest.fixture
def folder(llama: Path) -> Path:
    """A folder with a checkpoint and a GGUF file."""
    write(llama.parent / "small.gguf")
    return llama.parent


@pytest.mark.parametrize("story", list(WORKS))
def test_the_first_command_works(folder: Path, story: str) -> None:
    words, answer = WORKS[story]
    assert answer in command(folder, *words.split(), code=0).stdout


@pytest.mark.parametrize("words", list(ANSWERED))
def test_the_answer_has_the_command_that_works(folder: Path, words: str) -> None:
    done = command(folder, *words.split())
    assert (done.returncode in (1, 2), ANSWERED[words] in done.stderr) == (True, True), done.stderr
    assert done.stderr.count("\n") == 1
