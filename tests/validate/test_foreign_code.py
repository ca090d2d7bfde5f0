"""No code of an output runs but what ropeconv writes: payloads that leave a mark, in every place
transformers looks.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.convert.encodings.buffers import MODULE
from ropeconv.engines.probe import Probe
from ropeconv.errors import BadSource
from ropeconv.validate.checks import needs_trust

from ..support.baking import YARN_16, apply, make_plan
from ..support.corruptions import Corruption, add, config, edit, put, remove, renew
from ..support.in_process import command
from ..support.models import make

PAYLOAD = "from pathlib import Path\nPath(__import__('os').environ['MARK']).write_text('it ran')\n"
GENERATE = PAYLOAD + "def generate(model, **kwargs):\n    pass\n"
CLASSES = """
import transformers
class Config(transformers.LlamaConfig):
    model_type = 'llama_stored_rope'
from transformers import LlamaModel as Model
from transformers import LlamaForCausalLM as Causal
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make("llama", tmp_path / "source", initializer_range=0.15)


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    return apply(make_plan(source, YARN_16, tmp_path / "out", encoding="buffers"))


def in_the_map(**classes: str) -> Corruption:
    """Names classes in the map of config.json."""
    return lambda out: edit(out, "config.json", lambda config: config["auto_map"].update(classes))


def in_a_folder_before_two_dashes(out: Path) -> None:
    """transformers takes what stands before `--` for the folder of the code."""
    folder = out.parent / f"{MODULE}.x"
    folder.mkdir()
    (folder / "payload.py").write_text(PAYLOAD + CLASSES)
    (folder / "config.json").write_text("{}")
    names = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "Causal"}
    in_the_map(**{auto: f"{MODULE}.x--payload.{kind}" for auto, kind in names.items()})(out)


def in_custom_generate(out: Path) -> None:
    """from_pretrained with trust_remote_code imports custom_generate/generate.py."""
    add("custom_generate/generate.py", GENERATE.encode())(out)


def in_the_module_itself(out: Path) -> None:
    path = out / f"{MODULE}.py"
    path.write_text(path.read_text() + PAYLOAD)


ATTACKS = (in_a_folder_before_two_dashes, in_custom_generate, in_the_module_itself)


@pytest.fixture
def validated(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Attacks the output and validates it, in the folder of the payload; its mark is `mark`."""
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    monkeypatch.setattr(
        "ropeconv.engines.probe.Probe", Probe
    )  # not the shared process, which has another folder

    def validate(attack: Corruption, *given: str, code: int | None = None) -> str:
        attack(out)
        renew(out)
        return command(
            tmp_path, "validate", "out", "--against", "source", "--tokens", 16, *given, code=code
        ).stderr

    return validate


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_payload_does_not_run(
    attack: Corruption, validated: Callable[..., str], tmp_path: Path
) -> None:
    assert "pass --trust-remote-code" in validated(attack, code=1)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "attack", [in_a_folder_before_two_dashes, in_custom_generate], ids=lambda it: it.__name__
)
def test_with_permission_it_runs(
    attack: Corruption, validated: Callable[..., str], tmp_path: Path
) -> None:
    """The control: these payloads are where transformers does look."""
    validated(attack, "--trust-remote-code")
    assert (tmp_path / "mark").exists()


REFUSED: dict[str, Corruption] = {
    "another architecture": config(architectures=["LlamaForCausalLM"]),
    "a class of the module that is not ours": config(auto_map={"AutoConfig": f"{MODULE}.Other"}),
    "one more class": in_the_map(AutoTokenizer=f"{MODULE}.x--payload.Tokenizer"),
    "a list of two classes": put(
        "config.json", "auto_map.AutoModel", [f"{MODULE}.Model", "x--y.Z"]
    ),
    "an unknown model type": config(model_type="payload_stored_rope"),
    "another kind of log-n": config(
        stored_rope={"attention_factor": 1.0, "log_n": {"kind": "x", "length": 64}}
    ),
    "the map of a tokenizer": put(
        "tokenizer_config.json", "auto_map", {"AutoTokenizer": [None, "x--payload.T"]}
    ),
    "an adapter": put("adapter_config.json", "peft_type", "LORA"),
    "another file of code": add("helper.py"),
    "a compiled module": add("modeling_stored_rope.pyc"),
    "no module": remove(f"{MODULE}.py"),
    "kernels of the Hub": config(attn_implementation="someone/kernels"),
    "kernels of the Hub in a part": config(
        vision_config={"_attn_implementation": {"": "someone/kernels:attn"}}
    ),
}


@pytest.mark.parametrize("attack", REFUSED.values(), ids=REFUSED)
def test_what_is_not_exactly_ours_needs_permission(attack: Corruption, out: Path) -> None:
    assert needs_trust(out, allowed=False), "as it was written it needs none"
    attack(out)
    with pytest.raises(BadSource, match="pass --trust-remote-code"):
        needs_trust(out, allowed=False)
    assert needs_trust(out, allowed=True)


def test_kernels_of_the_hub_need_permission_in_any_output(source: Path, tmp_path: Path) -> None:
    """transformers fetches and runs these without trust_remote_code."""
    out = apply(make_plan(source, YARN_16, tmp_path / "out"))
    config(attn_implementation="sdpa")(out)
    assert not needs_trust(out, allowed=False)
    config(attn_implementation="someone/kernels")(out)
    with pytest.raises(BadSource, match="someone/kernels"):
        needs_trust(out, allowed=False)


def test_a_fifo_and_a_config_of_any_size_are_not_read(out: Path) -> None:
    (out / "x_config.json").touch()
    os.truncate(out / "x_config.json", 1 << 30)
    with pytest.raises(BadSource, match="is longer than"):
        needs_trust(out, False)
    (out / "x_config.json").unlink()
    os.mkfifo(out / "x_config.json")
    with pytest.raises(BadSource, match="is a FIFO"):
        needs_trust(out, False)
