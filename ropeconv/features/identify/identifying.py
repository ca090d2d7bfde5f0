"""Find what a runtime computes: run the source as each candidate, and take the nearest.

`identify` is the function of Python and `identify_comparison` the hook of `validate`; both end in
`_identify`. Only the weights of the source, some tokens and what the runtime answers to them are
needed, so any server that returns log-probabilities of a prompt can be asked.
"""

from __future__ import annotations

import math
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropeconv.bake.start import complete_recipe
from ropeconv.convert.from_gguf.source import GgufCheckpoint
from ropeconv.engines.engine import Progress
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import (
    DeviceSpec,
    advice_on_memory,
    choose_place,
    folder_of,
    lacks_memory,
    stored_dtype,
)
from ropeconv.engines.transformers.patch import patch
from ropeconv.environment import require
from ropeconv.errors import BadSource, UsageError
from ropeconv.formats.kind import is_gguf
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.receipts.places import find_source, why_not_found
from ropeconv.inspection.receipts.storage import has_receipt
from ropeconv.models.config import text_part
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.models.source import Source
from ropeconv.reporting import Reporter, SilentReporter
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe, described_flags
from ropeconv.rope.schedule import LogN, QueryScaling
from ropeconv.validate.checks import needs_trust
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.sampling import (
    Bucket,
    TokenRun,
    of_text,
    spread_buckets,
    synthetic,
    usual_length,
)
from ropeconv.validate.validation import DEVIATIONS, KL_FLOOR, Measures, in_blocks, tolerance
from ropeconv.verbs.arguments import check_arguments, reference_of

from .identification import CandidateResult, Identification
from .mistakes import CandidateSchedule, Extension, candidates
from .observing import Answers, CheckpointObserver, GgufObserver, Observer, ServerObserver
from .structure import CannotChange

if TYPE_CHECKING:
    from torch import Tensor

POSITIONS_PER_RANGE = 128
"""Positions of the trained context, and of each doubling of it, that are compared."""
SINGLE_TOKEN_TEXTS = 8
"""How many texts of one token are read, to measure the noise of a runtime."""
MOST_NOISE_IF_EXACT = 1e-6
"""The most noise (KL after single tokens) of a runtime that is as precise as transformers."""
NEAREST_SHARE_OF_MEDIAN = 0.1
"""The nearest candidate fits if its mean KL is at most this share of the median candidate's."""


@dataclass(frozen=True)
class Subject:
    """The source with the recipe that a runtime should compute."""

    source: Source
    extension: Extension

    query_scaling: LogN | QueryScaling | None
    """The scaling of queries that is right."""

    loaded_as: str = ""
    """The model type with which transformers loads the source; empty for its own."""

    @classmethod
    def of_comparison(cls, comparison: Comparison) -> Subject:
        """Return the source of an output, and the RoPE that the output should have.

        The source is a checkpoint. A GGUF file is dequantised into a checkpoint.

        Args:
            comparison: The output with its receipt, and its source.
        """
        recipe = Recipe.from_dict(comparison.receipt.recipe)
        inspection = inspect_source(comparison.source)
        source = comparison.checkpoint_or_dequantised()
        extension = Extension(
            recipe=recipe,
            source=comparison.spec,
            start=recipe.start(inspection.basis(recipe)),
            schedule=comparison.schedule,  # the frequencies and factors in the receipt
            weights=source.family.weights,
        )
        return cls(
            source=source,
            extension=extension,
            query_scaling=comparison.scale,  # of queries by position (log-n)
            loaded_as=comparison.loaded_as,  # a model type; empty for the source's own type
        )

    @classmethod
    def of_recipe(cls, against: str, recipe: Recipe) -> Subject:
        """Return a source, and the RoPE that a recipe gives it.

        An output that ropeconv did not write has no receipt, so the user names the recipe.

        Args:
            against: The path of the source, or its name on the Hub.
            recipe: The method that the output should have, such as `--yarn 4`.

        Raises:
            BadSource: The source cannot be read.
            RecipeError: The source cannot have the method.
        """
        opened = open_source(against)
        inspection = inspect_source(opened)
        completed = complete_recipe(recipe, inspection)
        schedule = inspection.schedule_of(completed)

        # transformers runs the source, so the weights of a GGUF file are dequantised
        source = opened
        if isinstance(source, GgufSource):
            source = GgufCheckpoint(source, with_tokenizer=False)
        extension = Extension(
            recipe=completed,
            source=inspection.spec,
            start=completed.start(inspection.basis(completed)),
            schedule=schedule,
            weights=source.family.weights,
        )
        return cls(source, extension, query_scaling=schedule.log_n)

    @property
    def queries(self) -> str:
        """The end of the name of the module whose output are unrotated queries."""
        return self.extension.weights.queries

    @property
    def method(self) -> str:
        """The method as flags."""
        case = self.extension
        return described_flags(case.recipe, case.start.original_context, case.source.context)


