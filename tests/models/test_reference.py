"""What people type for a model: pages of the Hub, Modelfiles, adapters, folders of GGUF files,
pickled weights.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ropeconv.cli.process import explain_failure
from ropeconv.errors import BadSource
from ropeconv.models.modelfile import parse_modelfile
from ropeconv.models.open import open_source
from ropeconv.models.reference import modelfile_in, resolve_reference

from ..conftest import Run, hashes
from ..support.baking import YARN, apply, inspected, make_plan, recipe_of, validate
from ..support.gguf_files import write
from ..support.hub_server import Hub, serving, talk_to

PAGES = {
    "https://huggingface.co/Qwen/Qwen3-8B": "Qwen/Qwen3-8B",
    "huggingface.co/Qwen/Qwen3-8B?library=transformers": "Qwen/Qwen3-8B",
    "https://hf.co/Qwen/Qwen3-8B/tree/main": "Qwen/Qwen3-8B",
    "https://huggingface.co/Qwen/Qwen3-8B/tree/refs%2Fpr%2F3": "Qwen/Qwen3-8B@refs/pr/3",
    "https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json": "Qwen/Qwen3-8B",
    "https://huggingface.co/me/m-GGUF/blob/main/m-Q8_0.gguf": "me/m-GGUF/m-Q8_0.gguf",
    "https://huggingface.co/me/m-GGUF/resolve/v1/q/m.gguf?download=true": "me/m-GGUF@v1/q/m.gguf",
}
OTHERS = (
    "Qwen/Qwen3-8B",
    "./folder",
    "hf://Qwen/Qwen3-8B",
    "https://example.com/Qwen/Qwen3-8B",
    "https://huggingface.co.evil.com/a/b",
    "https://huggingface.co/datasets/a/b",
)


@pytest.mark.parametrize(("typed", "taken"), [*PAGES.items(), *zip(OTHERS, OTHERS, strict=True)])
def test_pages_of_the_hub(typed: str, taken: str) -> None:
    assert resolve_reference(typed) == taken


@pytest.mark.parametrize(
    "typed",
    [
        "a/..",
        "a/b@..",
        "a/b@../../c",
        "a/b/../c.gguf",
        "a/b@v/../c.gguf",
        "a/b//c.gguf",
        "a/b@v/./c.gguf",
        "hf://a/..",
        "a--b/c",
        "a/b.git",
        f"a/{'b' * 97}",
        "https://huggingface.co/a/b/tree/..%2F..",
        "https://huggingface.co/a/b/blob/..%2F../c.gguf",
        "https://hf.co/a/b/resolve/main/../c.gguf",
    ],
)
def test_what_the_hub_cannot_have_is_a_sentence(typed: str) -> None:
    with pytest.raises(BadSource, match="not an address"):
        open_source(typed)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (
            "https://example.com/m.gguf",
            "is not the address of a model on huggingface.co; download it",
        ),
        ("https://huggingface.co/datasets/a/b", "is not the address of a model"),
        ("hf.co/me/m-GGUF:Q4_K_M", "give the file itself, me/m-GGUF/FILE-Q4_K_M.gguf"),
        ("me/m-GGUF:Q4_K_M", "give the file itself, me/m-GGUF/FILE-Q4_K_M.gguf"),
    ],
)
def test_what_is_not_on_the_hub_is_a_sentence(typed: str, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        open_source(typed)


def test_a_modelfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "no store"))
    file = tmp_path / "Modelfile"
    write(tmp_path / "m.gguf")
    file.write_text("# mine\nFROM ./m.gguf\nPARAMETER num_ctx 64\n")
    assert resolve_reference(str(file)) == str(tmp_path / "m.gguf")
    assert open_source(str(file)).kind == "gguf"
    file.write_text("from hf.co/me/m\n")
    assert resolve_reference(str(file)) == "me/m"
    for text, words in (
        (
            "FROM llama3.2\n",
            r"is FROM 'llama3\.2', which is not a file next to it.*`ollama pull llama3\.2`",
        ),
        ("PARAMETER num_ctx 64\n", "has no FROM line"),
    ):
        file.write_text(text)
        with pytest.raises(BadSource, match=words):
            resolve_reference(str(file))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("# mine\n\n\nFROM ./m.gguf\n", ["./m.gguf"]),
        ("\ufeffFROM ./m.gguf\r\n\r\nADAPTER ./a.gguf\r\n", ["./m.gguf", "./a.gguf"]),
        ("FROM ./m.gguf\rADAPTER a.gguf", ["./m.gguf", "a.gguf"]),
        ("\tfrom  /My Disk/a b.gguf \t\n", ["/My Disk/a b.gguf"]),
        ('FROM "./a b.gguf "\n', ["./a b.gguf "]),
        ('FROM """./m.gguf"""\nSYSTEM """\nFROM other\n"""\n', ["./m.gguf", "\nFROM other\n"]),
        ('SYSTEM "one\n\nFROM two"\nFROM ./m.gguf', ["one\n\nFROM two", "./m.gguf"]),
        ('MESSAGE user """"a\nb""""\nFROM x\n', ['"a\nb"', "x"]),
        ('FROM m"\nPARAMETER stop "<|a|>"\nPARAMETER num_ctx 4\n', ['m"', "<|a|>", "4"]),
        ("FROM m # x\n", ["m # x"]),
        ("FROM a\u200bb \u200b\nADAPTER c", ["ab", "c"]),  # Ollama drops what is not printable
        ("# nothing", []),
        ("", []),
    ],
)
def test_commands_of_a_modelfile_are_those_that_ollama_reads(text: str, values: list[str]) -> None:
    parsed = parse_modelfile(text)
    assert ([command.value for command in parsed.commands], parsed.fault) == (values, "")
    for command in parsed.commands:
        assert text[command.start :].upper().startswith(command.name)
        written = text[command.value_start : command.value_stop]
        assert written.replace("\u200b", "") == command.value


@pytest.mark.parametrize(
    "rest", ['TEMPLATE """never closed\n', "FROM:n\nFROM o\n", "PARAMETER num_ctx\n", "FROM", '"']
)
def test_a_modelfile_is_read_up_to_its_fault(rest: str) -> None:
    parsed = parse_modelfile(f"FROM m\r\n\r\n{rest}")
    assert [command.value for command in parsed.commands] == ["m"]
    assert "line 3" in parsed.fault


