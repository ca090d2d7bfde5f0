"""The model of a config, built without weights and run for the experiments of this package.

`ModelRuns` builds the first layers of the model, does the calm run, and finds the projections. Its
methods are the experiments that several facts need:

measure_model    how each layer rotates
measure_changed  how the first layers rotate after a change to the config (`config_changes.py`)
rows_of          which row of a projection makes each dimension of a head

Words: the *first layers* (`few` of them) are as many as show every kind of layer; only they run
after a change, to save time. A *kind* says how a layer rotates: "global" layers have the
frequencies that are extended, "local" ones those of a sliding window, "none" ones do not rotate.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ropeconv.loader import make_model

from .asked_model import (
    SIZE_KEYS,
    AskedModel,
    NotDerivable,
    context_of,
    layer_count,
    shorten,
)
from .config_changes import Change
from .observing import AttentionObserver, Seen, keep_outputs, numbers_of_rows
from .projections import Projections, Side, find_projections, measure_layers
from .rotation import Attention, Numbers
from .weightless import large_on_meta, without_weights

if TYPE_CHECKING:
    from ropeconv.models.family import Kind

NORM_SWITCH = re.compile(r"^(use_)?qk_?(layer)?_?norm$")
"""Config keys with which queries and keys get norms."""
LARGEST_ROW_ERROR = 0.01
"""How far a measured number of a row may be from a whole one, by rounding in float32."""
SMALL = 0.01
"""The output of projections where scores are measured: their soft cap does not change scores near
0 (Gemma 2)."""


class ModelRuns:
    """A model, run in many ways.

    Args:
        subject: The model.
        text: The config of its text model, of transformers.
        few: How many of its layers, from the first, show every kind.

    Raises:
        NotDerivable: Its attention cannot be observed, or it does not rotate.
    """

    def __init__(self, subject: AskedModel, text: Any, few: int) -> None:
        """Build the model without weights, run it once, and find what makes its queries and keys.

        The calm run, the first one, shows which modules do nothing for queries and keys. So the
        model is built again without these, before the many runs that find the projections.

        Args:
            subject: The model: its config.json and its class.
            text: The config of its text model, an object of transformers.
            few: How many of the first layers show every kind of layer.
        """
        self.subject = subject
        """The model: its config.json and its class."""

        self.text = text
        """The config of its text model, of transformers."""

        self.few = few
        """The number of first layers."""

        self.context = context_of(text)
        """The number of its positions."""

        self.idle: tuple[str, ...] = ()
        """Names inside a layer of modules after the attention, which need not run."""

        self.widths: dict[Kind, int] = {}
        """The width of a head in layers of each kind."""

        self.few_kinds: list[Kind] = []
        """The kind of each of the first layers."""

        self._rows: tuple[Seen, Seen] | None = None
        """The result of `_run_rows` for the present `rotating_layer`; None before it."""

        # the calm run, in which nothing is replaced: what the model does to zeros
        self.observer = self._observe_first_layers()
        self.calm = self.observer.run(keep_outputs)
        """The attention of each of the first layers in the calm run, by the layer's name."""
        self._refuse_unknown_attention()

        # the modules that ran after the attention in every layer; without them runs are fast
        self.idle = tuple(name for name, may_be in self.observer.tail.items() if may_be)
        self.observer = self._observe(shorten(text, self.few))
        self.projections: Projections = find_projections(self.observer, self.calm)
        """The modules that make queries and keys."""

        self.rotating_layer = self.projections.layer
        """The name of the layer whose rows are examined: the first global one."""

    def _observe_first_layers(self) -> AttentionObserver:
        """Return the first layers of the model; all of them where the class needs later ones."""
        try:
            return self._observe(shorten(self.text, self.few))
        except Exception:  # a class may tie layers to later ones (Gemma 3n)
            self.few = layer_count(self.text)
            return self._observe(self.text)

    def _refuse_unknown_attention(self) -> None:
        """Raise NotDerivable where the calm run shows attention that cannot be measured."""
        if not self.calm:
            raise NotDerivable("no layer multiplies queries and keys in a way that is known")
        self._refuse_unseen()
        if any(seen.count > 1 for seen in self.calm.values()):
            raise NotDerivable("a layer computes attention more than once")

    def _refuse_unseen(self) -> None:
        """Raise NotDerivable for layers that know positions in a way that is not seen."""
        for layer in (*self.observer.unknown, *self.observer.layers_with_positions()):
            if layer not in self.calm:
                number = layer.rpartition(".")[2]
                raise NotDerivable(
                    f"layer {number} uses positions, and not in a product of queries and keys that"
                    " is known"
                )

    def keep_kinds(self, kinds: Sequence[Kind], widths: dict[Kind, int]) -> None:
        """Note the kinds of layers; all later runs have only the first layers that show each kind.

        With the kinds local, local, global, local, local, global, these are three layers.

        Args:
            kinds: The kind of each layer of the whole model.
            widths: The width of a head in layers of each kind.
        """
        self.widths = widths

        # up to the first layer of the kind that comes last; for a config with layer_types, `few`
        # was chosen by that list when this object was made
        lists_types = bool(getattr(self.text, "layer_types", None))
        if not lists_types:
            first_of_each_kind = [kinds.index(kind) for kind in set(kinds)]
            self.few = max(first_of_each_kind) + 1
        self.few_kinds = list(kinds[: self.few])

        # Which rows of the projections make a head is examined in a global layer, whose heads may
        # be wider than those of others. Rows of another layer that are known already do not count.
        if "global" in self.few_kinds:
            first_global = self.few_kinds.index("global")
            for name in self.calm:
                if name.endswith(f".{first_global}"):  # such as "layers.5"
                    self.rotating_layer = name
                    break
            self._rows = None

    # facts that the config states

    @property
    def is_latent(self) -> bool:
        """Whether keys are made from a latent vector, as in multi-head latent attention."""
        return getattr(self.text, "kv_lora_rank", None) is not None

    @property
    def has_two_widths(self) -> bool:
        """Whether heads of local layers have another width than those of global ones."""
        return self.widths.get("local", self.widths["global"]) != self.widths["global"]

    @property
    def sees_later_tokens(self) -> bool:
        """Whether a token sees later ones, as in an encoder."""
        masks = [seen.visible for seen in self.calm.values() if seen.visible is not None]
        return bool(masks) and all(bool(mask[0].all()) for mask in masks)

    def config_keys(self) -> list[str]:
        """Return the names of all settings that the config, or its class, has."""
        text_class = type(self.text)
        names: set[str] = set()
        for base_class in text_class.__mro__:
            names |= set(inspect.get_annotations(base_class))
        names |= set(self.subject.part) | set(vars(self.text))
        names |= set(getattr(text_class, "attribute_map", {}))
        return sorted(name for name in names if not name.startswith("_"))

    def keys_of_size(self, quantity: str) -> list[str]:
        """Return the config keys that set a size of the model, the one in this config first.

        For the hidden size of Llama it is ["hidden_size"], and for that of GPT-2
        ["n_embd", "hidden_size"]: the class of GPT-2 renames the second one to the first
        (`attribute_map`), so that it reads both.

        Args:
            quantity: A key of `SIZE_KEYS`.
        """
        # {"hidden_size": "n_embd"} in GPT-2's class, which then reads a config with either key
        usual_key = SIZE_KEYS[quantity][0]
        attribute_map = getattr(type(self.text), "attribute_map", {})
        own_key = attribute_map.get(usual_key, usual_key)
        keys_of_class = list(dict.fromkeys((own_key, usual_key)))

        # the first key that this config has; one that the class does not rename is the only one
        for name in (own_key, *SIZE_KEYS[quantity]):
            value = self.subject.part.get(name, getattr(self.text, name, None))
            is_size = isinstance(value, int) and not isinstance(value, bool)
            if is_size:
                return keys_of_class if name == own_key else [name]
        return keys_of_class

    def size(self, quantity: str) -> int | None:
        """Return a size of the text model, which its class may have set; None where it has none.

        Args:
            quantity: A key of `SIZE_KEYS`.
        """
        for name in self.keys_of_size(quantity):
            value = getattr(self.text, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    # building a model

    def build(self, text: Any) -> AttentionObserver:
        """Return the model of a config, without weights and ready to run.

        Args:
            text: The config of a text model, of transformers.
        """
        model_class = self.subject.model_class(text)
        with large_on_meta():
            model = make_model(model_class, text).eval()
        without_weights(model)
        return AttentionObserver(model, self.context, self.idle)

    def _observe(self, text: Any) -> AttentionObserver:
        """Return the model of a config, whose queries and keys have norms where its class has them.

        Where config.json does not say that there are none, the checkpoint may have them.
        """
        for name in [name for name in vars(text) if NORM_SWITCH.match(name)]:
            if getattr(text, name) is False and name not in self.subject.part:
                setattr(text, name, True)
        return self.build(text)

    # how layers rotate

    def measure_model(self, text: Any) -> list[Attention | None]:
        """Return how each layer rotates its queries and keys; None for a layer without these.

        The model is built without weights from the config, and run with random queries and keys.

        Args:
            text: The config of a text model, an object of transformers.
        """
        observer = self._observe(copy.deepcopy(text))
        by_name = measure_layers(observer, self.projections.every)
        by_number: list[Attention | None] = [None] * layer_count(text)
        for name, attention in by_name.items():
            number = int(name.rpartition(".")[2])  # 3 of "layers.3"
            if number < len(by_number):
                by_number[number] = attention
        return by_number

    def measure_changed(self, change: Change) -> list[Attention | None] | None:
        """Return how the first layers rotate after a change to the config.

        Args:
            change: Edits the text part of config.json in place.

        Returns:
            The attention of each of them; None where the class does not accept the change.
        """
        try:
            text = self.subject.changed(change)
            return self.measure_model(shorten(text, self.few))
        except Exception:  # of any kind, from the class
            return None

    # which rows of projections make queries and keys

    def rows_of(self, side: Side) -> Numbers:
        """Return the row of a projection that makes each dimension of each head.

        Args:
            side: Queries or keys.

        Returns:
            Integers of shape (heads, width), in the rotating layer; -1 for a dimension that these
            rows do not make. For plain queries, row = head * width + dimension.
        """
        rows, _ = _rows_and_factor(self._row_runs(), side)
        return rows

    def factor_on(self, side: Side) -> float:
        """Return the factor on queries or keys between their projection and their product.

        YaRN's attention factor multiplies cosines and sines, so it is a part of this.

        Args:
            side: Queries or keys.
        """
        _, factor = _rows_and_factor(self._row_runs(), side)
        return factor

    def factor_with(self, change: Change) -> float:
        """Return the factor on keys after a change to the config.

        Args:
            change: Edits the text part of config.json in place.
        """
        text = self.subject.changed(change)
        observer = self._observe(shorten(text, self.few))
        _, factor = _rows_and_factor(self._run_rows(observer), "keys")
        return factor

    def softmax_scale(self) -> float | None:
        """Return the number by which the class multiplies q.k before the softmax; None if unseen.

        It is usually 1 / sqrt(head_dim). The model runs twice, with all queries and keys set to a
        number, and the change of a score over the change of q.k is measured. One run would not do,
        since a class may subtract the largest score. The numbers are small, so that the soft cap of
        Gemma 2 does not change the scores.

        The result includes factors on queries and keys, such as YaRN's attention factor.
        """
        projections = {self.projections.q, self.projections.k}

        def run_with(size: float) -> Seen:
            """Run the model with this number in all outputs of the projections."""

            def give(name: str, output: torch.Tensor) -> torch.Tensor | None:
                return torch.full_like(output, size) if name in projections else None

            return self.observer.run(give, norms_do_nothing=True)[self.rotating_layer]

        # the score of the first token in the first head for itself, and q.k of the same token
        scores = []
        products = []
        for size in (SMALL, 2 * SMALL):
            seen = run_with(size)
            if seen.score is None:
                return None
            first_query = seen.queries[0, 0]
            first_key = seen.keys[0, 0]
            scores.append(seen.score)
            products.append(float(first_query @ first_key))

        low_score, high_score = scores
        low_product, high_product = products
        if low_score == high_score or low_product == high_product:
            return None
        scale = (high_score - low_score) / (high_product - low_product)
        return scale * self.factor_on("queries") * self.factor_on("keys")

    def _row_runs(self) -> tuple[Seen, Seen]:
        """Return the result of `_run_rows` for the model, which is run once."""
        if self._rows is None:
            self._rows = self._run_rows(self.observer)
        return self._rows

    def _run_rows(self, observer: AttentionObserver) -> tuple[Seen, Seen]:
        """Return queries and keys of the rotating layer, from two runs of the model.

        They show which row of a projection makes which dimension of a head. In the first run, each
        output of the projections is the number of its row, from 1. In the second, each is 1, which
        shows the factors on the way to the attention. Norms do nothing in both, and the first
        token, at position 0, is not rotated.

        Args:
            observer: The model, which runs with outputs of its modules replaced, and notes queries
                and keys.
        """
        names = {self.projections.q, self.projections.k}

        def give_row_numbers(name: str, output: torch.Tensor) -> torch.Tensor | None:
            return numbers_of_rows(output) if name in names else None

        def give_ones(name: str, output: torch.Tensor) -> torch.Tensor | None:
            return torch.ones_like(output) if name in names else None

        by_row_number = observer.run(give_row_numbers, norms_do_nothing=True)
        by_one = observer.run(give_ones, norms_do_nothing=True)
        return by_row_number[self.rotating_layer], by_one[self.rotating_layer]


def _rows_and_factor(runs: tuple[Seen, Seen], side: Side) -> tuple[Numbers, float]:
    """Return the row that makes each dimension of each head, and the factor on queries or keys.

    Args:
        runs: The result of `ModelRuns._run_rows`, in which projections give the number n of each
            row, from 1, and then 1. With a factor f, queries or keys are f * n, and then f.
        side: Queries or keys.

    Returns:
        Rows from 0, of shape (heads, width), -1 where no row makes a dimension; and f.
    """
    # of the first token, which is at position 0 and so not rotated, [heads, width]
    with_row_numbers, with_ones = runs
    if side == "queries":
        numbers = with_row_numbers.queries[:, 0]
        factors = with_ones.queries[:, 0]
    else:
        numbers = with_row_numbers.keys[:, 0]
        factors = with_ones.keys[:, 0]

    # n = (f * n) / f, and rows are counted from 0. A dimension whose f is 0 is made by no row; it
    # is divided by 1, so that numpy does not warn, and gets the row -1.
    is_made = factors != 0
    divisors = np.where(is_made, factors, 1.0)
    rows = np.where(is_made, numbers / divisors - 1, -1.0)
    whole_rows = np.rint(rows)
    if np.abs(rows - whole_rows).max() > LARGEST_ROW_ERROR:  # a sum of rows, say
        raise NotDerivable("its queries are not rows of a projection")
    return whole_rows.astype(int), float(np.median(factors[is_made]))
