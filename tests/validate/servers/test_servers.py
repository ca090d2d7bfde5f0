"""`validate --server`: what running servers say of a text, against the source patched at run time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.errors import BadSource, RopeconvError
from ropeconv.formats.gguf import Edit, GgufFile, u32
from ropeconv.formats.gguf.write import write_new
from ropeconv.validate.comparison import Comparison
from ropeconv.validate.rule.likeliest import coarse, log_probs_of
from ropeconv.validate.rule.measures import measure
from ropeconv.validate.server import validate_server
from ropeconv.validate.settings import Settings

from ...conftest import run_in
from ...support.llamacpp import checkpoint
from .stand_in import StandIn, running

PROTOCOLS = ("vllm", "sglang", "llamacpp")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, `yarn` baked from it, and one with its attention factor lost."""
    folder = tmp_path_factory.mktemp("servers")
    checkpoint("llama", folder / "source")
    done = run_in(folder, "apply", "source", "--yarn", "16", "-o", "yarn", "-q")
    assert done.returncode == 0, done.stderr
    shutil.copytree(folder / "yarn", folder / "wrong")
    config = json.loads((folder / "wrong" / "config.json").read_text())
    for key in ("rope_scaling", "rope_parameters"):
        config[key]["attention_factor"] = 1.0
    (folder / "wrong" / "config.json").write_text(json.dumps(config))
    return folder


def ask(made: Path, server: StandIn, *more: str) -> tuple[int, str, str]:
    with running(server) as url:
        done = run_in(made, "validate", "yarn", "--against", "source", "--server", url, *more)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("owner", PROTOCOLS)
def test_a_server_with_the_method_agrees_and_others_do_not(made: Path, owner: str) -> None:
    given = ("--length", "300", "--json")
    code, out, err = ask(made, StandIn(owner, made / "yarn", half_characters=100), *given)
    assert code == 0, err
    result = json.loads(out)
    assert result["agrees"]
    assert [bucket["last"] for bucket in result["buckets"]] == [63, 127, 255, 298]
    assert all(bucket["control_kl"] > 1000 * bucket["kl_95"] for bucket in result["buckets"])
    assert all(0 < bucket["loss_reference"] < 20 for bucket in result["buckets"])
    assert "the files that it has loaded" in result["unchecked"]
    for folder in ("source", "wrong"):
        code, out, _ = ask(made, StandIn(owner, made / folder), *given)
        assert (code, json.loads(out)["agrees"]) == (3, False)


def test_the_result_stands_in_the_receipt_and_the_report(made: Path) -> None:
    code, out, err = ask(made, StandIn("vllm", made / "yarn"), "--length", "200", "--report", "server.html")
    assert code == 0, err
    assert "Not seen this way: the files that it has loaded" in out
    assert json.loads((made / "yarn" / "ropeconv.json").read_text())["servers"]["vLLM 0.32.0"]["agrees"]
    assert "vLLM 0.32.0" in (made / "server.html").read_text()


def test_one_request_where_the_protocol_allows_it(made: Path) -> None:
    servers = [StandIn(owner, made / "yarn") for owner in PROTOCOLS]
    for server in servers:
        assert ask(made, server, "--length", "100")[0] == 0
    assert [len(server.asked) for server in servers[:2]] == [1, 1]
    assert len(servers[2].asked) == 100  # 99 positions, after one that asks for a token


def test_bad_input(made: Path) -> None:
    folder, source = made / "yarn", str(made / "source")

    def words(server: StandIn, model: str = "", **more: object) -> str:
        with running(server) as url, pytest.raises(RopeconvError) as caught:
            validate_server(Comparison.open(folder, source), url, model, Settings(**more))
        return str(caught.value)

    assert "does not run other; it runs model" in words(StandIn("vllm", folder), "other")
    several = words(StandIn("vllm", folder, names=("a", "b")))
    assert "runs several models; name one with --model (of `eval`: --server NAME=http:" in several
    assert several.endswith(": a, b")
    assert "lists no models" in words(StandIn("vllm", folder, names=()))
    assert "gives no log-probabilities of a prompt by token id" in words(StandIn("openai", folder))
    assert "takes 128 tokens" in words(StandIn("vllm", folder, length=128), length=512)
    assert "is made for 1024 tokens" in words(StandIn("vllm", folder, length=4096), length=2048)
    assert "greater than max allowed" in words(StandIn("vllm", folder, allowed=5))
    assert "set OPENAI_API_KEY" in words(StandIn("vllm", folder, key="secret"))
    assert "does not answer in JSON" in words(StandIn("vllm", folder, fail=(200, "<html>")))
    assert "does not answer in JSON" in words(StandIn("vllm", folder, fail=(200, '{"data": [{"id": "\udcff"}]}')))
    assert "refuses (503): {" in words(StandIn("vllm", folder, fail=(503, '{"error": "\udcff"}')))
    assert "refuses (503): overloaded" in words(StandIn("vllm", folder, fail=(503, "overloaded")))
    for owner in PROTOCOLS:
        assert "start it with that" in words(StandIn(owner, folder, path=str((made / "source").resolve())))
    for url, said in (("http://127.0.0.1:9", "does not answer"), ("localhost", "is no URL")):
        done = run_in(made, "validate", "yarn", "--against", "source", "--server", url, "-q")
        assert (done.returncode, said in done.stderr) == (1, True)


