"""The commands, as a person types them."""

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ropeconv import __version__
from ropeconv.convert.encodings import native
from ropeconv.models.registry import families
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.runtimes import verdict
from ropeconv.runtimes.stored import current_data

from ..bake.test_companions import head_of
from ..conftest import CONFIGS, Run, hashes
from ..support.gguf_files import write
from ..support.models import make
from .conftest import Refuses


def test_frequencies_without_a_checkpoint(run: Run) -> None:
    sizes = ("--head-dim", "128", "--theta", "10000", "--original-context", "4096")
    data = json.loads(run("plot", *sizes, "--yarn", "16", "--json").stdout)["schedules"]["yarn16"]
    assert (data["method"], data["context"], data["attention_factor"]) == (
        "yarn",
        65536,
        0.1 * math.log(16) + 1,
    )
    assert (len(data["inv_freq"]), len(data["digest"])) == (64, 64)
    assert data["inv_freq"][1] == 10000 ** (-2 / 128)


def test_lists_of_what_there_is(run: Run) -> None:
    methods, known = (
        {row["name"] for row in json.loads(run("list", name, "--json").stdout)[name]}
        for name in ("methods", "families")
    )
    assert (methods, known) == (set(REGISTRY), {family.name for family in families()})
    listed = run("list", "methods").stdout
    assert [method.flag() for method in REGISTRY.values() if method.flag() not in listed] == []
    assert "--beta-fast" in run("list", "methods", "yarn").stdout
    assert "transformers@4.51" in run("list", "runtimes", "--runtime", "transformers@4.51").stdout
    assert (
        run("-V").stdout
        == run("--version").stdout
        == (f"ropeconv {__version__} (runtime data {current_data().about.version})\n")
    )


def test_inspect_sees_what_is_stale_or_too_short(run: Run, llama: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(llama / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"][
        :32
    ].copy()
    save_file(tensors, llama / "model.safetensors", metadata={"format": "pt"})
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 32}')
    document = json.loads(run("inspect", "model", "--json").stdout)
    assert {problem["code"] for problem in document["problems"]} == {"stale-inv-freq", "tokenizer"}
    assert "tokenizer_config.json has model_max_length = 32, below" in " ".join(
        run("inspect", "model").stdout.split()
    )


