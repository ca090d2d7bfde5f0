"""Code of a checkpoint needs permission wherever one is loaded: source or output, config, tokenizer or weights."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ropeconv
from ropeconv import METHODS, BadSource, Recipe, inspect_source, pretrained
from ropeconv.engines.llamacpp import loading
from ropeconv.engines.probe import Probe
from ropeconv.engines.transformers import DeviceSpec
from ropeconv.engines.transformers.load import load_stock
from ropeconv.evaluate.texts.dataset import read_dataset
from ropeconv.evaluate.texts.of_checkpoint import CheckpointTokenizer, rendered

from .support.baking import apply, make_plan
from .support.corruptions import edit
from .support.extent import sample

PACKAGE = Path(ropeconv.__file__).parent
CPU, WITH_PICKLES = DeviceSpec("cpu", "float32"), DeviceSpec("cpu", "float32", pickles=True)
MARK = "from pathlib import Path\nPath(__import__('os').environ['MARK']).write_text('it ran')\n"
TOKENIZER = f"{MARK}from transformers import PreTrainedTokenizerFast\nclass T(PreTrainedTokenizerFast):\n    pass\n"
MODEL = f"{MARK}from transformers import LlamaForCausalLM\nclass X(LlamaForCausalLM):\n    pass\n"
LOADS = ("from_pretrained", "from_config", "_from_config", "for_model", "get_class_from_dynamic_module")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that code of a checkpoint writes; whoever asks on stdin is told yes."""
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    return tmp_path / "mark"


def code_files(folder: Path) -> dict[str, str]:
    """Files that can run code and how, as `inspect` lists them."""
    return {file.name: file.reason for file in inspect_source(ropeconv.open_source(str(folder))).code_files}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that load something of a checkpoint, or unpickle."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(getattr(node.func, "value", None), "id", "")
        allows = any(word.arg == "allow_pickle" for word in node.keywords)
        if name in LOADS or (owner, name) in (("torch", "load"), ("pickle", "load")) or owner == "joblib" or allows:
            yield node


def test_one_module_loads_checkpoints() -> None:
    found = {path: list(calls(ast.parse(path.read_text()))) for path in PACKAGE.rglob("*.py")}
    gate = Path(pretrained.__file__)
    assert {path for path, nodes in found.items() if nodes} == {gate}
    assert len(found[gate]) >= len(LOADS), "the calls are found where they are"
    for node in found[gate]:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
            assert "trust_remote_code" in {word.arg for word in node.keywords}, ast.unparse(node)


