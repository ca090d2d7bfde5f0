"""The rule for quantised weights: by noise and ratio, on made KLs with what is known of their
distribution.

On SmolLM2-135M in Q4_1, KLs between two ways of rounding have a coefficient of variation of 0.5 to
1.4, and those of a right output have the same mean as them within a tenth.
"""

import math
from dataclasses import replace

import pytest
import torch

from ropeconv.validate.sampling import Bucket
from ropeconv.validate.validation import (
    BucketResult,
    Measures,
    bucket_result,
    conclusion,
    count_compared,
    describe_bucket,
    reach_warning,
    with_noise,
    with_rounded_weights,
)

COUNT = 124
NOISE = 0.01
TRAINED = 8192


def measures(kl: torch.Tensor) -> Measures:
    ones = torch.ones(len(kl))
    return Measures(kl, ones, ones, ones, ones, ones)


def noise(generator: torch.Generator, shape: float = 1.0, mean: float = NOISE) -> torch.Tensor:
    """KLs with a gamma distribution, whose coefficient of variation is 1 / sqrt(shape)."""
    numbers = torch.zeros(COUNT, dtype=torch.float64)
    steps = max(1, round(shape * 2))
    for _ in range(steps):
        numbers += torch.randn(COUNT, generator=generator, dtype=torch.float64).square()
    return mean * numbers / numbers.mean().new_tensor(float(steps))


def judged(
    fault: float, control: float, seed: int, shape: float = 1.0, where: int = COUNT
) -> BucketResult:
    """The result of an output with a fault, in nats; of `where` positions, which have it all."""
    generator = torch.Generator().manual_seed(seed)
    between, first, second = (noise(generator, shape) for _ in range(3))
    added = torch.zeros(COUNT, dtype=torch.float64)
    added[:where] = fault * COUNT / where
    added *= 0.5 + torch.rand(COUNT, generator=generator, dtype=torch.float64)
    bucket = Bucket("8,192-16,383", list(range(TRAINED, TRAINED + COUNT)))
    result = bucket_result(bucket, measures(first + added), control + NOISE, allowed=1e-5)
    return with_noise(result, measures(first + added), measures(second + added), measures(between))


def verdict(result: BucketResult) -> str:
    return conclusion([result], False, TRAINED)[1].partition(":")[0]


@pytest.mark.parametrize(("shape", "least"), [(0.5, 150), (1.0, 190), (4.0, 200)])
def test_a_right_output_passes_where_the_control_is_eight_times_as_far_away(
    shape: float, least: int
) -> None:
    """With a coefficient of variation of 1.4, 124 positions do not always suffice."""
    verdicts = [verdict(judged(0.0, 7 * NOISE, seed, shape)) for seed in range(200)]
    assert verdicts.count("FAIL") <= 1
    assert verdicts.count("PASS") >= least


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
def test_no_wrong_output_passes_however_far_the_control_is(shape: float) -> None:
    """The KL of a fault is that of the whole method, a half, or the 24th part, as of 1.9 in place
    of 2.
    """
    for part, where in ((1.0, COUNT), (0.5, COUNT), (0.5, 12), (1 / 24, COUNT)):
        for control in (8, 20, 250):
            fault = part * control * NOISE
            if fault < NOISE:
                # smaller than what rounding does: no measurement of these outputs can see it
                continue
            verdicts = {
                verdict(judged(fault, control * NOISE, seed, shape, where)) for seed in range(60)
            }
            assert "PASS" not in verdicts, (part, where, control)


def test_a_fault_does_not_raise_what_is_allowed() -> None:
    """At a few positions it has a large variance; the tolerance is of the noise and of nothing
    else.
    """
    right = judged(0.0, 1.0, 3)
    wrong = judged(0.5, 1.0, 3, where=4)
    assert right.tolerance == wrong.tolerance
    assert (right.agrees, wrong.agrees) == (True, False)


def test_a_control_as_close_as_the_noise_proves_nothing() -> None:
    assert verdict(judged(0.0, 0.0, 0)) == "INCONCLUSIVE"
    assert verdict(judged(0.0, 2 * NOISE, 0)) == "INCONCLUSIVE"
    assert verdict(judged(0.0, 20 * NOISE, 0)) == "PASS"


@pytest.mark.parametrize(
    ("fault", "control", "words"),
    [
        (0.0, 20 * NOISE, "agrees"),
        (0.0, 2 * NOISE, "not decisive"),  # weights of two bits: the control is near too
        (1.0, 20 * NOISE, "disagrees"),
        (1.0, 2 * NOISE, "disagrees"),
    ],
)
def test_a_row_that_decides_nothing_does_not_say_that_it_agrees(
    fault: float, control: float, words: str
) -> None:
    assert describe_bucket(judged(fault, control, 0))[""] == words


def test_a_method_that_changes_nothing_has_rows_that_agree() -> None:
    """Its control is the reference, so that no row could be decisive."""
    without_control = replace(judged(0.0, 0.0, 0), control_kl=0.0)
    assert describe_bucket(without_control)[""] == "agrees"


def test_positions_inside_the_trained_context_need_not_differ() -> None:
    inside = replace(judged(0.0, 0.0, 0), last=TRAINED - 1)
    beyond = judged(0.0, 20 * NOISE, 1)
    assert conclusion([inside, beyond], False, TRAINED)[0]
    assert not conclusion([beyond, inside], False)[0], (
        "without a trained length, every range counts"
    )
    assert not conclusion([inside], False, TRAINED)[0], (
        "nothing beyond it: the range that there is has to differ"
    )


def test_a_tenth_of_the_control_is_still_the_rule_without_a_measured_noise() -> None:
    plain = bucket_result(
        Bucket("0-99", list(range(100))), measures(torch.full((100,), 0.09).double()), 1.0
    )
    result = with_rounded_weights(plain)
    assert math.isclose(result.tolerance, 0.1)
    assert result.agrees
    assert result.is_distinguished
    assert not with_rounded_weights(replace(plain, kl_mean=0.11)).agrees


def test_a_result_that_does_not_go_beyond_the_trained_context_says_so() -> None:
    inside = replace(judged(0.0, 1.0, 0), last=TRAINED - 1)
    assert count_compared([inside]) == TRAINED
    words = reach_warning([inside], TRAINED, 131072, "--tokens")
    assert f"{TRAINED:,} tokens" in words
    assert "does not show" in words
    assert f"--tokens {TRAINED + TRAINED // 4}" in words
    assert reach_warning([inside, judged(0.0, 1.0, 0)], TRAINED, 131072, "--tokens") == ""
    assert reach_warning([inside], TRAINED, TRAINED, "--tokens") == "", "nothing is extended"
