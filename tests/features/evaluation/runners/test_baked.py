"""Rows patched into a checkpoint lose what their outputs lose in stock transformers, and outputs
are rows too.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource, UsageError
from ropeconv.features.evaluation.runners.checkpoint import CheckpointRunner
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.verbs.rows import Row, parse_rows

from ....support.extent import sample
from ....support.llamacpp import checkpoint
from .reading import TRAINED, baked, distance, losses_of

SAME = 2e-3
SCALED = {
    "max_position_embeddings": 2 * TRAINED,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": TRAINED,
        "rope_theta": 10000.0,
    },
}
YARN_OF_V4 = {
    "max_position_embeddings": 2 * TRAINED,
    "compress_rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 2.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": TRAINED,
    },
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "one list of frequencies": ("llama", "yarn:4", {}),
    "two lists": ("llama", "linear:4:keep_short=true", {}),
    "log-n": ("llama", "linear:4:log_n=clamped", {}),
    "windows in some layers": ("gemma3_text", "yarn:4", {}),
    "windows in all layers": ("mistral", "yarn:4", {"sliding_window": 96}),
    "latent attention": ("deepseek_v3", "yarn:4", {}),
    "latent attention with a pair of scales": ("deepseek_v3", "yarn:8", SCALED),
    "no other attention factor": ("deepseek_v4", "yarn:8", YARN_OF_V4),
    "sections of positions": ("qwen3_5_text", "yarn:4", {}),
}
"""Family, row and changes of its config, by what is special about it."""


@pytest.mark.parametrize("case", sample(list(FAMILIES), 3))
def test_a_row_is_what_stock_transformers_makes_of_its_output(tmp_path: Path, case: str) -> None:
    family, row, changes = FAMILIES[case]
    source = checkpoint(family, tmp_path / "source", **changes)
    baked(source, row, tmp_path / "baked", replace="rope_scaling" in changes)
    patched = losses_of(source, f"base,{row}", chunk=50)
    stock = losses_of(tmp_path / "baked", against=str(source), chunk=50)
    assert list(stock) == ["base", "baked"]
    assert max(distance(patched["base"], stock["base"])) < SAME
    assert max(distance(patched[row], stock["baked"])) < SAME
    assert distance(patched["base"], stock["baked"])[1] > 50 * SAME  # the control: another row


def test_the_tokens_of_a_prompt_choose_its_list_of_frequencies(models: Path) -> None:
    """Not those that may be generated: transformers chooses when it reads the prompt."""
    rows = parse_rows("base,linear:4,linear:4:keep_short=true")
    opened = open_runner(RunnerRequest(str(models / "source"), rows))
    with opened as (runner, _):
        assert isinstance(runner, CheckpointRunner)
        prompts = {
            "trained": list(range(20, 20 + TRAINED)),
            "longer": list(range(20, 21 + TRAINED)),
        }
        generated: dict[str, list[list[int]]] = {}
        for name, prompt in prompts.items():
            generated[name] = []
            for row in rows:
                with runner.engine(row) as engine:
                    generated[name].append(engine.generate(prompt, 6))
        base, linear, keep_short = generated["trained"]
        assert base != linear
        assert keep_short == base
        base, linear, keep_short = generated["longer"]
        assert base != linear
        assert keep_short == linear
        # numbers of runs that chose by more tokens are not read from the journal
        assert runner.digest(rows[2]) != runner.schedule(rows[2]).digest
        assert runner.digest(rows[1]) == runner.schedule(rows[1]).digest


LLAMA3 = {
    "max_position_embeddings": 2 * TRAINED,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
}


def test_a_model_trained_with_a_scaling_has_its_length_as_trained_context(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source", **LLAMA3)
    wider = baked(source, "llama3:4:on_top=true", tmp_path / "wider")
    other = baked(source, "yarn:8", tmp_path / "other", replace=True)
    for model in (source, wider, other):
        with open_runner(RunnerRequest(str(model), parse_rows("base"))) as (runner, _):
            assert (runner.trained, runner.original_context) == (2 * TRAINED, TRAINED)
    # without it, that of the config
    plain = checkpoint("llama", tmp_path / "plain")
    extended = baked(plain, "yarn:4", tmp_path / "extended")
    for model in (plain, extended):
        with open_runner(RunnerRequest(str(model), parse_rows("base"))) as (runner, _):
            assert runner.trained == TRAINED


def test_the_source_is_found_where_it_was_and_left_out_on_another_machine(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(losses_of(models / "yarn")) == ["base", "yarn"]
    shutil.copytree(models / "yarn", tmp_path / "moved")
    assert list(losses_of(tmp_path / "moved")) == ["base", "moved"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    alone = losses_of(tmp_path / "moved")
    assert list(alone) == ["moved"]
    assert max(distance(alone["moved"], losses_of(models / "source", "yarn:4")["yarn:4"])) < SAME
    note = "Its source (source) was not found; name it with --against to compare with it."
    with open_runner(RunnerRequest(str(tmp_path / "moved"), [])) as (runner, _):
        assert (runner.trained, runner.note) == (TRAINED, note)


def refusal(model: Path, **options: Any) -> str:
    with (
        pytest.raises((BadSource, UsageError)) as caught,
        open_runner(RunnerRequest(str(model), **{"rows": [], **options})),
    ):
        pass
    return str(caught.value)


def test_options_that_do_not_go_together_are_refused(models: Path, tmp_path: Path) -> None:
    other = checkpoint("llama", tmp_path / "other", rope_theta=500000.0)
    assert "not made from" in refusal(models / "yarn", against=str(other))
    assert "leave --methods out" in refusal(
        models / "yarn", against=str(models / "source"), rows=[Row("base")]
    )
    assert "ropeconv.json" in refusal(models / "source", against=str(models / "source"))
    assert "leave --family out" in refusal(models / "yarn", family="llama")
    assert "--trust-remote-code" in refusal(
        models / "source", rows=[Row("base")], trust_remote_code=True
    )


def test_foreign_code_in_an_output_runs_with_permission_alone(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    against = str(models / "source")
    baked(models / "source", "linear:4:log_n=clamped", folder)
    code = next(folder.glob("*.py"))
    code.write_text(code.read_text() + "\n# changed\n")
    assert "did not write" in refusal(folder, against=against)
    assert list(losses_of(folder, against=against, trust_remote_code=True)) == ["base", "foreign"]


FORMATS = sample([("safetensors", "gguf"), ("gguf", "gguf"), ("gguf", "safetensors")])


@pytest.mark.parametrize(("of", "to"), FORMATS)
def test_an_output_in_gguf_or_of_a_gguf_file_loses_what_its_row_does(
    models: Path, tmp_path: Path, of: str, to: str
) -> None:
    pytest.importorskip("llama_cpp")
    source = models / "source"
    out = tmp_path / ("out.gguf" if to == "gguf" else "out")
    if of == "gguf":
        source = baked(source, "as-is", tmp_path / "source.gguf", to="gguf", outtype="f32")
    options = {"gguf": {"to": "gguf", "outtype": "f32"}, "safetensors": {"to": "safetensors"}}[to]
    baked(source, "yarn:4", out, **(options if of != to else {}))
    reference = losses_of(models / "source", "base,yarn:4")
    losses = losses_of(out, against=str(source))
    assert list(losses) == ["base", "out"]
    for row, other, apart in (("base", "base", "yarn:4"), ("out", "yarn:4", "base")):
        assert max(distance(losses[row], reference[other])) < 0.01
        assert distance(losses[row], reference[apart])[1] > 1
