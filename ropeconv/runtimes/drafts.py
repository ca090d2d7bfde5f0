"""Draft models for speculative decoding: their kinds, and the runtimes that compute their RoPE.

A head (EAGLE, DFlash) has the config of a model, runs at the positions of its target, and reads its
own RoPE settings.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import msgspec

from ..models.family import Family
from ..models.schema import Config, first_present, positive_int, text_config
from .evidence import Evidence
from .llamacpp.archs import HeaderKeys
from .runtime import Status, within
from .stored import runtime_data
from .verdict import Verdict


class DraftKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of draft, known by what only drafts have."""

    name: str
    says: str
    """The kind with its article."""

    classes: str = "(?!)"
    """A pattern of names in `architectures`."""

    keys: tuple[str, ...] = ()
    """Keys of config.json, or of its text_config, that no whole model has."""

    tensors: str = "(?!)"
    """A pattern of names of tensors that no whole model has."""

    without: str = ""
    """A pattern of names of tensors that every whole model has; empty for none."""

    beside: str = ""
    """A pattern of names of tensors behind the last layer.

    Without such a tensor the weights are a part of some model.
    """

    refuse: str = ""
    """Why no draft of this kind is written, with the fix, or empty."""

    def has(self, config: Config, tensors: Sequence[str]) -> bool:
        """Return whether a checkpoint is a draft model of this kind, such as EAGLE-3.

        A draft model guesses the next tokens of another model (speculative decoding). It has a few
        layers, and uses the embedding or the layers of that model.

        Args:
            config: The config.json of the checkpoint.
            tensors: The names of its tensors; empty where they are not known.
        """
        # 1. a class such as LlamaForCausalLMEagle3
        architectures = config.get("architectures")
        if isinstance(architectures, list):
            for name in architectures:
                if re.search(self.classes, str(name), re.IGNORECASE):
                    return True

        # 2. a key that only the configs of drafts have
        for part in (config, text_config(config) or {}):
            if any(part.get(key) is not None for key in self.keys):
                return True

        # 3. a tensor that only drafts have
        if any(re.match(self.tensors, name) for name in tensors):
            return True

        # 4. No tensor that every whole model has, such as the embedding: `without` is the pattern
        # of its name. The names may also be of the first shards of a whole model. So a tensor
        # behind the last layer, such as the last norm, must be there: `beside` is its pattern.
        if not self.without:
            return False
        is_whole_model = any(re.search(self.without, name) for name in tensors)
        has_last_tensors = any(re.search(self.beside, name) for name in tensors)
        return has_last_tensors and not is_whole_model


class DraftStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement on some versions of a runtime and drafts of some kinds and families."""

    runtime: str
    kinds: tuple[str, ...]
    families: tuple[str, ...]
    """Empty for all."""

    first: str
    """The first version."""

    last: str
    """The last version."""

    source: str
    """Where that is stated."""

    status: Status | None = None
    """Empty where the draft is read by the rules of its family."""

    reason: str = ""
    run: str = ""
    """The version that was executed, and when; empty where the source was read."""


class DraftTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of drafts.toml."""

    kinds: tuple[DraftKind, ...]
    statements: tuple[DraftStatement, ...]


@cache
def draft_table() -> DraftTable:
    """Return the table of the package."""
    return runtime_data("drafts.toml", DraftTable)


def draft_kind(config: Config, tensors: Iterable[str] = (), name: str = "") -> DraftKind | None:
    """Return the kind of draft that a checkpoint is; None for a whole model.

    Args:
        config: The config.json.
        tensors: Names of its tensors, empty where they are not known.
        name: The name of the checkpoint.
    """
    tensors = tuple(tensors)
    for kind in draft_table().kinds:
        if kind.has(config, tensors):
            return kind
    # The first EAGLE heads have the class of their target, and vLLM and people know them by their
    # name: https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/config/speculative.py#L1440
    if "eagle" in name.lower() and config.get("num_hidden_layers") == 1:
        return find_kind("eagle")
    return None


def find_kind(name: str) -> DraftKind:
    """Return the kind of draft of a name that drafts.toml has."""
    return next(kind for kind in draft_table().kinds if kind.name == name)


def draft_verdicts(
    kind: DraftKind, family: Family, verdicts: Iterable[Verdict]
) -> tuple[Verdict, ...]:
    """Return the verdicts on a draft.

    Args:
        kind: The kind of draft.
        family: Its family.
        verdicts: The verdicts on a whole model of its family with the same config.
    """
    return tuple(_draft_verdict(kind, family, verdict) for verdict in verdicts)


def _draft_verdict(kind: DraftKind, family: Family, verdict: Verdict) -> Verdict:
    """Return whether a runtime computes the RoPE of a draft model, from what drafts.toml states.

    The first statement there about this runtime, version, kind of draft and family counts.

    Args:
        kind: The kind of draft.
        family: The family of its target.
        verdict: The verdict that a whole model with the same RoPE has in this runtime. It holds for
            the draft where a statement does not say otherwise.
    """
    name, _, version = verdict.runtime.partition("@")
    for statement in draft_table().statements:
        if statement.runtime != name or kind.name not in statement.kinds:
            continue
        if statement.families and family.name not in statement.families:
            continue
        if not within(verdict.through or version, statement.first, statement.last):
            continue

        # the statement has an outcome of its own, or says that the draft is read as a whole model
        if statement.status:
            return replace(
                verdict,
                status=statement.status,
                reason=statement.reason,
                source=statement.source,
                evidence=Evidence("read"),
            )
        evidence = Evidence("run", statement.run) if statement.run else Evidence("read")
        return replace(verdict, source=f"{verdict.source}; {statement.source}", evidence=evidence)

    # no statement: that it runs whole models says nothing about drafts
    return replace(
        verdict,
        status="unknown",
        reason=f"{kind.says} was not tested in it",
        source="",
        evidence=Evidence(),
    )


def draft_sizes(config: Config) -> dict[str, object]:
    """Return the sizes of the target that a draft is for, by key; those of a target are its own."""
    part = text_config(config) or config
    hidden = first_present(part, ("target_hidden_size", "hidden_size"))
    return {"hidden_size": hidden, "vocab_size": part.get("vocab_size")}


def header_sizes(keys: HeaderKeys) -> dict[str, object]:
    """Return the sizes of the target that a draft in GGUF is for, by their names in config.json.

    Those of a target are its own. llama.cpp src/models/eagle3.cpp: the width of the target is that
    of the draft unless target_hidden_size says so.
    """
    arch = keys.get("general.architecture")
    hidden = keys.get(f"{arch}.target_hidden_size") or keys.get(f"{arch}.embedding_length")
    return {"hidden_size": hidden}


MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Keys with the number of layers that predict further tokens, inside a checkpoint."""


def mtp_note(config: Config) -> str:
    """Return a sentence on layers of a checkpoint that predict further tokens; empty without them.

    vllm/model_executor/models/deepseek_mtp.py:81 (0.33.0) and sglang/srt/models/deepseek_nextn.py
    (0.5.23) build them from the config of the checkpoint. vLLM gives them no `--hf-overrides`
    (vllm/config/speculative.py:1183-1200).
    """
    part = text_config(config) or config
    count = positive_int(part, MTP, least=0)
    if not count:
        return ""
    return f"MTP layers ({count}) are extended too, except by --hf-overrides of vLLM"
