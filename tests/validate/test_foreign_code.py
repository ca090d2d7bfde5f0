"""No code of an output runs but what ropeconv writes: payloads that leave a mark, in every place transformers looks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.encode.checkpoint.encodings.buffers import MODULE
from ropeconv.errors import BadSource
from ropeconv.validate.checks.trust import needs_trust

from ..conftest import Run
from ..support.baking import apply, make_plan
from ..support.corruptions import edit, renew
from ..support.models import make
from .test_wrong_bakes import YARN

CALM = {"initializer_range": 0.15}
MARK = "Path(__import__('os').environ['MARK']).write_text('it ran')\n"
PAYLOAD = f"from pathlib import Path\n{MARK}"
CLASSES = {
    "Config": "import transformers\nclass Config(transformers.LlamaConfig):\n    model_type = 'llama_stored_rope'\n",
    "Model": "from transformers import LlamaModel as Model\n",
    "Causal": "from transformers import LlamaForCausalLM as Causal\n",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("trust") / "source", **CALM)


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    return apply(make_plan(source, YARN, tmp_path / "out", encoding="buffers"))


def in_a_folder_before_two_dashes(out: Path) -> None:
    """transformers takes what stands before `--` for the folder of the code."""
    folder = out.parent / f"{MODULE}.x"
    folder.mkdir()
    (folder / "payload.py").write_text(PAYLOAD + "".join(CLASSES.values()))
    (folder / "config.json").write_text("{}")
    names = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "Causal"}
    value = {auto: f"{MODULE}.x--payload.{kind}" for auto, kind in names.items()}
    edit(out, "config.json", lambda config: config.update(auto_map=value))


def in_one_value_of_the_map(out: Path) -> None:
    in_a_folder_before_two_dashes(out)
    right = {"AutoConfig": f"{MODULE}.StoredRopeLlamaConfig", "AutoModel": f"{MODULE}.StoredRopeLlamaModel"}
    edit(out, "config.json", lambda config: config["auto_map"].update(right))


def in_custom_generate(out: Path) -> None:
    """from_pretrained with trust_remote_code imports custom_generate/generate.py."""
    (out / "custom_generate").mkdir()
    (out / "custom_generate" / "generate.py").write_text(PAYLOAD + "def generate(model, **kwargs):\n    pass\n")


def in_a_linked_custom_generate(out: Path) -> None:
    folder = out.parent / "elsewhere"
    folder.mkdir()
    (folder / "generate.py").write_text(PAYLOAD + "def generate(model, **kwargs):\n    pass\n")
    (out / "custom_generate").symlink_to(folder)


def in_the_module_itself(out: Path) -> None:
    path = out / f"{MODULE}.py"
    path.write_text(path.read_text() + PAYLOAD)


def in_a_linked_module(out: Path) -> None:
    path = out / f"{MODULE}.py"
    other = out.parent / "other.py"
    other.write_text(path.read_text() + PAYLOAD)
    path.unlink()
    path.symlink_to(other)


RUN = (
    in_a_folder_before_two_dashes, in_one_value_of_the_map, in_custom_generate, in_a_linked_custom_generate,
    in_the_module_itself, in_a_linked_module,
)  # fmt: skip


@pytest.mark.parametrize("attack", RUN, ids=lambda attack: attack.__name__)
def test_a_payload_does_not_run(attack: Callable[[Path], None], out: Path, source: Path, run: Run) -> None:
    attack(out)
    renew(out)
    mark = out.parent / "mark"
    done = run("validate", out, "--against", source, "--tokens", 16, env={"MARK": str(mark)})
    assert not mark.exists()
    assert done.returncode == 1
    assert "pass --trust-remote-code" in done.stderr


@pytest.mark.parametrize("attack", [in_a_folder_before_two_dashes, in_custom_generate], ids=lambda it: it.__name__)
def test_with_permission_it_runs(attack: Callable[[Path], None], out: Path, source: Path, run: Run) -> None:
    """The control: these payloads are where transformers does look."""
    attack(out)
    renew(out)
    mark = out.parent / "mark"
    run("validate", out, "--against", source, "--tokens", 16, "--trust-remote-code", env={"MARK": str(mark)})
    assert mark.exists()


def config_of(**keys: Any) -> Callable[[Path], None]:
    return lambda out: edit(out, "config.json", lambda config: config.update(keys))


def file_of(name: str, **keys: Any) -> Callable[[Path], None]:
    return lambda out: edit(out, name, lambda config: config.update(keys))


def text_of(name: str) -> Callable[[Path], None]:
    return lambda out: (out / name).write_text(PAYLOAD) and None


REFUSED: dict[str, Callable[[Path], None]] = {
    "another architecture": config_of(architectures=["LlamaForCausalLM"]),
    "a class of the module that is not ours": config_of(auto_map={"AutoConfig": f"{MODULE}.Other"}),
    "one more class": lambda out: edit(
        out, "config.json", lambda config: config["auto_map"].update(AutoTokenizer=f"{MODULE}.x--payload.Tokenizer")
    ),
    "a list in the map": config_of(auto_map=[f"{MODULE}.StoredRopeLlamaConfig"]),
    "a list of two classes": lambda out: edit(
        out, "config.json", lambda config: config["auto_map"].update(AutoModel=[f"{MODULE}.Model", "x--y.Z"])
    ),
    "an unknown model type": config_of(model_type="payload_stored_rope"),
    "another kind of log-n": config_of(stored_rope={"attention_factor": 1.0, "log_n": {"kind": "x", "length": 64}}),
    "a log-n that is a text": config_of(stored_rope={"attention_factor": 1.0, "log_n": "clamped"}),
    "settings that are a list": config_of(stored_rope=[]),
    "the map of a tokenizer": file_of("tokenizer_config.json", auto_map={"AutoTokenizer": [None, "x--payload.T"]}),
    "the map of a processor": file_of("preprocessor_config.json", auto_map={"AutoProcessor": "x--payload.P"}),
    "an adapter": file_of("adapter_config.json", base_model_name_or_path="x/y", peft_type="LORA"),
    "another file of code": text_of("helper.py"),
    "a compiled module": text_of("modeling_stored_rope.pyc"),
    "a library": text_of("modeling_stored_rope.so"),
    "no module": lambda out: (out / f"{MODULE}.py").unlink(),
    "kernels of the Hub": config_of(attn_implementation="someone/kernels"),
    "kernels of the Hub in a part": config_of(vision_config={"_attn_implementation": {"": "someone/kernels:attn"}}),
}  # fmt: skip


@pytest.mark.parametrize("attack", REFUSED.values(), ids=REFUSED)
def test_what_is_not_exactly_ours_needs_permission(attack: Callable[[Path], None], out: Path) -> None:
    assert needs_trust(out, allowed=False), "as it was written it needs none"
    attack(out)
    with pytest.raises(BadSource, match="pass --trust-remote-code"):
        needs_trust(out, allowed=False)
    assert needs_trust(out, allowed=True)


def test_kernels_of_the_hub_need_permission_in_any_output(source: Path, tmp_path: Path) -> None:
    """transformers fetches and runs these without trust_remote_code."""
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    assert not needs_trust(out, allowed=False)
    edit(out, "config.json", lambda config: config.update(attn_implementation="sdpa"))
    assert not needs_trust(out, allowed=False)
    edit(out, "config.json", lambda config: config.update(attn_implementation="someone/kernels"))
    with pytest.raises(BadSource, match="someone/kernels"):
        needs_trust(out, allowed=False)


def test_log_n_is_known_code(source: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    out = apply(make_plan(source, replace(YARN, log_n="clamped"), tmp_path / "out", encoding="buffers"))
    assert needs_trust(out, allowed=False)


@pytest.mark.parametrize("name", ["config.json", "x_config.json", f"{MODULE}.py"])
def test_a_fifo_is_refused_and_not_waited_for(name: str, out: Path) -> None:
    (out / name).unlink(missing_ok=True)
    os.mkfifo(out / name)
    with pytest.raises(BadSource, match=r"is a FIFO|is another one"):
        needs_trust(out, False)


def test_a_config_of_any_size_is_not_read(out: Path) -> None:
    (out / "x_config.json").touch()
    os.truncate(out / "x_config.json", 1 << 30)
    with pytest.raises(BadSource, match="is longer than"):
        needs_trust(out, False)