def test_no_subprocess_imports_from_the_current_folder() -> None:
    """`python -c` and `-m` put it first, and it may be the checkpoint: -P leaves it out."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    commands = [[ast.unparse(one) for one in node.elts[:2]] for node in nodes if isinstance(node, ast.List)]
    options = [words[1] for words in commands if words and words[0] in ("sys.executable", "python")]
    assert len(options) >= 5
    assert set(options) == {"'-P'"}


def test_a_module_beside_the_model_is_not_imported(llama: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    for name in ("llama_cpp", "transformers", "torch", "jinja2", "ropeconv"):
        (llama / f"{name}.py").write_text(MARK)
    monkeypatch.chdir(llama)
    subprocess.run([sys.executable, "-c", "import llama_cpp"], check=True)
    assert mark.exists(), "the control: without -P it is"
    mark.unlink()
    assert loading.why_not_run(llama / "config.json")[0], "it is not a GGUF file"
    assert rendered("{{ messages[0].content }}", [{"role": "user", "content": "x"}], {}) == "x"
    with Probe() as probe:
        assert "modules" in probe.ask(llama, 128)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
def test_code_of_a_tokenizer_needs_permission(name: str, llama: Path, mark: Path) -> None:
    (llama / "tokenization.py").write_text(TOKENIZER)
    (llama / "tokenizer_config.json").write_text('{"tokenizer_class": "T"}')
    edit(llama, name, lambda config: config.update(auto_map={"AutoTokenizer": [None, "tokenization.T"]}))
    with pytest.raises(BadSource, match=f"its {name} names 'tokenization.T' in auto_map; .*pass --trust-remote-code"):
        CheckpointTokenizer(llama)
    assert not mark.exists()
    with pytest.raises(BadSource, match="has no tokenizer that loads"):
        CheckpointTokenizer(llama, trust=True)
    assert mark.exists() is (name == "tokenizer_config.json"), "where transformers 5 takes it from"


def test_nothing_is_asked_on_stdin(llama: Path, tmp_path: Path, mark: Path) -> None:
    """On both sides: transformers asks whether to run the code of this tokenizer, and has the answer."""
    (llama / "tokenization.py").write_text(TOKENIZER)
    config = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": [None, "tokenization.T"]}}
    (llama / "tokenizer_config.json").write_text(json.dumps(config))
    apply(make_plan(llama, Recipe(METHODS["yarn"](4.0)), tmp_path / "out"))
    (tmp_path / "t.txt").write_text("word " * 300)
    words = "-m ropeconv validate out --against model --text t.txt --tokens 16".split()
    for options, ran in (([], False), (["--trust-remote-code"], True)):
        full, answer = [sys.executable, *words, *options], "y\n" * 100
        done = subprocess.run(full, input=answer, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 1, done.stderr
        assert mark.exists() is ran, "with permission is the control"
        assert ("pass --trust-remote-code" in done.stderr) is not ran
        assert "Do you wish" not in done.stdout + done.stderr


def test_code_of_a_part_needs_permission(tmp_path: Path, mark: Path) -> None:
    """A class that makes its vision tower with an auto class passes no trust_remote_code on."""
    import numpy as np
    from safetensors.numpy import save_file
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**small, image_size=28, patch_size=14, model_type="owlvit_vision_model")
    whole = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**small, vocab_size=64)).to_dict()
    code, folder = tmp_path / "code", tmp_path / "model"
    whole["vision_config"] |= {"model_type": "owlvit_vision_model", "auto_map": {"AutoModel": f"{code}--tower.Tower"}}
    for path in (code, folder):
        path.mkdir()
    (code / "tower.py").write_text(f"{MARK}from transformers import CLIPVisionModel as Tower\n")
    (folder / "config.json").write_text(json.dumps(whole))
    save_file({"x": np.zeros(1, np.float32)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadSource, match="in auto_map; .*pass --trust-remote-code"):
        load_stock(folder, CPU)
    assert not mark.exists()


def test_a_stock_class_is_taken_in_place_of_code(llama: Path, mark: Path) -> None:
    (llama / "modeling_x.py").write_text(MODEL)
    edit(llama, "config.json", lambda config: config.update(auto_map={"AutoModelForCausalLM": "modeling_x.X"}))
    assert type(load_stock(llama, CPU)).__module__.startswith("transformers.models.llama")
    assert not mark.exists()
    load_stock(llama, CPU, trust=True)
    assert mark.exists()


KERNELS: dict[str, dict[str, Any]] = {
    "attention": {"attn_implementation": "someone/kernel"},
    "as transformers keeps it": {"_attn_implementation": "someone/kernel@v1:attention"},
    "experts": {"experts_implementation": "someone/kernel"},
    "a part": {"vision_config": {"_attn_implementation": {"": "someone/kernel"}}},
    "all layers": {"use_kernels": True},
    "a mapping": {"kernel_config": {"RMSNorm": "someone/kernel:Norm"}},
}


@pytest.mark.parametrize("case", KERNELS)
def test_kernels_need_permission(case: str, llama: Path) -> None:
    edit(llama, "config.json", lambda config: config.update(KERNELS[case]))
    with pytest.raises(BadSource, match="names the kernel .*pass --trust-remote-code"):
        load_stock(llama, CPU)
    assert list(code_files(llama)) == ["config.json"]


def test_a_model_with_kernels_is_baked_without_them(llama: Path, probe: Probe) -> None:
    """Its frequencies are asked, which no kernel computes; the key stays in the output."""
    edit(llama, "config.json", lambda config: config.update(attn_implementation="someone/kernel"))
    assert "modules" in probe.ask(llama, 128)
    with pytest.raises(BadSource, match="transformers does not load .*; install that package"):
        load_stock(llama, WITH_PICKLES)  # the package `kernels` is not there


class Payload:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {os.environ['MARK']}",)


@pytest.fixture
def pickled(llama: Path) -> Path:
    """The same model with its weights in pytorch_model.bin."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(llama / "model.safetensors"), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    return llama


def test_pickled_weights_need_permission(pickled: Path, tiny: Callable[[str], Path]) -> None:
    import torch

    with pytest.raises(BadSource, match=r"pytorch_model.bin is a pickle, .*pass --trust-remote-code"):
        load_stock(pickled, CPU)
    found, same = load_stock(pickled, WITH_PICKLES).state_dict(), load_stock(tiny("llama"), CPU).state_dict()
    assert all(torch.equal(found[name], same[name]) for name in same)
    assert list(code_files(pickled)) == ["pytorch_model.bin"]


