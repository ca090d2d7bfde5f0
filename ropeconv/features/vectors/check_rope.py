"""Test whether an engine computes the RoPE of this packet, and name the mistake if it does not.

    python check_rope.py --logits logits.npy          an array [tokens, vocabulary] of logits
    python check_rope.py --call engine:logits         a function of Python from token ids to logits
    python check_rope.py --url http://localhost:8000  vLLM, SGLang or llama-server

It needs numpy, and nothing else. Exit codes: 0 the engine computes it, 1 it does not, 2 the engine
or the packet cannot be read.

Supported servers:
    vllm          /v1/completions with `prompt_logprobs`, one request for each prompt
    sglang        /generate with `top_logprobs_num`, one request for each prompt
    llama-server  /completion with `n_probs`, one request for each compared position

An answer of a server has the log-probabilities of the 20 likeliest tokens, so these are compared.
For logits, all tokens are. `--dtype` names the precision of the engine, which decides
what is allowed; README.md says where the numbers come from.
"""

import argparse
import importlib
import json
import math
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TOP_TOKENS = 20
"""Likeliest tokens that a server is asked for: the default limit of vLLM."""
COMPUTES_ANOTHER = 1
"""The exit code for an engine that does not compute the RoPE of the packet."""
CANNOT_READ = 2
"""The exit code where the engine, the packet or the command line cannot be read."""
RIGHT = "right"
"""The name of the right RoPE among the candidates."""
APIS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama-server"}
"""The names of the servers, by `owned_by` in /v1/models."""
TIMEOUT_SECONDS = 600.0
"""How long a server may take for an answer."""


def main(arguments: list[str] | None = None) -> int:
    """Run the test as the command line says, and return the exit code."""
    given = parse(arguments)
    packet = Packet.read(given.packet)
    if given.dtype not in packet.precisions:
        stop(CANNOT_READ, f"--dtype {given.dtype}: choose {', '.join(packet.precisions)}")
    verdict = judge(packet, ask(packet, given), given.dtype)
    print(json.dumps(verdict.to_dict(), indent=2) if given.json else verdict.sentence)
    return 0 if verdict.passed else 1


def stop(code: int, words: str) -> NoReturn:
    """Print why the test ends, and exit with COMPUTES_ANOTHER or CANNOT_READ."""
    if code == COMPUTES_ANOTHER:
        print(f"FAIL: {words}")
    else:
        print(f"check_rope: {words}", file=sys.stderr)
    raise SystemExit(code)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--logits", type=Path, metavar="FILE", help=".npy, or .npz by prompt name")
    engine.add_argument("--call", metavar="MODULE:FUNCTION", help="token ids to logits [T, V]")
    engine.add_argument("--url", help="of a running server")
    parser.add_argument("--api", choices=APIS.values(), help="of the server (default: it says so)")
    parser.add_argument("--model", default="", help="of the server (default: its first)")
    parser.add_argument("--dtype", default="float32", help="in which the engine computes")
    parser.add_argument("--packet", type=Path, default=Path(__file__).parent, help="its folder")
    parser.add_argument("--json", action="store_true", help="print all numbers")
    return parser.parse_args(arguments)


# --- the packet


@dataclass(frozen=True)
class PromptIds:
    """Token ids that the engine reads, and the positions that are compared."""

    name: str
    ids: list[int]
    positions: list[int]


@dataclass(frozen=True)
class Packet:
    """The answers that the engine should give, and those of each known mistake."""

    title: str
    vocabulary: int

    letter: int
    """A token whose text is a letter."""

    prompts: list[PromptIds]

    words: dict[str, str]
    """The candidates by name in the words for people; the right one first."""

    logits: dict[str, Array]
    """Logits [compared positions of all prompts, vocabulary] by the name of the candidate."""

    margin: float
    """The allowed distance, in measured distances of rounding."""

    precisions: dict[str, dict[str, float]]
    """By the name of a precision: the measured `noise` and the allowed `tolerance`."""

    @classmethod
    def read(cls, folder: Path) -> "Packet":
        """Return the packet in a folder: its prompts, and the expected logits of each candidate."""
        try:
            data = json.loads((folder / "packet.json").read_text(encoding="utf-8"))
            with np.load(folder / "expected.npz", allow_pickle=False) as arrays:
                logits = {name: arrays[name].astype(np.float64) for name in arrays.files}
            return cls(
                title=data["title"],
                vocabulary=data["vocabulary"],
                letter=data["letter"],
                prompts=[PromptIds(**prompt) for prompt in data["prompts"]],
                words={entry["name"]: entry["words"] for entry in data["candidates"]},
                logits=logits,
                margin=data["margin"],
                precisions=data["precisions"],
            )
        except (OSError, ValueError, KeyError, TypeError) as problem:
            stop(CANNOT_READ, f"{folder} is not a packet: {problem}")

    @property
    def rows(self) -> int:
        """How many positions are compared."""
        return sum(len(prompt.positions) for prompt in self.prompts)


