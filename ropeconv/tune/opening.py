"""tune_model: a search, from the model and the texts to a recipe with its evidence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..engines import Progress
from ..errors import UsageError, counted
from ..evaluate.row import BASE, Row
from ..evaluate.runners.opening import open_runner
from ..evaluate.runners.patched import Patched
from ..evaluate.runners.request import Opening
from ..evaluate.texts.read import read_files, tokenized
from ..rope.lengths import parse_tokens
from .passes import Passes, Place
from .result import Tuned
from .tuning import Tuning
from .wanted import Wanted


def tune_model(
    model: str | os.PathLike[str],
    texts: Sequence[str | os.PathLike[str]],
    wanted: Wanted,
    progress: Progress | None = None,
    journal: str | os.PathLike[str] | None = None,
    **options: str | bool | int,
) -> Tuned:
    """Looks for frequencies that lose less on a text than every formula does.

    model: a checkpoint. texts: files or patterns; a part of them is held out of the search, and decides. wanted: what
    is searched for. progress: callbacks; total and advance count steps. journal: the file of finished passes, by
    default in the cache. options: other fields of `Opening`, such as device. Raises UsageError for values that cannot
    be taken, BadSource where a model or a text cannot be read.
    """
    kept = Place(None if journal is None else Path(journal))
    return tune_texts(str(model), read_files([str(name) for name in texts]), wanted, progress, kept, **options)


def tune_texts(
    model: str,
    files: Sequence[tuple[str, str]],
    wanted: Wanted,
    progress: Progress | None = None,
    kept: Place = Place(),
    **options: str | bool | int,
) -> Tuned:
    """As `tune_model`, with texts that have been read.

    files: their names and contents. kept: where the journal is. model, wanted, progress, options: as there.
    """
    wanted.check()
    heard = progress or Progress()
    if model.endswith(".gguf"):
        raise UsageError(
            f"{model} is a GGUF file, which cannot be searched; tune the checkpoint that it was made of, and bake the "
            "recipe into the file with `ropeconv apply FILE.gguf --recipe`"
        )
    with open_runner(Opening(model, [Row(BASE)], **options)) as (runner, _):  # type: ignore[arg-type]
        assert isinstance(runner, Patched)
        context = parse_tokens(wanted.context)
        if context <= runner.trained:
            raise UsageError(
                f"{model} is trained for {runner.trained:,} tokens; give a --context above that, to extend it to"
            )
        texts, by = tokenized(files, runner.tokenizer), f"{runner.runtime} {runner.device} {runner.dtype}"
        with kept.opened(runner.source) as journal:
            for sentence in journal.notes:
                heard.note(sentence)
            if journal.lines:
                heard.note(f"{counted(len(journal.lines), 'pass is', 'passes are')} in the journal, {journal.path}.")
            return Tuning(model, runner, texts, context, wanted, Passes(journal, by), heard).run()
