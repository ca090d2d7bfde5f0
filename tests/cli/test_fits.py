"""Whether a model fits, on the screens and in the documents of commands."""

import json
import shutil
from pathlib import Path

import pytest

from ropeconv.inspection.memory.runtime import MEMORY

from ..conftest import Run
from ..support.tiny_gguf import make as make_gguf
from .conftest import Refuses

GIB = 1 << 30


def test_inspect_plan_and_advise_say_whether_it_fits(run: Run, llama: Path) -> None:
    for command in (
        ("inspect", "model"),
        ("advise", "model", "--context", "256"),
        ("apply", "model", "--yarn", "4", "--dry-run"),
    ):
        lines = run(*command, "--memory", "1GB", code=0).stdout.splitlines()
        (answer,) = [line for line in lines if line.lower().startswith("fits")]
        assert "yes, " in answer
        small = run(*command, "--memory", "100KB", code=0).stdout
        assert "yes, " not in small


def test_json_has_the_parts_of_the_memory(run: Run, llama: Path) -> None:
    document = json.loads(run("inspect", "model", "--json", "--memory", "1GB", code=0).stdout)
    assert [row["runtime"] for row in document["memory"]] == [
        name for name, runtime in MEMORY.items() if runtime.format == "folder"
    ]
    planned = json.loads(
        run(
            "apply", "model", "--yarn", "4", "--dry-run", "--json", "--memory", "1GB", code=0
        ).stdout
    )
    memory = planned["memory"]
    assert memory["total"] == memory["weights"] + memory["kv_cache"] + memory["activations"]
    assert (memory["machine"]["bytes"], memory["fits"]) == (GIB, True)


def test_a_wrong_size_is_refused_before_anything_is_written(
    refuses: Refuses, llama: Path, tmp_path: Path
) -> None:
    refuses(2, "ropeconv: --memory 24XB: ", "apply", "model", "--yarn", "4", "--memory", "24XB")
    assert not (tmp_path / "model-yarn4").exists()


def test_the_last_lines_of_apply_are_one_below_the_other(run: Run, llama: Path) -> None:
    pytest.importorskip("transformers")
    done = run("apply", "model", "--yarn", "4", code=0)
    last = done.stdout.splitlines()[-4:]
    assert [line[:9] for line in last] == ["Fits:    ", "Quality: ", "Check:   ", "Run:     "]


def test_the_card_of_an_output_has_the_parts_of_the_memory(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    run("apply", "model", "--yarn", "4", "--memory", "1MB", code=0)
    card = (tmp_path / "model-yarn4" / "README.md").read_text("utf-8")
    (line,) = [line for line in card.splitlines() if line.startswith("- **Memory:**")]
    assert {"weights", "activations"} <= set(line.split())
    assert "1.0 MiB" not in line.partition(" in ")[2]  # another reader has another machine


def test_a_list_names_the_outputs_that_do_not_fit(run: Run, llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "other")
    command = ("apply", "model", "other", "--yarn", "4", "--dry-run")
    assert "Fits:" not in run(*command, code=0).stdout
    lines = run(*command, "--memory", "100KB", code=0).stdout.splitlines()
    assert [line[:9] for line in lines if line.startswith("Fits:")] == ["Fits: no,"] * 2


def test_the_type_of_the_cache_is_in_the_command_here_and_not_in_the_card(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    command = ("apply", "model", "--yarn", "4", "--runtime", "vllm", "--cache-type", "fp8")
    done = run(*command, code=0)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Run:")]
    assert line.endswith(" --kv-cache-dtype fp8")
    for path in (tmp_path / "model-yarn4").glob("*.*"):
        assert b"kv-cache-dtype" not in path.read_bytes()


@pytest.mark.parametrize(("memory", "answer"), [("1GB", "unknown"), ("10KB", "no,")])
def test_a_config_without_weights_has_an_answer_everywhere(
    run: Run, llama: Path, tmp_path: Path, memory: str, answer: str
) -> None:
    shutil.copy(llama / "config.json", tmp_path / "alone.json")
    for command in (
        ("inspect", "alone.json"),
        ("advise", "alone.json", "--context", "256"),
        ("apply", "alone.json", "--yarn", "4", "--dry-run"),
    ):
        lines = run(*command, "--memory", memory, code=0).stdout.splitlines()
        (line,) = [line for line in lines if line.lower().startswith("fits")]
        assert line.split()[1] == answer


def test_json_knows_that_the_cache_alone_is_too_large(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    shutil.copy(llama / "config.json", tmp_path / "alone.json")
    command = ("advise", "alone.json", "--context", "256", "--json", "--memory")
    for memory, fits in (("1GB", None), ("10KB", False)):
        document = json.loads(run(*command, memory, code=0).stdout)
        assert {row["fits"] for row in document["advice"]} == {fits}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--memory", "-5GB"),
        ("--memory", "2x24GB"),
        ("--cache-type", "q9_0"),
        ("--cache-type", "q8_0"),  # llama.cpp's, and the model is a checkpoint
    ],
)
def test_wrong_values_are_refused_before_anything_is_shown(
    refuses: Refuses, llama: Path, option: str, value: str
) -> None:
    words = f"ropeconv: {option} {value}: "
    for command in (
        ("inspect", "model"),
        ("advise", "model", "--context", "256"),
        ("apply", "model", "--yarn", "4", "--dry-run"),
    ):
        refuses(2, words, *command, option, value)


def test_a_type_that_no_runtime_has_is_refused_with_all_that_there_are(
    refuses: Refuses, llama: Path
) -> None:
    for command in (
        ("inspect", "model", "--explain"),
        ("inspect", "model", "--json"),
        ("apply", "model", "--yarn", "4", "--runtime", "vllm", "--dry-run"),
    ):
        refuses(2, "bfloat16, float16, float32, f16, ", *command, "--cache-type", "q9_0")


def test_a_runtime_that_has_the_type_of_the_cache_is_shown(run: Run, llama: Path) -> None:
    def last(*options: str) -> str:
        done = run("apply", "model", "--yarn", "4", "--dry-run", "--cache-type", *options, code=0)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("Fits:")]
        return line

    assert " in vLLM" in last("fp8")
    assert " in mlx-lm" in last("q8")  # vLLM, SGLang and transformers do not have it
    assert " in SGLang" in last("fp8", "--runtime", "sglang")


