"""Measures of losses.

- position: the loss by position in one pass over the longest length.
- growth: the loss of the same tokens under a growing context.
- sliding: perplexity with a window that moves by a stride, as transformers' documentation computes
  it, https://huggingface.co/docs/transformers/perplexity.
- longppl: the loss of the tokens that need a long context (Fang et al. 2024,
  https://arxiv.org/abs/2410.23771).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from ropeconv.engines.engine import TokenLosses
from ropeconv.errors import UsageError
from ropeconv.rope.errors import counted

from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, long_enough, window_ends
from .measure import Measure, register

MOST_BLOCKS = 32
"""The blocks of positions of a sequence with a mean loss each; fewer where it has fewer tokens."""


def _refuse_too_short(length: int, prefix: int, least: int) -> None:
    """Refuse a length without a token to predict.

    Args:
        length: The shortest length in tokens.
        prefix: The tokens before every text.
        least: The least number of tokens of the text in a sequence.

    Raises:
        UsageError: The length is too short.
    """
    if length - prefix < least:
        raise UsageError(
            f"a length of {counted(length, 'token')} leaves nothing to predict; give longer"
            " --lengths"
        )


def _mean_loss(case: Case, losses: TokenLosses) -> Observation:
    """Return the mean loss of the tokens of a case."""
    loss = float(losses.loss.mean())
    return Observation(
        measure=case.measure,
        metric="loss",
        column=case.column,
        document=case.document,
        window=case.window,
        value=loss,
    )


@register
class Position(Measure):
    """The mean loss of each block of positions. Compare rows only, since a text has easy places."""

    name = "position"
    summary = "loss by position in one pass, as a difference to the first row"

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield windows, which are parts of texts, with every token as a target to predict.

        Each window has the longest length of the evaluation. It begins with the tokens that the
        tokenizer puts before a text (the prefix, such as <s>), which are not targets.
        """
        length = sizes.longest
        prefix = len(texts.prefix)
        _refuse_too_short(length, prefix, least=1 if prefix else 2)
        # without a prefix, the second token is the first target: nothing is before the first token
        first_target = max(prefix, 1)
        ends = window_ends(texts, sizes, apart=length)  # windows of a text do not overlap
        for window, (document, end) in enumerate(ends):
            ids = texts.window(document, end, length)
            targets = np.arange(first_target, len(ids), dtype=np.int32)
            yield Case(
                measure=self.name,
                column=length,  # the length of the sequence, for which the table has a column
                document=document,
                window=window,
                ids=ids,
                targets=targets,
            )

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        """Return the mean loss of each of 32 blocks of positions, which are equal parts of a case.

        The column of a block in the table of results is its end: a sequence of 8,192 tokens
        has the columns 256, 512, ..., 8192. Nearly all tokens are targets, so that the blocks have
        about the same weight.

        Args:
            case: The sequence.
            losses: The loss of each of its targets, in nats.
        """
        blocks = min(MOST_BLOCKS, len(case.targets))
        edges = np.linspace(0, len(case.ids), blocks + 1).round().astype(int)
        observations = []
        for begin, end in pairwise(edges.tolist()):
            inside = (case.targets >= begin) & (case.targets < end)
            if not inside.any():
                continue
            observation = Observation(
                measure=self.name,
                metric="loss",
                column=end,
                document=case.document,
                window=case.window,
                value=float(losses.loss[inside].mean()),
            )
            observations.append(observation)
        return observations


