"""`ropeconv.train_config`: a training config for an output."""

import os

from ropeconv.errors import UsageError
from ropeconv.inspection.memory.machine import given_memory
from ropeconv.keywords import StrPath
from ropeconv.rope.lengths import parse_tokens
from ropeconv.verbs.arguments import check_arguments, source_of

from .training import Snippet, baked_output, make_snippet, trainers


@check_arguments
def train_config(
    output: object,
    trainer: str,
    *,
    model: StrPath = "",
    context: int | str | None = None,
    memory: int | str | None = None,
    gpus: int | None = None,
    family: str = "",
) -> Snippet:
    """Return a training config that trains an output at its whole context.

    Args:
        output: The result of `apply`, the path of a folder, or its name on the Hub.
        trainer: axolotl, llama-factory, megatron, nemo, trl or unsloth.
        model: The path or Hub id that the trainer loads, if that is not `output`.
        context: Train on sequences of this length; None for the whole context.
        memory: The memory of one GPU that the training must fit, in bytes or as in "80GB".
        gpus: The GPUs that train, with `memory`; None for one.
        family: The family to treat it as.

    Returns:
        The config as `text`, with `notes` and the `command` that runs it.

    Raises:
        UsageError: For an unknown trainer, or a number of GPUs or bytes below 1.
        RopeconvError: For an output that the trainer cannot train.
    """
    known = trainers()
    if trainer not in known:
        raise UsageError(f"trainer={trainer!r} is not known; choose {', '.join(sorted(known))}")
    if gpus is not None and gpus < 1:
        raise UsageError(
            f"gpus={gpus}: the number of GPUs must be at least 1; leave it out for one"
        )
    if isinstance(memory, int) and memory < 1:
        raise UsageError(f"memory={memory}: give the bytes of one GPU, or a size such as '80GB'")
    facts = baked_output(source_of("train_config", output, family), os.fspath(model))
    if context is not None:
        facts = facts.with_context(parse_tokens(str(context)))
    limit = memory or 0
    if isinstance(limit, str):
        limit = given_memory(limit).bytes
    return make_snippet(known[trainer], facts, gpus or 0, limit)
