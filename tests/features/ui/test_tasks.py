"""What pages answer, asked without a browser: dropped results, GGUF files, outputs; and that all of
it is text.
"""

import base64
import json
import pydoc_data.topics
import shlex
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ropeconv.bake.evidence import study_for
from ropeconv.features.ui.forms import (
    PRESETS,
    BakeForm,
    CompareForm,
    ModelForm,
    PageForm,
    RuntimesForm,
    command_of,
)
from ropeconv.features.ui.front import progress_html
from ropeconv.features.ui.job import failure
from ropeconv.features.ui.measured import measured_pictures
from ropeconv.features.ui.sheet import HtmlSheet, PageProgress, TaskContext
from ropeconv.features.ui.tasks import TASKS, runtimes_html
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe

from ...support.baking import make_plan
from ...support.gguf_files import write
from ...support.in_process import command
from ...support.llamacpp import checkpoint

SIZES = ("--lengths", "1T,2T", "--windows", "5", "--targets", "8", "-q")
HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>&amp;"


class Elements(HTMLParser):
    """The elements of a text with their attributes, and its words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.found}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, an output of it that was validated and evaluated, a GGUF file, and the files of
    both results.
    """
    folder = tmp_path_factory.mktemp("models")
    checkpoint("llama", folder / "source")
    (folder / "text.txt").write_text(pydoc_data.topics.topics["assert"] * 20)
    for arguments in (
        ("apply", "source", "--yarn", "4", "-o", "baked", "-q"),
        ("apply", "source", "--yarn", "4", "--to", "gguf", "-o", "baked.gguf", "-q"),
        ("eval", "baked", "--against", "source", "--text", "text.txt", *SIZES),
        (
            "eval",
            "source",
            "--methods",
            "base,yarn:4,linear:4",
            "--text",
            "text.txt",
            *SIZES,
            "-o",
            "result.json",
        ),
    ):
        command(folder, *arguments, code=0)
    done = command(folder, "validate", "baked", "--against", "source", "--quick", "--json", code=0)
    (folder / "validation.json").write_text(done.stdout)
    return folder


def asked(task: str, form: PageForm) -> Elements:
    sheet = HtmlSheet()
    TASKS[task](form, TaskContext(lambda message: None), sheet)
    return Elements(sheet.html())


@pytest.fixture
def form(models: Path) -> BakeForm:
    return BakeForm(source=str(models / "source"), method="yarn", value="4")


def test_a_dropped_evaluation_is_shown_and_sorts_the_methods(models: Path) -> None:
    result = models / "result.json"
    page = asked("results", ModelForm(upload=str(result)))
    assert "growth: loss" in page.words
    assert sum(name == "figure" for name, _ in page.found) == 2
    form = CompareForm(source=str(models / "source"), context="4", measured=str(result))
    page = asked("compare", form)
    plain = asked("compare", replace(form, measured=""))
    assert ("Sorted by: the loss" in page.words, "Sorted by: the loss" in plain.words) == (
        True,
        False,
    )
    cells = json.loads(result.read_text())["cells"]
    losses = {
        cell["row"]: cell["value"]
        for cell in cells
        if (cell["metric"], cell["column"]) == ("loss", 128)
    }
    first = min(("yarn", "linear"), key=lambda name: losses[f"{name}:4"])
    assert page.words.index(f"--{first} 4") < page.words.index("--ntk 4")


def test_a_model_that_is_an_output_shows_what_was_measured_of_it(models: Path) -> None:
    (record,) = read_receipt(models / "baked").evaluations
    page = asked("results", ModelForm(source=str(models / "baked")))
    assert f"Evaluated on {record.described_texts}" in page.words


def test_dropped_validations_receipts_and_gguf_files_are_results(
    models: Path, tmp_path: Path
) -> None:
    page = asked("results", ModelForm(upload=str(models / "validation.json")))
    assert "agrees" in page.words
    assert "figure" in page.names
    for name in ("baked/ropeconv.json", "baked.gguf"):
        page = asked("results", ModelForm(upload=str(models / name)))
        assert "ropeconv apply source --yarn 4" in page.words, name
    page = asked("results", ModelForm(source=str(models / "baked.gguf")))
    assert "Not evaluated yet" in page.words
    for text, message in (
        ("{}", "is not a receipt or a result"),
        ('{"buckets": 1}', "is not a validation"),
        ("[", "JSON"),
    ):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(RopeconvError, match=message):
            asked("results", ModelForm(upload=str(tmp_path / "wrong.json")))