@register
class Growth(Measure):
    """The loss of the same tokens under a growing context.

    Windows of all lengths end at the same token, so that the difficulty of the text cancels between
    lengths. The loss by position of one long pass does not allow that: a text that gets easier
    hides a model that breaks.
    """

    name = "growth"
    summary = "loss of the same tokens under a growing context"
    sizes = frozenset({"targets"})

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield sequences of each length that end with the same tokens of a text.

        Only these last tokens are targets to predict. A longer sequence has more text before the
        same targets, so the losses of two lengths show the effect of the context.
        """
        shortest = sizes.lengths[0]
        text_in_shortest = shortest - len(texts.prefix)
        _refuse_too_short(shortest, len(texts.prefix), least=2)
        # the first token of a sequence is not a target, since nothing is before it
        target_count = min(sizes.targets, text_in_shortest - 1)

        # places in the texts where a sequence ends, so far apart that no token is a target twice
        ends = window_ends(texts, sizes, apart=target_count)
        for window, (document, end) in enumerate(ends):
            for length in sizes.lengths:
                yield Case(
                    measure=self.name,
                    column=length,
                    document=document,
                    window=window,
                    ids=texts.window(document, end, length),
                    targets=np.arange(length - target_count, length, dtype=np.int32),
                )

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        return [replace(_mean_loss(case, losses), values=tuple(losses.loss.tolist()))]


@register
class Sliding(Measure):
    """Perplexity with a window that moves by a stride.

    Every token is predicted once, from at least a window minus a stride before it (less at the
    beginning).

    The windows, and the mean over tokens, are those of transformers' documentation. The script of
    jquesnelle/yarn has the same windows and takes the mean over windows.
    """

    name = "sliding"
    summary = (
        "loss with a window that moves by 256 tokens, or N with sliding:N; each token is predicted"
        " once"
    )

    def __init__(self, stride: int = 256) -> None:
        """Take the stride: the tokens by which a window moves."""
        self.stride = stride

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield windows that slide over each text, for each length.

        A text of 12 tokens with length 8 and stride 3 has the windows [0, 8), [3, 11) and [6, 12).
        Each token is a target once: the tokens 1 to 7 in the first window, 8 to 10 in the second,
        and 11 in the last.

        Each window begins with the tokens that the tokenizer puts before a text (the prefix, such
        as <s>). So a window of length 8 with a prefix of 1 has 7 tokens of the text.
        """
        prefix = len(texts.prefix)
        shortest = sizes.lengths[0]
        _refuse_too_short(shortest, prefix, least=1 if prefix else 2)
        if self.stride > shortest - prefix:
            raise UsageError(
                f"a stride of {self.stride:,} leaves out tokens between sequences of"
                f" {shortest:,}; give sliding:N with N up to {shortest - prefix:,}"
            )

        # the same first tokens of a text at every length, so that lengths can be compared
        text_length = sizes.longest - prefix
        documents = long_enough(texts, sizes.longest)[: sizes.windows]
        for document, length in product(documents, sizes.lengths):
            # windows as indices into the tokens of the text: [start, end)
            first_end = min(length - prefix, text_length)
            ends = [*range(first_end, text_length, self.stride), text_length]
            predicted_up_to = 0  # by the windows before
            for number, end in enumerate(ends):
                start = number * self.stride
                length_with_prefix = end - start + prefix
                ids = texts.window(document, end, length_with_prefix)

                # The targets are the last tokens of the window, which no earlier window has as
                # targets. The prefix and the first token of a sequence are never targets.
                new_tokens = end - predicted_up_to
                first_new = len(ids) - new_tokens
                first_target = max(first_new, prefix, 1)
                yield Case(
                    measure=self.name,
                    column=length,
                    document=document,
                    window=number,
                    ids=ids,
                    targets=np.arange(first_target, len(ids), dtype=np.int32),
                )
                predicted_up_to = end

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        return [replace(_mean_loss(case, losses), weight=len(case.targets))]


ALPHA = 2.0
"""The least long-short difference of a key token in the paper, in nats."""
BETA = -2.0
"""The least log-probability of a key token in the paper, in nats."""


