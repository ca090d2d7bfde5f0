"""The commands that run an output fit what the file is."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from ropeconv.bake.fits import with_own_types
from ropeconv.bake.modelfile import modelfile_of, write_modelfile
from ropeconv.bake.next_steps import check_command, plan_purpose, run_commands, why_not_compared
from ropeconv.bake.plan import Plan
from ropeconv.bake.projector import find_projector, projector_path
from ropeconv.bake.quality import quality
from ropeconv.errors import UsageError
from ropeconv.inspection.memory.fit import find_fit
from ropeconv.inspection.memory.machine import given_memory
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.projector import projector_beside
from ropeconv.options import MachineOptions
from ropeconv.rope.errors import RopeconvError
from ropeconv.runtimes.llamacpp.archs import arch_table
from ropeconv.runtimes.llamacpp.purpose import STEPS, diffusion_schedule

from ..conftest import CONFIGS, Run
from ..support.baking import YARN, apply, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.gguf_files import close
from ..support.llamacpp import checkpoint
from ..support.models import make
from ..support.optional import of_features
from ..support.tiny_gguf import make as make_gguf

MEMORY = """
import sys, llama_cpp as llama
llama.llama_backend_init()
model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
settings = llama.llama_context_default_params()
settings.n_ctx = settings.n_batch = settings.n_ubatch = 64
context = llama.llama_init_from_model(model, settings)
print(bool(llama.llama_get_memory(context)), llama.llama_model_is_diffusion(model))
"""
"""Asks llama.cpp whether it makes a key-value cache, and whether it takes a model for a diffusion
model.
"""
WITHOUT_CACHE = arch_table().cacheless


def gguf_plan(path: Path, arch: str, **changes: object) -> Plan:
    return make_plan(make_gguf(arch, path / "model.gguf", **changes), YARN)


@pytest.mark.parametrize("arch", [*sample(WITHOUT_CACHE, 2), "llama-embed", "qwen3"])
def test_llama_cpp_has_no_cache_for_what_the_table_says(tmp_path: Path, arch: str) -> None:
    path = make_gguf(arch, tmp_path / "model.gguf")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        str(arch not in WITHOUT_CACHE),
        str(arch in arch_table().diffusion),
    ]
    assert (inspected(path).kv_cache is None) == (arch in WITHOUT_CACHE)


@pytest.mark.parametrize(
    ("arch", "changes", "flags"),
    [
        ("nomic-bert", {}, "--embeddings -c 256 -b 256 -ub 256"),
        ("modern-bert", {}, "--embeddings -c 256 -b 256 -ub 256"),
        ("gemma-embedding", {}, "--embeddings -c 256 -b 256 -ub 256"),
        ("qwen2", {"attention__causal": False}, "--embeddings -c 256 -b 256 -ub 256"),
        ("qwen3", {"pooling_type": 3}, "--embeddings -c 256 -b 256 -ub 256"),
        ("qwen3", {"pooling_type": 4}, "--rerank -c 256 -b 256 -ub 256"),
        ("qwen3", {"pooling_type": 0}, "-c 256"),
        ("llama", {"attention__causal": True}, "-c 256"),
    ],
)
def test_a_server_is_started_for_what_the_file_gives(
    tmp_path: Path, arch: str, changes: dict[str, object], flags: str
) -> None:
    """A text that is pooled has to fit into one physical batch: tools/server/README.md of
    llama.cpp.
    """
    plan = gguf_plan(tmp_path, arch, **changes)
    assert run_commands(plan, Path("out.gguf")) == [f"llama-server -m out.gguf {flags}"]


@pytest.mark.parametrize(
    ("arch", "schedule"), [("llada", "--diffusion-block-length 32"), ("dream", "--diffusion-eps")]
)
def test_a_diffusion_model_has_a_program_of_its_own(
    tmp_path: Path, arch: str, schedule: str
) -> None:
    plan = gguf_plan(tmp_path, arch)
    (line,) = run_commands(plan, Path("out.gguf"))
    assert line.startswith("llama-diffusion-cli -m out.gguf -c 256 -b 256 -ub 256 --diffusion")
    assert schedule in line
    assert plan.kv_cache is None
    assert run_commands(plan, Path("out.gguf"), Path("out.Modelfile")) == [line], (
        "Ollama does not run it"
    )
    # it has logits to compare, and no loss of a next token
    assert why_not_compared(plan) == ""
    assert quality(plan) == ""
    assert inspected(tmp_path / "model.gguf").encoder


@pytest.mark.parametrize("tokens", [64, 96, 4096, 16384, 131072, 100_000, 1_000_001])
def test_the_blocks_of_a_diffusion_model_divide_its_tokens_and_steps(tokens: int) -> None:
    """llama-diffusion-cli stops otherwise (GGML_ASSERT of examples/diffusion/diffusion.cpp)."""
    length = int(diffusion_schedule("llada", tokens).split()[1])
    assert tokens % length == 0
    assert STEPS % (tokens // length) == 0
    assert length >= 32


def test_an_encoder_is_served_as_one(tmp_path: Path) -> None:
    model = make("modernbert", tmp_path / "model")
    served = {
        name: run_commands(make_plan(model, YARN, runtimes=(name,)), Path("out"))
        for name in ("vllm", "sglang", "transformers")
    }
    assert served["vllm"] == ["vllm serve out --runner pooling --max-model-len 256"]
    assert served["sglang"] == ["sglang serve --model-path out --is-embedding --context-length 256"]
    assert "feature-extraction" in served["transformers"][0]


def test_the_program_of_an_encoder_runs(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = make("modernbert", tmp_path / "it's a model")
    words = Tokenizer(models.WordLevel({"Hello": 7, "[UNK]": 0}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]"
    ).save_pretrained(model)
    (line,) = run_commands(make_plan(model, YARN, runtimes=("transformers",)), model)
    line = line.replace("python ", f"{sys.executable} ", 1)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[[")


@pytest.mark.parametrize(
    ("name", "config", "purpose"),
    [
        ("modules.json", {}, "embedding"),
        ("notes.json", {}, "text"),
        ("notes.json", {"architectures": ["LlamaForSequenceClassification"]}, "ranking"),
    ],
)
def test_what_a_checkpoint_is_for_is_read_from_its_files(
    llama: Path, name: str, config: dict[str, object], purpose: str
) -> None:
    (llama / name).write_text("[]")
    stored = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(stored | config))
    assert plan_purpose(make_plan(llama, YARN)) == purpose


@pytest.mark.parametrize(
    ("runtime", "cache_type", "option"),
    [
        ("vllm", "fp8", " --kv-cache-dtype fp8"),
        ("sglang", "fp8", " --kv-cache-dtype fp8_e4m3"),
        ("vllm", "bfloat16", ""),
        ("vllm", "", ""),
    ],
)
def test_a_server_is_started_with_the_type_of_the_cache_that_the_user_named(
    llama: Path, runtime: str, cache_type: str, option: str
) -> None:
    plan = make_plan(llama, YARN, runtimes=(runtime,))
    plan = replace(plan, asked=MachineOptions(cache_type=cache_type))
    (line,) = run_commands(plan, Path("out"))
    assert line.endswith(f" 256{option}")


def test_mlx_lm_is_started_with_the_type_of_the_cache(llama: Path) -> None:
    plan = make_plan(llama, YARN, runtimes=("mlx-lm",))
    assert run_commands(plan, Path("out")) == ["mlx_lm.server --model out"]
    # without a name, it is the runtime that has the type
    plan = make_plan(llama, YARN)
    plan = replace(plan, asked=MachineOptions(cache_type="q8"))
    assert run_commands(plan, Path("out")) == ["mlx_lm.server --model out --kv-bits 8"]


@pytest.mark.parametrize("runtime", ["llama-cpp", "ik-llama-cpp"])
def test_llama_server_is_started_with_the_type_of_the_cache(tmp_path: Path, runtime: str) -> None:
    model = make_gguf("llama", tmp_path / "model.gguf")
    plan = make_plan(model, YARN, runtimes=(runtime,))
    plan = replace(plan, asked=MachineOptions(cache_type="q8_0"))
    (line,) = run_commands(plan, Path("out.gguf"))
    assert line == ("llama-server -m out.gguf -c 256 --cache-type-k q8_0 --cache-type-v q8_0")


# A projector for images beside a GGUF file


def projector(path: Path, width: int | None = 128, arch: str = "clip") -> Path:
    writer = gguf.GGUFWriter(path, arch)
    if width is not None:
        writer.add_uint32("clip.vision.projection_dim", width)
    close(writer)
    return path


def test_a_projector_stays_beside_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the command and in the Modelfile, whose paths are seen from its own folder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    make_gguf("llama", tmp_path / "data" / "model.gguf")
    plan = make_plan("../data/model.gguf", YARN, Path("out.gguf"))
    before = run_commands(plan, Path("out.gguf"))
    assert "mmproj" not in before[0], "the control"

    projector(tmp_path / "data" / "mmproj-model-f16.gguf")
    (line,) = run_commands(plan, Path("out.gguf"))
    assert line == "llama-server -m out.gguf --mmproj ../data/mmproj-model-f16.gguf -c 256"
    text = write_modelfile(plan).read_text()
    assert text == "FROM ./out.gguf\nFROM ../data/mmproj-model-f16.gguf\nPARAMETER num_ctx 256\n"


def test_the_files_of_a_modelfile_are_found_from_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    make_gguf("llama", tmp_path / "data" / "model.gguf")
    projector(tmp_path / "data" / "mmproj.gguf")
    (tmp_path / "data" / "Modelfile").write_text(
        "FROM ./model.gguf\nFROM ./mmproj.gguf\nADAPTER ./nothing.gguf\nPARAMETER num_ctx 64\n"
    )
    text = write_modelfile(
        make_plan(tmp_path / "data" / "Modelfile", YARN, tmp_path / "here" / "out.gguf")
    ).read_text()
    assert (
        text
        == "FROM ./out.gguf\nFROM ../data/mmproj.gguf\nADAPTER ./nothing.gguf\nPARAMETER num_ctx"
        " 256\n"
    )


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (
            "# mine\n\nFROM ./a b.gguf\nPARAMETER num_ctx 64\n",
            "# mine\n\nFROM ./out.gguf\nPARAMETER num_ctx 256\n",
        ),
        (
            'FROM "{folder}/a b.gguf"\r\nADAPTER ./my lora\r\nPARAMETER num_ctx "64"\r\n',
            'FROM "./out.gguf"\r\nADAPTER ../data/my lora\r\nPARAMETER num_ctx "256"\r\n',
        ),
        (
            'SYSTEM """\nFROM a\nPARAMETER num_ctx 4\n"""\nFROM ./a b.gguf\nFROM ./a b.gguf',
            'SYSTEM """\nFROM a\nPARAMETER num_ctx 4\n"""\nFROM ./out.gguf\nFROM ../data/a b.gguf'
            "\nPARAMETER num_ctx 256\n",
        ),
    ],
)
def test_a_modelfile_of_any_layout_names_the_output(
    tmp_path: Path, source: str, written: str
) -> None:
    folder = tmp_path / "data"
    (folder / "my lora").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    make_gguf("llama", folder / "a b.gguf")
    modelfile = folder / "Modelfile"
    modelfile.write_bytes(source.format(folder=folder).encode())
    plan = make_plan(modelfile, YARN, tmp_path / "here" / "out.gguf")
    path = write_modelfile(plan)
    assert path.read_bytes() == written.encode()

    # the Modelfile of an earlier output with another context is replaced
    path.write_bytes(written.replace("256", "512").encode())
    assert write_modelfile(plan).read_bytes() == written.encode()


@pytest.mark.parametrize(
    ("source", "name"),
    [("Modelfile", "out.gguf"), ("model.gguf", "o\u200but.gguf"), ("plain", "o\u200but.gguf")],
)
def test_a_modelfile_that_ollama_reads_otherwise_is_refused(
    tmp_path: Path, source: str, name: str
) -> None:
    make_gguf("llama", tmp_path / "model.gguf")
    (tmp_path / "Modelfile").write_text('FROM ./model.gguf\nSYSTEM "never closed\n')
    (tmp_path / "plain").write_text("FROM ./model.gguf\n")
    with pytest.raises(RopeconvError, match="Ollama"):
        modelfile_of(make_plan(tmp_path / source, YARN, tmp_path / name))


def test_an_adapter_of_another_architecture_than_the_output_is_refused(tmp_path: Path) -> None:
    make_gguf("qwen2", tmp_path / "model.gguf")
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM ./model.gguf\nADAPTER ./lora.gguf\n")
    carried = make_plan(modelfile, recipe_of("mixed", 4), tmp_path / "out.gguf")
    assert carried.result.arch == "llama", "the control"  # type: ignore[attr-defined]
    kept = make_plan(modelfile, YARN, tmp_path / "out.gguf")
    for adapter in (None, "qwen2"):
        if adapter is not None:
            projector(tmp_path / "lora.gguf", arch=adapter)
        with pytest.raises(UsageError, match="ADAPTER.*'qwen2'.*llama"):
            modelfile_of(carried)
        modelfile_of(kept)

    projector(tmp_path / "lora.gguf", arch="llama")
    modelfile_of(carried)
    with pytest.raises(UsageError, match="ADAPTER"):
        modelfile_of(kept)


def test_only_a_projector_for_the_model_is_taken(tmp_path: Path) -> None:
    plan = gguf_plan(tmp_path, "llama")
    projector(tmp_path / "mmproj-other.gguf", width=4096)
    projector(tmp_path / "mmproj-unknown.gguf", width=None)
    projector(tmp_path / "mmproj-lora.gguf", arch="llama")
    (tmp_path / "mmproj-damaged.gguf").write_bytes(b"GGUF")
    assert projector_beside(plan.source) is None
    projector(tmp_path / "mmproj-BF16.gguf")
    projector(tmp_path / "mmproj-F16.gguf")
    projector(tmp_path / "mmproj-F32.gguf")
    assert projector_beside(plan.source) == tmp_path / "mmproj-F16.gguf"


def test_a_projector_that_another_output_left_at_the_place_is_not_taken(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    plan = make_plan(source, YARN, tmp_path / "out.gguf", to="gguf")
    place = projector_path(plan)
    projector(place, width=4096)
    assert find_projector(plan) is None
    before = write_modelfile(plan).read_text()
    projector(place)
    assert find_projector(plan) == place
    after = write_modelfile(plan).read_text()
    assert (before.count("FROM"), after.count("FROM"), place.name in after) == (1, 2, True)

    # the Modelfile that names it is replaced too, where an output of another model follows
    projector(place, width=4096)
    assert write_modelfile(plan).read_text() == before


# How an output is checked


def test_the_source_is_named_where_it_is_not_found_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    source = make("llama", tmp_path / "data" / "model")
    elsewhere = make_plan("../data/model", YARN, Path("out"))
    beside = make_plan(str(source), YARN, tmp_path / "data" / "out")
    for plan in (elsewhere, beside):
        apply(plan)
    assert (
        check_command(elsewhere, elsewhere.out) == "ropeconv validate out --against ../data/model"
    )
    assert check_command(beside, beside.out) == f"ropeconv validate {tmp_path}/data/out"
    at_server = check_command(elsewhere, elsewhere.out, computed_here=False)
    assert (
        at_server == "ropeconv validate out --against ../data/model --server http://localhost:8000"
    )

    make("qwen2", tmp_path / "here" / "model")
    assert check_command(elsewhere, elsewhere.out).endswith("--against ../data/model"), (
        "another model of that name"
    )


@of_features
@pytest.mark.parametrize(
    ("factor", "labels"),
    [(4, ["Fits", "Quality", "Check", "Run"]), (64, ["Fits", "Quality", "Train", "Check", "Run"])],
)
def test_training_comes_before_serving(
    llama: Path, run: Run, factor: int, labels: list[str]
) -> None:
    lines = run("apply", "model", "--yarn", factor, code=0).stdout.splitlines()
    last = lines[-len(labels) :]
    assert [line.partition(":")[0] for line in last] == labels
    assert {len(re.match(r"\w+: +", line)[0]) for line in last} == {9}  # one below the other


def test_runtimes_that_were_not_asked_for_are_left_to_explain(llama: Path, run: Run) -> None:
    named = run("apply", "model", "--yarn", 4, "--runtime", "vllm", "--dry-run", code=0).stdout
    assert "vLLM" in named
    assert not any(name in named for name in ("candle", "SGLang", "mlx-lm"))
    unnamed = run("apply", "model", "--yarn", 4, "--dry-run", code=0).stdout
    assert "candle" not in unnamed
    assert "Others: wrong" in unnamed  # that there are some is said, and how many
    explained = run(
        "apply", "model", "--yarn", 4, "--dry-run", "--explain", "--runtime", "vllm", code=0
    ).stdout
    assert "candle" in explained


@pytest.mark.parametrize(
    ("runtime", "option"),
    [
        ("ollama", "OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1"),
        ("koboldcpp", "--quantkv 1 --flashattention"),
        ("lm-studio", "K and V Cache Quantization Type q8_0 in LM Studio"),
        ("ik-llama-cpp", "--cache-type-k q8_0 --cache-type-v q8_0"),
    ],
)
def test_each_runtime_of_gguf_files_is_given_the_types_of_the_cache_that_it_has(
    runtime: str, option: str
) -> None:
    shape = inspected(CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json").shape
    assert shape is not None
    fit = find_fit("llama-cpp", shape.with_weights(None), 1 << 20, given_memory("24GB"))
    assert fit.thrift is not None
    kept = with_own_types(fit, runtime, "").thrift
    assert kept is not None
    assert kept.option == option

    changed = replace(fit, thrift=replace(fit.thrift, cache_type="q5_1"))
    only_llama_server_has_it = runtime != "ik-llama-cpp"
    assert (with_own_types(changed, runtime, "").thrift is None) == only_llama_server_has_it
    if only_llama_server_has_it:
        with pytest.raises(UsageError, match="--cache-type q5_1"):
            with_own_types(fit, runtime, "q5_1")


def test_koboldcpp_is_started_with_its_own_option_for_the_cache(tmp_path: Path, run: Run) -> None:
    make_gguf("llama", tmp_path / "model.gguf")
    words = ("apply", "model.gguf", "--yarn", 4, "--runtime", "koboldcpp", "--cache-type", "q8_0")
    last = run(*words, code=0).stdout.splitlines()[-1]
    assert last.startswith("Run:")
    assert last.endswith("--quantkv 1 --flashattention")
    assert "--cache-type-k" not in last


def test_commands_name_the_length_that_was_typed_and_not_the_declared_one(
    tmp_path: Path, run: Run
) -> None:
    """Phi-3's class has no key for YaRN's attention factor, and derives it from a longer length."""
    make("phi3", tmp_path / "model")
    done = run("apply", "model", "--yarn", "8k", "--replace", "-o", "out", code=0)
    declared = json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"]
    assert declared > 8192  # without which this test shows nothing
    assert done.stdout.splitlines()[-1] == "Run:     vllm serve out --max-model-len 8192"
    assert f"{declared:,}" not in done.stdout.splitlines()[0]
    assert "8,192 tokens" in done.stdout
    trained = json.loads((tmp_path / "model" / "config.json").read_text())
    times = 8192 // trained["max_position_embeddings"]
    assert f"at {times} times" in done.stdout

    receipt = read_receipt(tmp_path / "out")
    assert (receipt.context, receipt.schedule.context) == (8192, declared)
    planned = run("apply", "model", "--yarn", "8k", "--replace", "--dry-run", "--json", code=0)
    assert json.loads(planned.stdout)["asked_context"] == 8192
    llama = make("llama", tmp_path / "llama")
    assert make_plan(llama, YARN).asked_context is None
    assert make_plan(llama, YARN).to_dict()["asked_context"] is None
