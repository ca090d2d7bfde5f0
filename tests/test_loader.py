"""Code of a checkpoint needs permission wherever one is loaded: source or output, config, tokenizer
or weights.
"""

import ast
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv import BadSource, loader
from ropeconv.engines.transformers.load import DeviceSpec, load_stock

from .support.corruptions import edit

PACKAGE = Path(ropeconv.__file__).parent
CPU = DeviceSpec("cpu", "float32")
WITH_PICKLES = DeviceSpec("cpu", "float32", pickles=True)
MARK = "from pathlib import Path\nPath(__import__('os').environ['MARK']).write_text('it ran')\n"
TOKENIZER = (
    f"{MARK}from transformers import PreTrainedTokenizerFast\nclass T(PreTrainedTokenizerFast):\n  "
    "  pass\n"
)
MODEL = f"{MARK}from transformers import LlamaForCausalLM\nclass X(LlamaForCausalLM):\n    pass\n"
LOADS = (
    "from_pretrained",
    "from_config",
    "_from_config",
    "for_model",
    "get_class_from_dynamic_module",
)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that code of a checkpoint writes; whoever asks on stdin is told yes."""
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    return tmp_path / "mark"


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that load something of a checkpoint, or unpickle."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        owner = getattr(getattr(node.func, "value", None), "id", "")
        allows = any(
            word.arg == "allow_pickle" and ast.unparse(word.value) != "False"
            for word in node.keywords
        )
        if (
            name in LOADS
            or (owner, name) in (("torch", "load"), ("pickle", "load"))
            or owner == "joblib"
            or allows
        ):
            yield node


WITHOUT_CODE = {
    PACKAGE / "engines" / "probes" / "programs" / "ask_transformers.py",
    PACKAGE / "features" / "vectors" / "tiny.py",
}
"""Modules that load classes of transformers only: in another Python, and for a model that is made."""
OF_EXLLAMAV3 = PACKAGE / "engines" / "probes" / "programs" / "ask_exllamav3.py"
"""A module whose Model.from_config is exllamav3's, which runs no code of a checkpoint."""


def test_one_module_loads_checkpoints() -> None:
    without_code = [path for path in WITHOUT_CODE if path.is_file()]  # features may be left out
    loads = {path: list(calls(ast.parse(path.read_text()))) for path in PACKAGE.rglob("*.py")}
    gate = Path(loader.__file__)
    assert {path for path, nodes in loads.items() if nodes} == {gate, OF_EXLLAMAV3, *without_code}
    assert len(loads[gate]) >= len(LOADS), "the calls are found where they are"
    for node in loads[gate]:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
            assert "trust_remote_code" in {word.arg for word in node.keywords}, ast.unparse(node)
    for path in without_code:
        for node in loads[path]:
            call = ast.unparse(node)
            assert "trust_remote_code=False" in call or ".for_model(" in call, (path, call)


def test_no_subprocess_imports_from_the_current_folder() -> None:
    """`python -c` and `-m` put it first, and it may be the checkpoint: -P leaves it out."""
    nodes = [
        node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    ]
    commands = [
        [ast.unparse(element) for element in node.elts[:2]]
        for node in nodes
        if isinstance(node, ast.List)
    ]
    options = [words[1] for words in commands if words and words[0] in ("sys.executable", "python")]
    assert len(options) >= 3
    # a script puts its own folder first, which has nothing but programs of ropeconv
    scripts = {option for option in options if option.startswith("str(FOLDER / ")}
    assert set(options) == {"'-P'", *scripts}
    assert {f"{name}.py" for name in ("describe", "run_probe")} <= {
        path.name for path in PACKAGE.joinpath("engines", "probes", "programs").iterdir()
    }


def load_tokenizer(folder: Path, trust: bool = False) -> None:
    from ropeconv.features.evaluation.texts import CheckpointTokenizer

    CheckpointTokenizer(folder, trust=trust)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
def test_code_of_a_tokenizer_needs_permission(name: str, llama: Path, mark: Path) -> None:
    (llama / "tokenization.py").write_text(TOKENIZER)
    (llama / "tokenizer_config.json").write_text('{"tokenizer_class": "T"}')
    edit(
        llama,
        name,
        lambda config: config.update(auto_map={"AutoTokenizer": [None, "tokenization.T"]}),
    )
    with pytest.raises(
        BadSource,
        match=f"its {name} names 'tokenization.T' in auto_map; .*pass --trust-remote-code",
    ):
        load_tokenizer(llama)
    assert not mark.exists()
    with pytest.raises(BadSource, match="has no tokenizer that loads"):
        load_tokenizer(llama, trust=True)
    assert mark.exists() is (name == "tokenizer_config.json"), "where transformers 5 takes it from"


def test_a_tokenizer_without_files_is_not_one(tmp_path: Path) -> None:
    """The class of Qwen 2 in transformers makes an empty one, which gives any text no tokens."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(BadSource, match="has no tokenizer that loads; add its tokenizer files"):
        load_tokenizer(tmp_path)


def test_a_stock_class_is_taken_in_place_of_code(llama: Path, mark: Path) -> None:
    (llama / "modeling_x.py").write_text(MODEL)
    edit(
        llama,
        "config.json",
        lambda config: config.update(auto_map={"AutoModelForCausalLM": "modeling_x.X"}),
    )
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

    with pytest.raises(
        BadSource, match=r"pytorch_model.bin is a pickle, .*pass --trust-remote-code"
    ):
        load_stock(pickled, CPU)
    state = load_stock(pickled, WITH_PICKLES).state_dict()
    same = load_stock(tiny("llama"), CPU).state_dict()
    assert all(torch.equal(state[name], same[name]) for name in same)


def test_a_hostile_pickle_is_never_run(pickled: Path, mark: Path) -> None:
    import torch

    torch.save({"model.norm.weight": Payload()}, pickled / "pytorch_model.bin")
    with pytest.raises(BadSource, match="has other objects than tensors") as refused:
        load_stock(pickled, WITH_PICKLES)
    assert "weights_only" not in str(refused.value)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload()))
    assert mark.exists(), "the control: unpickled, it does run"
