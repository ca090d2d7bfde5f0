"""Programs that people name for `--runtime`, in any spelling."""

import json
from pathlib import Path

import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.runtimes.gguf_readers import find_any, reader_names
from ropeconv.runtimes.programs import letters, program_of, programs
from ropeconv.runtimes.runtime import ALIASES, canonical, runtimes

from ..conftest import Run
from ..support.gguf_files import write

NAMES = sorted({row.name for row in runtimes()} | {*reader_names()})


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("LM Studio", "lm-studio"),
        ("lm_studio", "lm-studio"),
        ("LMSTUDIO", "lm-studio"),
        ("vLLM", "vllm"),
        ("v-llm@0.30", "vllm@0.30"),
        ("Llama.CPP", "llama-cpp"),
        ("llama cpp @ 2026.10", "llama-cpp@2026.10"),
        ("TensorRT-LLM", "tensorrt-llm"),
        ("trtllm", "tensorrt-llm"),
        ("mistral.rs", "mistralrs"),
        ("MLX", "mlx-lm"),
        ("MLX LM", "mlx-lm"),
        ("Text-Generation-Inference", "tgi"),
        ("MLC", "mlc-llm"),
        ("Jan", "llama-cpp"),
        ("GPT4All", "llama-cpp"),
        ("docker model runner", "llama-cpp"),
        ("oobabooga", "llama-cpp"),
        ("nobody", "nobody"),
    ],
)
def test_spellings(typed: str, name: str) -> None:
    assert canonical(typed) == name


@pytest.mark.parametrize("name", NAMES)
def test_every_name_means_itself(name: str) -> None:
    assert canonical(name) == canonical(name.upper().replace("-", " ")) == name
    assert program_of(name) is None


def test_names_are_told_apart_and_lead_to_runtimes() -> None:
    spelled = [letters(name) for program in programs() for name in (program.title, *program.also)]
    spelled += [
        letters(name)
        for name in (*NAMES, *ALIASES)
        if letters(name) not in map(letters, NAMES) or name in NAMES
    ]
    assert sorted(spelled) == sorted(set(spelled))
    assert set(ALIASES.values()) <= {*NAMES}
    for program in programs():
        assert sum(map(bool, (program.runs, program.hosts, program.nearest))) == 1, program.title
        assert {program.runs, program.nearest} - {""} <= {*NAMES}
        assert program.source.startswith("https://")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("LightLLM", "the nearest that is: vllm"),
        ("fast deploy", "the nearest that is: vllm"),
        ("xLLM", "the nearest that is: vllm"),
        ("oMLX", "mlx-lm and models with vision in mlx-vlm; name one"),
        ("TabbyAPI", "exllamav3; name one"),
        ("jan@0.6", "versions of Jan are not known; leave @0.6 out"),
        ("sglan", "did you mean sglang"),
        ("vllm@0.0.1", "this version is untested"),
        ("qqq", "unknown runtime; supported:"),
        ("vllm,sglang", "name each on its own, as in --runtime vllm --runtime sglang"),
        ("vllm llama.cpp", "as in --runtime vllm --runtime llama.cpp"),
        ("vllm,qqq", "unknown runtime"),
    ],
)
def test_what_is_answered(typed: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        find_any(typed)


def test_on_the_command_line(run: Run, tmp_path: Path, llama: Path) -> None:
    write(tmp_path / "m.gguf")
    done = run("apply", "m.gguf", "--yarn", "4", "--runtime", "GPT4All", "--dry-run")
    assert (done.returncode, "llama.cpp, whose support counts" in done.stderr) == (0, True)
    named = run("apply", "m.gguf", "--yarn", "4", "--runtime", "llama.cpp", "--dry-run")
    assert (named.stdout, "whose support counts" in named.stderr) == (done.stdout, False)
    refused = run("apply", "model", "--yarn", "4", "--runtime", "LightLLM", "--dry-run")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    document = json.loads(run("list", "runtimes", "--json").stdout)
    assert "Jan" in document["through_llama_cpp"]
    assert "LM Studio" in document["gguf_readers"]
    listed = run("list", "runtimes", "--runtime", "Jan")
    assert ("llama-cpp@" in listed.stdout, "vllm" in listed.stdout.split("Readers")[0]) == (
        True,
        False,
    )
    assert run("list", "runtimes", "--matrix", "--runtime", "LightLLM").returncode == 2
    reader = run("list", "runtimes", "--runtime", "LM Studio")
    assert (reader.returncode, "reads GGUF files" in reader.stderr) == (2, True)