@pytest.mark.parametrize(
    "text",
    [
        "FROM ./a b.gguf\r\nPARAMETER num_ctx 64\r\n",
        '# mine\n\nfrom "a b.gguf"',
        'LICENSE """\nFROM nothing\n"""\nFROM {folder}/a b.gguf\n',
    ],
)
def test_a_modelfile_with_another_layout_is_found(tmp_path: Path, text: str) -> None:
    model = write(tmp_path / "a b.gguf")
    file = tmp_path / "mine.txt"
    file.write_bytes(text.format(folder=tmp_path).encode())
    assert resolve_reference(str(file)) == str(model)
    assert open_source(str(file)).kind == "gguf"


def test_a_sentence_is_not_a_modelfile(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("From " + "the authors of this model " * 40 + "\n")
    assert modelfile_in(str(file)) is None


def test_an_adapter_names_its_base_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "Qwen/Qwen3-8B"})
    )
    with pytest.raises(BadSource, match=r"PEFT adapter.*\('Qwen/Qwen3-8B'\)"):
        open_source(str(tmp_path)).config()
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(BadSource, match="does not name"):
        open_source(str(tmp_path)).config()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "model_index.json",
            '{"_class_name": "WanPipeline"}',
            "is a pipeline of diffusers; image and video models",
        ),
        (
            "config.json",
            '{"_class_name": "FluxTransformer2DModel"}',
            "'FluxTransformer2DModel' in diffusers; image and",
        ),
        (
            "config.json",
            '{"_class_name": "WanModel", "model_type": "t2v"}',
            "'WanModel' in diffusers; image and",
        ),
        ("config.json", "{}", "has no model_type"),
    ],
)
def test_a_model_of_images_is_told_from_a_config_that_lacks_a_key(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadSource, match=words):
        open_source(str(tmp_path)).family()