@check_arguments
def identify(
    output: object = None,
    against: object = None,
    recipe: Recipe | None = None,
    *,
    server: str = "",
    model: str = "",
    settings: Settings | None = None,
    reporter: Reporter | None = None,
) -> Identification:
    """Find out whether a runtime computes the right RoPE, or which known mistake it makes.

    Transformers runs the source once with the right RoPE, and once with each known mistake. The
    run that fits has nearly the same logits as the runtime (a small KL).

    Args:
        output: A folder or GGUF file, written by ropeconv or by another program; None for a server.
        against: The source. By default it is found by the receipt, which ropeconv writes.
        recipe: The recipe that should be computed, such as `Recipe(METHODS["yarn"](4.0))`; by
            default the recipe in the receipt.
        server: The URL of a running vLLM, SGLang or llama-server, which is tested instead of
            `output`.
        model: The name of the model, if the server runs several.
        settings: Device, precision, length and text, as for `validate`.
        reporter: Receives progress, and sentences for the user.

    Returns:
        The candidates with their distances: `sentence`, `fits`, `is_right`.

    Raises:
        UsageError: Neither an output nor a server is given, a model without a server, or no recipe
            is known.
        RopeconvError: The output, its source or the server cannot be read or run.
    """
    if model and not server:
        raise UsageError("--model names one of a server's models; add --server URL")
    require("torch", "identifying")
    require("transformers", "identifying")
    settings = settings or Settings()
    reporter = reporter or SilentReporter()
    if output is None and not server:
        raise UsageError("there is nothing to identify; give a folder, a GGUF file, or --server")

    output_path = None if output is None else Path(reference_of("identify", output))
    subject = _subject(output_path, against, recipe)  # the source, and the right RoPE
    with reporter.counting("Running") as (total, advance), advice_on_memory():
        progress = Progress(reporter.note, total, advance)
        return _identify(subject, output_path, server, model, settings, progress)


def identify_comparison(
    comparison: Comparison, server: str, model: str, settings: Settings, progress: Progress
) -> Identification:
    """Return which known mistake a runtime makes with an output that a validation has found wrong.

    `validate` calls this, as the hook `identify_output`: this feature may not be installed.

    Args:
        comparison: The output and its source.
        server: The URL of the server that runs it; empty for the installed transformers.
        model: Which of the models of the server.
        settings: Device, precision, length and text.
        progress: Callbacks, which are called while tokens are read.
    """
    subject = Subject.of_comparison(comparison)
    baked = comparison.baked
    with advice_on_memory():
        found = _identify(subject, baked, server, model, settings, progress)
    return replace(found, disagreed=True)


