"""Every result shows itself: names that are its attributes, JSON, HTML, and a table for pandas."""

import json
import math
import pkgutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropeconv
from ropeconv.bake.findings import Verification
from ropeconv.bake.output import Output
from ropeconv.bake.plan import FilePlan
from ropeconv.bake.ranked import advised
from ropeconv.engines.probes.result import ProbeResult
from ropeconv.environment import missing
from ropeconv.features.compare.compatibility import compatibility
from ropeconv.features.evaluation.tune.result import TuningResult, TuningRow, WindowMeasurement
from ropeconv.features.identify.identification import CandidateResult, Identification
from ropeconv.features.profiles.plan import plan_each_profile, plan_shared_folder
from ropeconv.features.run.report import RunRow, RunTable
from ropeconv.features.training.training import TrainingFacts, make_snippet, trainers
from ropeconv.features.vectors.vectors import VectorCandidate, VectorPacket
from ropeconv.inspection.adapter import Adapter, read_adapter
from ropeconv.inspection.head_bound import HeadLengths, LayerReach
from ropeconv.inspection.receipts.receipt import CheckRecord
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import Plain
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.rope.summary import MOST_ROWS, Summary, SummaryTable, TableSummary
from ropeconv.runtimes.runtime import runtimes
from ropeconv.validate.validation import BucketResult, Validation

from .features.evaluation.results import made
from .support import graphs
from .support.baking import AS_IS, YARN, apply, inspected, make_plan
from .support.gguf_files import write
from .support.models import make

HOSTILE = '<script>alert("1")&<b>'
"""The name of every model here, which a notebook must not run."""
BASES = {"Summary", "TableSummary", "GgufOutput"}
"""Classes of which only subclasses are results."""


def all_results() -> dict[str, type[Summary]]:
    """Every result of ropeconv by the name of its class, whichever module it is in."""
    import ropeconv as package

    for module in pkgutil.walk_packages(package.__path__, "ropeconv."):
        inside = module.name.split(".")
        if not {"data", "__main__"} & {*inside} and not module.name.endswith("_program"):
            import_module(module.name)

    def below(kind: type[Summary]) -> Iterator[type[Summary]]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    return {
        kind.__name__: kind
        for kind in below(Summary)
        # other tests have plans of their own
        if kind.__name__ not in BASES and kind.__module__.startswith("ropeconv.")
    }


def bucket(name: str, last: int, kl: float, **more: Any) -> BucketResult:
    return BucketResult(name, last, kl / 2, kl, 2 * kl, 1e-3, 1.0, 0.5, 1e-5, kl < 1e-5, **more)


VALIDATION = Validation(
    "5.23.0",
    "cpu",
    "d" * 64,
    64,
    0,
    (bucket("0-63", 63, 2e-7), bucket("64-127", 127, 3e-2), bucket("0-7", 7, 1e-9, run="whole")),
    False,
    f"FAIL: KL 3.00e-02 at {HOSTILE}, where 1.00e-05 is allowed.",
)
SPEC = RopeSpec(64, 64, Plain(10_000.0), 4096, 4096)
SCHEDULE = REGISTRY["yarn"](4.0).schedule(SPEC)


def tuning() -> TuningResult:
    def row(name: str, total: float, **paired: Any) -> TuningRow:
        beyond, inside = WindowMeasurement(value=3.0), WindowMeasurement(value=2.5)
        paired_total = WindowMeasurement(value=total, clusters=8, **paired)
        return TuningRow(name=name, recipe=None, beyond=beyond, inside=inside, total=paired_total)

    return TuningResult(
        recipe={"method": "yarn", "parameters": {"factor": 4.0}},
        better=True,
        sentence="tuned is significantly better than every formula.",
        best_formula="yarn 4",
        source=HOSTILE,
        identity="0" * 64,
        runtime="transformers",
        device="cpu",
        dtype="float32",
        trained=64,
        context=256,
        steps=10,
        seed=0,
        regularise=0.0,
        price=0.5,
        needles=0.0,
        texts=["a"],
        held_out=["b"],
        tokens_sha256="0" * 64,
        windows=4,
        held_windows=8,
        searched=-0.1,
        trace=[0.0, -0.1],
        divisors=[1.0, 2.0],
        formula_divisors=[1.0, 2.0],
        attention_factor=1.1,
        positions=[64, 128],
        rows=[
            row("yarn 4", 4.25),
            row(HOSTILE, 4.0, difference=-0.25, error=0.01, margin=0.05),
        ],
    )