@pytest.mark.parametrize(
    "tensor", ["model.diffusion_model.double_blocks.0.img_mod.weight", "patch_embedding.weight"]
)
def test_a_video_model_in_a_single_file(tensor: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({tensor: np.zeros(2, np.float32)}, file)
    with pytest.raises(BadSource, match="image or video"):
        open_source(str(file))
    save_file({"model.layers.0.self_attn.q_proj.weight": np.zeros(2, np.float32)}, file)
    with pytest.raises(BadSource, match="give the folder"):
        open_source(str(file))


def test_pickled_weights_are_copied_where_only_the_config_changes(
    llama: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)  # more cost more than they save in models of two layers
    torch.save(load_file(llama / "model.safetensors"), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    assert (out / "pytorch_model.bin").read_bytes() == (llama / "pytorch_model.bin").read_bytes()
    with pytest.raises(
        BadSource, match=r"pytorch_model\.bin is a pickle, .*pass --trust-remote-code"
    ):
        validate(out, llama, device="cpu", tokens=64)
    assert validate(out, llama, device="cpu", tokens=64, trust_remote_code=True).agrees
    for encoding in ("weights", "buffers"):
        words = (
            r"only as pickle \(pytorch_model\.bin\), .*pass --encoding native or factors, or load"
            r" it once"
        )
        with pytest.raises(BadSource, match=words):
            make_plan(llama, YARN, tmp_path / "other", encoding=encoding)


# Checkpoints on the Hub, through the real client and the real command line


MODEL = "model.safetensors"


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with one Llama, with its weights in two formats, which this process and commands talk
    to.
    """
    (llama / "pytorch_model.bin").write_bytes(b"x" * 10_000)
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    with serving() as running:
        running.repos["me/tiny"] = llama
        talk_to(running, tmp_path / "home" / "hub", monkeypatch)
        yield running


Done = CompletedProcess[str]


@pytest.fixture
def online(process: Run, hub: Hub, tmp_path: Path) -> Callable[..., Done]:
    """The command line with that Hub, in the folder of the test. more: of the environment."""

    def start(*arguments: str, **more: str) -> Done:
        return process(*arguments, env={**hub.environment(tmp_path / "home"), **more})

    return start


def test_planning_fetches_only_small_files(online: Callable[..., Done], hub: Hub) -> None:
    plan = json.loads(online("apply", "me/tiny", "--yarn", "4", "--dry-run", "--json").stdout)
    assert plan["source"] == {
        "reference": "me/tiny",
        "kind": "hub",
        "commit": hub.commit("me/tiny"),
    }
    assert (plan["out"], plan["skipped"]) == ("tiny-yarn4", ["pytorch_model.bin"])
    assert set(hub.sent) == {"config.json", "generation_config.json", "tokenizer_config.json"}


def problems(reference: str) -> list[dict[str, Any]]:
    return list(inspected(reference).to_dict()["problems"])


def test_inspect_reads_the_beginning_of_a_large_tokenizer(hub: Hub, llama: Path) -> None:
    text = (
        '{"version": "1.0", "truncation": {"max_length": 32}, "model": {"vocab": {"'
        + "x" * (4 << 20)
        + '": 0}}}'
    )
    (llama / "tokenizer.json").write_text(text)
    (llama / "generation_config.json").write_text('{"max_length": 16}')
    assert [problem["message"].split(", below")[0] for problem in problems("me/tiny")] == [
        "generation_config.json has max_length = 16",
        "tokenizer.json has truncation.max_length = 32",
    ]
    assert 0 < hub.sent["tokenizer.json"] < len(text) // 10


def test_applying_fetches_the_rest_once_without_pickles(
    online: Callable[..., Done], hub: Hub, llama: Path, tmp_path: Path
) -> None:
    """Also where a connection is dropped, and offline when all is cached."""
    hub.dropped = 1
    out = apply(make_plan("me/tiny", YARN, tmp_path / "out"))
    assert hub.dropped == 0
    arrived = hashes(out)
    source = hashes(llama)
    assert arrived[MODEL] == source[MODEL]
    assert "pytorch_model.bin" not in {*arrived, *hub.sent}
    receipt = json.loads((out / "ropeconv.json").read_text())
    assert receipt["source"] == {
        "name": "tiny",
        "reference": "me/tiny",
        "kind": "hub",
        "commit": hub.commit("me/tiny"),
        "family": "",
        "derived": "",
    }
    assert {file["name"]: file["sha256"] for file in receipt["files"]}[MODEL] == source[MODEL]
    sent = dict(hub.sent)
    apply(make_plan("me/tiny", recipe_of("linear", 4.0), tmp_path / "again"))
    assert hub.sent == sent
    offline = online("inspect", "me/tiny", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    cold = online("inspect", "me/tiny", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "other"))
    assert (cold.returncode, "HF_HUB_OFFLINE is set" in cold.stderr) == (1, True)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("me/absent", "the repository does not exist, or it is private"),
        ("me/tiny@v9", "the repository does not have this revision"),
        ("me/gated", "accept its terms on the Hub"),
        ("me/tiny/other.gguf", "me/tiny has no file other.gguf; check its name on the Hub"),
        ("model/nowhere/other.gguf", "does not exist"),
    ],
)
def test_what_cannot_be_had(
    reference: str,
    words: str,
    hub: Hub,
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.chdir(tmp_path)
    hub.repos["me/gated"] = llama
    hub.gated.add("me/gated")
    with pytest.raises(Exception) as problem:
        make_plan(reference, YARN)
    assert words in explain_failure(problem.value)[0]