def _subject(baked: Path | None, against: object, recipe: Recipe | None) -> Subject:
    """Return the source and the recipe that are given, or that the receipt of an output has.

    Args:
        baked: The output; None for a server.
        against: The source, or None.
        recipe: The recipe that should be computed; None for that of the receipt.

    Raises:
        UsageError: One of them is not known.
    """
    # a given method wins over a receipt, so that an output can be tested for another one
    if recipe is not None:
        if against is None:
            raise UsageError("the method is for a source; add --against SOURCE")
        return Subject.of_recipe(reference_of("identify", against), recipe)
    if baked is None:
        raise UsageError(
            "what the server should compute is not known; name its output, or give --against"
            " SOURCE with a method, such as --yarn 4"
        )
    if not has_receipt(baked):
        raise UsageError(
            f"{baked} has no receipt of ropeconv; add --against SOURCE and the method that it"
            " should compute, such as --yarn 4"
        )

    if against is None:
        source = find_source(baked)
    else:
        source = reference_of("identify", against)
    if not source:
        raise UsageError(why_not_found(baked))
    return Subject.of_comparison(Comparison.open(baked, source))


def _identify(
    subject: Subject,
    baked: Path | None,
    server: str,
    model: str,
    settings: Settings,
    progress: Progress,
) -> Identification:
    """Ask the runtime first, then run the source as each candidate.

    Args:
        subject: The source, and the recipe that the runtime should compute.
        baked: The output that it runs; None where only a server is named.
        server: The URL of a server; empty for transformers or llama.cpp on this machine.
        model: Which of the models of the server.
        settings: Device, precision, length and text.
        progress: Callbacks, which are called while tokens are read.
    """
    source = _weights_like(baked, subject.source)
    dtype = "float32" if source.kind == "gguf" else "auto"
    with folder_of(source, dtype) as folder:
        stored = stored_dtype(source.config())
        at = choose_place(source, settings.place(stored, subject.loaded_as))
        observer = _observer(baked, server, model, settings, at)
        text = _text_run(subject, observer, folder, settings)
        singles = _single_runs(text)
        right, *mistakes = candidates(subject.extension)

        passes = 2 + len(mistakes)  # of the runtime, the right schedule, and each mistake
        progress.note(
            f"{observer.runtime} and {1 + len(mistakes)} candidates read {len(text.ids):,} tokens"
            f" each, on {at.device} in {at.dtype}."
        )
        progress.total(passes * len(text.ids) + 2 * sum(len(run.ids) for run in singles))

        # the runtime is asked before the source is loaded, so that not both are in memory
        text_answers, *single_answers = observer.read([text, *singles], progress)
        engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
        distances = [(right, _distances(engine, subject, right, text, text_answers, progress))]

        # A single token attends only to itself, and no RoPE changes its logits. What differs there
        # is the rounding of the two runtimes.
        single_kls = []
        for run, answers in zip(singles, single_answers, strict=True):
            single_kls.append(_distances(engine, subject, right, run, answers, progress).item())
        noise = statistics.fmean(single_kls)

        # a mistake that the model's class cannot make is left out
        left_out = []
        for mistake in mistakes:
            try:
                kl = _distances(engine, subject, mistake, text, text_answers, progress)
            except (CannotChange, RuntimeError) as problem:
                # torch raises a RuntimeError for a class that rotates a fixed number of dimensions
                if lacks_memory(problem):
                    raise
                left_out.append(mistake.name)
                continue
            distances.append((mistake, kl))

    is_exact = noise <= MOST_NOISE_IF_EXACT
    results, allowed = _find_fitting_candidates(distances, is_exact, noise, text.positions[-1])
    return Identification(
        subject=server or str(baked),
        runtime=observer.runtime,
        method=subject.method,
        candidates=results,
        allowed=allowed,
        noise=noise,
        is_exact=is_exact,
        tokens=len(text.ids),
        digest=subject.extension.schedule.digest,
        device=at.device,
        dtype=at.dtype,
        left_out=tuple(left_out),
        own_weights=source is not subject.source,
    )