# --- what the engine answers: for each compared position, log-probabilities by token id

Answers = list[dict[int, float]] | Array


def ask(packet: Packet, given: argparse.Namespace) -> Answers:
    """Return what the engine answers at the compared positions."""
    if given.logits is not None:
        return from_file(packet, given.logits)
    if given.call is not None:
        return from_call(packet, given.call)
    return from_server(packet, given.url.rstrip("/"), given.api, given.model)


def from_file(packet: Packet, path: Path) -> Array:
    """Return the logits in a file at the compared positions of all prompts.

    They are [positions of all prompts, vocabulary], as `compared_rows` returns them.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as problem:
        stop(CANNOT_READ, f"{path} cannot be read: {problem}")
    # an .npy file has one array, for a packet of one prompt
    if isinstance(loaded, np.ndarray):
        if len(packet.prompts) > 1:
            names = ", ".join(prompt.name for prompt in packet.prompts)
            stop(CANNOT_READ, f"{path} has logits of one prompt; save an .npz with {names}")
        return compared_rows(packet, packet.prompts[0], loaded)

    # an .npz file has an array for each prompt
    blocks = []
    for prompt in packet.prompts:
        if prompt.name not in loaded.files:
            stop(CANNOT_READ, f"{path} has no array {prompt.name}")
        blocks.append(compared_rows(packet, prompt, loaded[prompt.name]))
    return np.concatenate(blocks)


def from_call(packet: Packet, name: str) -> Array:
    """Return the logits of a Python function at the compared positions of all prompts.

    They are [positions of all prompts, vocabulary].

    Args:
        packet: The prompts.
        name: MODULE:FUNCTION; the function gets a list of token ids, and returns their logits.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        logits_of = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as problem:
        stop(CANNOT_READ, f"--call {name}: {problem}")
    blocks = []
    for prompt in packet.prompts:
        try:
            logits = np.asarray(logits_of(list(prompt.ids)))
        except Exception as problem:
            stop(CANNOT_READ, f"--call {name} fails: {problem!r}")
        blocks.append(compared_rows(packet, prompt, logits))
    return np.concatenate(blocks)


def compared_rows(packet: Packet, prompt: PromptIds, logits: Any) -> Array:
    """Return the logits at the compared positions of a prompt, [positions, vocabulary].

    Args:
        packet: The prompts, with the size of the vocabulary.
        prompt: One of them.
        logits: Those of an engine, for all tokens of the prompt or only for its positions. There
            may be a first axis of size 1, for the batch, and more columns than tokens.
    """
    if logits.ndim == 3 and len(logits) == 1:
        logits = logits[0]
    if logits.ndim != 2 or logits.shape[1] < packet.vocabulary:
        stop(
            CANNOT_READ,
            f"{prompt.name}: logits of shape {list(logits.shape)}, and"
            f" [{len(prompt.ids)}, {packet.vocabulary}] is expected",
        )
    if len(logits) == len(prompt.ids):
        logits = logits[prompt.positions]
    if len(logits) != len(prompt.positions):
        stop(
            CANNOT_READ,
            f"{prompt.name}: {len(logits)} rows, and {len(prompt.ids)} are expected, or the"
            f" {len(prompt.positions)} at its positions",
        )
    # an engine may pad its vocabulary
    return np.asarray(logits[:, : packet.vocabulary], dtype=np.float64)


