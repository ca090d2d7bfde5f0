"""The model of a config, built without weights and run for the experiments of this package.

`ModelRuns` builds the first layers of the model, runs them, and finds the projections. Its
methods are the experiments that several facts need:

measure_model    how each layer rotates
measure_changed  how the first layers rotate after a change to the config (`config_changes.py`)
rows_of          which row of a projection makes each dimension of a head

Words: the *first layers* (`first_layer_count`) are as many as show every kind of layer; only they
run after a change, to save time. In an *undisturbed* run no output of a module is replaced. A
*kind* says how a layer rotates: "global" layers have the frequencies that are extended, "local"
ones those of a sliding window, "none" ones do not rotate.
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

NAME_OF_NORM_SWITCH = re.compile(r"^(use_)?qk_?(layer)?_?norm$")
"""Config keys with which queries and keys get norms."""
LARGEST_ROW_ERROR = 0.01
"""How far a measured number of a row may be from a whole one, by rounding in float32."""
SMALL_OUTPUT = 0.01
"""The output of projections where scores are measured: Gemma 2's soft cap does not change scores
near 0."""


class ModelRuns:
    """A model, run in many ways.

    Args:
        subject: The model.
        text: The config of its text model, of transformers.
        first_layer_count: How many of its layers, from the first, show every kind.

    Raises:
        NotDerivable: Its attention cannot be observed, or it does not rotate.
    """

    first_layer_count: int
    """How many of the first layers show every kind of layer."""

    skipped_modules: tuple[str, ...]
    """Names of modules inside a layer that do not run, since they come after the attention."""

    undisturbed: dict[str, Seen]
    """The attention of each of the first layers in a run without replaced outputs, by its name."""

    projections: Projections
    """The modules that make queries and keys."""

    rotating_layer: str
    """The name of the layer whose rows are examined: the first global one, once it is known."""

    widths: dict[Kind, int]
    """The width of a head in layers of each kind; empty before `limit_to_kinds`."""

    kinds_of_first_layers: list[Kind]
    """The kind of each of the first layers; empty before `limit_to_kinds`."""

    def __init__(self, subject: AskedModel, text: Any, first_layer_count: int) -> None:
        """Build the first layers of a model without weights, and find what makes queries and keys.

        Args:
            subject: The model: its config.json and its class.
            text: The config of the text model, an object of transformers.
            first_layer_count: How many of the first layers have every kind of layer, such as 6 for
                Gemma 3.
        """
        self.subject = subject
        self.text = text
        self.first_layer_count = first_layer_count
        self.context = context_of(text)  # the number of its positions
        self.skipped_modules = ()
        self.widths = {}
        self.kinds_of_first_layers = []
        self._rows_seen: tuple[Seen, Seen] | None = None  # the result of `_run_for_rows`

        # 1. Run the model with all its modules. An observer is a model with hooks, which record the
        # queries and keys of each layer.
        self.observer = self._build_first_layers()
        self.undisturbed = self.observer.run(keep_outputs)
        self._refuse_unknown_attention()

        # 2. Build it again without the modules after the attention, such as the MLP, so that the
        # many later runs are fast.
        can_be_skipped = self.observer.can_be_skipped
        self.skipped_modules = tuple(name for name, can_be in can_be_skipped.items() if can_be)
        first_layers = shorten(text, self.first_layer_count)  # the config with fewer layers
        self.observer = self._build_with_norms_on(first_layers)

        # 3. Run it with random outputs of single modules, and see which queries and keys change.
        self.projections = find_projections(self.observer, self.undisturbed)
        self.rotating_layer = self.projections.layer

    def _build_first_layers(self) -> AttentionObserver:
        """Return the model with its first layers; with all layers where its class needs them."""
        try:
            return self._build_with_norms_on(shorten(self.text, self.first_layer_count))
        except Exception:  # in Gemma 3n, layers refer to later ones, and fail without them
            self.first_layer_count = layer_count(self.text)
            return self._build_with_norms_on(self.text)

    def _refuse_unknown_attention(self) -> None:
        """Raise NotDerivable where the first run shows attention that cannot be measured."""
        if not self.undisturbed:
            raise NotDerivable("no layer multiplies queries and keys in a way that is known")
        self._refuse_unseen_positions()
        if any(seen.count > 1 for seen in self.undisturbed.values()):
            raise NotDerivable("a layer computes attention more than once")

    def _refuse_unseen_positions(self) -> None:
        """Raise NotDerivable for a layer that uses positions, and whose attention was not seen."""
        suspects = [
            *self.observer.layers_with_unknown_attention,
            *self.observer.layers_with_positions(),
        ]
        for layer in suspects:
            if layer not in self.undisturbed:
                number = layer.rpartition(".")[2]
                raise NotDerivable(
                    f"layer {number} uses positions, and not in a product of queries and keys that"
                    " is known"
                )

    def limit_to_kinds(self, kinds: Sequence[Kind], widths: dict[Kind, int]) -> None:
        """Let all later runs have only as many layers as show every kind of layer.

        With the kinds local, local, global, local, local, global, these are the first three layers.

        Args:
            kinds: The kind of each layer of the whole model: "global" layers see the whole context,
                "local" layers have a sliding window and frequencies of their own, and "none" layers
                do not rotate.
            widths: The width of a head in layers of each kind.
        """
        self.widths = widths

        # from a config with layer_types, `first_layer_count` was counted before the first run
        lists_types = bool(getattr(self.text, "layer_types", None))
        if not lists_types:
            first_layer_of_each_kind = [kinds.index(kind) for kind in set(kinds)]
            self.first_layer_count = max(first_layer_of_each_kind) + 1
        self.kinds_of_first_layers = list(kinds[: self.first_layer_count])

        # Examine the weights of the first global layer, such as "layers.5": heads of other layers
        # may have another width. Forget what an earlier run has shown of another layer.
        if "global" in self.kinds_of_first_layers:
            first_global = self.kinds_of_first_layers.index("global")
            for name in self.undisturbed:
                if name.endswith(f".{first_global}"):
                    self.rotating_layer = name
                    break
            self._rows_seen = None

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
        masks = [seen.visible for seen in self.undisturbed.values() if seen.visible is not None]
        return bool(masks) and all(bool(mask[0].all()) for mask in masks)

    def config_keys(self) -> list[str]:
        """Return the names of all settings that the config, or its class, has."""
        text_class = type(self.text)
        names: set[str] = set()
        for base_class in text_class.__mro__:
            names |= set(inspect.get_annotations(base_class))
        names |= set(self.subject.text_part) | set(vars(self.text))
        names |= set(getattr(text_class, "attribute_map", {}))
        return sorted(name for name in names if not name.startswith("_"))

    def keys_of_size(self, quantity: str) -> list[str]:
        """Return the config keys that set a size of the model.

        For the hidden size of Llama it is ["hidden_size"]. For that of GPT-2 it is ["n_embd",
        "hidden_size"]: its class reads both, since it has the second as another name of the first
        (`attribute_map`).

        Args:
            quantity: A key of `SIZE_KEYS`, such as "hidden".
        """
        # the keys that the class reads: {"hidden_size": "n_embd"} is the attribute_map of GPT-2
        usual_key = SIZE_KEYS[quantity][0]
        attribute_map = getattr(type(self.text), "attribute_map", {})
        key_of_class = attribute_map.get(usual_key, usual_key)
        keys_of_class = list(dict.fromkeys((key_of_class, usual_key)))
        if self._has_number(key_of_class):
            return keys_of_class

        # A config without the key of its class may have another one, such as n_layer, which code of
        # the model reads under that name only.
        for name in SIZE_KEYS[quantity]:
            if self._has_number(name):
                return [name]
        return keys_of_class

    def _has_number(self, name: str) -> bool:
        """Whether config.json, or else the config of transformers, has a whole number for a key."""
        value = self.subject.text_part.get(name, getattr(self.text, name, None))
        return isinstance(value, int) and not isinstance(value, bool)

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
        return AttentionObserver(model, self.context, self.skipped_modules)

    def _build_with_norms_on(self, text: Any) -> AttentionObserver:
        """Return the model of a config, with norms of queries and keys where its class has them.

        A flag such as use_qk_norm switches them on. Unless config.json says that it is False, the
        checkpoint may have norms, so the flag is set.
        """
        flags = [name for name in vars(text) if NAME_OF_NORM_SWITCH.match(name)]
        for name in flags:
            if getattr(text, name) is False and name not in self.subject.text_part:
                setattr(text, name, True)
        return self.build(text)

    # how layers rotate

    def measure_model(self, text: Any) -> list[Attention | None]:
        """Return how each layer of a model rotates its queries and keys.

        The model runs with random outputs of the projections of queries and keys, the same for
        every token. So the queries of two tokens differ only by RoPE.

        Args:
            text: The config of a text model, an object of transformers.

        Returns:
            A measurement for each layer; None for a layer without attention.
        """
        observer = self._build_with_norms_on(copy.deepcopy(text))
        attention_by_name = measure_layers(observer, self.projections.all_names)
        attention_by_number: list[Attention | None] = [None] * layer_count(text)
        for layer_name, attention in attention_by_name.items():
            *_, last_part = layer_name.split(".")  # "3" in "model.layers.3"
            number = int(last_part)
            if number < len(attention_by_number):
                attention_by_number[number] = attention
        return attention_by_number

    def measure_changed(self, change: Change) -> list[Attention | None] | None:
        """Change the config, build the model again, and return how its first layers rotate.

        Args:
            change: A function that edits the text part of config.json in place, such as
                set_key("rope_theta", 5e5).

        Returns:
            For each of the first `first_layer_count` layers how its queries and keys rotate, None
            for a layer without attention. None for all where the class refuses the change.
        """
        try:
            changed_text = self.subject.changed(change)
            with_first_layers = shorten(changed_text, self.first_layer_count)
            return self.measure_model(with_first_layers)
        except Exception:  # a class can raise anything
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
        rows, _ = _rows_and_factor(self._see_rows(), side)
        return rows

    def factor_on(self, side: Side) -> float:
        """Return the factor on queries or keys between their projection and their product.

        YaRN's attention factor is a part of it, since it multiplies cosines and sines.

        Args:
            side: Queries or keys.
        """
        _, factor = _rows_and_factor(self._see_rows(), side)
        return factor

    def factor_with(self, change: Change) -> float:
        """Return the factor on keys after a change to the config.

        Args:
            change: Edits the text part of config.json in place.
        """
        text = self.subject.changed(change)
        observer = self._build_with_norms_on(shorten(text, self.first_layer_count))
        _, factor = _rows_and_factor(self._run_for_rows(observer), "keys")
        return factor

    def softmax_scale(self) -> float | None:
        """Return the number by which the class multiplies q.k before the softmax; None if unseen.

        It is usually 1 / sqrt(head_dim). The model runs twice, with all queries and keys set to a
        number, and the change of a score over the change of q.k is measured. One run would not do,
        since a class may subtract the largest score. The numbers are small, so that the soft cap of
        Gemma 2 does not change the scores.

        The result includes factors on queries and keys, such as YaRN's attention factor.
        """
        projections = {self.projections.q_proj, self.projections.k_proj}

        def run_with(size: float) -> Seen:
            """Run the model with this number in all outputs of the projections."""

            def give(name: str, output: torch.Tensor) -> torch.Tensor | None:
                return torch.full_like(output, size) if name in projections else None

            return self.observer.run(give, norms_do_nothing=True)[self.rotating_layer]

        # the score of the first token in the first head for itself, and q.k of the same token
        scores = []
        products = []
        for size in (SMALL_OUTPUT, 2 * SMALL_OUTPUT):
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

    def _see_rows(self) -> tuple[Seen, Seen]:
        """Return the result of `_run_for_rows` for the model, which is run once."""
        if self._rows_seen is None:
            self._rows_seen = self._run_for_rows(self.observer)
        return self._rows_seen

    def _run_for_rows(self, observer: AttentionObserver) -> tuple[Seen, Seen]:
        """Run the model twice, to see which row of a projection makes which dimension of a head.

        In the first run the outputs of the projections of queries and keys are 1, 2, 3, ..., the
        numbers of their rows. In the second run all are 1, which shows the factors by which the
        model multiplies them. Norms are switched off in both runs.

        Args:
            observer: The model, which runs with outputs of its modules replaced, and records
                queries and keys.

        Returns:
            The queries and keys of one layer (`rotating_layer`) in both runs.
        """
        projections = {self.projections.q_proj, self.projections.k_proj}

        def give_row_numbers(name: str, output: torch.Tensor) -> torch.Tensor | None:
            return numbers_of_rows(output) if name in projections else None

        def give_ones(name: str, output: torch.Tensor) -> torch.Tensor | None:
            return torch.ones_like(output) if name in projections else None

        with_row_numbers = observer.run(give_row_numbers, norms_do_nothing=True)
        with_ones = observer.run(give_ones, norms_do_nothing=True)
        return with_row_numbers[self.rotating_layer], with_ones[self.rotating_layer]


def _rows_and_factor(runs: tuple[Seen, Seen], side: Side) -> tuple[Numbers, float]:
    """Return the row of a projection that makes each dimension, and the factor on queries or keys.

    Args:
        runs: The queries and keys of a layer in two runs. In the first run, row n of a projection
            gives the number n + 1. In the second run every row gives 1. A dimension that row n
            makes, and that is multiplied by a factor f, is then f * (n + 1) and f.
        side: Queries or keys.

    Returns:
        The rows, counted from 0, of shape (heads, width), with -1 where no row makes a dimension;
        and the factor.
    """
    # the first token, whose position is 0, is not rotated: [heads, width]
    with_row_numbers, with_ones = runs
    if side == "queries":
        numbers = with_row_numbers.queries[:, 0]
        factors = with_ones.queries[:, 0]
    else:
        numbers = with_row_numbers.keys[:, 0]
        factors = with_ones.keys[:, 0]

    # a dimension with the factor 0 is made by no row; it is divided by 1, to avoid a warning
    is_made = factors != 0
    divisors = np.where(is_made, factors, 1.0)
    rows = np.where(is_made, numbers / divisors - 1, -1.0)

    # a row that is not a whole number: the dimension is a mixture of several rows
    whole_rows = np.rint(rows)
    if np.abs(rows - whole_rows).max() > LARGEST_ROW_ERROR:
        raise NotDerivable("its queries are not rows of a projection")
    factor = float(np.median(factors[is_made]))
    return whole_rows.astype(int), factor