def test_a_hostile_pickle_is_never_run(pickled: Path, mark: Path) -> None:
    import torch

    torch.save({"model.norm.weight": Payload()}, pickled / "pytorch_model.bin")
    with pytest.raises(BadSource, match="holds more than tensors") as refused:
        load_stock(pickled, WITH_PICKLES)
    assert "weights_only" not in str(refused.value)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload()))
    assert mark.exists(), "the control: unpickled, it does run"


def test_damaged_weights_are_a_sentence(pickled: Path, mark: Path) -> None:
    for content in (b"", b"PK\x03\x04" + bytes(100), b"\x80\x02}.", pickle.dumps(Payload())):
        (pickled / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(BadSource, match="pytorch_model.bin|does not load"):
            load_stock(pickled, WITH_PICKLES)
    assert not mark.exists()


CHAT = [{"role": "user", "content": "hi"}]
HOSTILE = {
    "another class": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "a command": ("{{ cycler.__init__.__globals__.os.system('touch ' ~ mark) }}", "SecurityError"),
    "a change of the chat": ("{{ messages.append(1) }}", "SecurityError"),
    "a file": ("{% include '/etc/passwd' %}", "loader"),
    "no end": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 2 seconds"),
    "much memory": ("{{ 'x' * 10**10 }}", "bytes"),
    "much text": ("{{ 'x' * (2 * 10**6) }}", "makes 2,000,000 characters"),
    "bad syntax": ("{% if", "TemplateSyntaxError"),
    "a refusal": ("{{ raise_exception('no such role') }}", "no such role"),
}


@pytest.mark.parametrize("case", sample(list(HOSTILE), 3))
def test_a_hostile_chat_template_ends(case: str, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template, said = HOSTILE[case]
    monkeypatch.setattr("ropeconv.evaluate.texts.of_checkpoint.CPU", 2)
    with pytest.raises(ValueError, match=said):
        rendered(template, CHAT, {"mark": str(mark)})
    assert not mark.exists()


def test_chat_templates_render_as_in_transformers() -> None:
    """The second way: `apply_chat_template` of a tokenizer, with the special tokens and trimmed blocks."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    template = (
        "{{ bos_token }}\n{% for m in messages %}\n  [{{ m.role }}] {{ m['content'] | tojson }}\n{% if loop.last %}"
        "{% break %}{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    words = Tokenizer(models.WordLevel({"<s>": 0, "x": 1}, unk_token="x"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", chat_template=template)
    wanted = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert rendered(template, CHAT, tokenizer.special_tokens_map) == wanted
    assert "<s>" in wanted


def test_inspect_lists_files_that_run_code(llama: Path) -> None:
    assert code_files(llama) == {}
    added = {"modeling_x.py", "custom_generate/generate.py", "optimizer.pt", "lib.so"}
    for name in added:
        (llama / name).parent.mkdir(exist_ok=True)
        (llama / name).write_text("")
    (llama / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["a.B", "owner/name--c.D"]}}')
    edit(llama, "config.json", lambda config: config.update(auto_map={"AutoModel": "modeling_x.X"}))
    found = code_files(llama)
    assert set(found) == {*added, "config.json", "tokenizer_config.json"}
    assert "owner/name--c.D" in found["tokenizer_config.json"]


@pytest.mark.parametrize("allowed", [None, False, True])
def test_a_dataset_asks_nothing(allowed: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """datasets 3 asks on stdin where this is None; True is what the environment of the user says."""
    seen = []

    def load_dataset(*arguments: object, **options: object) -> Any:
        seen.append(config.HF_DATASETS_TRUST_REMOTE_CODE)
        raise ValueError("no such dataset")

    config = SimpleNamespace(HF_DATASETS_TRUST_REMOTE_CODE=allowed)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(config=config, load_dataset=load_dataset))
    monkeypatch.setattr("ropeconv.evaluate.texts.dataset.require", lambda *names: None)
    with pytest.raises(BadSource, match="does not load"):
        read_dataset("owner/name", "text")
    assert seen == [bool(allowed)]


def test_errors_of_libraries_leave_out_their_advice(llama: Path, tmp_path: Path) -> None:
    edit(llama, "config.json", lambda config: config.update(model_type="nothing_known"))
    for folder in (llama, tmp_path / "gone"):
        with pytest.raises(BadSource, match="does not load the config") as refused:
            pretrained.load_config(folder, trust=False)
        assert "trust_remote_code" not in str(refused.value)