def _find_fitting_candidates(
    distances: list[tuple[CandidateSchedule, Tensor]], is_exact: bool, noise: float, last: int
) -> tuple[tuple[CandidateResult, ...], float]:
    """Return which candidates the answers of a runtime fit, the nearest candidate first.

    A candidate is the right RoPE or a known mistake, computed in transformers.

    Args:
        distances: Each candidate with the KL of the runtime to it, for each compared token.
        is_exact: Whether the runtime computes as precisely as transformers.
        noise: The KL that rounding causes, measured on texts of one token.
        last: The last compared position. The allowed KL grows with it, since the rounding of an
            angle grows with the position.

    Returns:
        The candidates, each with `fits`, and the largest KL that fits.
    """
    kl_by_candidate = [kl for _, kl in distances]  # of each token
    means = [float(kl.mean()) for kl in kl_by_candidate]
    kls_95 = [float(kl.quantile(0.95)) for kl in kl_by_candidate]

    # for a precise runtime, only rounding may separate it from a candidate
    if is_exact:
        allowed = tolerance(last, noise, KL_FLOOR)
        fits = [kl_95 <= allowed for kl_95 in kls_95]

    # Other runtimes round more, such as a server in bfloat16. The nearest candidate must be much
    # nearer than a wrong one; most candidates are wrong, so that is the median.
    else:
        allowed = NEAREST_SHARE_OF_MEDIAN * statistics.median(means)
        fits = _find_near_nearest(kl_by_candidate, allowed)

    results = []
    for index, (candidate, _) in enumerate(distances):
        result = CandidateResult(
            name=candidate.name,
            words=candidate.words,
            kl=means[index],
            kl_95=kls_95[index],
            fits=fits[index],
        )
        results.append(result)
    results.sort(key=lambda result: result.kl)
    return tuple(results), allowed


def _find_near_nearest(kl_by_candidate: list[Tensor], allowed: float) -> list[bool]:
    """Return True for the nearest candidate and for each that is not significantly farther.

    If the mean KL of the nearest one is more than `allowed`, all are False.

    Args:
        kl_by_candidate: The KL of each compared token, for each candidate.
        allowed: The largest mean KL of the nearest candidate.
    """
    means = [float(kl.mean()) for kl in kl_by_candidate]
    lowest_mean = min(means)
    if lowest_mean > allowed:
        return [False] * len(means)

    # a paired test over the tokens: a candidate is significantly farther if its mean difference to
    # the nearest one is more than four standard errors
    nearest_kl = kl_by_candidate[means.index(lowest_mean)]
    are_near = []
    for kl in kl_by_candidate:
        differences = kl - nearest_kl
        standard_error = float(differences.std()) / math.sqrt(len(differences))
        is_near = float(differences.mean()) <= DEVIATIONS * standard_error
        are_near.append(is_near)
    return are_near


def _weights_like(baked: Path | None, source: Source) -> Source:
    """Return the checkpoint with which candidates are computed: of a GGUF file its own weights.

    They are dequantised, so that the noise is that of llama.cpp and not of the quantisation.
    """
    if baked is None or not is_gguf(baked):
        return source
    own = GgufCheckpoint(GgufSource(baked), with_tokenizer=False)
    try:
        own.files()
    except RopeconvError:  # an architecture whose tensors are not converted
        return source
    return own


def _observer(
    baked: Path | None, server: str, model: str, settings: Settings, at: DeviceSpec
) -> Observer:
    """Return the runtime whose answers are compared: a server, llama.cpp or transformers.

    A GGUF file runs in llama.cpp, and a folder in transformers.

    Args:
        baked: The output; None where only a server is named.
        server: The URL of the server, or empty.
        model: Which of the models of the server.
        settings: The tokens at a time, and whether code of the folder may run.
        at: The device and the precision of a folder.
    """
    if server:
        return ServerObserver(server, model)
    assert baked is not None
    if is_gguf(baked):
        return GgufObserver(baked)
    trust = needs_trust(baked, settings.trust_remote_code)
    return CheckpointObserver(baked, at, trust, settings.chunk)