def test_a_dry_run_writes_nothing_and_says_everything(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    text = run("apply", "model", "--yarn", "16", "--dry-run", "--explain").stdout
    for words in (
        "yarn, theta 10000, factor 16",
        "1,024",
        "transformers 4.51-4.52",
        "transformers 4.49-4.50",
        "vLLM 0.20-0.24",
        "model.safetensors",
        "copy",
    ):
        assert words in text
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_output_is_checked_and_says_so(run: Run, llama: Path) -> None:
    pytest.importorskip("transformers")
    done = run("apply", "model", "--yarn", "4")
    assert "Checked: transformers" in done.stdout
    assert "Wrote model-yarn4\n" in done.stdout
    assert done.stdout.rstrip().endswith(
        "Check:   ropeconv validate model-yarn4\n"
        "Run:     vllm serve model-yarn4 --max-model-len 256"
    )


def test_an_output_without_weights_is_not_one_to_run(run: Run, llama: Path, tmp_path: Path) -> None:
    done = run("apply", "model/config.json", "--yarn", "4", "-o", "out")
    assert "Only config.json was written." in done.stdout
    assert "Run:" not in done.stdout
    result = run("validate", "out", "--against", "model")
    assert (
        result.returncode,
        "no weights" in result.stderr,
    ) == (1, True)
    assert "no weights" not in run("apply", "model", "--yarn", "4", "-o", "whole").stdout


def test_a_wrong_table_ends_with_3_and_no_output(
    run: Run, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a baked config does not compute the schedule, whatever the tables say, nothing is kept."""
    pytest.importorskip("transformers")
    yarn = native._yarn
    monkeypatch.setattr(
        native, "_yarn", lambda form, *rest: {**yarn(form, *rest), "beta_fast": 8.0}
    )
    monkeypatch.setattr(verdict, "difference", lambda *given: "")
    done = run("apply", "model", "--yarn", "4", "--original-context", "4096", "-q")
    assert (done.returncode, "other global" in done.stderr) == (
        3,
        True,
    ), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def cells(text: str) -> dict[str, list[str]]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


def test_the_matrix_has_a_letter_for_each_way_that_is_exact(run: Run) -> None:
    text = run(
        "list", "runtimes", "--matrix", "--runtime", "mlx-lm@0.32", "--runtime", "exllamav3@1.6"
    ).stdout
    rows = cells(text)
    assert rows["llama"] == ["TL3YF", "TL3YF"]
    assert rows["qwen3_moe"] == ["T....", "TL3YF"]
    assert rows["falcon"] == ["-", "-"]
    assert "T: a new" in text


def test_json_has_every_cell_with_its_evidence(run: Run) -> None:
    document = json.loads(
        run("list", "runtimes", "--matrix", "--runtime", "vllm@0.33", "--json").stdout
    )
    of_llama = {cell["writing"]: cell for cell in document["cells"] if cell["family"] == "llama"}
    assert set(of_llama) == {"theta", "linear", "llama3", "yarn", "factors"}
    assert of_llama["yarn"]["status"] == "exact"
    assert of_llama["yarn"]["evidence"] == "run"
    assert of_llama["yarn"]["evidence_detail"].startswith("0.33.0, ")


def test_the_list_counts_what_was_run_read_and_not_looked_at(run: Run) -> None:
    rows = {
        row["runtime"]: row
        for row in json.loads(run("list", "runtimes", "--json").stdout)["runtimes"]
    }
    assert rows["mlx-lm@0.32.1"]["run"] > rows["mlx-lm@0.32.1"]["read"]
    assert rows["candle@0.11"]["run"] == 0
    assert rows["candle@0.11"]["read"] > 0
    assert rows["ktransformers@0.7"]["unknown"] > 0


# `ropeconv restore` on the command line, and what is known of an output by its receipt


def test_a_repeated_command_says_that_it_wrote_nothing(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    output = tmp_path / "model-yarn4"
    words = ("apply", "model", "--yarn", "4")
    assert "Wrote model-yarn4" in run(*words).stdout
    before = {path: path.stat().st_ino for path in output.iterdir()}
    again = run(*words)
    assert again.returncode == 0, again.stderr
    assert "Unchanged: model-yarn4\n" in again.stdout
    assert "Wrote" not in again.stdout
    assert {path: path.stat().st_ino for path in output.iterdir()} == before

    # an earlier output of another command is replaced, and this is said
    other = run("apply", "model", "--yarn", "2", "-o", "model-yarn4", "--force")
    assert "Wrote model-yarn4" in other.stdout
    profiles = ("profiles", "model", "yarn:4", "-o", "set")
    assert "Wrote set" in run(*profiles).stdout
    assert "Unchanged: set" in run(*profiles).stdout


@pytest.fixture
def output(run: Run, llama: Path, tmp_path: Path) -> Path:
    assert run("apply", "model", "--ntk", "4", "-q").returncode == 0
    return tmp_path / "model-ntk4"


def test_a_folder(run: Run, llama: Path, output: Path, tmp_path: Path) -> None:
    plan = json.loads(run("restore", "model-ntk4", "--dry-run", "--json").stdout)
    assert (plan["out"], plan["first"]["name"], plan["in_place"]) == (
        "model-restored",
        "model",
        False,
    )
    assert not (tmp_path / "model-restored").exists()
    done = run("restore", "model-ntk4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("Wrote model-restored")
    assert "folder 'model'." in done.stdout
    assert hashes(tmp_path / "model-restored") == hashes(llama)
    again = run("restore", "model-ntk4")
    assert again.returncode == 0, again.stderr
    assert again.stdout.rstrip().endswith("Unchanged: model-restored")
    assert hashes(tmp_path / "model-restored") == hashes(llama)
    (tmp_path / "model-restored" / "config.json").write_text("{}")
    again = run("restore", "model-ntk4")
    assert (again.returncode, "exists" in again.stderr) == (1, True)
    assert run("restore", "model-ntk4", "--in-place").returncode == 2
    assert "not an output" in run("restore", "model").stderr


def test_a_gguf_file(run: Run, tmp_path: Path) -> None:
    original = write(tmp_path / "model.gguf").read_bytes()
    assert run("apply", "model.gguf", "--mixed", "4", "-q").returncode == 0
    assert run("restore", "model-mixed4.gguf").returncode == 0
    assert (tmp_path / "model-restored.gguf").read_bytes() == original
    assert run("restore", "model-mixed4.gguf", "-o", "folder").returncode == 2


# `ropeconv train-config` on the command line


def test_of_an_output(run: Run, llama: Path, tmp_path: Path) -> None:
    assert run("apply", "model", "--yarn", "4", "-q").returncode == 0
    before = hashes(tmp_path)
    done = run("train-config", "model-yarn4", "--for", "trl")
    assert done.returncode == 0
    notes = done.stderr.splitlines()
    assert all(note.startswith("Note: ") for note in notes)
    assert re.search("4 times .* 64 tokens.* is not decided", notes[0])
    # what the loss, a GPU and the steps of the file mean at this length
    assert len(notes) == 4
    compile(done.stdout, "train_trl.py", "exec")
    assert "max_length=256," in done.stdout
    assert hashes(tmp_path) == before
    document = json.loads(
        run("train-config", "model-yarn4", "--for", "trl", "--model", "me/long", "--json").stdout
    )
    assert (document["model"], document["context"], document["status"], document["file"]) == (
        "me/long",
        256,
        "exact",
        "train_trl.py",
    )
    assert '"me/long"' in document["text"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("model", "--for", "trl"), 2, "run `ropeconv apply` first"),
        (("small.gguf", "--for", "trl"), 2, "apply the method to the checkpoint"),
        (("model", "--for", "nanotron"), 2, "'axolotl'"),
        (("model",), 2, "Missing option '--for'"),
        (("own-code", "--for", "unsloth"), 1, "--for trl"),
        (("model", "--for", "trl", "--memory", "80GB", "--gpus", "0"), 2, "--gpus"),
    ],
)
def test_what_is_refused(
    run: Run,
    refuses: Refuses,
    llama: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    write(tmp_path / "small.gguf")
    if "own-code" in words:
        run(
            "apply",
            "model",
            "--mixed",
            "4",
            "--log-n",
            "clamped",
            "--encoding",
            "buffers",
            "-o",
            "own-code",
        )
    refuses(code, message, "train-config", *words)


# `ropeconv compare`, as a person types it


STOCK = CONFIGS / "Qwen--Qwen3-8B.json"
DISTILLED = CONFIGS / "deepseek-ai--DeepSeek-R1-0528-Qwen3-8B.json"


def test_what_differs_is_said_with_its_numbers(run: Run) -> None:
    text = run("compare", STOCK, DISTILLED, "--explain").stdout
    assert (
        "They differ in the frequencies (40 of 64 pairs, by up to 4 times) and the attention"
        " factor." in text
    )
    assert "at pair 40" in text
    assert f"A: {STOCK}" in text
    rows = {line.split("  ")[0]: line.split()[-3:] for line in text.splitlines() if line}
    assert rows["attention factor"] == ["1", "1.13863", "differs"]
    assert rows["candle 0.11"][-2:] == ["exact", "ignored"]
    short = run("compare", STOCK, DISTILLED).stdout
    assert "rotate_half" not in short
    assert "candle" not in short
    assert text.splitlines()[-1] == short.splitlines()[-1]


def test_the_exit_code(run: Run) -> None:
    same = run("compare", STOCK, STOCK, "--exit-code")
    assert (same.returncode, "the same RoPE" in same.stdout) == (0, True)
    for second, flags, code in (
        (DISTILLED, (), 0),
        (DISTILLED, ("--exit-code",), 3),
        ("nowhere", (), 1),
    ):
        assert run("compare", STOCK, second, *flags).returncode == code


def test_json(run: Run) -> None:
    document = json.loads(run("compare", STOCK, DISTILLED, "--json").stdout)
    assert (document["same"], document["differs"]) == (False, ["frequencies", "attention_factor"])
    assert (document["frequencies"]["pairs"], document["frequencies"]["differing"]) == (64, 40)
    assert document["second"]["rope"]["factor"] == 4.0
    assert {"runtime", "display_name", "statuses", "reasons"} == set(document["runtimes"][0])


def test_a_merge(run: Run, tmp_path: Path) -> None:
    (tmp_path / "merge.yaml").write_text(
        f"base_model: {STOCK}\nmodels: [{{model: {STOCK}}}, {{model: {DISTILLED}}}]"
    )
    comparison = run("compare", "merge.yaml", "--exit-code")
    assert comparison.returncode == 3
    # nobody but its publisher knows whether it was trained with its scaling
    assert "Fix:" not in comparison.stdout
    removal = f"`ropeconv apply {DISTILLED} --theta 1000000 --context 32768 --replace`"
    assert (
        f"if its scaling was only added to the settings after training, {removal}"
        in comparison.stdout
    )
    assert comparison.stdout.endswith("1 difference.\n")
    data = json.loads(run("compare", STOCK, DISTILLED, "--merge", "--json").stdout)
    assert (data["fits"], [misfit["about"] for misfit in data["misfits"]]) == (False, ["rope"])
    same = run("compare", STOCK, STOCK, STOCK, "--exit-code")
    assert (same.returncode, "can be merged" in same.stdout) == (0, True)
    for given in ((STOCK,), ("merge.yaml", STOCK)):
        assert run("compare", *given).returncode == 2


def test_an_adapter(run: Run, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    settings = {
        "peft_type": "LORA",
        "r": 16,
        "base_model_name_or_path": str(DISTILLED),
        "target_modules": ["q_proj"],
    }
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    shown = run("inspect", "adapter").stdout
    assert "LoRA adapter of rank 16" in shown
    assert (
        json.loads(run("inspect", "adapter", "--json").stdout)["trained_on"]["rope_type"] == "yarn"
    )
    assert run("compare", DISTILLED, "adapter", "--exit-code").returncode == 0
    over = run("compare", STOCK, "adapter", "--exit-code")
    assert over.returncode == 3
    assert f"over {DISTILLED}" in over.stdout


QUOTED = "it's m"


def model(place: Path) -> None:
    make("llama", place)


def short_yarn(place: Path) -> None:
    """YaRN that reaches further than the context that is declared."""
    make("llama", place)
    path = place / "config.json"
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_scaling": scaling}))


def head(place: Path) -> None:
    make("llama", place.with_name("target"))
    head_of(place.with_name("target"), place)


def adapter(place: Path) -> None:
    place.mkdir()
    (place / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"]})
    )


def graph(place: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed; pip install 'ropeconv[graphs]'")
    from ..support.graphs import rotating

    place.mkdir()
    rotating(place / "model.onnx", np.geomspace(1, 1e-4, 16, dtype=np.float32))


PRINTING: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "advice with fine-tuning": (model, "advise SOURCE --context 10000", 3),
    "every method": (model, "advise SOURCE --context 10000 --explain", 10),
    "an inspection": (model, "inspect SOURCE", 1),
    "a repair": (short_yarn, "inspect SOURCE", 2),
    "a head": (head, "inspect SOURCE", 1),
    "a head that is refused": (head, "apply SOURCE --yarn 4", 1),
    "an adapter": (adapter, "inspect SOURCE", 1),
    "a graph": (graph, "inspect SOURCE/model.onnx", 1),
    "a length that needs training": (model, "apply SOURCE --context 1M", 1),
    "an output that is not validated": (model, "apply SOURCE --yarn 4 --validate off", 2),
    "overrides": (model, "apply SOURCE --yarn 4 --to overrides", 1),
}


@pytest.mark.parametrize("name", PRINTING)
def test_a_printed_command_has_its_paths_as_single_words(
    run: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropeconv.engines.transformers.memory.gpu_bytes", lambda: 0)
    write_source, line, least = PRINTING[name]
    write_source(tmp_path / QUOTED)
    done = run(*(word.replace("SOURCE", QUOTED) for word in line.split()))
    printed = re.findall(r"(?:ropeconv [a-z-]+|vllm serve) [^`\n]*", done.stdout + done.stderr)
    assert len(printed) >= least, done
    for command in printed:
        assert any(word.startswith(QUOTED) for word in shlex.split(command)), command