def snippet(model: str) -> Summary:
    verdicts = {row.key: ("exact", "") for row in runtimes()}
    facts = TrainingFacts(model, "yarn", 16384, 4096, "llama", SPEC, False, False, False, verdicts)
    return make_snippet(trainers()["axolotl"], facts)


def lora(folder: Path, base: Path) -> Adapter:
    config = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": str(base)}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    found = read_adapter(ropeconv.open_source(str(folder)))
    assert found is not None
    return found


def run_table() -> RunTable:
    failed = {"apply": ("failed", f"{HOSTILE} is damaged"), "push": ("not run", "")}
    done = {"apply": ("done", "1.0 s"), "push": ("done", "2.0 s")}
    rows = [RunRow(HOSTILE, "yarn:4", "q8", failed, {}), RunRow("b", "yarn:4", "q8", done, {})]
    return RunTable(("apply", "push"), tuple(rows))


def identification() -> Identification:
    results = (
        CandidateResult("linear", f"linear {HOSTILE}", 1e-9, 2e-9, True),
        CandidateResult("right", "the method", 0.1, 0.2, False),
        CandidateResult("unscaled", "the source", 0.3, 0.4, False),
    )
    return Identification(
        HOSTILE, "vLLM 0.33", "--yarn 4", results, 1e-5, 1e-12, True, 256, "d" * 64
    )


def probe_result() -> ProbeResult:
    return ProbeResult(
        subject=HOSTILE,
        runtime="vllm",
        title="vLLM 0.33.0",
        version="0.33.0",
        python=f"/{HOSTILE}/bin/python",
        status="differs",
        reason="frequencies are 1 to 4 times those of the schedule",
        expected="yarn, theta 10000, factor 4",
        expected_attention_factor=1.2,
        attention_factor=1.0,
        deviation=0.5,
        switches=False,
        context=256,
        window=64,
        rotating=2,
        layers=2,
        model_class=HOSTILE,
    )


def vector_packet() -> VectorPacket:
    candidates = (
        VectorCandidate("right", "the method", 0.0),
        VectorCandidate("linear", f"linear {HOSTILE}", 1.5),
    )
    precisions = {"float32": {"noise": 1e-5, "tolerance": 4e-5}}
    left_out = {"layout": "the class of this architecture cannot compute it"}
    return VectorPacket(
        HOSTILE, "llama, --yarn 8", 64, 512, candidates, left_out, precisions, ("README.md",), 9
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Summary]:
    """A result of every class, of models with a hostile name."""
    folder = tmp_path_factory.mktemp("results") / HOSTILE
    folder.mkdir()
    model = make("llama", folder / "model")
    source = ropeconv.open_source(str(model))
    gguf = write(folder / "a.gguf", extra={"general.name": HOSTILE})
    plan = make_plan(model, YARN, folder / "out")
    written = apply(plan)
    profiles = plan_each_profile(source, [AS_IS, YARN], ropeconv.Target(out=folder / "profiles"))
    first, second = inspected(model), inspected(written)
    adapter = lora(folder / "adapter", model)
    made_here = {
        "ConfigInspection": first,
        "Inspection": inspected(gguf),
        "RopeDifference": ropeconv.side_by_side(first, second),
        "FilePlan": FilePlan(source, folder / "x", (), ()),
        "Plan": plan,
        "CheckpointPlan": plan,
        "GgufPlan": make_plan(gguf, YARN, folder / "b.gguf"),
        "RestorePlan": ropeconv.restore_plan(ropeconv.open_source(str(written))),
        "ProfilesPlan": plan_shared_folder(source, profiles, folder / "profiles", False),
        "Output": Output(written, plan, CheckRecord("5.23.0", 1, 1.0)),
        "SchedulePlot": ropeconv.plot(first, yarn=4, linear=4),
        "Validation": VALIDATION,
        "Result": made(rows="base,yarn:4,linear:4"),
        "TuningResult": tuning(),
        "RankedMethods": advised(source, 512),
        "Bound": ropeconv.bound(4096, 128, 128),
        "Reach": ropeconv.reach(SCHEDULE.inv_freq, 0.0, 16384),
        "Schedule": SCHEDULE,
        "HeadLengths": HeadLengths((LayerReach(0, 4096, (100, None), (7, 0)),)),
        "Snippet": snippet(f"./{HOSTILE}"),
        "Advice": advised(source, 512).methods[0],
        "Receipt": ropeconv.read_receipt(written),
        "Adapter": adapter,
        "Compatibility": compatibility([first, second], ((adapter, first),)),
        "Verification": Verification(3, 1000, notes=(f"{HOSTILE} differs",)),
        "RunTable": run_table(),
        "Identification": identification(),
        "ProbeResult": probe_result(),
        "VectorPacket": vector_packet(),
    }
    return made_here