@pytest.fixture(scope="module")
def gguf(made: Path) -> Path:
    """Beside the others a source in GGUF, quantised, what was baked from it, and folders with its weights to serve."""
    for given in (
        ("source", "--as-is", "--to", "gguf", "--outtype", "q8_0", "-o", "source.gguf"),
        ("source.gguf", "--yarn", "16", "-o", "yarn.gguf"),
        ("source.gguf", "--yarn", "16", "--to", "safetensors", "-o", "served"),
        ("source.gguf", "--yarn", "8", "--to", "safetensors", "-o", "other"),
    ):
        done = run_in(made, "apply", *given, "-q")
        assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize(("folder", "text"), [("served", "text.txt"), ("other", "")])
def test_a_gguf_file_against_the_one_that_it_came_from(gguf: Path, folder: str, text: str) -> None:
    """The reference has the dequantised weights of the source, whose tokenizer reads a text."""
    (gguf / "text.txt").write_text(Path(__file__).read_text())
    settings = Settings(length=160, text=gguf / text if text else None)
    with running(StandIn("vllm", gguf / folder)) as url:
        result = validate_server(Comparison.open(gguf / "yarn.gguf", str(gguf / "source.gguf")), url, "", settings)
    assert result.agrees == (folder == "served"), result.sentence
    assert "dequantised weights of the source" in result.sentence


def test_a_gguf_source_that_is_not_dequantised_is_refused_before_the_server_computes(gguf: Path) -> None:
    file = GgufFile.open(gguf / "source.gguf")
    write_new(file, 0, Edit({"llama.expert_weights_norm": u32(1)}), gguf / "strange.gguf")
    done = run_in(gguf, "apply", "strange.gguf", "--yarn", "16", "-o", "strange-yarn.gguf", "-q")
    assert done.returncode == 0, done.stderr
    server = StandIn("llamacpp", gguf / "served")
    with (
        running(server) as url,
        pytest.raises(BadSource, match="cannot be dequantised .*give --against the safetensors"),
    ):
        validate_server(Comparison.open(gguf / "strange-yarn.gguf", str(gguf / "strange.gguf")), url)
    assert not server.asked


def test_one_of_several_models(made: Path) -> None:
    server = StandIn("vllm", made / "yarn", names=("a", "b"))
    assert ask(made, server, "--model", "b", "--length", "100")[0] == 0


def test_a_key_is_sent_and_not_shown(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    code, out, err = ask(made, StandIn("vllm", made / "yarn", key="sesame"), "--length", "100", "--json")
    assert code == 0, err
    assert "sesame" not in out + err + (made / "yarn" / "ropeconv.json").read_text()


def test_a_coarse_kl_is_a_lower_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    one = 3 * torch.randn((40, 320), generator=generator)
    other = one + 0.3 * torch.randn((40, 320), generator=generator)
    targets = torch.randint(320, (40,), generator=generator).tolist()
    logs = torch.log_softmax(other, -1)
    whole = measure(one, other, torch.tensor(targets))
    for count in (5, 20, 320):
        said = [{t: row[t].item() for t in row.topk(count).indices.tolist()} for row in logs]
        found = coarse(one, said, targets)
        assert (found.kl <= whole.kl + 1e-6).all()
        assert (found.kl > 0).all()
        for ours, theirs in zip(log_probs_of(other, said), said, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        if count == 320:
            torch.testing.assert_close(found.kl, whole.kl, rtol=1e-3, atol=1e-7)
            torch.testing.assert_close(found.loss_other, whole.loss_other.double(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found.top5, whole.top5.double())


class OtherVocabulary(StandIn):
    """One that names a token which the source does not have."""

    def vllm(self, body: Any) -> Any:
        found = super().vllm(body)
        found["choices"][0]["prompt_logprobs"][-1]["1000000"] = {"logprob": -1.0}
        return found


def test_tokens_that_the_source_does_not_have(made: Path) -> None:
    code, _, err = ask(made, OtherVocabulary("vllm", made / "yarn"), "--length", "100")
    assert code == 1
    assert "names tokens beyond the 320 of the source; it runs another model" in err
