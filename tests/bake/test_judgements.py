"""A plan judges each config that it may write once in each row of the table of runtimes."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

import ropeconv.convert.gguf_encoding as gguf_encoding_module
import ropeconv.runtimes.gguf_readers as readers_module
import ropeconv.runtimes.read_config as read_config_module
import ropeconv.runtimes.verdict as verdict_module
from ropeconv.bake.apply import make_plan
from ropeconv.bake.warnings import repairs
from ropeconv.convert.encoding import EncodeRequest
from ropeconv.convert.gguf_encoding import GgufResult
from ropeconv.convert.target import Target
from ropeconv.formats.gguf.edit import Edit
from ropeconv.inspection.inspection import inspect_config
from ropeconv.models.open import open_source
from ropeconv.models.source import Source
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.gguf_readers import Reader, find_readers, gguf_readers
from ropeconv.runtimes.runtime import RuleSet, Runtime, newest
from ropeconv.runtimes.verdict import Judge, PlannedConfig, Verdict, rows_for

from ..support.baking import recipe_of

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
QWEN = CONFIGS / "Qwen--Qwen3-8B.json"
YARN = recipe_of("yarn", 8.0)
LOG_N = recipe_of("yarn", 8.0, log_n="full")
MIXED = recipe_of("mixed", 8.0)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[object, ...]]:
    """How often each pair of a planned config and a row was judged."""
    counts = Counter[tuple[object, ...]]()
    judge_row = verdict_module.judge_row

    def counting(planned: PlannedConfig, row: Runtime) -> Verdict:
        config = msgspec.json.encode(planned.config, order="deterministic")
        counts[config, planned.family.name, planned.numbers, row.key, row.last] += 1
        return judge_row(planned, row)

    monkeypatch.setattr(verdict_module, "judge_row", counting)
    return counts


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[RuleSet]:
    """The rules that read a config, for each time that they did."""
    done = []
    read = read_config_module._read_spec

    def counting(config: object, family: object, rules: RuleSet) -> object:
        done.append(rules)
        return read(config, family, rules)  # type: ignore[arg-type]

    monkeypatch.setattr(read_config_module, "_read_spec", counting)
    return done


def outcome(path: Path, recipe: Recipe, **target: object) -> str:
    """The encoding of a plan, or the error."""
    try:
        return make_plan(open_source(str(path)), recipe, Target(**target)).encoding  # type: ignore[arg-type]
    except RopeconvError as problem:
        return type(problem).__name__


@pytest.mark.parametrize(
    ("recipe", "target", "expected"),
    [
        (YARN, {}, "native"),
        (MIXED, {"runtimes": ("vllm", "sglang")}, "factors"),
        (YARN, {"runtimes": ("transformers@4.45",)}, "UnsupportedBake"),
        (LOG_N, {"runtimes": ("mlx-lm", "vllm"), "allow_approximate": True}, "UnsupportedBake"),
        (recipe_of("as-is"), {"runtimes": ("all",)}, "UnsupportedBake"),
        (recipe_of("as-is"), {"encoding": "factors"}, "factors"),
    ],
)
def test_a_config_is_judged_once_in_each_row(
    judged: Counter[tuple[object, ...]], recipe: Recipe, target: dict[str, object], expected: str
) -> None:
    assert outcome(QWEN, recipe, **target) == expected
    assert max(judged.values()) == 1


def test_a_plan_judges_what_it_may_write_and_not_its_source(
    judged: Counter[tuple[object, ...]], readings: list[RuleSet]
) -> None:
    """Two encodings need only a config; of its source, only the newest transformers is asked."""
    family = inspect_config(config_source(QWEN)).model_family
    judged.clear()
    readings.clear()
    assert outcome(QWEN, YARN) == "native"
    assert len(judged) == 2 * len(rows_for(family)) + 1
    # rows with equal rules share a reading, and the source is read twice
    assert len(readings) < len(rows_for(family)) + 10


def test_repairs_of_an_inspection_share_their_judgements(
    judged: Counter[tuple[object, ...]],
) -> None:
    source = config_source(CONFIGS / "hfl--chinese-alpaca-2-13b-16k.json")
    found = list(repairs(source, inspect_config(source)))
    assert len(found) > 1, "several runtimes, with the same config to repair them"
    assert max(judged.values()) == 1


@pytest.mark.parametrize("shared", [True, False])
def test_a_refusal_and_its_repairs_share_their_judgements(
    judged: Counter[tuple[object, ...]], shared: bool, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refused encoding looks for a base that fits; without one judge, the count notices."""
    if not shared:
        monkeypatch.setattr(Judge, "planned", lambda self, *given: PlannedConfig(*given))
    target = {"runtimes": ("transformers@4.45",), "allow_approximate": True}
    assert outcome(llama, LOG_N, **target) == "UnsupportedBake"
    assert max(judged.values()) == (1 if shared else 2)