def from_server(packet: Packet, url: str, api: str | None, model: str) -> list[dict[int, float]]:
    """Return the log-probabilities that a server answers, {token: logprob} for each position.

    Args:
        packet: The prompts.
        url: The address of the server.
        api: Its kind: "vllm", "sglang" or "llama-server". None for the kind that the server
            states in /v1/models; one that states none of these is asked as a llama-server.
        model: Which of its models; empty for the first.
    """
    # its models, such as [{"id": "qwen3", "owned_by": "vllm"}]
    models = request_json(f"{url}/v1/models").get("data") or [{}]
    names = [entry.get("id", "") for entry in models]
    if model and model not in names:
        stop(CANNOT_READ, f"the server has no model {model}; it has {', '.join(names)}")
    chosen_model = model or names[0]
    if not api:
        api = APIS.get(str(models[0].get("owned_by")))

    rows = []
    for prompt in packet.prompts:
        try:
            if api == "vllm":
                rows += from_vllm(url, chosen_model, prompt)
            elif api == "sglang":
                rows += from_sglang(url, prompt)
            else:
                # the token `letter` is the one that it generates, since it gives no probabilities
                # without generating
                rows += from_llama_server(url, chosen_model, prompt, packet.letter)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
            stop(CANNOT_READ, f"the answer of {api} has another form ({problem!r})")
    return rows


def from_vllm(url: str, model: str, prompt: PromptIds) -> list[dict[int, float]]:
    """Return the log-probabilities of vLLM after each compared position: {token: logprob} each.

    vLLM has those of a whole prompt in one answer.
    """
    body = {
        "model": model,
        "prompt": prompt.ids,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": TOP_TOKENS,
    }
    answer = request_json(f"{url}/v1/completions", body)
    # the entry of a token has what was predicted before it; the first token has none
    entries = answer["choices"][0]["prompt_logprobs"]
    rows = []
    for position in prompt.positions:
        entry = entries[position + 1]
        rows.append({int(token): float(record["logprob"]) for token, record in entry.items()})
    return rows


def from_sglang(url: str, prompt: PromptIds) -> list[dict[int, float]]:
    """Return the log-probabilities of SGLang after each compared position: {token: logprob} each.

    SGLang has those of a whole prompt in one answer.
    """
    body = {
        "input_ids": prompt.ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": TOP_TOKENS,
    }
    # the entry of a token has what was predicted before it: [log-probability, token, text] of each
    # of the likeliest tokens
    answer = request_json(f"{url}/generate", body)
    entries = answer["meta_info"]["input_top_logprobs"]
    rows = []
    for position in prompt.positions:
        row = {}
        for log_prob, token, *_ in entries[position + 1]:
            row[int(token)] = float(log_prob)
        rows.append(row)
    return rows


def from_llama_server(
    url: str, model: str, prompt: PromptIds, letter: int
) -> list[dict[int, float]]:
    """Return the log-probabilities of llama-server after each compared position.

    They are {token: logprob} each. llama-server has those of a generated token only, so each
    position is a request of its own.

    Args:
        url: The address of the server.
        model: The name of the model.
        prompt: The tokens, and the compared positions.
        letter: A token whose text is a letter, which is generated.
    """
    rows = []
    for position in prompt.positions:
        body = {
            "model": model,
            "prompt": prompt.ids[: position + 1],
            "n_predict": 1,
            "n_probs": TOP_TOKENS,
            # below 0, log-probabilities are those of the logits, whatever the sampler does
            "temperature": -1,
            "id_slot": 0,
            "cache_prompt": True,
            # a letter is generated: there are no probabilities for a token that ends the text, or
            # that is a part of a character
            "logit_bias": [[letter, 1e6]],
        }
        answer = request_json(f"{url}/completion", body)
        record = answer["completion_probabilities"][0]
        entries = record.get("top_logprobs") or record["probs"]
        rows.append({int(entry["id"]): float(entry["logprob"]) for entry in entries})
    return rows


