"""Publishing, through the real client and the command line, on a Hub of this machine."""

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import load_file, save_file

from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.source_check import SourceCheck
from ropeconv.errors import Disagreement
from ropeconv.hub.repository import Repository
from ropeconv.hub.upload_set import conventional_name, from_folder
from ropeconv.inspection.receipts.receipt import EvaluationRecord, MeasuredRecord
from ropeconv.inspection.receipts.storage import add_evaluation, add_validation, read_receipt

from ..conftest import hashes
from ..support.hub_writing import WritingHub
from .conftest import BAKE, BASE_CARD, WEIGHTS, Push, card_of


def test_a_config_travels_and_weights_do_not(
    push: Push, hub: WritingHub, llama: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    done = push(f"{BAKE} --push me/tiny-1k")
    assert (
        done.stdout.strip().splitlines()[-1]
        == f"{hub.url}/me/tiny-1k/commit/{hub.commit('me/tiny-1k')}"
    )
    assert re.search(
        r"^\d files to upload, \d to copy on the Hub from base/tiny\.$", done.stderr, re.MULTILINE
    )
    # the attention of a layer is read, and nothing is sent back
    assert hub.sent[WEIGHTS] < (llama / WEIGHTS).stat().st_size / 2
    assert (hub.received < 100_000, hub.stored) == (True, {})
    assert not list(tmp_path.glob("tiny*"))
    repository = hub.repos["me/tiny-1k"]
    source = hashes(llama)
    assert {name: hashes(repository)[name] for name in (WEIGHTS, "LICENSE")} == {
        name: source[name] for name in (WEIGHTS, "LICENSE")
    }
    assert json.loads((repository / "config.json").read_text())["max_position_embeddings"] == 1024
    receipt = json.loads((repository / "ropeconv.json").read_text())
    assert receipt["source"]["commit"] == hub.commit("base/tiny")
    assert {file["name"]: file["sha256"] for file in receipt["files"]}[WEIGHTS] == source[WEIGHTS]
    AutoModelForCausalLM.from_pretrained(repository)


def test_a_fold_sends_the_changed_shard_alone(push: Push, hub: WritingHub, llama: Path) -> None:
    push(f"{BAKE} --encoding weights --push me/folded")
    digests = hashes(hub.repos["me/folded"])
    assert digests[WEIGHTS] != hashes(llama)[WEIGHTS]
    assert set(hub.stored) == {digests[WEIGHTS]}


@pytest.mark.parametrize(
    "given", ["native", "weights", "ministral3 --log-n full", "buffers --log-n full"]
)
def test_a_plan_reads_headers_alone(
    given: str, push: Push, hub: WritingHub, llama: Path, tmp_path: Path
) -> None:
    push(f"{BAKE} --encoding {given} --dry-run --json")
    assert hub.sent.get(WEIGHTS, 0) <= 2 * 65536 < (llama / WEIGHTS).stat().st_size
    assert not list((tmp_path / "home").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("bake", "line", "copied"),
    [
        (f"{BAKE} -o out -q", "push out me/later", True),
        ("apply model --yarn 16 -o out -q", "push out me/later", False),
        ("", "apply model --yarn 16 --push me/later", False),
    ],
)
def test_an_output_is_published_later_and_a_source_of_this_disk_at_once(
    bake: str, line: str, copied: bool, push: Push, hub: WritingHub, llama: Path
) -> None:
    if bake:
        push(bake)
    done = push(line)
    assert copied or re.search(r"^\d files to upload\.$", done.stderr, re.MULTILINE), done.stderr
    assert set(hub.stored) == (set() if copied else {hashes(llama)[WEIGHTS]})
    assert hashes(hub.repos["me/later"])[WEIGHTS] == hashes(llama)[WEIGHTS]
    text = card_of(hub, "me/later")
    assert ("# later" in text, "SECRET PROSE" in text) == (True, False)


def test_a_link_out_of_the_output_is_refused_and_hidden_files_stay(
    push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    push("apply model --yarn 16 -o out -q")
    for name in ("key", "out/.env", "out/notes.txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "out" / "more.txt").symlink_to(tmp_path / "key")
    done = push("push out me/linked", 1, "more.txt leads to")
    assert ("outside the checkpoint" in done.stderr, "me/linked" in hub.repos) == (True, False)
    (tmp_path / "out" / "more.txt").unlink()
    push("push out me/linked")
    names = hashes(hub.repos["me/linked"])
    assert ("notes.txt" in names, ".env" in names) == (True, False)


@pytest.mark.parametrize("why", ["region", "no xet"])
def test_what_the_hub_does_not_copy_goes_through_here(
    why: str, push: Push, hub: WritingHub, llama: Path
) -> None:
    if why == "region":
        hub.faults["region"] = 1
    else:
        hub.no_xet.add("base/tiny")
    push(f"{BAKE} --push me/far", says="fetching and uploading them")
    assert hashes(hub.repos["me/far"])[WEIGHTS] == hashes(llama)[WEIGHTS]
    assert len(hub.stored) == 1


def test_the_card_is_that_of_the_output_with_the_metadata_of_its_base(
    push: Push, hub: WritingHub
) -> None:
    push(f"{BAKE} -o out -q")
    done = push("push out me/tiny-1k --token hf_other", says='asks for "Built with Llama"')
    text = card_of(hub, "me/tiny-1k")
    data = ModelCard(text).data
    assert (data.base_model, data.get("base_model_relation")) == ("base/tiny", None)
    assert (data.license, data.language, data.pipeline_tag) == (
        "llama3.1",
        ["en", "de"],
        "text-generation",
    )
    assert data.tags == ["base-tag", "ropeconv", "yarn", "long-context"]
    for words in (
        "to 1,024 tokens with [YaRN]",
        "Peng et al. 2023",
        "Not fine-tuned",
        hub.commit("base/tiny"),
        "vllm serve me/tiny-1k",
        "ropeconv apply base/tiny --yarn 16\n",
        "| context | 64 | 1,024 |",
        "| supported | transformers 4.51-5.24, vLLM 0.11",
    ):
        assert words in text, words
    everything = (
        done.stdout + done.stderr + text + (hub.repos["me/tiny-1k"] / "ropeconv.json").read_text()
    )
    assert [
        words for words in ("SECRET PROSE", "hf_other", "hf_sesame") if words in everything
    ] == []
    compile(text.split("```python")[1].split("```")[0], "snippet", "exec")


def test_a_card_of_ones_own_stays(push: Push, hub: WritingHub, tmp_path: Path) -> None:
    push(f"{BAKE} -o out -q")
    push("apply base/tiny --yarn 8 -o other -q")
    push("push out me/a -q")
    (hub.repos["me/a"] / "README.md").write_bytes(b"# Mine\xe9\n")  # which is not UTF-8
    hub.version["me/a"] += 1
    push("push other me/c --base-model me/a -q")
    assert "README.md stays unchanged." in push("push out me/a --exist-ok --dry-run").stdout
    assert "README.md:\n" in push("push out me/a --exist-ok --dry-run --overwrite-card").stdout
    push("push other me/a --exist-ok", says="stays; `ropeconv push --overwrite-card`")
    assert (hub.repos["me/a"] / "README.md").read_bytes() == b"# Mine\xe9\n"
    push("push other me/a --exist-ok --overwrite-card")
    assert "Not fine-tuned" in card_of(hub, "me/a")
    (tmp_path / "out" / "README.md").write_text("# Also mine\n")
    push("push out me/b --ignore-receipt")
    assert card_of(hub, "me/b") == "# Also mine\n"


def test_who_may_see_it(push: Push, hub: WritingHub, monkeypatch: pytest.MonkeyPatch) -> None:
    push(f"{BAKE} --push me/open -q")
    push(f"{BAKE} --push me/closed --private -q")
    hub.gated.add("base/tiny")
    push(
        f"{BAKE} --push me/gated", says="is made private; `ropeconv push --public` publishes openly"
    )
    push(f"{BAKE} -o out -q")
    push("push out me/public --public -q")
    monkeypatch.setenv("HF_TOKEN", "")
    push("push out me/token --token hf_other -q")
    assert hub.private == {"me/closed", "me/gated", "me/token"}
    push("push out me/x --private --public", 2, "contradict")


def test_an_output_of_a_private_output_is_private_and_names_the_first_source(
    push: Push, hub: WritingHub
) -> None:
    push(f"{BAKE} --push me/middle --private -q")
    push("apply me/middle --yarn 2 --on-top --push me/second", says="me/middle is gated or private")
    assert hub.private == {"me/middle", "me/second"}
    text = card_of(hub, "me/second")
    assert ModelCard(text).data.base_model == "base/tiny"
    assert "extended from 64 to 2,048 tokens" in text
    push(f"{BAKE} -o out -q")
    push("push out me/third --base-model me/middle", says="me/middle is gated or private")


@pytest.mark.parametrize(
    ("fault", "times", "given", "message"),
    [
        ("race", 1, "", "has changed while this was prepared"),
        ("commit", 99, "", "the Hub answered with an error"),
        ("commit", 1, "", ""),
        ("cut", 99, "", "cannot reach the Hub"),
        ("cut", 1, "", ""),
        ("put", 99, "--encoding weights", "the Hub"),
        ("put", 1, "--encoding weights", ""),
    ],
)
def test_an_error_of_the_hub_is_tried_again_and_leaves_no_repository(
    fault: str, times: int, given: str, message: str, push: Push, hub: WritingHub
) -> None:
    hub.faults[fault] = times
    push(f"{BAKE} --push me/new {given}", int(bool(message)), message)
    assert ("me/new" in hub.repos) is not bool(message)


def test_without_a_login_or_a_licence_that_allows_it_nothing_is_published(
    push: Push, hub: WritingHub, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", "")
        push(f"{BAKE} --push me/new", 1, "log in")
    (llama / "README.md").write_text("---\nlicense: cc-by-nd-4.0\n---\n")
    hub.version["base/tiny"] = 1
    push(f"{BAKE} --push me/new", 1, "allows no derivatives")
    push(f"{BAKE} --push me/new --dry-run", 1, "nothing made from base/tiny may be published")
    push(f"{BAKE} --push new", 2, "write owner/name")
    assert "me/new" not in hub.repos


def test_an_existing_repository_takes_commits_pull_requests_and_branches(
    push: Push, hub: WritingHub
) -> None:
    push(f"{BAKE} --push me/a -q")
    push("apply base/tiny --yarn 8 -o other -q")
    again = "push other me/a"
    hub.faults["commit"] = 99
    push(f"{again} --exist-ok -q", 1)
    assert "me/a" in hub.repos, "what was there before stays"
    hub.faults["commit"] = 0
    pull = push("apply base/tiny --yarn 8 --push me/a --create-pr")
    assert hub.pulls == ["me/a"]
    pull = push(f"{again} --create-pr --commit-message Longer")
    assert pull.stdout.strip().splitlines()[-1].endswith("/me/a/discussions/1")
    assert (hub.pulls, hub.messages[-1]) == (["me/a", "me/a"], "Longer")
    push(f"{again} --exist-ok --revision longer")
    assert hub.branches == ["longer"]


def test_another_publication_into_the_new_repository_is_not_committed_over(
    push: Push, hub: WritingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(f"{BAKE} -o first -q")
    push("apply base/tiny --yarn 8 -o second -q")
    create = Repository.create

    def create_and_wait(repository: Repository, private: bool) -> bool:
        """Make the repository, into which another process publishes at once."""
        is_new = create(repository, private)
        monkeypatch.setattr(Repository, "create", create)
        push("push second me/new -q")
        return is_new

    monkeypatch.setattr(Repository, "create", create_and_wait)
    push("push first me/new -q", 1, "me/new exists")
    assert '"factor": 8.0' in (hub.repos["me/new"] / "config.json").read_text()


def test_a_branch_never_offers_the_files_of_main(push: Push, hub: WritingHub) -> None:
    push(f"{BAKE} --push me/a -q")
    (hub.repos["me/a"] / "only-main.safetensors").write_bytes(b"other weights")
    push("apply base/tiny --yarn 8 -o other -q")
    command = "push other me/a --exist-ok --revision longer -q"

    hub.faults["commit"] = 99
    push(command, 1)
    names = {path.name for path in hub.repos["me/a@longer"].iterdir()}
    assert names == {".gitattributes"}, "the Hub failed before the commit"

    hub.faults["commit"] = 0
    push(command)
    names = {path.name for path in hub.repos["me/a@longer"].iterdir()}
    assert "model.safetensors" in names
    assert "only-main.safetensors" not in names


def test_gguf_files_of_one_recipe_share_a_repository(
    push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    from ..support.llamacpp import checkpoint

    checkpoint("llama", tmp_path / "source")
    for kind, factor in (("F16", 16), ("Q8_0", 16), ("F32", 16), ("other", 8)):
        outtype = "f16" if kind == "other" else kind.lower()
        push(f"apply source --yarn {factor} --to gguf --outtype {outtype} -o tiny-{kind}.gguf -q")
    for _ in range(2):  # the same file is published again
        push("push tiny-F16.gguf me/tiny-gguf")
        assert set(hub.stored) == {hashes(tmp_path)["tiny-F16.gguf"]}
    text = card_of(hub, "me/tiny-gguf")
    assert ("llama-server -hf me/tiny-gguf" in text, "to 1,024 tokens with [YaRN]" in text) == (
        True,
        True,
    )
    push(
        "push tiny-other.gguf me/tiny-gguf",
        1,
        "exists; choose another name, or run `ropeconv push OUTPUT",
    )
    push("push tiny-Q8_0.gguf tiny-F32.gguf me/tiny-gguf --exist-ok")
    text = card_of(hub, "me/tiny-gguf")
    assert all(f"[tiny-{kind}.gguf](./tiny-{kind}.gguf)" in text for kind in ("F16", "Q8_0", "F32"))
    push("push tiny-F16.gguf tiny-other.gguf me/mixed", 1, "are not of one recipe")


@pytest.mark.parametrize(
    ("name", "file_type", "expected"),
    [
        ("Tiny-8B-Q8_0-yarn16.gguf", 7, "Tiny-8B-yarn16-Q8_0.gguf"),
        ("Tiny-8B-yarn16-Q4_K_M.gguf", 15, "Tiny-8B-yarn16-Q4_K_M.gguf"),
        ("tiny.q4_k_m.gguf", 15, "tiny.q4_k_m.gguf"),
        ("tiny-yarn16.gguf", 1, "tiny-yarn16-F16.gguf"),
        ("tiny-yarn16-00002-of-00003.gguf", 0, "tiny-yarn16-F32-00002-of-00003.gguf"),
        ("tiny-yarn16.gguf", None, "tiny-yarn16.gguf"),
    ],
)
def test_names_of_gguf_files(name: str, file_type: int | None, expected: str) -> None:
    assert conventional_name(name, file_type) == expected


def test_a_gguf_file_of_a_base_on_the_hub_has_its_licence(
    push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    from ..support.llamacpp import checkpoint

    hub.repos["base/words"] = checkpoint("llama", tmp_path / "words")
    (tmp_path / "words" / "README.md").write_text(BASE_CARD)
    (tmp_path / "words" / "LICENSE.txt").write_text("Terms")
    push(
        "apply base/words --yarn 16 --to gguf --outtype q8_0 -o words-Q8_0.gguf --push"
        " hf://me/words-gguf"
    )
    data = ModelCard(card_of(hub, "me/words-gguf")).data
    repo = hub.repos["me/words-gguf"]
    assert (data.base_model, data.base_model_relation, data.license) == (
        "base/words",
        "quantized",
        "llama3.1",
    )
    assert ((repo / "LICENSE.txt").read_text(), (repo / WEIGHTS).exists()) == ("Terms", False)


def test_validation_stands_in_the_card(push: Push, hub: WritingHub) -> None:
    done = push(f"{BAKE} -o out --validate cpu --push me/proved")
    assert any(line.startswith(f"{hub.url}/me/proved/commit/") for line in done.stdout.splitlines())
    text = card_of(hub, "me/proved")
    proof = "PASS: matches the reference at every position; without scaling, the source does not."
    for words in (proof, "| 512-1,023 |", f"![{proof}](validation.png)"):
        assert words in text
    assert (hub.repos["me/proved"] / "validation.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads(push("push out me/proved --exist-ok --dry-run --json").stdout)
    assert "validation.png" in {file["name"] for file in shown["uploads"]}


def test_an_output_that_is_kept_nowhere_is_validated_before_it_is_published(
    push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    push(f"{BAKE} --validate cpu --push me/proved")
    assert "PASS: matches the reference at every position" in card_of(hub, "me/proved")
    result = read_receipt(hub.repos["me/proved"]).validation
    assert result is not None
    assert result["agrees"] is True
    assert not list(tmp_path.glob("tiny*")), "and nothing of it stays"


@pytest.mark.parametrize("reason", ["output", "source"])
def test_an_output_that_cannot_be_compared_is_published_without_a_validation(
    reason: str, push: Push, hub: WritingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*given: object) -> None:
        raise Disagreement("it was compared")

    monkeypatch.setattr("ropeconv.verbs.publishing.validate_written", compare)
    if reason == "output":
        status = "unsupported"
        monkeypatch.setattr(CheckpointPlan, "transformers_status", lambda self, version: status)
    else:
        monkeypatch.setattr(SourceCheck, "__call__", lambda self: "it does not load (why)")
    push(f"{BAKE} --runtime vllm --validate cpu --push me/unseen")
    assert "me/unseen" in hub.repos


def test_an_output_that_is_kept_nowhere_and_disagrees_is_not_published(
    push: Push, hub: WritingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disagree(*given: object) -> None:
        raise Disagreement("it computes another RoPE")

    monkeypatch.setattr("ropeconv.verbs.publishing.validate_written", disagree)
    push(f"{BAKE} --validate cpu --push me/wrong", 3, "it computes another RoPE")
    assert "me/wrong" not in hub.repos


LOSS = MeasuredRecord(measure="short", metric="loss", column=64, value=1.0)
EVALUATION = EvaluationRecord(
    runtime="transformers",
    device="cpu",
    dtype="float32",
    trained=64,
    texts=("b.txt",),
    tokens_sha256="0" * 64,
    measured=(LOSS,),
)
CLAIMS = ("Not fine-tuned", "No weights were trained", "## Evaluation", "model-index")
"""What a card says of weights that ropeconv wrote and `eval` measured."""


def claims(text: str) -> list[str]:
    return [words for words in CLAIMS if words in text]


@pytest.mark.parametrize("added", [0, 8])
@pytest.mark.parametrize("source", ["base/tiny", "model"])
def test_edited_weights_are_published_and_nothing_is_said_of_them(
    push: Push, hub: WritingHub, tmp_path: Path, source: str, added: int
) -> None:
    push(f"apply {source} --yarn 16 -o out -q")
    out = tmp_path / "out"
    add_validation(out, read_receipt(out), {"agrees": True})
    add_evaluation(out, read_receipt(out), EVALUATION)
    weights = out / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-400:] = b"\0" * 400
    content += b"\0" * added
    weights.write_bytes(content)

    push("push out me/edited --ignore-receipt")
    assert (hub.repos["me/edited"] / WEIGHTS).read_bytes() == content
    assert claims(card_of(hub, "me/edited")) == []
    assert from_folder(out, ignore_receipt=True).receipt.validation is None


@pytest.mark.parametrize("change", ["removed", "added"])
def test_weights_of_other_names_are_edited_weights(
    push: Push, hub: WritingHub, tmp_path: Path, change: str
) -> None:
    push(f"{BAKE} -o out -q")
    weights = tmp_path / "out" / WEIGHTS
    other = weights.with_name("adapter_model.safetensors")
    other.write_bytes(weights.read_bytes())
    if change == "removed":
        weights.unlink()
    push("push out me/edited --ignore-receipt")
    assert (WEIGHTS in hashes(hub.repos["me/edited"])) is (change == "added")
    assert claims(card_of(hub, "me/edited")) == []


def test_weights_are_copied_beside_an_edited_config(
    push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    push(f"{BAKE} -o out -q")
    out = tmp_path / "out"
    add_evaluation(out, read_receipt(out), EVALUATION)
    config = out / "config.json"
    config.write_text(config.read_text() + "\n")
    push("push out me/edited --ignore-receipt")
    assert hub.stored == {}
    assert claims(card_of(hub, "me/edited")) == list(CLAIMS)


@pytest.mark.parametrize("edited", [True, False])
def test_a_tokenizer_that_was_replaced_is_published(
    push: Push, hub: WritingHub, llama: Path, tmp_path: Path, edited: bool
) -> None:
    """Such a file is not compared with the receipt before."""
    (llama / "tokenizer.model").write_bytes(b"old" * 400)
    push(f"{BAKE} -o out -q")
    content = b"new" * 400 if edited else b"old" * 400
    (tmp_path / "out" / "tokenizer.model").write_bytes(content)
    push("push out me/edited")
    assert (hub.repos["me/edited"] / "tokenizer.model").read_bytes() == content
    assert len(hub.stored) == edited
    assert claims(card_of(hub, "me/edited")) == ["Not fine-tuned", "No weights were trained"]


@pytest.mark.parametrize("place", ["", "-o kept"])
def test_an_output_that_its_validation_does_not_confirm_is_not_published(
    place: str, push: Push, hub: WritingHub, llama: Path, tmp_path: Path
) -> None:
    # without queries, a model computes the same with every RoPE, so its logits prove nothing
    weights = load_file(llama / WEIGHTS)
    for name, tensor in weights.items():
        if "q_proj" in name:
            tensor[...] = 0
    save_file(weights, llama / WEIGHTS, {"format": "pt"})

    line = f"apply model --yarn 16 {place} --validate cpu --push me/unproved"
    done = push(line, 3, "INCONCLUSIVE")
    assert "me/unproved" not in hub.repos
    assert "None" not in done.stderr
    assert (tmp_path / "kept").exists() == bool(place)


def test_edited_files_are_not_published(push: Push, tmp_path: Path) -> None:
    push(f"{BAKE} -o out -q")
    (tmp_path / "out" / "config.json").write_text("{}")
    push("push out me/edited", 1, "pass --ignore-receipt")