def test_a_gguf_file_is_inspected_compared_and_baked(models: Path, tmp_path: Path) -> None:
    gguf = str(models / "baked.gguf")
    page = asked("inspect", ModelForm(source=gguf)).words
    assert ("yarn, theta 10000, factor 4" in page, "Its RoPE in pictures" in page) == (True, True)
    assert "gguf" in asked("compare", CompareForm(source=gguf, context="1k")).words
    dropped = tmp_path / "mine.gguf"
    shutil.copyfile(gguf, dropped)
    form = BakeForm(
        upload=str(dropped),
        method="linear",
        value="8",
        replace=True,
        out=str(tmp_path / "out.gguf"),
    )
    assert "ropeconv apply mine.gguf --linear 8 --replace" in asked("plan", form).words
    assert f"Wrote {tmp_path / 'out.gguf'}" in asked("write", form).words
    command(
        tmp_path, "apply", gguf, "--linear", "8", "--replace", "-o", "by-command.gguf", "-q", code=0
    )
    assert len((tmp_path / "out.gguf").read_bytes()) == len(
        (tmp_path / "by-command.gguf").read_bytes()
    )


def shown_command(page: Elements) -> list[str]:
    """The command below an answer, without the model."""
    words = page.words.rpartition("The same on the command line")[2]
    words = words.partition("Measured on another model")[0]
    return shlex.split(words.replace("Copy", ""))[3:]


def test_the_command_does_what_was_done_and_nothing_more(
    form: BakeForm, models: Path, tmp_path: Path
) -> None:
    form = replace(form, out=str(tmp_path / "by page"))
    named = replace(form, repo_id="me/x", private=True, exist_ok=True)
    for task, bake_form, answer in (
        ("plan", form, "It will be written to"),
        ("write", named, "Run"),
    ):
        page = asked(task, bake_form)
        assert (answer in page.words, shown_command(page)) == (
            True,
            ["--yarn", "4", "-o", form.out],
        )
    plan = make_plan(
        models / "source", Recipe.from_dict({"method": "yarn", "parameters": {"factor": 4.0}})
    )
    written, pushed = map(shlex.split, command_of(plan, named, publishing=True).splitlines())
    assert written[3:] == ["--yarn", "4", "-o", plan.out.name]
    assert pushed == ["ropeconv", "push", plan.out.name, "me/x", "--private", "--exist-ok"]
    pushed = shlex.split(command_of(plan, replace(named, exist_ok=False), publishing=True))
    assert pushed[3:] == ["--yarn", "4", "--push", "me/x", "--private"]
    home = replace(form, out="~/out")
    assert shown_command(asked("plan", home))[-1] == str(Path("~/out").expanduser())


def test_what_was_written_shows_its_plan_and_is_validated(form: BakeForm, tmp_path: Path) -> None:
    form = replace(form, out=str(tmp_path / "validated"))
    with pytest.raises(RopeconvError, match="press Write first"):
        asked("validate", form)
    planned = asked("plan", form).words
    written = asked("write", form).words
    first_line = "source: 64 -> 256 tokens with --yarn 4"
    assert first_line in planned
    study = study_for("yarn", 4)
    assert study is not None
    gain = f"{study.beyond['yarn'] - study.beyond['base']:+.2f} nats"
    page = asked("validate", form)
    for answer in (planned, written, page.words):
        assert first_line in answer
        assert " yes, " in fits_of(answer)
        assert gain in answer.partition("Quality:")[2]
    assert first_line in written.partition("The plan")[2]
    assert first_line in page.words.partition("The plan")[2]
    assert ("agrees" in page.words, "figure" in page.names) == (True, True)
    assert page.words.strip().startswith(f"Validated {form.out}: PASS.")
    assert f"ropeconv validate {form.out} --against {form.source}" in page.words
    recorded = read_receipt(Path(form.out)).validation
    assert recorded is not None
    assert recorded["agrees"] is True


def test_an_output_that_is_not_its_plan_fails_the_validation(
    form: BakeForm, tmp_path: Path
) -> None:
    form = replace(form, out=str(tmp_path / "edited"))
    asked("write", form)
    config = tmp_path / "edited" / "config.json"
    config.write_text(config.read_text().replace('"factor": 4.0', '"factor": 3.0'))
    with pytest.raises(RopeconvError, match=r"config\.json"):
        asked("validate", form)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_in_what_its_machine_runs(form: BakeForm, name: str) -> None:
    memory, runtimes, to, outtype = PRESETS[name].values(form.source)
    chosen = replace(form, memory=memory, runtimes=tuple(runtimes), to=to, outtype=outtype or None)
    page = asked("plan", chosen)
    assert [word for word in runtimes if f"--runtime {word}" not in page.words] == []
    assert f"--memory {memory}" in page.words
    assert f"{memory.removesuffix('GB')}.0 GiB" in fits_of(page.words)
    assert PRESETS[name].values("model.Q4_K_M.GGUF")[3] == ""


def fits_of(words: str) -> str:
    """What stands behind "Fits:", up to the next answer."""
    return words.partition("Fits:")[2].partition("Quality:")[0]


def test_a_plan_shows_what_was_measured_about_its_method(form: BakeForm, models: Path) -> None:
    plan = make_plan(
        models / "source", Recipe.from_dict({"method": "yarn", "parameters": {"factor": 4.0}})
    )
    picture, retrieval = measured_pictures(plan)
    study = study_for("yarn", 4)
    assert study is not None
    assert study.short_model == "SmolLM2-135M"
    assert f"lowers the loss by {-study.beyond['yarn']:.2f} nats" in picture.caption
    assert f"costs {study.inside['yarn']:.2f}" in picture.caption
    assert f"finds {study.retrieval['yarn']:.0f} %" in retrieval.caption
    page = asked("plan", form)
    assert picture.caption in page.words
    assert "figure" in page.names
    untried = asked("plan", replace(form, method="theta", value="1e6"))
    assert "Measured on" not in untried.words


