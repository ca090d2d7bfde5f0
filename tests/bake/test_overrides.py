"""`apply --to overrides`: what vLLM and SGLang set in a config gives it the RoPE of the written
config.json.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ropeconv.bake.overrides import overrides
from ropeconv.errors import UsageError
from ropeconv.rope.errors import RopeconvError

from ..conftest import CONFIGS, hashes
from ..support.baking import NTK, YARN, make_plan, recipe_of, write_config
from ..support.in_process import command
from ..support.models import make


def rotary(config: Any) -> list[torch.Tensor]:
    """The frequencies of every rotary module that transformers makes from a config."""
    with torch.device("cpu"):
        model = transformers.AutoModel.from_config(config)
    return [buffer for name, buffer in sorted(model.named_buffers()) if name.endswith("inv_freq")]


def overridden(config: Any, values: dict[str, Any]) -> None:
    """Sets values as vllm/config/model.py:_apply_dict_overrides does: nested configs are
    entered.
    """
    for key, value in values.items():
        inner = getattr(config, key, None)
        if isinstance(inner, transformers.PretrainedConfig):
            overridden(inner, value)
        else:
            setattr(config, key, value)


@pytest.mark.parametrize(
    ("model_type", "method", "value"),
    [("llama", "yarn", 4.0), ("qwen3", "mixed", 4.0), ("gemma3_text", "linear", 4.0)],
)
def test_a_config_with_the_overrides_has_the_rope_of_the_written_one(
    model_type: str, method: str, value: float, tmp_path: Path
) -> None:
    source = make(model_type, tmp_path / "model")
    plan = make_plan(source, recipe_of(method, value), tmp_path / "out")
    (tmp_path / "out").mkdir()
    write_config(plan, tmp_path / "out")
    before, config, written = (
        transformers.AutoConfig.from_pretrained(path) for path in (source, source, tmp_path / "out")
    )
    overridden(config, overrides(plan, json.loads((source / "config.json").read_text())))
    ours, theirs, control = (rotary(settings) for settings in (config, written, before))
    assert all(torch.equal(tensor, other) for tensor, other in zip(ours, theirs, strict=True))
    assert not all(torch.equal(tensor, other) for tensor, other in zip(ours, control, strict=True))
    context = plan.schedule.context
    assert [
        settings.get_text_config().max_position_embeddings for settings in (config, written)
    ] == [context, context]


def test_keys_of_a_flat_multimodal_config_reach_its_text_config(tmp_path: Path) -> None:
    """transformers 5 has a text_config for it, where vLLM reads the length; keys above it would
    have no effect.
    """
    published = CONFIGS / "Qwen--Qwen2.5-VL-7B-Instruct.json"
    plan = make_plan(published, NTK)
    write_config(plan, tmp_path)
    config = transformers.AutoConfig.from_pretrained(published)
    written = transformers.AutoConfig.from_pretrained(tmp_path)
    for expected in (False, True):
        texts = [
            (
                settings.text_config.max_position_embeddings,
                settings.text_config.rope_parameters["rope_theta"],
            )
            for settings in (config, written)
        ]
        assert (texts[0] == texts[1]) is expected
        overridden(config, overrides(plan, json.loads(published.read_text())))


def test_a_flat_multimodal_config_is_refused_for_sglang() -> None:
    """SGLang 0.5.23 computes its RoPE as before: `python -m scripts.laboratory.overrides` with such
    a JSON.
    """
    published = CONFIGS / "Qwen--Qwen2.5-VL-7B-Instruct.json"
    plan = make_plan(published, NTK, runtimes=("sglang",))
    with pytest.raises(RopeconvError, match="SGLang ignores"):
        overrides(plan, json.loads(published.read_text()))


def test_the_json_has_what_the_server_needs_to_compute_it(tmp_path: Path) -> None:
    """vLLM's YaRN with M-RoPE has the ramp of four times the trained length, so that it needs four
    times the rotations: 4 x 32 and 4 x 1. The JSON is pasted without the command (docs/writing.md).
    """
    config = json.loads((CONFIGS / "Qwen--Qwen2.5-VL-7B-Instruct.json").read_text())
    section = config.pop("rope_scaling")["mrope_section"]
    rope = {"rope_type": "default", "mrope_section": section, "rope_theta": config["rope_theta"]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
    line = ("apply", "config.json", "--yarn", 4, "--to", "overrides", "--json")
    document = json.loads(command(tmp_path, *line, "--runtime", "vllm", code=0).stdout)
    words = shlex.split(document["run"][0])
    pasted = json.loads(words[words.index("--hf-overrides") + 1])
    rope = document["overrides"]["text_config"]["rope_parameters"]
    assert (rope["beta_fast"], rope["beta_slow"], rope["factor"]) == (128.0, 4.0, 4.0)
    assert document["overrides"] == pasted

    # other methods need nothing
    line = ("apply", "config.json", "--ntk", 4, "--to", "overrides", "--json")
    document = json.loads(command(tmp_path, *line, "--runtime", "vllm", code=0).stdout)
    assert "beta_fast" not in document["overrides"]["text_config"]["rope_parameters"]


def test_a_layout_that_servers_do_not_load_is_refused(llama: Path) -> None:
    plan = make_plan(llama, YARN)
    assert overrides(plan, json.loads((llama / "config.json").read_text()))
    plan.source.kind = "meta"
    with pytest.raises(UsageError, match="Meta.* -o"):
        overrides(plan, {})


def test_stdout_is_the_json_and_the_commands_follow_on_stderr(llama: Path, tmp_path: Path) -> None:
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    before = hashes(tmp_path)
    done = command(tmp_path, "apply", "model", "--yarn", 4, "--to", "overrides", code=0)
    values = json.loads(done.stdout)
    assert (values["max_position_embeddings"], values["rope_parameters"]["factor"]) == (256, 4.0)
    assert "model_max_length in tokenizer_config.json (64)" in done.stderr
    assert (
        f"vllm serve model --max-model-len 256 --hf-overrides '{done.stdout.strip()}'\n"
        in done.stderr
    )
    line = ("apply", "model", "--yarn", 4, "--to", "overrides", "--runtime", "sglang", "--json")
    data = json.loads(command(tmp_path, *line, code=0).stdout)
    text = json.dumps(values)
    run = (
        f"sglang serve --model-path model --context-length 256 --json-model-override-args '{text}'"
    )
    assert (data["overrides"], data["context"], data["run"]) == (values, 256, [run])
    assert hashes(tmp_path) == before


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (
            "model --yarn 4 --encoding weights",
            1,
            "--encoding weights changes more; write the output with",
        ),
        ("model --yarn 4 -o out", 2, "prints JSON for one SOURCE and writes nothing; leave -o out"),
        (
            "model --yarn 4 --adapter lora",
            2,
            "prints JSON for one SOURCE and writes nothing; leave --adapter out",
        ),
        ("model --yarn 4 --no-fsync", 2, "leave --no-fsync out"),
        ("model model --yarn 4", 2, "leave the others out"),
        (
            "model --yarn 4 --runtime llama.cpp",
            2,
            "--runtime llama.cpp has no option for overrides; name vllm",
        ),
        ("model --yarn 4 --runtime vLLM --runtime mlx", 2, "--runtime mlx has no option"),
        ("file.gguf --yarn 4", 2, "file.gguf is a GGUF file; write it with -o"),
        ("scaled --linear 4 --replace", 1, "an override cannot remove rope_scaling."),
        ("scaled --as-is", 2, "scaled needs no override: its config does not change"),
    ],
)
def test_a_refusal_is_a_sentence(
    line: str, code: int, message: str, llama: Path, tmp_path: Path
) -> None:
    from ..support.gguf_files import write

    write(tmp_path / "file.gguf")
    if "scaled" in line:
        command(tmp_path, "apply", "model", "--yarn", 4, "-o", "scaled", "-q", code=0)
    assert (
        message in command(tmp_path, "apply", *line.split(), "--to", "overrides", code=code).stderr
    )


def test_a_format_of_the_command_line_is_refused_in_python(llama: Path) -> None:
    for name in ("overrides", "ollama"):
        with pytest.raises(Exception, match=f"--to {name} .*command line"):
            make_plan(llama, YARN, to=name)
