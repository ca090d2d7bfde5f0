"""Chooses how a schedule is written: a named encoding, or the first that the named runtimes read exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..errors import UnsupportedBake, UsageError
from ..families import Family
from ..families.config import Config, text_part
from ..formats.safetensors import Tensor
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes import Runtime, find, newest, runtimes
from ..runtimes.verdict import judge
from .choice import Choice, Considered, refuse_amplitude
from .config import bake_config
from .factors import factors
from .fold import Fold, Side, fold
from .native import native
from .written import Written

Tensors = Callable[[], Mapping[str, Tensor]]
ENCODINGS: dict[str, Callable[[Schedule, RopeSpec, Family], Written]] = {"native": native, "factors": factors}


@dataclass(frozen=True)
class ConfigChoice(Choice):
    """A chosen encoding for config.json: what it writes, and the whole config.

    in_config: the schedule that the config alone says, which lacks what is folded into weights. written_as: the
    encoding of the config itself. fold: what goes into the weights.
    """

    written: Written = field(kw_only=True)
    config: Config = field(kw_only=True)
    in_config: Schedule = field(kw_only=True)
    written_as: str = field(kw_only=True)
    fold: Fold | None = None


def choose(
    schedule: Schedule,
    spec: RopeSpec,
    family: Family,
    config: Config,
    encoding: str,
    wanted: tuple[str, ...],
    tensors: Tensors = dict,
    side: Side = "k",
) -> ConfigChoice:
    """The encoding to use.

    `auto` takes, of the encodings that every named runtime reads exactly in its newest version, the one that most
    of its other current versions read exactly too; where there is none, it puts the amplitude into the weights.
    tensors: gives the checkpoint's tensors, asked only for that. Raises UnsupportedBake when nothing fits.
    """
    refuse_unbakeable(schedule, family, config)
    targets = [find(name) for name in wanted or ("transformers",)]
    newest_rows = [rows[-1] for rows in targets]
    if encoding == "weights":
        return _folded(schedule, spec, family, config, newest_rows, tensors, side)
    if encoding != "auto":
        if encoding not in ENCODINGS:
            raise UsageError(f"--encoding {encoding} is not known; choose auto, {', '.join(ENCODINGS)} or weights")
        return _try(encoding, schedule, spec, family, config)
    tried, refusals = _tried(schedule, spec, family, config)
    fitting = _fitting(tried, newest_rows)
    if fitting:
        chosen = max(fitting, key=lambda choice: sum(choice.word(row) == "exact" for rows in targets for row in rows))
        return replace(chosen, considered=_considered(tried, refusals, newest_rows, chosen))
    if has_amplitude(schedule) and tensors():
        folded = _folded(schedule, spec, family, config, newest_rows, tensors, side)
        return replace(folded, considered=_considered(tried, refusals, newest_rows, folded))
    raise _nothing_fits(tried, refusals, family, newest_rows)


def _considered(
    tried: list[ConfigChoice], refusals: dict[str, str], targets: list[Runtime], chosen: ConfigChoice
) -> tuple[Considered, ...]:
    """Why each encoding was taken or passed over."""
    asked, found = " and ".join(row.title for row in targets), []
    for name in ENCODINGS:
        choice = next((choice for choice in tried if choice.encoding == name), None)
        if choice is None:
            found.append(Considered(name, False, refusals[name]))
            continue
        reach = f"exact in {choice.reach()} of {len(choice.verdicts)} runtimes"
        wrong = next((v for v in choice.verdicts if v.runtime in {r.key for r in targets} and v.word != "exact"), None)
        if choice.encoding == chosen.encoding:
            found.append(Considered(name, True, f"exact in {asked}; {reach}"))
        elif wrong is not None:
            found.append(Considered(name, False, f"{wrong.title}: {wrong.because or wrong.word}"))
        else:
            found.append(Considered(name, False, f"not plainer, and no better in the versions of {asked}; {reach}"))
    taken = chosen.encoding == "weights"
    because = f"no config says this amplitude to {asked}" if taken else "not needed, a config says it all"
    return (*found, Considered("weights", taken, because))


def has_amplitude(schedule: Schedule) -> bool:
    """Whether there is something that weights could carry."""
    return schedule.attention_factor != 1 or schedule.softmax_scale != 1


def _folded(
    schedule: Schedule,
    spec: RopeSpec,
    family: Family,
    config: Config,
    targets: list[Runtime],
    tensors: Tensors,
    side: Side,
) -> ConfigChoice:
    """The amplitude in the weights, and the frequencies in the config that most runtimes read exactly without it."""
    if not has_amplitude(schedule):
        raise UnsupportedBake(
            "an amplitude of 1", "the weights", "there is nothing to multiply", "use --encoding native or factors"
        )
    found = fold(schedule, spec, family, config, tensors(), side)
    bare = replace(schedule, attention_factor=1.0, softmax_scale=1.0)
    tried, refusals = _tried(bare, spec, family, config)
    fitting = _fitting(tried, targets)
    if not fitting:
        raise _nothing_fits(tried, refusals, family, targets)
    choice = max(fitting, key=ConfigChoice.reach)
    verdicts = tuple(
        replace(verdict, word="rounded") if found.expected_kl and verdict.word == "exact" else verdict
        for verdict in choice.verdicts
    )
    return replace(choice, encoding="weights", verdicts=verdicts, fold=found)


def refuse_unbakeable(schedule: Schedule, family: Family, config: Config) -> None:
    """Raises UnsupportedBake for what no encoding in a config can carry."""
    if schedule.log_n is not None:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}",
            "config.json",
            "no stock class of this architecture scales queries by position",
            "leave --log-n out",
        )
    part = text_part(config, family)
    if family.weights.norm.endswith("after-rope") and part.get("use_qk_norm", True):
        refuse_amplitude(schedule, family)


def _fitting(tried: list[ConfigChoice], targets: list[Runtime]) -> list[ConfigChoice]:
    """Those that every target reads exactly."""
    return [choice for choice in tried if all(choice.word(row) == "exact" for row in targets)]


def _tried(
    schedule: Schedule, spec: RopeSpec, family: Family, config: Config
) -> tuple[list[ConfigChoice], dict[str, str]]:
    """Every encoding that can hold the schedule, plainest first, and why the others cannot."""
    tried: list[ConfigChoice] = []
    refusals: dict[str, str] = {}
    for name in ENCODINGS:
        try:
            tried.append(_try(name, schedule, spec, family, config))
        except UnsupportedBake as refusal:
            refusals[name] = str(refusal)
    return tried, refusals


def _try(name: str, schedule: Schedule, spec: RopeSpec, family: Family, config: Config) -> ConfigChoice:
    written = ENCODINGS[name](schedule, spec, family)
    baked = bake_config(config, family, spec, written)
    verdicts = tuple(judge(baked, family, schedule, spec, runtime) for runtime in runtimes())
    return ConfigChoice(name, verdicts, written=written, config=baked, in_config=schedule, written_as=name)


def _nothing_fits(
    tried: list[ConfigChoice], refusals: dict[str, str], family: Family, targets: list[Runtime]
) -> UnsupportedBake:
    reasons = [
        f"{verdict.title} with {choice.encoding}: {verdict.because or verdict.word}"
        for choice in tried
        for verdict in choice.verdicts
        if verdict.runtime in {row.key for row in targets} and verdict.word != "exact"
    ]
    best = next((row for row in [newest("transformers")] if any(c.word(row) == "exact" for c in tried)), None)
    return UnsupportedBake(
        "this schedule",
        " and ".join(row.title for row in targets),
        "; ".join(dict.fromkeys(reasons or refusals.values())),
        f"name a runtime that reads it (--runtime {best.name} does)" if best else "choose another method",
    )
