"""What newcomers type first: each command works, or its answer has the command that does."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ..conftest import CONFIGS
from ..models.test_meta import release
from ..support.gguf_files import write
from ..support.in_process import command
from ..support.models import make

WORKS = {
    "look at a model": ("inspect model", "RoPE"),
    "look at a GGUF file": ("inspect small.gguf", "supported  llama.cpp, Ollama"),
    "extend it to a length, without a method": (
        "apply model --context 1k --original-context 512",
        "Wrote model-yarn1k",
    ),
    "Qwen2.5 to 128k": (
        "apply qwen.json --context 128k",
        "32,768 -> 131,072 tokens with --yarn 128k",
    ),
    "Qwen2.5 to 128k, for vLLM": (
        "apply qwen.json --context 128k --runtime vllm",
        "supported  vLLM",
    ),
    "for vLLM": (
        "apply model --yarn 4 --runtime vllm",
        "Run:     vllm serve model-yarn4 --max-model-len 256",
    ),
    "for a Mac": (
        "apply model --yarn 4 --runtime mlx",
        "Run:     mlx_lm.server --model model-yarn4",
    ),
    "a GGUF file": (
        "apply small.gguf --yarn 4",
        "Run:     llama-server -m small-yarn4.gguf -c 256",
    ),
    "a GGUF file itself": ("apply small.gguf --yarn 4 --in-place", "Changed small.gguf in place."),
    "for Ollama": (
        "apply small.gguf --yarn 4 --to ollama",
        "Run:     ollama create small-yarn4 -f small-yarn4.Modelfile",
    ),
    "for Ollama, by its runtime": (
        "apply small.gguf --yarn 4 --runtime ollama",
        "ollama create small-yarn4",
    ),
    "for Ollama, from a Modelfile": (
        "apply Modelfile --yarn 4 --ollama",
        "ollama create small-yarn4",
    ),
    "several models": ("apply model small.gguf --yarn 4 -q -o out/", "out/small-yarn4.gguf"),
    "three models, quietly": (
        "apply model qwen.json small.gguf --yarn 4 -q -o out/",
        "out/qwen-yarn4",
    ),
    "only look": ("apply model --yarn 4 --dry-run", "64 -> 256 tokens with --yarn 4"),
    "which method": ("advise model --context 256", "Bake:    ropeconv apply model --yarn 4"),
    "which method, without weights": (
        "advise qwen.json --context 128k",
        "Bake:    ropeconv apply qwen.json --yarn 4",
    ),
    "how large a base": ("bound 128k", "smallest base"),
    "trained with another base": ("apply model --theta 5e6", "Wrote model-theta5000000"),
    "factors of LongRoPE": (
        "apply model --longrope factors.json --context 256",
        "Wrote model-longrope",
    ),
    "without copies": ("apply model --yarn 4 --link", "Wrote model-yarn4"),
    "the frequencies": ("plot model --yarn 4", "divided by"),
    "what changed": ("compare model model", "They compute the same RoPE."),
    "what there is": ("list methods", "--yarn"),
    "which models": ("list families", "it runs on custom code in its own repository"),
    "a factor in the weights": (
        "apply model --yarn 4 --encoding weights --explain",
        "The attention factor is in 2 tensors (k), the config has none.",
    ),
    "scaled queries": ("inspect scout.json --explain", "on the layers that do not rotate"),
    "for a program": ("apply model --yarn 4 --json", '"context": 256'),
    "undo": ("restore done", "Wrote model-restored"),
    "another factor after all": ("apply done --yarn 8 --replace", "with --yarn 8"),
    "further": ("apply done --yarn 2 --on-top", "256 -> 512 tokens"),
    "does it work, far from its source": ("validate elsewhere/done --quick", "PASS"),
    "does it work": ("validate done --quick", "PASS"),
    "train it, Axolotl": ("train-config done --for axolotl", "sequence_len: 256"),
    "train it, TRL": ("train-config done --for trl", "max_length=256"),
    "train it, LLaMA-Factory": ("train-config done --for llama-factory", "cutoff_len: 256"),
    "train it, Unsloth": ("train-config done --for unsloth", "max_seq_length=256"),
    "what would be published": ("push done me/x --dry-run", "Repository me/x (new, public)"),
    "publish at once, only look": (
        "apply model --yarn 4 --push me/x --dry-run",
        "Repository me/x (new, public)",
    ),
    "a mixture of experts": ("apply mixtral.json --yarn 4 --dry-run", "32,768 -> 131,072 tokens"),
    "a vision model": ("inspect qwen-vl.json", "family      qwen2_5_vl"),
    "a quantised model": (
        "apply gptq.json --yarn 4 --dry-run",
        "supported    transformers 4.56-5.24, vLLM",
    ),
    "a model of mlx": ("apply mlx.json --yarn 4 --dry-run --runtime mlx", "supported  mlx-lm"),
    "windows": ("apply mistral.json --yarn 4 --dry-run", "(sliding window)"),
    "Meta's own files": ("apply meta --yarn 4", "Wrote meta-yarn4"),
    "an unknown family of interleaved pairs, with the family of the answer": (
        "inspect interleaved.json --family cohere",
        "family     cohere",
    ),
    "yarn by hand": ("inspect hand.json", "write the length that it was trained on"),
    "two kinds of layers": ("inspect gemma3.json", "see 512 tokens (sliding window)"),
    "Llama 3.1 to 256k": (
        "apply llama31.json --llama3 256k --replace --dry-run",
        "131,072 -> 262,144 tokens",
    ),
    "code of the checkpoint": ("inspect own-code.json", "config.json can make a runtime run code"),
    "weights in two formats": ("inspect both", "No problems found."),
    "AWQ": ("apply awq.json --yarn 4 --dry-run", "unsupported  llama.cpp"),
    "a tokenizer with a limit": ("apply both --yarn 4 --explain", "tokenizer_config.json"),
    "for Ollama, before anything is written": (
        "apply small.gguf --yarn 4 --ollama --dry-run",
        "Would write small-yarn4.Modelfile",
    ),
    "whether it will still be good": ("apply model --yarn 4 --dry-run", "Quality: loss -"),
    "pickled weights": ("apply pickled --yarn 4 --dry-run", "Would write pickled-yarn4"),
    "a family that is not known": (
        "apply unknown.json --yarn 4 --family qwen2 --dry-run",
        "The model is treated as qwen2",
    ),
    "many models, an example": ("run --help", 'recipes = ["yarn:4"]'),
    "many models": ("run plan.toml --dry-run", "1 unit of 1 source to run"),
}
ANSWERED = {
    "aply model --yarn 4": "use `ropeconv apply`",
    "frobnicate": "`ropeconv --help` lists them",
    "apply model --yarn 4 --push me/x --exist-ok": "--exist-ok is an option of `ropeconv push`",
    "apply model --yarn 4 --qqq": "`ropeconv apply --help-all` lists them",
    "apply model --yarn 4 --quantize q4_k_m": "there is no option --quantize; use --outtype",
    "apply model --rope-theta 1e6": "use --theta",
    "apply model -c 4096": "there is no option -c; use --context",
    "inspect --model x": "use `ropeconv inspect MODEL`",
    "--yarn 4 model": "there is no option --yarn before a command",
    "list method": "use `ropeconv list methods`",
    "push out": "Missing argument 'OWNER/NAME'",
    "eval model --windows 0 --text x": "'0' should be greater than or equal to 1",
    "eval model --windows many --text x": "'many' should be a valid integer",
    "evaluate model": "there is no command 'evaluate'; use `ropeconv eval`",
    "fits model": "there is no command 'fits'; use `ropeconv inspect`",
    "undo model": "there is no command 'undo'; use `ropeconv restore`",
    "runtimes model": "there is no command 'runtimes'; use `ropeconv list runtimes`",
    "schedule model": "there is no command 'schedule'; use `ropeconv plot`",
    "verify model": "there is no command 'verify'; use `ropeconv validate`",
    "validate": "ropeconv: Missing argument 'BAKED': ",
    "apply": "ropeconv: Missing argument 'SOURCE': A folder",
    "apply --model model --yarn 4": "use `ropeconv apply MODEL`",
    "model --yarn 4": "there is no command 'model'; use `ropeconv apply MODEL`",
    "list me/model": "there is no command 'me/model'; `ropeconv list --help` lists them",
    "ui --model x": "there is no option --model; `ropeconv ui --help-all` lists them",
    "apply model -yarn 4": "there is no option -yarn; did you mean --yarn?",
    "apply model -yarn=4": "there is no option -yarn; did you mean --yarn?",
    "validate out model": "name its source with --against, as in --against model",
    "apply model --yarm 4": "there is no option --yarm; did you mean --yarn?",
    "apply model --yarn 4 --contxt 8k": "there is no option --contxt; did you mean --context?",
    "apply model --yarn 4 --allow-requantize": "`ropeconv apply --help-all` lists them",
    "apply model --yarn 4 --no-validate": "there is no option --no-validate; use --validate off",
    "validate model --no-validate": "`ropeconv validate --help-all` lists them",
    "help": "use `ropeconv --help`",
    "eval model --output r.json": "use -o",
    "ui --quantize q8_0": "there is no option --quantize; `ropeconv ui --help-all` lists them",
    "apply model --context 128k": "pass --yarn 128k",
    "apply model --context 300": "--yarn 4 --context 300",
    "apply model --yarn 4 --runtime ollama": "add --to gguf",
    "apply nowhere --yarn 4": "give a path, or owner/name",
    "apply done --yarn 8": "pass --replace",
    "apply llama31.json --yarn 256k": "pass --on-top",
    "apply adapter --yarn 4": "bake its base model ('model'), and load the adapter on the result",
    "restore hand.json": "give the folder `apply` made",
    "apply unknown.json --yarn 4": "--family qwen2",
    "apply interleaved.json --yarn 4": "'new' is not supported",
    "apply model --as-is --to gguf --outtype q4_k_m": "fetch the tokenizer",
    "apply Quen/Qwen3-8B --yarn 4": "is not in the cache and HF_HUB_OFFLINE is set",
    "advise model": "Missing option '--context'",
    "push done": "Missing argument 'OWNER/NAME'",
    "plot model yarn:4": "(yarn:4); `ropeconv plot --help` shows what it accepts",
    "apply model -c 512": "use --context",
    "apply model --yarn 4 --target vllm": "use --runtime",
    "validate done --source model": "use --against",
    "version": "use `ropeconv --version`",
    "eval model yarn:4": "--text",
    "validate model": "give the folder `apply` made",
    "validate changed": "run apply again",
    "push done me/x": "check your connection",
}


def config(folder: Path, name: str, file: str, **changes: Any) -> None:
    """Writes the config of a published model, with changes."""
    published = json.loads((CONFIGS / file).read_text())
    (folder / f"{name}.json").write_text(json.dumps(published | changes))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, an output of it, a changed one, one that is not beside its source, a GGUF file,
    and configs.
    """
    folder = tmp_path_factory.mktemp("stories")
    make("llama", folder / "model")
    release(folder / "meta")
    write(folder / "small.gguf")
    (folder / "Modelfile").write_text("FROM ./small.gguf\nPARAMETER num_ctx 64\n")
    for name in ("done", "changed", "elsewhere/done"):
        (folder / name).parent.mkdir(exist_ok=True)
        command(folder, "apply", "model", "--yarn", 4, "-q", "-o", name, code=0)
    with (folder / "changed" / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x77")
    (folder / "pickled").mkdir()
    shutil.copy(folder / "model" / "config.json", folder / "pickled")
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"")
    shutil.copytree(folder / "model", folder / "both")
    (folder / "both" / "pytorch_model.bin").write_bytes(b"")
    (folder / "both" / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "model"}')
    (folder / "factors.json").write_text(
        json.dumps({"short_factor": [1.0] * 32, "long_factor": [2.0] * 32})
    )
    (folder / "plan.toml").write_text(
        'sources = ["model"]\nrecipes = ["yarn:4"]\ntasks = ["apply"]\ntargets = [{}]\n'
    )
    qwen = "Qwen--Qwen2.5-7B-Instruct.json"
    config(folder, "qwen", qwen)
    config(folder, "hand", qwen, rope_scaling={"type": "yarn", "factor": 4.0})
    config(folder, "gptq", qwen, quantization_config={"quant_method": "gptq", "bits": 4})
    config(folder, "awq", qwen, quantization_config={"quant_method": "awq"})
    config(folder, "own-code", qwen, auto_map={"AutoModelForCausalLM": "modeling_x.X"})
    config(folder, "mlx", qwen, quantization={"group_size": 64, "bits": 4})
    config(folder, "unknown", qwen, model_type="supernew", architectures=["SuperNewForCausalLM"])
    config(
        folder,
        "interleaved",
        "CohereForAI--aya-23-8B.json",
        model_type="new",
        architectures=["NewForCausalLM"],
    )
    config(folder, "qwen-vl", "Qwen--Qwen2.5-VL-7B-Instruct.json")
    config(folder, "mixtral", "mistralai--Mixtral-8x7B-v0.1.json")
    config(folder, "mistral", "mistralai--Mistral-7B-v0.1.json")
    config(folder, "gemma3", "google--gemma-3-1b-it.json")
    config(folder, "scout", "meta-llama--Llama-4-Scout-17B-16E-Instruct.first.json")
    config(folder, "llama31", "meta-llama--Meta-Llama-3.1-8B.json")
    return folder


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    """A copy of the models, which are small."""
    return Path(shutil.copytree(models, tmp_path / "here"))


@pytest.mark.parametrize("story", list(WORKS))
def test_the_first_command_works(folder: Path, story: str) -> None:
    words, answer = WORKS[story]
    done = command(folder, *words.split(), code=0)
    assert answer in done.stdout + done.stderr


@pytest.mark.parametrize("words", list(ANSWERED))
def test_the_answer_has_the_command_that_works(folder: Path, words: str) -> None:
    done = command(folder, *words.split())
    assert (done.returncode in (1, 2, 3), ANSWERED[words] in done.stderr) == (
        True,
        True,
    ), done.stderr
    assert done.stderr.splitlines()[-1].startswith("ropeconv: ")


def test_an_agreeing_validation_fits_15_lines_of_80_columns(folder: Path) -> None:
    stdout = command(folder, "validate", "done", code=0).stdout
    assert sum(max(1, math.ceil(len(line) / 80)) for line in stdout.splitlines()) <= 15, stdout
