"""`validate --server`: what running servers say of a text, against the source patched at run
time.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.features.servers.validation import validate_server
from ropeconv.rope.errors import RopeconvError
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.validation import measure, measure_answers

from ...support.baking import AS_IS, apply, make_plan, recipe_of
from ...support.corruptions import put
from ...support.extent import sample
from ...support.in_process import Done, command
from ...support.llamacpp import checkpoint
from .stand_in import StandIn, running

PROTOCOLS = ("vllm", "sglang", "llamacpp")
YARN = recipe_of("yarn", 16.0)
HALF = recipe_of("yarn", 8.0)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, `yarn` baked from it, and one with its attention factor lost."""
    folder = tmp_path_factory.mktemp("servers")
    apply(make_plan(checkpoint("llama", folder / "source"), YARN, folder / "yarn"))
    shutil.copytree(folder / "yarn", folder / "wrong")
    for key in ("rope_scaling", "rope_parameters"):
        put("config.json", f"{key}.attention_factor", 1.0)(folder / "wrong")
    return folder


def ask(folder: Path, server: StandIn, *more: object, code: int = 0) -> Done:
    with running(server) as url:
        return command(
            folder, "validate", "yarn", "--against", "source", "--server", url, *more, code=code
        )


@pytest.mark.parametrize(
    "owner", ["vllm", "sglang", pytest.param("llamacpp", marks=pytest.mark.nightly)]
)
def test_a_server_with_the_method_agrees(checkpoints: Path, owner: str) -> None:
    server = StandIn(owner, checkpoints / "yarn", half_characters=100)
    result = json.loads(ask(checkpoints, server, "--length", 300, "--json").stdout)
    assert result["agrees"]
    assert [bucket["last"] for bucket in result["buckets"]] == [63, 127, 255, 298]
    assert all(bucket["control_kl"] > 1000 * bucket["kl_95"] for bucket in result["buckets"])
    assert all(0 < bucket["loss_reference"] < 20 for bucket in result["buckets"])
    assert "the files that it has loaded" in result["unchecked"]


@pytest.mark.parametrize("folder", ["source", "wrong"])
@pytest.mark.parametrize("owner", sample(PROTOCOLS, 1))
def test_a_server_without_the_method_or_its_attention_factor_disagrees(
    checkpoints: Path, owner: str, folder: str
) -> None:
    done = ask(checkpoints, StandIn(owner, checkpoints / folder), "--length", 300, "--json", code=3)
    assert not json.loads(done.stdout)["agrees"]


def test_the_result_stands_in_the_receipt_and_the_report(checkpoints: Path) -> None:
    done = ask(
        checkpoints,
        StandIn("vllm", checkpoints / "yarn"),
        "--length",
        200,
        "--report",
        "server.html",
    )
    assert "This test does not cover: the files that it has loaded" in done.stdout
    assert json.loads((checkpoints / "yarn" / "ropeconv.json").read_text())["servers"][
        "vLLM 0.32.0"
    ]["agrees"]
    assert "vLLM 0.32.0" in (checkpoints / "server.html").read_text()


BAD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("does not run other; it runs model", {}, {"model": "other"}),
    (r"runs several models; name one with --model .*: a, b$", {"names": ("a", "b")}, {}),
    ("lists no models", {"names": ()}, {}),
    ("gives no log-probabilities", {"owner": "openai"}, {}),
    ("accepts 128 tokens", {"length": 128}, {"length": 512}),
    ("has a context of 1024 tokens; pass a --length", {"length": 4096}, {"length": 2048}),
    ("greater than max allowed", {"allowed": 5}, {}),
    ("set OPENAI_API_KEY", {"key": "secret"}, {}),
    (r"refuses \(503\): overloaded", {"fail": (503, "overloaded")}, {}),
    *(("start it with that", {"owner": owner, "path": "source"}, {}) for owner in PROTOCOLS),
]
"""What is said, of which server, to which settings."""


@pytest.mark.parametrize(("message", "server", "settings"), BAD)
def test_a_server_that_cannot_be_compared_is_refused(
    checkpoints: Path, message: str, server: dict[str, Any], settings: dict[str, Any]
) -> None:
    given = {
        "owner": "vllm",
        **server,
        "path": str((checkpoints / "source").resolve()) if "path" in server else "",
    }
    model = settings.get("model", "")
    options = Settings(**{key: value for key, value in settings.items() if key != "model"})
    comparison = Comparison.open(checkpoints / "yarn", str(checkpoints / "source"))
    with (
        running(StandIn(folder=checkpoints / "yarn", **given)) as url,
        pytest.raises(RopeconvError, match=message),
    ):
        validate_server(comparison, url, model, options)


@pytest.fixture(scope="module")
def gguf(checkpoints: Path) -> Path:
    """Beside the others a source in GGUF, quantised, what was baked from it, and folders with its
    weights to serve.
    """
    source = apply(
        make_plan(
            checkpoints / "source", AS_IS, checkpoints / "source.gguf", to="gguf", outtype="q8_0"
        )
    )
    apply(make_plan(source, YARN, checkpoints / "yarn.gguf"))
    apply(make_plan(source, YARN, checkpoints / "served", to="safetensors"))
    apply(make_plan(source, HALF, checkpoints / "other", to="safetensors"))
    return checkpoints


@pytest.mark.parametrize("folder", ["served", "other"])
def test_a_gguf_file_against_the_one_that_it_came_from(gguf: Path, folder: str) -> None:
    """The reference has the dequantised weights of the source, whose tokenizer reads a text."""
    (gguf / "text.txt").write_text(Path(__file__).read_text())
    settings = Settings(length=160, text=gguf / "text.txt")
    with running(StandIn("vllm", gguf / folder)) as url:
        result = validate_server(
            Comparison.open(gguf / "yarn.gguf", str(gguf / "source.gguf")), url, "", settings
        )
    assert result.agrees == (folder == "served"), result.sentence


def test_a_key_is_sent_and_not_shown(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    server = StandIn("vllm", checkpoints / "yarn", ("a", "b"), key="sesame")
    done = ask(checkpoints, server, "--model", "b", "--length", 100, "--json")
    assert (
        "sesame"
        not in done.stdout + done.stderr + (checkpoints / "yarn" / "ropeconv.json").read_text()
    )


def test_a_coarse_kl_is_a_lower_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = 3 * torch.randn((40, 320), generator=generator)
    other = reference + 0.3 * torch.randn((40, 320), generator=generator)
    targets = torch.randint(320, (40,), generator=generator).tolist()
    logs = torch.log_softmax(other, -1)
    whole = measure(reference, other, torch.tensor(targets))
    for count in (5, 20, 320):
        top_logprobs = [
            {t: row[t].item() for t in row.topk(count).indices.tolist()} for row in logs
        ]
        bound = measure_answers(reference, top_logprobs, targets)
        assert (bound.kl <= whole.kl + 1e-6).all()
        assert (bound.kl > 0).all()
    torch.testing.assert_close(bound.kl, whole.kl, rtol=1e-3, atol=1e-7)  # of all tokens


def test_tokens_that_the_source_does_not_have(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = StandIn.vllm

    def other(server: StandIn, body: Any) -> Any:
        answer = right(server, body)
        answer["choices"][0]["prompt_logprobs"][-1]["1000000"] = {"logprob": -1.0}
        return answer

    monkeypatch.setattr(StandIn, "vllm", other)
    done = ask(checkpoints, StandIn("vllm", checkpoints / "yarn"), "--length", 100, code=1)
    assert "names tokens beyond the 320 of the source; start it with the output" in done.stderr
