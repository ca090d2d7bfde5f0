"""Rows patched into a checkpoint lose what their outputs lose in stock transformers, and outputs are rows too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ropeconv.errors import BadSource, UnsupportedBake, UsageError
from ropeconv.evaluate.row import Row, parse_rows
from ropeconv.evaluate.runners import Opening, open_runner
from ropeconv.formats.copying import human

from ...support.extent import sample
from ...support.llamacpp import checkpoint
from .reading import LENGTH, TRAINED, baked, distance, ids, losses_of

SAME = 2e-3
STATIC = "base,yarn:4,linear:4:log_n=clamped"
SCALED = {
    "max_position_embeddings": 2 * TRAINED,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": TRAINED, "rope_theta": 10000.0,
    },
}  # fmt: skip
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "one list of frequencies": ("llama", "yarn:4", {}),
    "two lists": ("llama", "linear:4:keep_short=true", {}),
    "log-n": ("llama", "linear:4:log_n=clamped", {}),
    "windows in some layers": ("gemma3_text", "yarn:4", {}),
    "windows in all layers": ("mistral", "yarn:4", {"sliding_window": 96}),
    "latent attention": ("deepseek_v3", "yarn:4", {}),
    "latent attention with a pair of scales": ("deepseek_v3", "yarn:8", SCALED),
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


def test_every_row_leaves_the_checkpoint_as_it_was(made: Path) -> None:
    rows, found = parse_rows(f"{STATIC},linear:4:keep_short=true"), []
    with open_runner(Opening(str(made / "source"), rows)) as (runner, opened):
        for row in (*opened, opened[0]):
            with runner.engine(row) as engine:
                found.append(engine.token_losses(ids(), range(1, LENGTH)).loss)
    assert np.array_equal(found[0], found[-1])
    assert all(np.abs(other - found[0]).max() > 1 for other in found[1:-1])


def test_log_n_scales_queries_whose_positions_have_sections(tmp_path: Path) -> None:
    source = checkpoint("qwen3_5_text", tmp_path / "source")
    inside, beyond = distance(*losses_of(source, "linear:4,linear:4:log_n=clamped").values())
    assert inside < 1e-4  # clamped at 1 within the trained context
    assert beyond > 1e-3


def test_the_memory_of_a_sequence_is_that_of_its_keys_and_values(made: Path) -> None:
    with open_runner(Opening(str(made / "source"), parse_rows("base"), dtype="bfloat16")) as (runner, _):
        per_token = 2 * 2 * 64 * 2  # layers, keys and values, head_dim, bytes
        weights = human(2 * sum(one.size for one in load_file(made / "source" / "model.safetensors").values()))
        assert runner.memory(1000) == (
            f"The weights take {weights} of memory, keys and values of 1,000 tokens {per_token:.1f} kB."
        )


def test_the_source_is_found_beside_an_output_and_left_out_where_it_is_not(made: Path, tmp_path: Path) -> None:
    assert list(losses_of(made / "yarn")) == ["base", "yarn"]
    shutil.copytree(made / "yarn", tmp_path / "moved")
    alone = losses_of(tmp_path / "moved")
    assert list(alone) == ["moved"]
    assert max(distance(alone["moved"], losses_of(made / "source", "yarn:4")["yarn:4"])) < SAME
    schedules = []
    for model, rows, note in (
        (tmp_path / "moved", [], "Its source (source) was not found; name it with --against to compare with it."),
        (made / "source", parse_rows("yarn:4"), ""),
    ):
        with open_runner(Opening(str(model), rows)) as (runner, opened):
            schedules.append(runner.schedule(opened[0]))
            assert (runner.trained, runner.note) == (TRAINED, note)
    np.testing.assert_array_equal(schedules[0].inv_freq, schedules[1].inv_freq)


def refusal(model: Path, **options: Any) -> str:
    with (
        pytest.raises((BadSource, UsageError)) as caught,
        open_runner(Opening(str(model), **{"rows": [], **options})),
    ):
        pass
    return str(caught.value)


def test_options_that_do_not_go_together_are_refused(made: Path, tmp_path: Path) -> None:
    other = checkpoint("llama", tmp_path / "other", rope_theta=500000.0)
    assert "is not what" in refusal(made / "yarn", against=str(other))
    assert "leave --methods out" in refusal(made / "yarn", against=str(made / "source"), rows=[Row("base")])
    assert "ropeconv.json" in refusal(made / "source", against=str(made / "source"))
    assert "leave --family out" in refusal(made / "yarn", family="llama")
    assert "nothing here does" in refusal(made / "source", rows=[Row("base")], trust_remote_code=True)


def test_foreign_code_in_an_output_runs_with_permission_alone(made: Path, tmp_path: Path) -> None:
    folder, against = tmp_path / "foreign", str(made / "source")
    baked(made / "source", "linear:4:log_n=clamped", folder)
    code = next(folder.glob("*.py"))
    code.write_text(code.read_text() + "\n# changed\n")
    assert "brings code that is not what ropeconv writes" in refusal(folder, against=against)
    assert list(losses_of(folder, against=against, trust_remote_code=True)) == ["base", "foreign"]


def test_a_family_that_cannot_be_extended_refuses_the_row_and_not_base(made: Path) -> None:
    with open_runner(Opening(str(made / "source"), parse_rows("base,yarn:4"))) as (runner, rows):
        runner.inspection = runner.inspection.__class__(**{**vars(runner.inspection), "refuse": "it has no rope"})
        assert runner.schedule(rows[0]) is not None
        with pytest.raises(UnsupportedBake, match="it has no rope"):
            runner.schedule(rows[1])


def digests(model: Path, source: Path) -> list[str]:
    with open_runner(Opening(str(model), [], against=str(source))) as (runner, rows):
        return [runner.source, *map(runner.digest, rows)]


def test_another_output_has_another_digest_and_an_edited_one_too(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "yarn", tmp_path / "yarn")
    before = digests(tmp_path / "yarn", made / "source")
    assert digests(tmp_path / "yarn", made / "source") == before
    assert before[1] != before[2]
    config = json.loads((tmp_path / "yarn" / "config.json").read_text())
    (tmp_path / "yarn" / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    assert digests(tmp_path / "yarn", made / "source")[2] != before[2]


FORMATS = sample([("safetensors", "gguf"), ("gguf", "gguf"), ("gguf", "safetensors")])


@pytest.mark.parametrize(("of", "to"), FORMATS)
def test_an_output_in_gguf_or_of_a_gguf_file_loses_what_its_row_does(
    made: Path, tmp_path: Path, of: str, to: str
) -> None:
    pytest.importorskip("llama_cpp")
    source, out = made / "source", tmp_path / ("out.gguf" if to == "gguf" else "out")
    if of == "gguf":
        source = baked(source, "as-is", tmp_path / "source.gguf", to="gguf", outtype="f32")
    options = {"gguf": {"to": "gguf", "outtype": "f32"}, "safetensors": {"to": "safetensors"}}[to]
    baked(source, "yarn:4", out, **(options if of != to else {}))
    first = digests(out, source)
    assert digests(out, source) == first
    assert len(set(first)) == 2, "the source is the first row"
    wanted, found = losses_of(made / "source", "base,yarn:4"), losses_of(out, against=str(source))
    assert list(found) == ["base", "out"]
    for row, other, apart in (("base", "base", "yarn:4"), ("out", "yarn:4", "base")):
        assert max(distance(found[row], wanted[other])) < 0.01
        assert distance(found[row], wanted[apart])[1] > 1