@pytest.fixture(scope="module")
def of_graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Summary]:
    pytest.importorskip("onnx", reason="onnx is not installed; pip install 'ropeconv[graphs]'")
    from ropeconv.features.graphs.inspection import compare_graph, inspect_graph
    from ropeconv.features.graphs.model import open_graph
    from ropeconv.features.graphs.plan import graph_plan

    folder = tmp_path_factory.mktemp("graphs") / HOSTILE
    folder.mkdir()
    source = open_graph(str(graphs.small_graph(folder) / "model.onnx"))
    inspection = inspect_graph(source)
    return {
        "GraphInspection": inspection,
        "GraphComparison": compare_graph(inspection, inspected(folder / "config.json")),
        "GraphPlan": graph_plan(source, YARN, ropeconv.Target(out=folder / "out")),
    }


OF_GRAPHS = ("GraphInspection", "GraphComparison", "GraphPlan")
ELSEWHERE = {
    "ExportPlan": "GgufPlan",  # the same methods, from GgufOutput
    "AdapterPlan": "FilePlan",  # adds only its receipt
}
"""Results that inherit what they show from another one, of which there is an example."""
NAMES = sorted({*all_results()} - {*ELSEWHERE})


@pytest.fixture
def result(request: pytest.FixtureRequest, results: dict[str, Summary]) -> Summary:
    name: str = request.param
    if name in OF_GRAPHS:
        made_of_graphs: dict[str, Summary] = request.getfixturevalue("of_graphs")
        return made_of_graphs[name]
    return results[name]


of_each = pytest.mark.parametrize("result", NAMES, indirect=True)


def shown_names(result: Summary) -> list[str]:
    """The names that a repr has: the first word of each line that begins with two spaces."""
    return [*result.summary(), *(table.name for table in result.shown_tables())]


@of_each
def test_every_name_that_a_result_shows_is_its_attribute(result: Summary) -> None:
    assert [name for name in shown_names(result) if not hasattr(result, name)] == []
    assert all(name.isidentifier() for name in shown_names(result))
    in_repr = {line.split()[0] for line in repr(result).splitlines() if line[:3].strip()}
    assert in_repr <= {type(result).__name__, *shown_names(result)}


def test_a_name_that_is_not_an_attribute_would_be_found() -> None:
    class Wrong(Summary):
        def summary(self) -> dict[str, str]:
            return {"sentence": "x", "shown": "x"}

    assert [name for name in shown_names(Wrong()) if not hasattr(Wrong(), name)] == [
        "sentence",
        "shown",
    ]


@of_each
def test_the_first_line_is_the_conclusion_in_words(result: Summary) -> None:
    first, text = next(iter(result.summary().items()))
    assert first == "sentence"
    assert text == result.sentence  # type: ignore[attr-defined]
    assert len(text.split()) > 3
    assert text.endswith(".")
    assert repr(result).splitlines()[0] == type(result).__name__
    assert len(repr(result).splitlines()) < 60


@of_each
def test_a_result_is_json(result: Summary) -> None:
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert isinstance(data, dict)
    assert data