def request_json(url: str, body: Any = None) -> Any:
    """Return the JSON that a server answers; without an answer in JSON the test ends.

    Args:
        url: The address.
        body: The content of a POST, which is sent as JSON; None for a GET.
    """
    headers = {"Content-Type": "application/json"}
    if os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    data = None if body is None else json.dumps(body).encode()
    http_request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(http_request, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as problem:
        words = problem.read(1000).decode("utf-8", "replace")
        stop(CANNOT_READ, f"{url} refuses ({problem.code}): {words}")
    except (OSError, ValueError) as problem:
        stop(CANNOT_READ, f"{url} does not answer in JSON: {problem}")


# --- the verdict


@dataclass(frozen=True)
class EngineVerdict:
    """Which candidate the engine computes."""

    title: str
    dtype: str

    fits: list[str]
    """The candidates that it may compute, the nearest first."""

    distances: dict[str, float]
    """The distance of each candidate that can be told from the right one, the nearest first."""

    words: dict[str, str]

    allowed: float
    """The distance within which a candidate fits."""

    distance_at_zero: float
    """The distance from the right one at position 0, where no RoPE changes the logits."""

    most_at_zero: float
    """The largest distance at position 0 that rounding explains."""

    too_near: list[str] = field(default_factory=list)
    """Mistakes whose logits are too near to the right ones to be told apart in this precision."""

    @property
    def passed(self) -> bool:
        """Whether the engine computes the right RoPE."""
        return RIGHT in self.fits

    @property
    def sentence(self) -> str:
        """The verdict in a few sentences: pass or FAIL, and which RoPE the engine computes.

        An example: "FAIL: it computes linear (position interpolation; 1.2e-04). From llama,
        --yarn 8: 3.1e-01 (5.0e-04 is allowed in float32). Runner-up: ...".

        The engine is compared with candidates, which are the right RoPE (`RIGHT`) and known
        mistakes. It computes a candidate in `fits`, whose distance is within the allowed one.
        """
        # Which RoPE it is. `self.distances` has all candidates, the nearest first.
        allowed = f"{self.allowed:.1e} is allowed in {self.dtype}"
        distance_from_right = f"{self.distances[RIGHT]:.1e}"
        named_candidates = self.fits
        if self.passed:
            text = f"pass: {self.title}, distance {distance_from_right} ({allowed})"
        elif self.fits:  # a known mistake
            computed = " or ".join(self._name_with_distance(name) for name in self.fits)
            text = f"FAIL: it computes {computed}. From {self.title}:"
            text += f" {distance_from_right} ({allowed})"
        else:  # neither the right RoPE nor a known mistake
            nearest = next(iter(self.distances))
            named_candidates = [nearest]
            named = self._name_with_distance(nearest)
            text = f"FAIL: none of these. The nearest is {named} ({allowed})"

        # the nearest candidate that was not named
        unnamed = [name for name in self.distances if name not in named_candidates]
        if unnamed:
            text += f". Runner-up: {self._name_with_distance(unnamed[0])}"

        # signs that the comparison itself may be at fault
        if self.distance_at_zero > self.most_at_zero:
            text += (
                f". At position 0, where no RoPE matters, the distance is"
                f" {self.distance_at_zero:.1e}: other weights, other tokens, or a lower precision"
                " than --dtype says"
            )
        # mistakes whose logits are so near to the right ones that rounding hides the difference
        if self.too_near:
            text += f". Too near to be told from the method: {', '.join(self.too_near)}"
        return f"{text}."

    def _name_with_distance(self, name: str) -> str:
        """Return a candidate as "linear (position interpolation; 1.2e-04)"."""
        return f"{name} ({self.words[name]}; {self.distances[name]:.1e})"

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        return {
            "passed": self.passed,
            "title": self.title,
            "dtype": self.dtype,
            "fits": self.fits,
            "distances": self.distances,
            "allowed": self.allowed,
            "first": self.distance_at_zero,
            "unseen": self.too_near,
            "sentence": self.sentence,
        }


def judge(packet: Packet, answers: Answers, dtype: str) -> EngineVerdict:
    """Return which candidate the answers of an engine fit: the right RoPE or a known mistake.

    The distance of two models is the root mean square of the differences of their log-probabilities
    in nats. A candidate fits if its distance from the answers is at most the allowed distance.

    The allowed distance is the tolerance of the precision, or more for an engine that rounds more,
    such as one that looks GELU up in a table. The rounding is seen at position 0: a token attends
    only to itself there, so that no RoPE changes its logits. `margin` times the distance at
    position 0 is allowed, up to the tolerance of float16.

    A mistake within twice the allowed distance of the right candidate is left out: an engine could
    fit both.

    Args:
        packet: The prompts, and the logits of each candidate.
        answers: The log-probabilities from the engine.
        dtype: The precision of the engine, as `--dtype` says.
    """
    # log-probabilities of the engine, and those of each candidate for the same tokens: both are
    # [compared positions, tokens]
    answered, tokens = as_table(packet, answers)
    expected = {}
    for name in packet.words:
        expected[name] = np.take_along_axis(log_softmax(packet.logits[name]), tokens, axis=1)
    right = expected[RIGHT]

    # the distance at position 0, which comes only from rounding or other weights
    positions: list[int] = []  # one for each row of the tables
    for prompt in packet.prompts:
        positions += prompt.positions
    rows_at_zero = [row for row, position in enumerate(positions) if position == 0]
    distance_at_zero = distance(answered[rows_at_zero], right[rows_at_zero])

    # the allowed distance, between the tolerance of the precision and that of float16
    tolerance = packet.precisions[dtype]["tolerance"]
    most_allowed = max(tolerance, packet.precisions["float16"]["tolerance"])
    allowed = max(tolerance, packet.margin * distance_at_zero)
    allowed = min(allowed, most_allowed)

    # the distance of each candidate that can be told from the right one
    distances = {}
    too_near = []  # mistakes that cannot
    for name, log_probs in expected.items():
        if name != RIGHT and distance(log_probs, right) <= 2 * allowed:
            too_near.append(name)
        else:
            distances[name] = distance(answered, log_probs)
    nearest_first = sorted(distances, key=lambda name: distances[name])
    return EngineVerdict(
        title=packet.title,
        dtype=dtype,
        fits=[name for name in nearest_first if distances[name] <= allowed],
        distances={name: distances[name] for name in nearest_first},
        words=packet.words,
        allowed=allowed,
        distance_at_zero=distance_at_zero,
        most_at_zero=most_allowed,
        too_near=too_near,
    )


def as_table(packet: Packet, answers: Answers) -> tuple[Array, NDArray[np.int64]]:
    """Return log-probabilities and their token ids, both [compared positions, tokens].

    A server gives only the likeliest tokens of a position, such as 20 at one position and 21 at
    another. The table then has 20 columns, with the 20 likeliest tokens of each position.

    The test ends (`stop`) for numbers that are not finite, and for answers without tokens.

    Args:
        packet: The prompts, with the size of the vocabulary.
        answers: Logits of all tokens as an array, or {token: log-probability} for each position.
    """
    # logits of all tokens
    if isinstance(answers, np.ndarray):
        if not np.isfinite(answers).all():
            is_wrong = ~np.isfinite(answers).all(axis=1)
            stop(
                COMPUTES_ANOTHER,
                f"compared row {int(np.argmax(is_wrong))} has a logit that is not finite.",
            )
        tokens = np.broadcast_to(np.arange(packet.vocabulary), answers.shape)
        return log_softmax(answers), tokens

    # log-probabilities of some tokens
    columns = min(len(row) for row in answers)
    if columns == 0:
        stop(CANNOT_READ, "the server gives no log-probabilities for a position")
    log_probs = []
    ids = []
    for row in answers:
        # entry[1] is the log-probability
        likeliest = sorted(row.items(), key=lambda entry: -entry[1])[:columns]
        ids.append([token for token, _ in likeliest])
        log_probs.append([value for _, value in likeliest])
    token_ids = np.array(ids, dtype=np.int64)
    if token_ids.min() < 0 or token_ids.max() >= packet.vocabulary:
        stop(
            CANNOT_READ, f"token {token_ids.max()} is not in the vocabulary of {packet.vocabulary}"
        )
    if not np.isfinite(log_probs).all():
        stop(COMPUTES_ANOTHER, "the server gives a log-probability that is not finite.")
    return np.array(log_probs, dtype=np.float64), token_ids


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities [rows, vocabulary]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def distance(one: Array, other: Array) -> float:
    """Return the root mean square difference of log-probabilities, in nats."""
    return math.sqrt(float(np.square(one - other).mean()))


if __name__ == "__main__":
    sys.exit(main())