def test_a_judge_tells_configs_apart() -> None:
    """A config counts as the same only where all that a verdict follows from is equal."""
    source = config_source(QWEN)
    inspection = inspect_config(source)
    config = source.config()
    family = inspection.model_family
    spec = inspection.spec
    judge = Judge()
    first = judge.planned(config, family, spec.current(), spec)
    assert judge.planned(source.config(), family, spec.current(), spec) is first

    further = YARN.schedule(spec)
    assert judge.planned(config, family, further, spec) is not first
    assert judge.planned(config | {"rope_theta": 7.0}, family, spec.current(), spec) is not first
    copied = msgspec.structs.replace(family)
    assert judge.planned(config, copied, spec.current(), spec) is not first


def test_copies_of_a_request_share_a_judge() -> None:
    source = config_source(QWEN)
    inspection = inspect_config(source)
    spec = inspection.spec
    made = EncodeRequest(spec.current(), spec, inspection.model_family, source.config(), Target())
    assert EncodeRequest(**vars(made)).judge is made.judge


# GGUF


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each reader was asked."""
    counts = Counter[str]()
    judge_reader = readers_module.judge_reader

    def counting(reader: Reader, *given: object) -> Verdict:
        counts[reader.key] += 1
        return judge_reader(reader, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(readers_module, "judge_reader", counting)
    monkeypatch.setattr(gguf_encoding_module, "judge_reader", counting)
    return counts


def ollama_result() -> GgufResult:
    """A result with the verdicts of all readers on a plain Llama."""
    features = frozenset({"theta", "stock_theta"})
    verdicts = readers_module.judge_readers(features, "llama")  # type: ignore[arg-type]
    llamacpp = Verdict("llama-cpp@1", "llama.cpp", "exact", "", "here", "1")
    return GgufResult(
        "keys",
        (llamacpp, *verdicts),
        edit=Edit(),
        arch="llama",
        features=features,  # type: ignore[arg-type]
    )


def test_a_reader_that_is_named_was_judged_with_all_others(asked: Counter[str]) -> None:
    result = ollama_result()
    asked.clear()
    for reader in gguf_readers():
        assert result.verdict_by(reader) in result.verdicts
    assert not asked


def test_a_version_inside_a_range_is_judged_once(asked: Counter[str]) -> None:
    result = ollama_result()
    asked.clear()
    wide = next(reader for reader in gguf_readers() if reader.version != reader.last)
    for _ in range(2):
        verdict = result.verdict_by(find_readers(f"{wide.name}@{wide.last}")[0])
        assert verdict.runtime == f"{wide.name}@{wide.last}"
        assert verdict.status == result.verdict_by(wide).status
    assert set(asked.values()) == {1}


def config_source(path: Path) -> Source:
    source = open_source(str(path))
    assert isinstance(source, Source)
    return source


def test_the_newest_transformers_is_among_the_rows() -> None:
    """Else a plan would carry no warning over that it does not load the source."""
    source = config_source(QWEN)
    verdicts = inspect_config(source).verdicts
    assert any(verdict.covers(newest("transformers")) for verdict in verdicts)
