"""The part of a spread run, in which control, faint fault and noise floor are measured."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ropeconv
from ropeconv.engines.engine import Progress
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec
from ropeconv.engines.transformers.patch import sees_all_keys
from ropeconv.validate.checkpoint import BothSides, Curve
from ropeconv.validate.sampling import TokenRun, count_spread_tokens
from ropeconv.validate.validation import BucketResult, Validation

from ..faults.wrong_bakes import CASES, Wrong, bake
from ..support.baking import YARN_16, apply, make_plan, validate
from ..support.extent import sample
from ..support.llamacpp import lively
from ..support.models import make

TOKENS = 512
RANGES = (64, 128, 256, 512, 512)
"""Tokens of the runs of a tiny model, whose context of 64 becomes 1,024."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def out(llama: Path, tmp_path: Path) -> Path:
    return apply(make_plan(llama, YARN_16, tmp_path / "out"))


def check(out: Path, source: Path) -> Validation:
    return validate(out, source, device="cpu", tokens=TOKENS)


def test_a_part_has_fewer_tokens_over_the_same_positions() -> None:
    run = TokenRun.spread(4096, 8192, list(range(512)))
    part = run.part()
    assert part.ids == list(range(128))
    assert (part.positions[0], part.positions[-1]) == (0, 8191)
    gaps = {high - low for low, high in zip(part.positions, part.positions[1:], strict=False)}
    assert gaps == {64, 65}
    assert [part.positions[index] for index in part.kept] == part.buckets[0].positions
    assert part.buckets[0].positions[0] == 64 * 8191 // 127
    assert part.buckets[0].name == run.buckets[0].name == "4,096-8,191"


@pytest.mark.parametrize(
    ("family", "tokens", "seen"),
    [
        ("llama", 100_000, True),
        ("gemma3_text", 8, True),
        ("qwen2", 512, True),  # its max_window_layers is a number of layers
        ("gemma3_text", 512, False),  # a window in most layers
        ("deepseek_v32", 512, False),  # an indexer chooses keys
        ("llama4_text", 100_000, False),  # chunks of attention
        ("modernbert", 512, False),  # `local_attention`
    ],
)
def test_a_window_makes_fewer_tokens_another_computation(
    family: str, tokens: int, seen: bool, tiny: Callable[[str], Path]
) -> None:
    engine = TransformersEngine.load(tiny(family), DeviceSpec("cpu", "float32"))
    assert sees_all_keys(engine.model, tokens) == seen


def test_the_control_and_the_noise_read_a_quarter(llama: Path, out: Path) -> None:
    read = 0

    def advance(count: int) -> None:
        nonlocal read
        read += count

    comparison = ropeconv.Comparison.open(out, str(llama))
    settings = ropeconv.Settings(device="cpu", tokens=TOKENS)
    result = ropeconv.validate_checkpoint(comparison, settings, Progress(advance=advance))
    assert result.agrees
    # reference and output read all; six variants of three parts of 128, and four more of two runs
    # that are their own parts
    assert read == 2 * sum(RANGES) + 6 * 3 * 128 + 4 * (64 + 128)
    assert read == count_spread_tokens(comparison.schedule, settings, in_parts=True)


def test_a_window_makes_every_variant_read_all(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    read = 0

    def advance(count: int) -> None:
        nonlocal read
        read += count

    source = tiny("gemma3_text")
    out = apply(make_plan(source, YARN_16, tmp_path / "out"))
    comparison = ropeconv.Comparison.open(out, str(source))
    settings = ropeconv.Settings(device="cpu", tokens=TOKENS)
    ropeconv.validate_checkpoint(comparison, settings, Progress(advance=advance))
    assert read == count_spread_tokens(comparison.schedule, settings, in_parts=False)


WITHOUT_WINDOWS = {"llama", "qwen2", "qwen3", "granite", "olmo2", "cohere", "stablelm", "phi3"}
"""Families whose tiny models have parts."""
FAULTS = [(wrong, family) for wrong, family in CASES if family in WITHOUT_WINDOWS]


@pytest.mark.parametrize(
    ("wrong", "family"), sample(FAULTS, 2), ids=lambda part: getattr(part, "what", part)
)
def test_a_wrong_output_disagrees_and_the_right_one_agrees(
    wrong: Wrong, family: str, tmp_path: Path
) -> None:
    source = lively(make(family, tmp_path / "source"))
    out = bake(source, tmp_path / "out", wrong.method)
    assert check(out, source).agrees
    wrong.change(out)
    assert check(out, source).sentence.startswith("FAIL")


def test_a_fault_that_no_part_has_is_noticed(llama: Path, out: Path) -> None:
    """With every 200th token at another position, the first 128 tokens are right."""
    assert check(out, llama).agrees
    plain = TransformersEngine.hidden_states

    def shift_far_tokens(self: TransformersEngine, *given: object, **named: object) -> object:
        ids, positions, *rest = given
        is_output = Path(self.model.config.name_or_path).name == out.name
        if is_output and len(positions) > 128:  # type: ignore[arg-type]
            positions = [place + 1 * (index >= 200) for index, place in enumerate(positions)]  # type: ignore[arg-type, var-annotated]
        return plain(self, ids, positions, *rest, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersEngine, "hidden_states", shift_far_tokens)
        wrong = check(out, llama)
    assert wrong.sentence.startswith("FAIL")


def test_a_run_does_not_fail_by_the_noise_of_its_part(
    llama: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the runs disagree, noise and control are measured in whole runs."""
    plain = BothSides.results_of_runs
    measured_in_whole = []

    def disagree_by_parts(both: BothSides) -> tuple[list[BucketResult], Curve]:
        results, curve = plain(both)
        in_whole = both.reading.spec.in_whole
        measured_in_whole.append(in_whole)
        return [replace(result, agrees=in_whole) for result in results], curve

    monkeypatch.setattr(BothSides, "results_of_runs", disagree_by_parts)
    assert check(out, llama).agrees
    assert measured_in_whole == [False, True]

    # a comparison that the user has stopped is not begun again
    read = BothSides.read

    def read_until_stopped(*given: Any) -> BothSides:
        return replace(read(*given), stopped_early=True)

    monkeypatch.setattr(BothSides, "read", read_until_stopped)
    measured_in_whole.clear()
    assert not check(out, llama).agrees
    assert measured_in_whole == [False]