def _text_run(subject: Subject, observer: Observer, folder: Path, settings: Settings) -> TokenRun:
    """Return the tokens that a runtime and transformers both read, and the compared positions.

    Args:
        subject: The source, and the recipe that the runtime should compute.
        observer: The runtime that reads the text.
        folder: The files of the source, with the tokenizer.
        settings: The length, and the text or the seed of random tokens.

    Raises:
        BadSource: The length is beyond the context, or more than the runtime accepts.
    """
    # the runtime must also have space for the token that it generates after the text
    schedule = subject.extension.schedule
    trained = schedule.original_context
    longest = schedule.context
    if observer.longest:
        longest = min(longest, observer.longest - 1)
    if settings.length > longest:
        raise BadSource(f"{longest:,} tokens can be compared; pass a --length of at most that")
    length = settings.length
    if not length:
        length = min(usual_length(trained, schedule.context), longest)

    # only token ids that the source and the runtime both have: a checkpoint may pad its embeddings
    # to more rows
    source = subject.source
    vocabulary = int(text_part(source.config(), source.family)["vocab_size"])
    if observer.vocabulary:
        vocabulary = min(vocabulary, observer.vocabulary)
    if settings.text:
        ids = of_text(settings.text, folder, length, settings.trust_remote_code)
    else:
        ids = synthetic(length, vocabulary, settings.seed)  # random tokens

    # Some positions are compared in each range: the trained context, then each doubling of it. The
    # last position is left out, since a server gives no log-probabilities there.
    compared_length = length - 1
    ranges = spread_buckets(trained, compared_length, POSITIONS_PER_RANGE)
    # "whole": the model reads all tokens from the first to the last
    return TokenRun.over_all(kind="whole", ids=ids, buckets=ranges)


def _single_runs(text: TokenRun) -> list[TokenRun]:
    """Return runs of two tokens, of which the first is compared."""
    first = [Bucket("0", [0])]
    return [
        TokenRun.over_all("whole", [token, 0], first) for token in text.ids[:SINGLE_TOKEN_TEXTS]
    ]


def _distances(
    engine: TransformersEngine,
    subject: Subject,
    candidate: CandidateSchedule,
    run: TokenRun,
    answers: Answers,
    progress: Progress,
) -> Tensor:
    """Return the KL of a runtime to a candidate, in nats for each compared token.

    A candidate is the right RoPE or a known mistake. Transformers runs the source with it.

    Args:
        engine: The source, loaded in transformers.
        subject: The source, and the right RoPE.
        candidate: The RoPE to compute.
        run: The tokens.
        answers: The log-probabilities of the runtime after these tokens.
        progress: Callbacks, which are called while tokens are read.

    Raises:
        RuntimeError: The model cannot compute the candidate.
    """
    # log-n scales queries by position; some mistakes are in this scaling
    query_scaling = subject.query_scaling
    right_schedule = subject.extension.schedule
    if candidate.schedule.log_n != right_schedule.log_n:
        query_scaling = candidate.schedule.log_n

    has_latent_attention = subject.extension.source.mla
    with ExitStack() as stack:  # undoes the changes to the model after the block
        undo = patch(
            engine.model,
            candidate.schedule,
            has_latent_attention,
            query_scaling,
            subject.queries,  # the name of the module that computes queries
        )
        stack.callback(undo)
        # some mistakes are not in the schedule, such as rotating the wrong pairs of dimensions
        if candidate.change is not None:
            candidate.change(stack, engine.model)
        hidden = engine.hidden_states(run.ids, run.positions, run.kept, progress)

        def compare(rows: slice) -> Measures:
            return answers.compare(engine.head(hidden[rows]), rows)

        return in_blocks(compare, len(run.kept), engine.vocabulary).kl
