"""make_snippet: the file that trains a baked checkpoint in one trainer, or the reason why it cannot train it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import RopeconvError
from ..formats.template import render
from ..runtimes.rules import RUNS
from .baked import Baked
from .trainer import Trainer, trainers

UNSEEN = "unknown"


@dataclass(frozen=True)
class Snippet:
    """The file of a trainer.

    trainer: that it is for. baked: the checkpoint. text: of the file. status: what the trainer's transformers computes
    from the checkpoint. notes: sentences for the user.
    """

    trainer: Trainer
    baked: Baked
    text: str
    status: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The snippet as JSON-ready data, with the values that it was made from."""
        baked, trainer = self.baked, self.trainer
        return {
            "trainer": trainer.name, "version": trainer.version, "transformers": trainer.transformers or None,
            "status": self.status, "model": baked.path, "method": baked.method, "context": baked.context,
            "trained": baked.trained, "rope_type": baked.rope_type, "trust_remote_code": baked.own_code,
            "length": trainer.length, "untouched": list(trainer.untouched), "file": trainer.file,
            "command": trainer.command, "text": self.text, "notes": list(self.notes),
        }  # fmt: skip


def make_snippet(trainer: Trainer, baked: Baked) -> Snippet:
    """The file that trains a checkpoint at its whole context, with RoPE as it is baked.

    trainer: that runs it. baked: the checkpoint. Raises RopeconvError where the trainer would compute another RoPE
    than the baked one, where it fails on the checkpoint, and for encoders.
    """
    _check(trainer, baked)
    status, _ = baked.verdict(trainer.transformers)
    text = render(
        f"training/{trainer.file}.jinja", trainer=trainer.display_name, command=trainer.command, model=baked.path,
        output=f"{baked.path.rstrip('/').rpartition('/')[2]}-trained", method=baked.method, context=baked.context,
        own_code=baked.own_code,
    )  # fmt: skip
    return Snippet(trainer, baked, text, status, tuple(_notes(trainer, baked, status)))


def _notes(trainer: Trainer, baked: Baked, status: str) -> list[str]:
    """What a user should know beside the file."""
    found = []
    if status == UNSEEN:
        named = f"transformers {trainer.transformers}" if trainer.transformers else "the newest transformers"
        found.append(f"nobody has looked what {named}, which {trainer.title} runs, computes from this checkpoint")
    if baked.two_lists:
        found.append(
            f"sequences within {baked.trained:,} tokens train the short list of frequencies: take longer ones to train "
            "the extension"
        )
    return found


def _check(trainer: Trainer, baked: Baked) -> None:
    """Raises RopeconvError for a checkpoint that a trainer would train with another RoPE, or not at all."""
    reason = _refusal(trainer, baked)
    if not reason:
        return
    others = [one.name for one in trainers().values() if one is not trainer and not _refusal(one, baked)]
    ways = " or ".join(f"--for {name}" for name in others)
    repair = f"take {ways}" if ways else "bake it another way (`ropeconv apply --explain` says who reads what)"
    raise RopeconvError(f"{trainer.display_name} cannot train this checkpoint with its RoPE: {reason}; {repair}")


def _refusal(trainer: Trainer, baked: Baked) -> str:
    """Why a trainer cannot train a checkpoint with its RoPE; empty where it can."""
    if baked.encoder:
        return "it is an encoder, and the trainers here train the next token"
    if baked.own_code and trainer.no_code:
        return trainer.no_code
    status, reason = baked.verdict(trainer.transformers)
    if status not in (*RUNS, UNSEEN):
        which = f"transformers {trainer.transformers}" if trainer.transformers else "the newest transformers"
        return f"it runs {which}, which does not compute it ({status}: {reason})"
    for own in trainer.rotary:
        if baked.model_type not in own.model_types:
            continue
        if baked.rope_type not in own.rope_types:
            return f"its own rotary code for {baked.model_type} ignores the rope type {baked.rope_type} ({own.source})"
        if baked.two_lists and not own.two_lists:
            return f"its own rotary code for {baked.model_type} takes the short list for every length ({own.source})"
    return ""