@register
class LongPpl(Growth):
    """The mean loss of the key tokens, whose exponential is LongPPL.

    A token i is a key token if its long-short difference log P(i | long) - log P(i | short) is
    above ALPHA and log P(i | long) above BETA. The paper takes another, stronger model as the
    evaluator P. Here it is the first row: its shortest length is the short context and the trained
    length the long one, where no method is needed. So all rows and lengths have the same key
    tokens, and numbers of different models cannot be compared.
    """

    name = "longppl"
    summary = (
        "loss of the tokens that need a long context, by the first row inside the trained context"
    )
    pass_of = Growth.name

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield the same sequences as the parent class; refuse lengths that LongPPL cannot use."""
        if sizes.trained not in sizes.lengths[1:]:
            raise UsageError(
                f"--measure longppl needs the trained length, {sizes.trained:,} tokens, and a"
                " shorter one; give --lengths 1/4T,1T,4T"
            )
        return super().cases(texts, sizes)

    def combine(self, rows: dict[str, list[Observation]], sizes: EvaluationSizes) -> str:
        """Replace the losses of each window by their mean over the key tokens, in place.

        A key token is predicted much better with a long context than with a short one. The losses
        of the first row of the table decide which tokens these are, for all rows.

        Args:
            rows: The losses by row, such as "base" or "yarn:4". The lists in it are replaced.
            sizes: The lengths. The shortest is the short context, the trained one the long context.

        Returns:
            A sentence for the user if there are no key tokens, otherwise an empty string.
        """
        # the losses of the first row, by this measure
        losses_of_first_row: list[Observation] = []
        for observations in rows.values():  # a row may lack this measure
            losses_of_first_row = [one for one in observations if one.measure == self.name]
            if losses_of_first_row:
                break
        key_tokens = self._key_tokens(losses_of_first_row, sizes)

        for row in list(rows):
            rows[row] = self._average_over(key_tokens, rows[row])

        if losses_of_first_row and not any(key_tokens.values()):
            return (
                "no predicted token needs the long context; give more --targets and a shortest"
                " length that is longer than them, more --windows, or other texts"
            )
        return ""

    def _average_over(
        self, key_tokens: dict[tuple[int, int], list[int]], observations: Sequence[Observation]
    ) -> list[Observation]:
        """Return the observations of a row, with the losses of this measure averaged.

        In place of an observation with a loss for each target, there is one with the mean over the
        key tokens. Windows without a key token are left out. Observations of other measures come
        first, and do not change.

        Args:
            key_tokens: By document and window, the indices of key tokens among the targets.
            observations: All observations of a row.
        """
        others = []
        averaged = []
        for observation in observations:
            if observation.measure != self.name:
                others.append(observation)
                continue
            indices = key_tokens.get((observation.document, observation.window))
            if indices:
                # the weight of a window in the mean over windows is the number of its key tokens;
                # `values`, the loss of each target, is not needed after this
                loss = float(np.mean([observation.values[index] for index in indices]))
                with_mean = replace(observation, value=loss, weight=len(indices), values=())
                averaged.append(with_mean)
        return others + averaged

    def _key_tokens(
        self, observations: Sequence[Observation], sizes: EvaluationSizes
    ) -> dict[tuple[int, int], list[int]]:
        """Return the indices of key tokens among the targets, by document and window.

        A key token is predicted well with the whole trained context before it, and much worse with
        the shortest one: it needs the long context.

        Args:
            observations: Those of the first row at all lengths (`column`), each with the losses of
                the targets of a window (`values`). The targets are the same tokens at each length.
            sizes: The shortest length, and the trained one.
        """
        # the losses of the targets of each window, with the shortest context before them
        shortest = sizes.lengths[0]
        short_losses = {}
        for observation in observations:
            length = observation.column
            if length == shortest:
                window = (observation.document, observation.window)
                short_losses[window] = np.array(observation.values)

        # the key tokens, by the losses with the trained context before them
        key_tokens = {}
        for observation in observations:
            length = observation.column
            window = (observation.document, observation.window)
            if length != sizes.trained or window not in short_losses:
                continue
            long_losses = np.array(observation.values)
            # The paper compares log-probabilities, which are minus the losses:
            # log P(i | long) - log P(i | short) > ALPHA, and log P(i | long) > BETA
            needs_context = short_losses[window] - long_losses > ALPHA
            is_well_predicted = -long_losses > BETA
            key_tokens[window] = np.flatnonzero(needs_context & is_well_predicted).tolist()
        return key_tokens