def test_a_path_that_does_not_exist_is_no_matter_of_the_hub(tmp_path: Path) -> None:
    for source in (str(tmp_path / "none"), "./none", "none.json", "none"):
        with pytest.raises(RopeconvError, match=r"no such file .*'/.*none"):
            asked("inspect", ModelForm(source=source))


def test_the_table_of_runtimes_has_a_word_per_cell_with_popular_names_first() -> None:
    page = Elements(runtimes_html(RuntimesForm()))
    assert page.words.index("supported: computes the method") < page.words.index(
        "YaRN, in the newest version"
    )
    assert page.words.index("transformers") < page.words.index("vLLM") < page.words.index("candle")
    assert page.words.index("\nllama") < page.words.index("\nqwen3") < page.words.index("\nafmoe")
    table = Elements(runtimes_html(RuntimesForm(family="qwen3", runtime="vllm", writing="linear")))
    assert ("Every version" in table.words, "llama" in table.words, "vLLM 0.33" in table.words) == (
        True,
        False,
        True,
    )


def test_a_search_leads_to_models_and_keeps_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    query: dict[str, object] = {}

    def listed(self: object, **options: object) -> list[huggingface_hub.ModelInfo]:
        query.update(options)
        return [huggingface_hub.ModelInfo(id="them/llama")] if options["search"] == "lla" else []

    monkeypatch.setattr(huggingface_hub.HfApi, "list_models", listed)
    page = asked("search", BakeForm(source="lla", context="64k"))
    (link,) = [attributes["href"] for name, attributes in page.found if name == "a"]
    assert (link, query["sort"]) == ("./?source=them%2Fllama&context=64k", "downloads")
    assert "no model with 'x'" in asked("search", BakeForm(source="x")).words
    with pytest.raises(RopeconvError, match="no name is given"):
        asked("search", BakeForm())


# Nothing that a model, a card or an error says becomes markup


def test_hostile_words_stay_words() -> None:
    sheet = HtmlSheet()
    for show in (sheet.title, sheet.say, sheet.note, sheet.problem, sheet.good, sheet.copyable):
        show(HOSTILE)
    sheet.file(HOSTILE, HOSTILE)
    sheet.link(HOSTILE, HOSTILE)
    sheet.link(f"https://hub/{HOSTILE}", HOSTILE)
    sheet.ways(HOSTILE, [(HOSTILE, f"bake?source={HOSTILE}")])
    sheet.table(
        HOSTILE,
        (HOSTILE, "status"),
        [(HOSTILE, HOSTILE), (HOSTILE, "exact")],
        styles={(0, 0): "bold"},
    )
    page = Elements(sheet.html())
    assert not {"img", "script"} & page.names
    assert not [
        name for _, attributes in page.found for name in attributes if name.startswith("on")
    ]
    assert page.words.count(HOSTILE) == 18
    for html in (failure(HOSTILE).html, progress_html(PageProgress(HOSTILE, 1, 2))):
        assert not {"img", "script"} & Elements(html).names
        assert HOSTILE in Elements(html).words


def test_links_lead_to_pages_alone() -> None:
    sheet = HtmlSheet()
    for address in ("javascript:alert(1)", "data:text/html,x", "//elsewhere", "https://hub/me/x"):
        sheet.link(address, address)
    links = [attributes["href"] for name, attributes in Elements(sheet.html()).found if name == "a"]
    assert links == ["https://hub/me/x"]


def test_a_file_can_be_saved_as_it_is() -> None:
    sheet = HtmlSheet()
    sheet.file("config.json", '{"name": "\u00e9"}')
    (link,) = [attributes for name, attributes in Elements(sheet.html()).found if name == "a"]
    assert link["download"] == "config.json"
    kind, _, data = str(link["href"]).partition(",")
    assert kind == "data:application/octet-stream;base64"
    assert base64.b64decode(data).decode() == '{"name": "\u00e9"}'


def test_the_page_writes_the_modelfile_of_ollama(tmp_path: Path) -> None:
    source = write(tmp_path / "model.gguf")
    out = tmp_path / "long.gguf"
    form = BakeForm(
        source=str(source), method="yarn", value="4", runtimes=("ollama",), out=str(out)
    )
    modelfile = tmp_path / "long.Modelfile"
    assert str(modelfile) in asked("plan", form).words
    assert not modelfile.exists()
    assert "ollama create" in asked("write", form).words
    assert "num_ctx 256" in modelfile.read_text()
    modelfile.write_text("FROM ./mine.gguf\n")
    for task in ("plan", "write"):
        with pytest.raises(RopeconvError, match="Modelfile"):
            asked(task, form)