class Page(HTMLParser):
    """HTML whose tags are closed in order, with its tags and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@of_each
def test_a_notebook_shows_plain_tables_with_escaped_values(result: Summary) -> None:
    page = Page(result._repr_html_())
    allowed = {"table", "caption", "thead", "tbody", "tr", "th", "td", "br", "pre"}
    assert {*page.tags} <= allowed
    assert page.attributes <= {"style", "colspan"}
    assert page.tags[:2] == ["table", "caption"]
    for name, value in result.summary().items():
        if value:
            assert name in page.text
            assert value.splitlines()[0] in page.text
    for table in result.shown_tables():
        if table.rows:
            assert set(table.columns) <= set(page.text.split()) or all(
                column in page.text for column in table.columns
            )
            assert all(cell.splitlines()[0] in page.text for cell in table.rows[0] if cell)


def test_a_page_that_is_not_well_formed_would_be_found() -> None:
    for wrong in ("<table><tr></table>", "<table>", "<table></tr></table>"):
        with pytest.raises((AssertionError, IndexError)):
            Page(wrong)
    assert "script" in Page(f"<td>{'<script>'}</script></td>").tags


def test_a_hostile_name_is_shown_as_text(results: dict[str, Summary]) -> None:
    pages = {name: Page(result._repr_html_()) for name, result in results.items()}
    hostile = [name for name, page in pages.items() if HOSTILE in page.text]
    assert {"ConfigInspection", "Inspection", "Plan", "Validation", "RunTable"} <= {*hostile}
    assert {"TuningResult", "Snippet", "RankedMethods", "Output"} <= {*hostile}


# Attributes


def test_an_inspection_has_what_it_shows(results: dict[str, Summary]) -> None:
    inspection: Any = results["ConfigInspection"]
    spec = inspection.spec
    assert (inspection.family, inspection.family_name) == ("llama", "llama")
    assert (inspection.context, inspection.original_context) == (spec.context, 64)
    assert (inspection.rope_type, inspection.rope_theta) == ("default", 10000.0)
    assert (inspection.attention_factor, inspection.head_dim) == (1.0, spec.head_dim)
    assert inspection.runtimes == inspection.verdicts != ()
    assert inspection.model_family.name == "llama"
    data = inspection.to_dict()
    same = ("family", "context", "original_context", "rope_type", "rope_theta", "rotary_dim")
    assert [getattr(inspection, name) for name in same] == [data[name] for name in same]
    gguf: Any = results["Inspection"]
    assert (gguf.family, gguf.context, gguf.runtimes) == ("llama", 64, ())


def test_an_output_has_what_its_plan_shows(results: dict[str, Summary]) -> None:
    output: Any = results["Output"]
    plan: Any = results["Plan"]
    names = ("context", "encoding", "recipe", "runtimes", "files", "bytes", "source", "warnings")
    assert [getattr(output, name) for name in names] == [getattr(plan, name) for name in names]
    assert output.context == 4 * 64
    assert output.to_dict()["check"]["max_ulp"] == 1


def test_advice_is_an_object_with_the_best_first(results: dict[str, Summary]) -> None:
    advice: Any = results["RankedMethods"]
    assert advice.best is advice.methods[0]
    assert advice.best.flags in advice.sentence
    assert {row.method.name for row in advice.methods}.isdisjoint(advice.passed_over)
    assert len(advice.to_dict()["advice"]) == len(advice.methods)
    assert advice.to_dict()["passed_over"] == advice.passed_over


# Tables


@of_each
def test_a_table_becomes_a_frame_of_pandas(result: Summary) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; see docs/python.md")
    if not isinstance(result, TableSummary):
        assert not hasattr(result, "to_pandas")
        return
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(result.records())
    if result.record_keys:
        assert tuple(frame.columns) == result.record_keys
    for record in result.records():
        assert not result.record_keys or tuple(record) == result.record_keys


def test_the_frames_have_the_numbers_of_the_results(results: dict[str, Any]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed; see docs/python.md")
    pairs = results["Schedule"].to_pandas()
    assert list(pairs["inv_freq"]) == list(SCHEDULE.inv_freq)
    assert pairs["wavelength"][0] == pytest.approx(
        2 * math.pi
    )  # the first pair turns once per 2 pi

    buckets = results["Validation"].to_pandas()
    assert list(buckets["kl_95"]) == [2e-7, 3e-2, 1e-9]
    assert list(buckets["agrees"]) == [True, False, True]

    result = results["Result"]
    cells = result.to_pandas()
    growth = cells[(cells["measure"] == "growth") & (cells["column"] == 8192)]
    assert list(growth["row"]) == ["base", "yarn:4", "linear:4"]
    assert growth["value"].iloc[0] == result.cell("base", "growth", "loss", 8192).value

    rows = results["TuningResult"].to_pandas()
    assert list(rows["total"]) == [4.25, 4.0]
    assert list(rows["decided"]) == [False, True]

    jobs = results["RunTable"].to_pandas()
    assert list(jobs["apply"]) == ["failed", "done"]
    assert jobs["reason"][0] == f"{HOSTILE} is damaged"

    heads = results["HeadLengths"].to_pandas()
    assert (heads["effective_length"][0], list(heads["violations"])) == (100, [7, 0])

    runtimes_of = results["ConfigInspection"].to_pandas()
    newest = runtimes_of[runtimes_of["display_name"].str.startswith("transformers")]
    assert set(newest["status"]) == {"exact"}
    methods = results["RankedMethods"].to_pandas()
    assert methods["method"][0] == results["RankedMethods"].best.method.name
    both = results["RopeDifference"].to_pandas()
    assert len(both) == len(results["RopeDifference"].runtimes) > 3


def test_an_inspection_without_verdicts_is_a_frame_with_columns(results: dict[str, Any]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed; see docs/python.md")
    frame = results["Inspection"].to_pandas()
    assert (len(frame), "status" in frame.columns) == (0, True)


def test_without_pandas_a_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    with pytest.raises(RopeconvError) as raised:
        VALIDATION.to_pandas()
    assert str(raised.value) == str(missing("pandas", "to_pandas()"))
    assert len(VALIDATION.records()) == 3
    assert VALIDATION._repr_html_()


# The base


class Long(TableSummary):
    def summary(self) -> dict[str, str]:
        return {"sentence": "two\nlines", "empty": ""}

    def shown_tables(self) -> list[SummaryTable]:
        rows = [(f"{number}", "a\nb") for number in range(MOST_ROWS + 5)]
        return [SummaryTable("rows", ("n", "words"), rows, "numbers"), SummaryTable("none", (), [])]


def test_a_long_table_is_cut_and_lines_stay_lines() -> None:
    assert repr(Long()).splitlines() == [
        "Long",
        "  sentence  two",
        "            lines",
        "  rows      numbers",
        "            n  words",
        "            0  a b",
        "            1  a b",
        "            2  a b",
        "            3  a b",
        "            4  a b",
        "            5  a b",
        f"            ... and {MOST_ROWS - 1} more",
    ]
    page = Page(Long()._repr_html_())
    assert page.tags.count("tr") == 1 + 1 + MOST_ROWS + 1
    assert "... and 5 more" in page.text
    assert page.tags.count("table") == 2


def test_the_indentation_of_a_file_is_kept(results: dict[str, Any]) -> None:
    text = Page(results["Snippet"]._repr_html_()).text
    assert "\n    ds_type: json\n" in text
    assert "pre" not in Page(results["Plan"]._repr_html_()).tags


def test_the_loss_at_the_longest_length_decides_the_sentence_of_an_evaluation() -> None:
    result = made(rows="base,yarn:4,linear:4", measures=("growth",))
    values = {row.name: result.cell(row.name, "growth", "loss", 65536) for row in result.rows}
    lowest = min(values, key=lambda name: values[name].value if values[name] else math.inf)  # type: ignore[union-attr]
    assert f"that of {lowest}:" in result.sentence
    assert "65,536 tokens" in result.sentence
    assert "1 row was refused" not in result.sentence


def test_a_recipe_of_a_vector_and_its_schedule_agree() -> None:
    recipe = Recipe(REGISTRY["inv-freq"](tuple(SCHEDULE.inv_freq)))
    records = recipe.schedule(SPEC).records()
    assert np.array_equal([row["inv_freq"] for row in records], SCHEDULE.inv_freq)