def test_a_type_of_another_format_is_refused_with_the_runtimes_that_have_it(
    refuses: Refuses, llama: Path
) -> None:
    refuses(2, "llama.cpp", "inspect", "model", "--cache-type", "q8_0")
    apply = ("apply", "model", "--yarn", "4", "--cache-type", "q8_0")
    refuses(2, "--to gguf", *apply)
    # who names a runtime learns its types
    refuses(2, "vLLM does not have it", *apply, "--runtime", "vllm")


def test_a_gguf_file_has_the_types_of_llama_cpp(run: Run, tmp_path: Path, refuses: Refuses) -> None:
    make_gguf("llama", tmp_path / "model.gguf")
    command = ("apply", "model.gguf", "--yarn", "4", "--dry-run", "--cache-type")
    assert " in llama.cpp" in run(*command, "q8_0", code=0).stdout
    refuses(2, "vLLM and SGLang", *command, "fp8")


def test_the_key_value_cache_has_one_size_on_a_screen(run: Run, llama: Path) -> None:
    plan = ("apply", "model", "--yarn", "4", "--dry-run")
    for command in (("advise", "model", "--context", "256"), plan):
        assert run(*command, code=0).stdout.count("KV cache") == 1
    # a runtime whose memory is not known
    (line,) = [
        line
        for line in run(*plan, "--runtime", "tgi", code=0).stdout.splitlines()
        if "KV cache" in line
    ]
    assert line.startswith("KV cache: ")
    assert run(*plan, "--explain", code=0).stdout.count("KV cache") > 1


@pytest.mark.parametrize("option", [("--ollama",), ("--runtime", "ollama"), ("--to", "ollama")])
def test_the_smaller_cache_of_ollama_is_set_in_the_environment_of_its_server(
    run: Run, tmp_path: Path, refuses: Refuses, option: tuple[str, ...]
) -> None:
    make_gguf("llama", tmp_path / "model.gguf")
    plan = ("apply", "model.gguf", "--yarn", "4", "--dry-run")

    def last(*options: str) -> str:
        lines = run(*plan, *options, code=0).stdout.splitlines()
        (line,) = [line for line in lines if line.startswith("Fits:")]
        return line

    document = json.loads(run(*plan, "--json", "--memory", "1GB", code=0).stdout)
    memory = document["memory"]
    # a file of another runtime keeps its option
    tight = f"{(memory['total'] - memory['kv_cache'] // 8) // 1024}KB"
    assert "--cache-type-k q8_0" in last("--memory", tight)
    assert "OLLAMA_KV_CACHE_TYPE=q8_0" in last("--memory", tight, *option)
    assert "--cache-type-k" not in last("--memory", tight, *option)

    chosen = ("--memory", "1GB", "--cache-type")
    assert "OLLAMA_KV_CACHE_TYPE=q8_0" in last(*chosen, "q8_0", *option)
    assert "OLLAMA" not in last(*chosen, "f16", *option)
    refuses(2, "Ollama does not have it", *plan, *chosen, "q5_1", *option)
