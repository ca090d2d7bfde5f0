"""Derive the facts of a model family from the class of a model, by running it.

Read `derive` first. It builds the model of a config without weights, and asks it everything that a
family file states: which layers rotate, by which frequencies and in which pairs, where queries and
keys come from, and which keys of the config change that. Nothing is read from source code.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ropeconv.loader import make_model
from ropeconv.models.schema import ROPE, ROPE_KEY
from ropeconv.rope.errors import RopeconvError

from .observing import (
    TOKENS,
    AttentionObserver,
    NotARotation,
    Numbers,
    Rotation,
    Seen,
    chosen,
    measure,
    numbered,
)
from .weightless import NORM, large_on_meta, without_weights

if TYPE_CHECKING:
    from torch.nn import Module

Config = dict[str, Any]

FEW = 4
"""Layers of a model that is run often, where the config does not list the types of its layers."""
SMALL = 0.01
"""Numbers in place of outputs of projections, whose products no soft cap changes."""
BASE = 54321.0
"""A base that no model has."""
THETA = re.compile(r"theta|rope_base|rotary_base|rotary_emb_base|freq", re.IGNORECASE)
SHARE = re.compile(r"partial|pct|percent|fraction", re.IGNORECASE)
ROTARY_DIM = re.compile(r"rotary_dim|rotary_ndims|rope_head_dim")
WINDOW = re.compile(r"window|chunk_size|local_attention|^swa_size")
NORM_SWITCH = re.compile(r"^(use_)?qk_?(layer)?_?norm$")
"""Config keys with which queries and keys get norms."""
NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_kv_heads"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "context": (
        "max_position_embeddings",
        "max_sequence_length",
        "max_seq_len",
        "n_positions",
        "seq_length",
        "n_ctx",
    ),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim", "head_size"),
}
"""Names of sizes in configs, the usual one first."""
LOCAL_THETA = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta", "global_rope_theta")
"""Names of bases that a class may take without having them."""
SETTINGS = ("rope_scaling", "rope_parameters")
ORIGINAL = 64
"""The original context of scalings that are tried, in tokens."""
FULL = "full_attention"


class NotDerivable(RopeconvError):
    """A fact of a model that no field of a family describes."""


@dataclass(frozen=True)
class Attention:
    """The rotation of one layer."""

    queries: Rotation | None
    keys: Rotation | None
    heads: int
    width: int
    """The width of a head of queries and keys."""

    @property
    def rotates(self) -> bool:
        """Whether it depends on the position of a token."""
        return bool(self.queries and self.queries.inv_freq)


@dataclass
class Projections:
    """Names inside a layer of the modules that make queries and keys."""

    q: str
    k: str
    q_norm: str = ""
    k_norm: str = ""
    source: str = ""
    """The norm before the projections."""

    all: tuple[str, ...] = ()
    """Every module whose numbers are chosen to see a rotation."""


@dataclass
class Answer:
    """The facts that a class shows, and its numbers for one config."""

    family: Config = field(default_factory=dict)
    """The fields of a family file."""

    not_derived: list[str] = field(default_factory=list)
    """Sentences about what could not be found."""

    measured: Config = field(default_factory=dict)
    """The frequencies, layers and factors of this model, as its class computes them."""

    tried: list[Config] = field(default_factory=list)
    """Other RoPE settings, and the frequencies that the class computes from them."""

    effective: list[str] = field(default_factory=list)
    """The keys about RoPE of this config that change the frequencies, one at a time."""


@dataclass(frozen=True)
class AskedModel:
    """The model that is asked."""

    whole: Config
    """The content of its config.json."""

    make: Callable[[Config], Any]
    """Makes the config of transformers from such a content."""

    model_class: Callable[[Any], type[Module]]
    """The class for the config of its text model."""

    path: tuple[str, ...]
    """The keys of the text part in its config.json."""

    @property
    def part(self) -> Config:
        """The text part of its config.json."""
        return part_of(self.whole, self.path)

    def changed(self, change: Callable[[Config], None]) -> Any:
        """The config of its text model with another text part."""
        whole = copy.deepcopy(self.whole)
        change(part_of(whole, self.path))
        return text_of(self.make(whole))


def part_of(whole: Config, path: Sequence[str]) -> Config:
    """The part of a config.json below some keys."""
    part = whole
    for key in path:
        part = part[key]
    return part


def text_of(config: Any) -> Any:
    """The config of the text model, in float32 and without quantisation."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("dtype", "torch_dtype"):
        if getattr(text, name, None) is not None:
            setattr(text, name, torch.float32)
    text.dtype = torch.float32
    # transformers 5.17 raises for sizes that single layers have (per_layer_config) without it
    text.allow_global_per_layer_attribute_access = True
    # sdpa may mask by a flag of its own, and grouped products take bfloat16 only
    text._attn_implementation = "eager"
    text._experts_implementation = "eager"
    if getattr(text, "quantization_config", None) is not None:
        del text.quantization_config
    return text


def derive(subject: AskedModel) -> Answer:
    """Return what the class of a model says about its family.

    Raises:
        NotDerivable: It rotates in a way that no family describes, or not at all.
    """
    text = subject.changed(lambda part: None)
    if getattr(text, "is_encoder_decoder", False):
        raise NotDerivable("it has an encoder and a decoder, which are two models")
    asked = Asked(subject, text, first_layers(text))
    answer = Answer()

    # the whole model, layer by layer
    attention = asked.attention(text)
    names = asked.layer_types(text, len(attention))
    kinds, groups = kinds_of(attention, names)
    asked.see(kinds)
    asked.widths = widths_of(attention, kinds)
    rotating = attention[kinds.index("global")]
    assert rotating is not None

    family: Config = {}
    family["layout"] = asked.layout(rotating)
    if asked.is_latent:
        family["mla"] = True
    family["keys"] = asked.keys(rotating, groups, kinds, answer)
    family["defaults"] = asked.defaults(rotating, family["keys"], groups)
    family["layers"] = layer_rules(names, kinds, subject.part, text, answer)
    family["window"] = asked.window(kinds, names, answer)
    family["writing"] = asked.writing(rotating, answer)
    family["weights"] = asked.weights(rotating, answer)
    name_scales(asked, attention, rotating, answer)
    if asked.sees_later_tokens:
        family["encoder"] = True
    answer.effective = asked.effective(attention)
    assert rotating.queries is not None
    if 0.0 in rotating.queries.inv_freq:
        family["still_pairs"] = True

    answer.family = {key: value for key, value in family.items() if value not in ({}, False)}
    answer.measured = asked.measured(rotating, kinds, groups)
    return answer


def first_layers(text: Any) -> int:
    """How many layers show every kind of layer."""
    count = layer_count(text)
    kinds = getattr(text, "layer_types", None)
    if isinstance(kinds, list) and kinds:
        return min(max(kinds.index(kind) for kind in set(kinds)) + 1, count)
    return min(count, FEW)


def layer_count(text: Any) -> int:
    """The number of layers of a text model."""
    for name in NAMES["layers"]:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    raise NotDerivable("its config has no number of layers")


def shorten(text: Any, count: int) -> Any:
    """A config with fewer layers, and lists of layers that are as long."""
    before = layer_count(text)
    text = copy.deepcopy(text)
    if count >= before:
        return text
    for name in NAMES["layers"]:
        if isinstance(getattr(text, name, None), int):
            setattr(text, name, count)
            break
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == before:
            try:
                setattr(text, name, value[:count])
            except AttributeError:  # the class computes it
                continue
    return text


class Asked:
    """A model, run in many ways.

    Args:
        subject: The model.
        text: The config of its text model.
        few: How many of its layers show every kind.
    """

    def __init__(self, subject: AskedModel, text: Any, few: int) -> None:
        self.subject = subject
        self.text = text
        self.few = few
        self.context = context_of(text)
        self.idle: tuple[str, ...] = ()
        self.widths: dict[str, int] = {}
        self._rows: tuple[Seen, Seen] | None = None
        try:
            self.observer = self.build(self.with_norms(shorten(text, few)))
        except Exception:  # a class may tie layers to others behind them (Gemma 3n)
            self.few = layer_count(text)
            self.observer = self.build(self.with_norms(text))
        self.calm = self.observer.run(lambda name, output: None)
        if not self.calm:
            raise NotDerivable("no layer multiplies queries and keys in a way that is known")
        self._refuse_unseen()
        if any(seen.count > 1 for seen in self.calm.values()):
            raise NotDerivable("a layer computes attention more than once")
        self.idle = tuple(name for name, could in self.observer.tail.items() if could)
        self.observer = self.build(self.with_norms(shorten(text, self.few)))
        self.projections = self.find_projections()

    def _refuse_unseen(self) -> None:
        """Raise NotDerivable for layers that know positions in a way that is not seen."""
        for layer in (*self.observer.unknown, *self.observer.layers_with_positions()):
            if layer not in self.calm:
                number = layer.rpartition(".")[2]
                raise NotDerivable(
                    f"layer {number} uses positions, and not in a product of queries and keys that"
                    " is known"
                )

    def build(self, text: Any) -> AttentionObserver:
        """The model of a config without weights."""
        model_class = self.subject.model_class(text)
        with large_on_meta():
            model = make_model(model_class, text).eval()
        without_weights(model)
        return AttentionObserver(model, self.context, self.idle)

    def with_norms(self, text: Any) -> Any:
        """A config whose queries and keys have norms, if its class may have them."""
        for name in [name for name in vars(text) if NORM_SWITCH.match(name)]:
            if getattr(text, name) is False and name not in self.subject.part:
                setattr(text, name, True)
        return text

    @property
    def is_latent(self) -> bool:
        """Whether keys are made from a latent vector, as in multi-head latent attention."""
        return getattr(self.text, "kv_lora_rank", None) is not None

    @property
    def sees_later_tokens(self) -> bool:
        """Whether a token sees those behind it."""
        masks = [seen.visible for seen in self.calm.values() if seen.visible is not None]
        return bool(masks) and all(bool(mask[0].all()) for mask in masks)

    # what makes queries and keys

    def find_projections(self) -> Projections:
        """The modules that make the queries and keys of the layers that rotate."""
        effects = self._effects(is_projection)
        everything = tuple(effects)
        rotated = self._attention(self.observer, everything)
        layer = next((name for name, item in rotated.items() if item.rotates), "")
        if not layer:
            raise NotDerivable(self._why_still(rotated))
        self.rotating_layer = layer

        rotation = rotated[layer].queries
        keys = rotated[layer].keys
        assert rotation is not None
        if keys is None or not keys.inv_freq:
            raise NotDerivable("its queries rotate, and its keys do not")
        q = self._last(effects, layer, 0, rotation, "queries")
        k = self._last(effects, layer, 1, keys, "keys")

        norms = self._effects(is_norm)
        found = Projections(q, k, all=everything)
        found.q_norm = self._norm(norms, layer, 0)
        found.k_norm = self._norm(norms, layer, 1)
        found.source = self._source(layer, q)
        return found

    def _why_still(self, rotated: dict[str, Attention]) -> str:
        """Why no layer rotates."""
        for item in rotated.values():
            if item.queries is not None:
                return "its queries are scaled by the position, and nothing rotates"
        return (
            "no layer rotates its queries and keys (positions may enter by a bias on the scores, as"
            " in ALiBi, or by embeddings)"
        )

    def _effects(
        self, choose: Callable[[Module], bool]
    ) -> dict[str, dict[str, tuple[frozenset[int], frozenset[int]]]]:
        """The dimensions of queries and of keys that each module changes, by layer."""
        names: dict[str, None] = {}
        for seen in self.calm.values():
            for name in seen.before:
                if choose(self.observer.parameters[name]):
                    names[name] = None
        effects = {}
        for name in names:
            run = self.observer.run(_only({name}))
            changed = {}
            for layer, seen in run.items():
                calm = self.calm[layer]
                changed[layer] = (
                    _changed(calm.queries, seen.queries),
                    _changed(calm.keys, seen.keys),
                )
            if any(queries or keys for queries, keys in changed.values()):
                effects[name] = changed
        return effects

    def _last(
        self,
        effects: dict[str, dict[str, tuple[frozenset[int], frozenset[int]]]],
        layer: str,
        side: int,
        rotation: Rotation,
        words: str,
    ) -> str:
        """The last module that makes the dimensions that rotate."""
        dims = set(range(rotation.start, rotation.start + rotation.width))
        names = [name for name, by_layer in effects.items() if by_layer[layer][side] & dims]
        if not names:
            raise NotDerivable(f"nothing was found that makes its {words}")
        order = self.calm[layer].before
        return max(names, key=order.index)

    def _norm(
        self,
        norms: dict[str, dict[str, tuple[frozenset[int], frozenset[int]]]],
        layer: str,
        side: int,
    ) -> str:
        """The norm of queries or keys; empty without one."""
        names = [name for name, by_layer in norms.items() if by_layer[layer][side]]
        if not names:
            return ""
        of_heads = [name for name in names if name.rpartition(".")[2].isdigit()]
        if of_heads:  # a module with a norm for each head
            return of_heads[0].rsplit(".", 2)[0]
        return max(names, key=self.calm[layer].before.index)

    def _source(self, layer: str, name: str) -> str:
        """The norm before the projections; empty without one."""
        given = self.calm[layer].given
        chain = [name]
        while chain[-1] in given and len(chain) < 8:
            chain.append(given[chain[-1]])
        outside = name.rpartition(".")[0]
        for earlier in reversed(chain[1:]):
            is_inside = outside and earlier.startswith(f"{outside}.")
            if is_norm(self.observer.parameters[earlier]) and not is_inside:
                return earlier
        return self._norm_before(layer, chain[-1], outside)

    def _norm_before(self, layer: str, name: str, outside: str) -> str:
        """The norm before a module that is given what the layer computed from it; empty without.

        The output of each earlier module is lost, until that of one makes the input of this lost.
        """
        before = self.calm[layer].before
        earlier = before[: before.index(name)]
        while earlier:
            candidate = earlier.pop()
            if not self.observer.reaches(layer, candidate, name):
                continue
            is_inside = outside and candidate.startswith(f"{outside}.")
            if is_norm(self.observer.parameters[candidate]) and not is_inside:
                return candidate
            name = candidate
        return ""

    # rotations

    def attention(self, text: Any) -> list[Attention | None]:
        """The attention of each layer of a model; None for one without queries and keys."""
        observer = self.build(self.with_norms(copy.deepcopy(text)))
        by_layer = self._attention(observer, self.projections.all)
        found: list[Attention | None] = [None] * layer_count(text)
        for name, item in by_layer.items():
            number = int(name.rpartition(".")[2])
            if number < len(found):
                found[number] = item
        return found

    def _attention(self, observer: AttentionObserver, names: Iterable[str]) -> dict[str, Attention]:
        """The attention of each layer, by its name, with numbers of ours in some modules."""
        found = {}
        for layer, seen in observer.run(_only(set(names))).items():
            try:
                queries = measure(seen.queries, observer.positions)
                keys = measure(seen.keys, observer.positions)
            except NotARotation as problem:
                raise NotDerivable(str(problem)) from None
            heads, _, width = seen.queries.shape
            found[layer] = Attention(queries, keys, heads, width)
        return found

    def frequencies(self, change: Callable[[Config], None]) -> list[Attention | None] | None:
        """The attention of the first layers with other settings; None where they do not load."""
        try:
            text = self.subject.changed(change)
            return self.attention(shorten(text, self.few))
        except Exception:  # of any kind, from the class
            return None

    def layer_types(self, text: Any, count: int) -> list[str] | None:
        """The type of each layer by its name; None where the class has none."""
        names = getattr(text, "layer_types", None)
        if isinstance(names, list) and len(names) >= count:
            return [str(name) for name in names[:count]]
        return None

    # rows of weights

    def rows(self) -> tuple[Seen, Seen]:
        """Queries and keys of the first layer that rotates, in two runs.

        In the first, the numbers are those of rows of the projections, from 1; in the second, ones.
        """
        if self._rows is None:
            self._rows = self._run_rows()
        return self._rows

    def _run_rows(self) -> tuple[Seen, Seen]:
        """The runs of `rows`."""
        names = {self.projections.q, self.projections.k}

        def number(name: str, output: torch.Tensor) -> torch.Tensor | None:
            return numbered(output) if name in names else None

        def one(name: str, output: torch.Tensor) -> torch.Tensor | None:
            return torch.ones_like(output) if name in names else None

        by_number = self.observer.run(number, identity=True)
        by_one = self.observer.run(one, identity=True)
        layer = self.rotating_layer
        return by_number[layer], by_one[layer]

    def row_numbers(self, side: str) -> tuple[Numbers, float]:
        """The row of each dimension of each head, and the factor on its numbers."""
        by_number, by_one = self.rows()
        numbers = getattr(by_number, side)[:, 0]
        ones = getattr(by_one, side)[:, 0]
        factor = np.where(ones == 0, 1.0, ones)
        rows = np.where(ones == 0, -1.0, numbers / factor - 1)
        whole = np.rint(rows)
        if np.abs(rows - whole).max() > 0.01:
            raise NotDerivable("its queries are not rows of a projection")
        return whole.astype(int), float(np.median(ones[ones != 0]))

    def softmax_scale(self) -> float | None:
        """The factor between the product of queries and keys and their scores; None without one.

        Queries that are scaled before the product count too. The numbers are small, so that soft
        caps do not change them, and of two sizes, since a class may subtract the largest score.
        """
        names = {self.projections.q, self.projections.k}
        scores = []
        products = []
        for size in (SMALL, 2 * SMALL):

            def small(name: str, output: torch.Tensor, size: float = size) -> torch.Tensor | None:
                return torch.full_like(output, size) if name in names else None

            seen = self.observer.run(small, identity=True)[self.rotating_layer]
            if seen.score is None:
                return None
            scores.append(seen.score)
            products.append(float(seen.queries[0, 0] @ seen.keys[0, 0]))
        difference = products[1] - products[0]
        scale = (scores[1] - scores[0]) / difference if difference else 0.0
        if not scale:
            return None
        # without the attention factor, which is on both
        _, of_queries = self.row_numbers("queries")
        _, of_keys = self.row_numbers("keys")
        return scale * of_queries * of_keys / self._factor(of_keys) ** 2

    def layout(self, rotating: Attention) -> str:
        """Which rows of the projection of queries are a pair."""
        rotation = rotating.queries
        assert rotation is not None
        rows, _ = self.row_numbers("queries")
        firsts = []
        seconds = []
        for index in range(len(rotation.inv_freq)):
            first, second = rotation.pair(index)
            firsts.append(int(rows[0, first]))
            seconds.append(int(rows[0, second]))
        gaps = {second - first for first, second in zip(firsts, seconds, strict=True)}
        if gaps == {1} and len(firsts) > 1:
            return "interleaved"
        if gaps == {len(firsts)}:
            return "half"
        raise NotDerivable(
            f"its pairs are rows {firsts[0]} and {seconds[0]}, {firsts[-1]} and {seconds[-1]} of a"
            " head, which is neither of the known layouts"
        )

    def weights(self, rotating: Attention, answer: Answer) -> Config:
        """The table [weights]."""
        found = self.projections
        facts: Config = {"layer": [self.prefix()]}
        is_fused = found.q == found.k
        if is_fused:
            facts["fused"] = found.q
        else:
            facts |= {"q": found.q, "k": found.k}
        if found.q_norm or found.k_norm:
            self._norms(facts, rotating, answer)
        rows, _ = self.row_numbers("queries")
        self._order(facts, rows, rotating, answer)
        module = self.observer.parameters[found.q]
        if getattr(module, "bias", None) is not None:
            facts["bias"] = True
        if not found.source:
            facts["input"] = ""
        else:
            kind = norm_kind(self.observer.parameters[found.source])
            if kind is None:
                answer.not_derived.append(f"the kind of the norm {found.source}")
                facts["unmeasured"] = f"the kind of the norm {found.source} is not known"
            else:
                facts["input"] = kind
            facts["input_norm"] = [found.source]
        return facts

    def _order(self, facts: Config, rows: Numbers, rotating: Attention, answer: Answer) -> None:
        """Where the rows of each head are."""
        rotation = rotating.queries
        assert rotation is not None
        heads, width = rows.shape
        starts = [int(head[head >= 0].min()) for head in rows]
        turning = rows[0, rotation.start : rotation.start + rotation.width]
        if rotation.width < width and turning.min() > starts[0]:
            facts["rows"] = "last"

        steps = set(np.diff(starts).tolist())
        if facts.get("q_norm"):
            if "fused" in facts:
                facts["fused_order"] = self._fused_order(starts, width, heads)
            return  # factors are folded into the norms
        if "fused" in facts:
            facts["fused_order"] = self._fused_order(starts, width, heads)
            if not facts["fused_order"]:
                facts["fixed"] = "the order of the rows of its projection is not known"
                answer.not_derived.append("the order of the rows of the fused projection")
        elif steps == {2 * width} and self._rows_of(facts["q"]) == 2 * heads * width:
            answer.not_derived.append("a key for the output gate behind the queries of each head")
            facts["fixed"] = "its projection of queries also makes a gate"
        elif len(steps) > 1 or (steps and steps != {width}):
            facts["fixed"] = "the order of the rows of its queries is not known"
            answer.not_derived.append("the order of the rows of queries")

    def _rows_of(self, name: str) -> int:
        """The rows of a projection."""
        weight = getattr(self.observer.parameters[name], "weight", None)
        return 0 if weight is None else int(weight.shape[0])

    def _fused_order(self, starts: Sequence[int], width: int, heads: int) -> str:
        """The order of the rows of a fused projection; empty for one that is not known."""
        rows, _ = self.row_numbers("keys")
        key_starts = sorted({int(head[head >= 0].min()) for head in rows})
        groups = len(key_starts)
        each = heads // groups
        if list(starts) == [width * index for index in range(heads)]:
            after = [width * (heads + index) for index in range(groups)]
            return "blocks" if key_starts == after else ""
        expected = []
        for head in range(heads):
            group, offset = divmod(head, each)
            expected.append(width * (group * (each + 2) + offset))
        if list(starts) == expected:
            return "per-head" if each == 1 else "per-group"
        gated = [width * (heads + index) for index in range(heads)]
        return "gate-and-blocks" if list(starts) == gated else ""

    def _norms(self, facts: Config, rotating: Attention, answer: Answer) -> None:
        """Add the norms of queries and keys."""
        found = self.projections
        if not (found.q_norm and found.k_norm):
            answer.not_derived.append("a norm of only queries or only keys")
            facts["fixed"] = "it has a norm of only queries or only keys"
            return
        modules = self.observer.parameters
        of_heads = [name for name in modules if re.match(rf"{found.q_norm}\.\w+\.\d+$", name)]
        if of_heads and norm_kind(modules[of_heads[0]]) == "layer-norm":
            facts |= {"q_norm": found.q_norm, "k_norm": found.k_norm, "norm": "layer-norm-list"}
            return
        module = modules[found.q_norm]
        if not list(module.parameters()):
            facts["norm"] = "l2-after-rope" if self._after_rotation() else ""
            return
        kind = norm_kind(module)
        width = next(parameter.shape[-1] for parameter in module.parameters())
        if kind == "rms" and width > rotating.width:
            kind = "rms-all-heads"
        elif kind == "rms" and self._after_rotation():
            kind = "rms-after-rope"
        if kind is None or kind == "layer-norm-plus-one":
            answer.not_derived.append(f"the kind of the norm {found.q_norm}")
            facts["fixed"] = f"the kind of the norm {found.q_norm} is not known"
            return
        facts |= {"q_norm": found.q_norm, "k_norm": found.k_norm, "norm": kind}

    def _after_rotation(self) -> bool:
        """Whether queries get their norm after the rotation."""
        name = self.projections.q_norm
        seen = self.observer.run(_only({name}))[self.rotating_layer]
        return bool(np.abs(seen.queries - seen.queries[:, :1]).max() < 1e-6)

    def prefix(self) -> str:
        """The beginning of the names of a layer's tensors, with {layer} for its number."""
        layer = next(iter(self.calm))
        inside = f"{layer.rpartition('.')[0]}.{{layer}}."
        base = getattr(self.observer.model, "base_model_prefix", "")
        if base and hasattr(self.observer.model, base):
            return inside  # the whole model was built
        return f"{base}.{inside}" if base else inside

    # keys of the config

    def fields(self) -> list[str]:
        """The names of settings that the config or its class has."""
        kinds = type(self.text).__mro__
        names = {name for kind in kinds for name in inspect.get_annotations(kind)}
        names |= set(self.subject.part) | set(vars(self.text))
        names |= set(getattr(type(self.text), "attribute_map", {}))
        return sorted(name for name in names if not name.startswith("_"))

    def name_of(self, quantity: str) -> list[str]:
        """The keys of a size: the one of this config, then the usual one."""
        part = self.subject.part
        renamed = getattr(type(self.text), "attribute_map", {})
        usual = NAMES[quantity][0]
        own = renamed.get(usual, usual)
        for name in (own, *NAMES[quantity]):
            stated = part.get(name, getattr(self.text, name, None))
            if isinstance(stated, int) and not isinstance(stated, bool):
                return list(dict.fromkeys((name, usual) if name == own else (name,)))
        return list(dict.fromkeys((own, usual)))

    def keys(
        self,
        rotating: Attention,
        groups: dict[str, Rotation],
        kinds: Sequence[str],
        answer: Answer,
    ) -> Config:
        """The table [keys], where it is not as usual."""
        facts: Config = {}
        for quantity in ("hidden", "heads", "kv_heads", "layers", "context"):
            names = self.name_of(quantity)
            if names != [NAMES[quantity][0]]:
                facts[quantity] = names
        if self.is_latent and hasattr(self.text, "qk_rope_head_dim"):
            facts["head_dim"] = ["qk_rope_head_dim"]
        elif self.has_two_widths:
            facts |= self._head_keys()
        elif "head_dim" not in self.subject.part:
            own = [name for name in NAMES["head_dim"] if self.subject.part.get(name)]
            if own and self.subject.part[own[0]] == rotating.width:
                facts["head_dim"] = own[:1]

        theta, local = self._theta_keys(groups)
        if not theta:
            raise NotDerivable(
                "no key of its config changes the base of its frequencies, so it is fixed in code"
            )
        if theta != ["rope_theta"]:
            facts["theta"] = theta
        if local:
            facts["local_theta"] = local
        shares = self._share_keys(rotating)
        # under the type proportional the share says which pairs of all stand still
        assert rotating.queries is not None
        if shares and 0.0 not in rotating.queries.inv_freq:
            facts["partial"] = shares
        widths = self._width_keys(rotating)
        if widths and not self.is_latent:
            facts["rotary_dim"] = widths
        return facts

    @property
    def has_two_widths(self) -> bool:
        """Whether heads of local layers have another width than those of extended ones."""
        return self.widths.get("local", self.widths["global"]) != self.widths["global"]

    def _head_keys(self) -> Config:
        """The keys of the width of heads in each kind of layers."""
        facts: Config = {}
        for name in self.fields():
            value = getattr(self.text, name, None)
            if "head_dim" not in name or not isinstance(value, int):
                continue
            found = self.frequencies(_setting(name, 2 * value))
            for kind, key in (("global", "head_dim"), ("local", "local_head_dim")):
                if self._width_in(found, kind) == 2 * self.widths[kind]:
                    facts.setdefault(key, []).append(name)
        return facts

    def _width_in(self, found: Sequence[Attention | None] | None, kind: str) -> int | None:
        """The width of a head in the first layer of a kind; None without one."""
        for item, other in zip(found or (), self.few_kinds, strict=False):
            if item is not None and other == kind:
                return item.width
        return None

    def _theta_keys(self, groups: dict[str, Rotation]) -> tuple[list[str], list[str]]:
        """The keys of the base of extended layers, and of that of local ones."""
        names = dict.fromkeys(self._named(THETA, lambda number: number > 1))
        names |= {"rope_theta": None}
        if "local" in groups:
            names |= dict.fromkeys(LOCAL_THETA)
        theta = []
        local = []
        for name in sorted(names, key=lambda name: (name != "rope_theta", name)):
            if name in SETTINGS or isinstance(self.subject.part.get(name), (dict, list, bool)):
                continue
            found = self.frequencies(_setting(name, BASE))
            if found is None:
                continue
            hit = _with_base(found, BASE)
            is_local = [kind == "local" for kind in self.few_kinds]
            if any(is_hit for is_hit, other in zip(hit, is_local, strict=False) if not other):
                theta.append(name)
            elif any(hit):
                local.append(name)
        if not theta and self._in_settings():
            theta = ["rope_theta"]
        return theta, local

    def _named(self, pattern: re.Pattern[str], is_one: Callable[[float], bool]) -> list[str]:
        """The keys with such a name, and those about RoPE of this config with such a number."""
        names = []
        for name in self.fields():
            value = self.subject.part.get(name)
            number = 0 if not isinstance(value, (int, float)) or isinstance(value, bool) else value
            if pattern.search(name) or (ROPE_KEY.search(name) and is_one(number)):
                names.append(name)
        return names

    def _in_settings(self) -> bool:
        """Whether the base in the RoPE dictionary counts."""
        if self._is_nested():
            return True
        found = self.frequencies(self._scaled("default", {}))
        return found is not None and any(_with_base(found, BASE))

    def _is_nested(self) -> bool:
        """Whether there are RoPE settings for each layer type."""
        rope = getattr(self.text, "rope_parameters", None)
        return isinstance(rope, dict) and any(isinstance(item, dict) for item in rope.values())

    @property
    def few_kinds(self) -> list[str]:
        """The kinds of the first layers."""
        return self._few_kinds

    def see(self, kinds: Sequence[str]) -> None:
        """Keep the kinds of the first layers, of which as few are tried as show every kind."""
        if not getattr(self.text, "layer_types", None):
            self.few = max(kinds.index(kind) for kind in set(kinds)) + 1
        self._few_kinds = list(kinds[: self.few])
        if "global" in self._few_kinds:  # its heads may be wider than those of other layers
            end = f".{self._few_kinds.index('global')}"
            self.rotating_layer = next(name for name in self.calm if name.endswith(end))
            self._rows = None

    def _share_keys(self, rotating: Attention) -> list[str]:
        """The keys of the share of a head that rotates."""
        assert rotating.queries is not None
        names = dict.fromkeys(self._named(SHARE, lambda number: 0 < number <= 1))
        names |= {"partial_rotary_factor": None}
        before = rotating.queries.width
        share = 0.5 if before != rotating.width // 2 else 0.25
        found = []
        for name in names:
            if isinstance(self.subject.part.get(name), (dict, list)):
                continue
            tried = self.frequencies(_setting(name, share))
            width = _first_width(tried)
            if width is not None and width != before:
                found.append(name)
        return sorted(found, key=lambda name: (name not in self.subject.part, name))

    def _width_keys(self, rotating: Attention) -> list[str]:
        """The keys of the number of dimensions that rotate."""
        assert rotating.queries is not None
        found = []
        for name in self._named(ROTARY_DIM, lambda number: number > 1):
            value = rotating.queries.width // 2 // 2 * 2
            tried = self.frequencies(_setting(name, value))
            if value and _first_width(tried) == value:
                found.append(name)
        return found

    def defaults(self, rotating: Attention, keys: Config, groups: dict[str, Rotation]) -> Config:
        """The table [defaults]: what the class has for keys that this config leaves out."""
        part = self.subject.part
        assert rotating.queries is not None
        facts: Config = {}
        without = self.frequencies(_without((*keys.get("theta", ["rope_theta"]), *SETTINGS)))
        of_kind = dict(zip(reversed(self.few_kinds), reversed(without or []), strict=False))
        base = _base_of([of_kind.get("global")])
        scaling = self._default_scaling()
        if scaling:
            facts["scaling"] = scaling
            base = scaling.get("rope_theta", base)
        if base is not None and abs(base / 10000 - 1) > 1e-4:
            facts["theta"] = self._exact(base)
        local = _base_of([of_kind.get("local")])
        if local is not None:
            facts["local_theta"] = self._exact(local)
        context = getattr(self.text, NAMES["context"][0], None)
        context = context if isinstance(context, int) else self.context
        default = class_default(self.text, NAMES["context"][0])
        facts["context"] = default if isinstance(default, int) else context

        width_keys = keys.get("head_dim", ["head_dim"])
        if not any(part.get(name) for name in width_keys):
            width = rotating.queries.width if self.is_latent else rotating.width
            hidden = self._size("hidden") or 0
            heads = self._size("heads") or rotating.heads
            if not heads or hidden // heads != width:
                facts["head_dim"] = width
        local_keys = keys.get("local_head_dim")
        if local_keys and not any(part.get(name) for name in local_keys):
            facts["local_head_dim"] = self.widths["local"]
        kv_heads = self._size("kv_heads")
        if kv_heads is not None and not any(
            part.get(name) for name in keys.get("kv_heads", ["num_key_value_heads"])
        ):
            facts["kv_heads"] = kv_heads
        for quantity in ("hidden", "heads", "layers"):
            if not any(part.get(name) for name in keys.get(quantity, [NAMES[quantity][0]])):
                value = self._size(quantity)
                if value is not None:
                    facts[quantity] = value
        self._default_share(facts, rotating, keys)
        return facts

    def _size(self, quantity: str) -> int | None:
        """A size of the text model; None where it has none."""
        for name in self.name_of(quantity):
            value = getattr(self.text, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    def _exact(self, base: float) -> float:
        """A measured base as the config of the class has it."""
        text = self.subject.changed(_without(("rope_theta", *SETTINGS)))
        rope = getattr(text, "rope_parameters", None) or {}
        for item in (rope, *rope.values()):
            stated = item.get("rope_theta") if isinstance(item, dict) else None
            if isinstance(stated, (int, float)) and abs(stated / base - 1) < 1e-4:
                return float(stated)
        return base

    def _default_scaling(self) -> Config:
        """The scaling that the class puts in force where a config has no RoPE settings."""
        try:
            text = self.subject.changed(_without(("rope_theta", *SETTINGS)))
        except Exception:  # of any kind, from the class
            return {}
        rope = getattr(text, "rope_parameters", None)
        if isinstance(rope, dict) and isinstance(rope.get(FULL), dict):
            rope = rope[FULL]
        if not isinstance(rope, dict) or rope.get("rope_type", "default") == "default":
            return {}
        return {key: value for key, value in rope.items() if key in ROPE and key != "type"}

    def _default_share(self, facts: Config, rotating: Attention, keys: Config) -> None:
        """Add the share of a head that rotates where the config states none."""
        assert rotating.queries is not None
        if self.is_latent:
            return
        stated = [*keys.get("partial", ()), *keys.get("rotary_dim", ())]
        part = self.subject.part
        rope = part.get("rope_parameters") or {}
        if any(part.get(name) is not None for name in stated) or rope.get("partial_rotary_factor"):
            return
        share = rotating.queries.width / rotating.width
        if share != 1:
            facts["partial_rotary_factor"] = share

    # windows

    def window(self, kinds: Sequence[str], names: Sequence[str] | None, answer: Answer) -> Config:
        """The table [window]."""
        candidates = [name for name in self.fields() if WINDOW.search(name)]
        for name in candidates:
            value = getattr(self.text, name, None)
            if isinstance(value, (list, dict, str, bool)):
                continue
            has = self._windowed(name)
            if has is None or not any(has):
                continue
            facts: Config = {"key": name}
            default = class_default(self.text, name)
            if isinstance(default, int) and not isinstance(default, bool):
                facts["default"] = default
            if "use_sliding_window" in self.fields():
                facts["switch"] = "use_sliding_window"
            if "max_window_layers" in self.fields():
                first = class_default(self.text, "max_window_layers")
                facts |= {"first_key": "max_window_layers", "first": first or 0}
                return facts
            few = self.few_kinds
            turning = [kind != "none" for kind in few]
            attends = [kind != "" for kind in few]
            if all(has) or has == [True] * len(attends):
                facts["layers"] = "all"
            elif names and all(
                flag == (name in ("sliding_attention", "chunked_attention", "hybrid_sliding"))
                for flag, name in zip(has, names, strict=False)
            ):
                return facts
            elif has == turning:
                facts["layers"] = "rotating"
            elif has == [not flag for flag in turning]:
                facts["layers"] = "not-rotating"
            else:
                answer.not_derived.append(f"which layers have the window {name}")
                return {}
            return facts
        return {}

    def _windowed(self, name: str) -> list[bool] | None:
        """Which of the first layers see fewer tokens with a small window in a key."""

        def change(part: Config) -> None:
            part[name] = 5
            if "use_sliding_window" in self.fields():
                part["use_sliding_window"] = True
                if "max_window_layers" in self.fields():
                    part["max_window_layers"] = 0

        try:
            text = shorten(self.subject.changed(change), self.few)
            observer = self.build(text)
            run = observer.run(lambda name, output: None, positions=range(29))
        except Exception:  # of any kind, from the class
            return None
        has = [False] * self.few
        for layer, seen in run.items():
            number = int(layer.rpartition(".")[2])
            if seen.visible is None or number >= len(has) or seen.visible[-1][0]:
                continue
            # a window ends at the token; a choice of tokens, as Doge's keep_window_size, does not
            first = int(np.argmax(seen.visible[-1]))
            has[number] = bool(seen.visible[-1][first:].all()) and first >= TOKENS - 8
        return has

    # writing

    def writing(self, rotating: Attention, answer: Answer) -> Config:
        """The table [writing], and the RoPE settings that were tried."""
        facts: Config = {}
        if self._is_nested():
            facts["nested"] = True
        for kind, settings in scalings(rotating).items():
            change = self._scaled(kind, settings)
            found = self.frequencies(change)
            if found is None:
                continue
            whole = copy.deepcopy(self.subject.whole)
            change(part_of(whole, self.subject.path))
            item = next((item for item in found if item is not None and item.rotates), None)
            if item is not None and item.queries is not None:
                answer.tried.append(
                    {"kind": kind, "config": whole, "inv_freq": list(item.queries.inv_freq)}
                )
        if not self.is_latent and not self._takes_head_dim(rotating):
            facts["head_dim"] = False
        if self.is_latent:
            facts["head_dim"] = False
        return facts

    def _scaled(self, kind: str, settings: Config) -> Callable[[Config], None]:
        """A change to RoPE settings of a kind."""
        nested = getattr(self.text, "rope_parameters", None)

        def change(part: Config) -> None:
            rope = {"rope_type": kind, "rope_theta": BASE, **settings}
            if self._is_nested() and isinstance(nested, dict):
                part["rope_parameters"] = {
                    name: {**item, **rope} if isinstance(item, dict) else item
                    for name, item in nested.items()
                }
                part.pop("rope_scaling", None)
                return
            for key, value in (nested or {}).items():
                rope.setdefault(
                    key, value
                )  # such as a share, mrope_section, or a key of another type
            part["rope_theta"] = BASE
            part["rope_parameters"] = rope
            part["rope_scaling"] = rope
            part.pop("original_max_position_embeddings", None)

        return change

    def _takes_head_dim(self, rotating: Attention) -> bool:
        """Whether the class takes a config that states the width of its heads."""
        found = self.frequencies(_only_setting("head_dim", rotating.width))
        item = next((item for item in found or () if item is not None), None)
        return item is not None and item.width == rotating.width

    def effective(self, attention: Sequence[Attention | None]) -> list[str]:
        """The keys about RoPE of this config that change its frequencies."""
        found = []
        for name, value in self.subject.part.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not ROPE_KEY.search(name):
                continue
            other = value * 2 if THETA.search(name) or value < 2 else value // 4 * 2
            tried = self.frequencies(_only_setting(name, other))
            if tried is None or not all(map(_is_alike, tried, attention)):
                found.append(name)
        return found

    def measured(
        self, rotating: Attention, kinds: Sequence[str], groups: dict[str, Rotation]
    ) -> Config:
        """The numbers that the class computes from this config."""
        assert rotating.queries is not None
        assert rotating.keys is not None
        keys = rotating.keys
        _, factor = self.row_numbers("keys")
        grows = {
            kind: list(rotation.grows)
            for kind, rotation in groups.items()
            if np.abs(np.asarray(rotation.grows) - 1).max() > 2e-3
        }
        return {
            "layers": list(kinds),
            "inv_freq": {kind: list(item.inv_freq) for kind, item in groups.items()},
            "rotary_dim": keys.width,
            "head_dim": keys.width if self.is_latent else rotating.width,
            "heads": rotating.heads,
            "factor": self._factor(factor),
            "positions": list(self.observer.positions),
            "grows": grows,
        }

    def _factor(self, factor: float) -> float:
        """The factor on keys, in parts of the one without scaling."""
        rope = getattr(self.text, "rope_parameters", None) or {}
        kinds = [item.get("rope_type") for item in (rope, *rope.values()) if isinstance(item, dict)]
        if all(kind in (None, "default", "linear", "llama3", "proportional") for kind in kinds):
            return 1.0
        before = self.observer
        try:
            plain = self.subject.changed(self._scaled("default", {}))
            self.observer = self.build(self.with_norms(shorten(plain, self.few)))
            self._rows = None
            _, unscaled = self.row_numbers("keys")
        finally:
            self.observer = before
            self._rows = None
        return factor / unscaled


def name_scales(
    asked: Asked, attention: Sequence[Attention | None], rotating: Attention, answer: Answer
) -> None:
    """Name the scales of scores that no field of a family describes."""
    for item in attention:
        still = item.queries if item is not None and not item.rotates else None
        if still is not None and np.abs(np.asarray(still.grows) - 1).max() > 2e-3:
            answer.not_derived.append(
                "the scale of queries by their position in layers that do not rotate"
            )
            break

    scale = asked.softmax_scale()
    usual = rotating.width**-0.5
    if scale is None:
        answer.not_derived.append("the scale of its scores before the softmax")
    elif abs(scale / usual - 1) > 2e-3:
        answer.not_derived.append(
            f"the key of the scale of its scores, which is {scale:.4g} and not 1 over the square"
            f" root of {rotating.width}"
        )


def widths_of(attention: Sequence[Attention | None], kinds: Sequence[str]) -> dict[str, int]:
    """The width of a head in layers of each kind."""
    widths: dict[str, int] = {}
    for item, kind in zip(attention, kinds, strict=True):
        if item is not None:
            widths.setdefault(kind, item.width)
    return widths


def kinds_of(
    attention: Sequence[Attention | None], names: Sequence[str] | None
) -> tuple[list[str], dict[str, Rotation]]:
    """The kind of each layer, and the rotation of each kind.

    Args:
        attention: The attention of each layer.
        names: The type of each layer; None where the class has none.

    Raises:
        NotDerivable: There are more than two sets of frequencies.
    """
    sets: list[Rotation] = []
    of_layer: list[int | None] = []
    for item in attention:
        rotation = item.queries if item is not None and item.rotates else None
        if rotation is None:
            of_layer.append(None)
            continue
        for index, other in enumerate(sets):
            if rotation.is_like(other):
                of_layer.append(index)
                break
        else:
            of_layer.append(len(sets))
            sets.append(rotation)
    if not sets:
        raise NotDerivable("no layer rotates")
    if len(sets) > 2:
        raise NotDerivable(f"its layers rotate by {len(sets)} different sets of frequencies")
    # those that are named so see the whole context, else those with the slower frequencies
    slowest = [min(item for item in rotation.inv_freq if item > 0) for rotation in sets]
    whole = slowest.index(min(slowest))
    for name, which in zip(names or (), of_layer, strict=False):
        if name == FULL and which is not None:
            whole = which
    kinds = ["none" if index is None else "global" for index in of_layer]
    groups = {"global": sets[whole]}
    if len(sets) == 2:
        groups["local"] = sets[1 - whole]
        kinds = [
            "local" if index == 1 - whole else kind
            for index, kind in zip(of_layer, kinds, strict=True)
        ]
    return kinds, groups


def layer_rules(
    names: Sequence[str] | None,
    kinds: Sequence[str],
    part: Config,
    text: Any,
    answer: Answer,
) -> Config:
    """The table [layers]."""
    if set(kinds) == {"global"} and not (names and len(set(names)) > 1):
        return {}
    flags = _flags(kinds, part, text)
    if flags:
        return flags
    if names is None or not _follows(names, kinds):
        if set(kinds) == {"global"}:
            return {}
        if "layer_types" in part:
            raise NotDerivable("layers of one type rotate in different ways")
        made = {"global": FULL, "local": "sliding_attention", "none": "no_rope"}
        names = [made[kind] for kind in kinds]
    types = dict(zip(names, kinds, strict=True))
    facts: Config = {}
    if set(types.values()) != {"global"}:
        facts["types"] = types
    return facts | _order_of(names, answer)


def _flags(kinds: Sequence[str], part: Config, text: Any) -> Config:
    """Rules for a list in the config that says which layers rotate; empty without one."""
    if "none" not in kinds or "local" in kinds:
        return {}
    expected = [kind != "none" for kind in kinds]
    for name in dict.fromkeys((*part, *vars(text))):
        value = part.get(name, getattr(text, name, None))
        if not isinstance(value, list) or "rope" not in name or len(value) < len(kinds):
            continue
        if [bool(item) for item in value[: len(kinds)]] == expected:
            first = expected.index(False) + 1
            facts: Config = {"flags": name}
            if expected == [(index + 1) % first != 0 for index in range(len(expected))]:
                facts["interval"] = first
            key = next((key for key in vars(text) if key.endswith("layer_interval")), "")
            if key:
                facts["interval_key"] = key
            return facts
    return {}


def _follows(names: Sequence[str], kinds: Sequence[str]) -> bool:
    """Whether layers of one name are of one kind."""
    pairs = set(zip(names, kinds, strict=True))
    return len(pairs) == len(set(names))


def _order_of(names: Sequence[str], answer: Answer) -> Config:
    """How the names of layers follow each other, where a config does not list them.

    The first and the last layer may be of another type than the order says.
    """
    if len(set(names)) == 1:
        return {}
    first = {"first": names[0]}
    final = {"final": names[-1]}
    ends: list[Config] = [{}, final, first, first | final]
    for search in (_interval_of, _pattern_of):
        for facts in ends:
            found = search(names, "first" in facts, "final" in facts)
            if found:
                return found | facts
    answer.not_derived.append("how the types of layers follow each other in models of another size")
    return {"pattern": list(names)}


def _pattern_of(names: Sequence[str], skips_first: bool, skips_final: bool) -> Config:
    """The types that repeat; empty without a repetition."""
    compared = range(int(skips_first), len(names) - int(skips_final))
    for period in range(2, len(names) // 2 + 1):
        pattern: list[str] = []
        for place in range(period):
            pattern.append(next(names[index] for index in compared if index % period == place))
        if all(names[index] == pattern[index % period] for index in compared):
            return {"pattern": pattern}
    return {}


def _interval_of(names: Sequence[str], skips_first: bool, skips_final: bool) -> Config:
    """The interval at which one type of layers stands among another; empty without one."""
    count = len(names)
    compared = range(int(skips_first), count - int(skips_final))
    for interval in range(2, count // 2 + 1):
        for place in (interval - 1, 0):
            at_place = [index for index in compared if index % interval == place]
            others = [index for index in compared if index % interval != place]
            if len(at_place) < 2 or not others:
                continue
            last = names[at_place[0]]
            rest = names[others[0]]
            if last == rest or any(names[index] != last for index in at_place):
                continue
            if any(names[index] != rest for index in others):
                continue
            facts: Config = {"interval": interval}
            if place == 0:
                facts["leading"] = True
            if last != FULL:
                facts["last"] = last
            if rest != "sliding_attention":
                facts["rest"] = rest
            return facts
    return {}


def is_projection(module: Module) -> bool:
    """Whether a module has weights of two dimensions, and is not a norm of each head."""
    if NORM.search(type(module).__name__):
        return False
    return any(parameter.dim() >= 2 for parameter in module.parameters(recurse=False))


def is_norm(module: Module) -> bool:
    """Whether a module is a norm."""
    if NORM.search(type(module).__name__):
        return True
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() == 1


def norm_kind(module: Module) -> str | None:
    """The kind of a norm, found by running it; None for another one."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() not in (1, 2):
        return None
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3, *weight.shape, generator=generator, dtype=torch.float32) * 3 + 1
    scales = torch.rand(*weight.shape, generator=generator, dtype=torch.float32) + 0.5
    kept = weight.detach().clone()
    weight.copy_(scales)
    try:
        result = module(values).double()
    except Exception:  # it takes something else
        return None
    finally:
        weight.copy_(kept)
    numbers = values.double()
    rms = numbers / numbers.pow(2).mean(-1, keepdim=True).sqrt()
    centred = numbers - numbers.mean(-1, keepdim=True)
    normal = centred / centred.pow(2).mean(-1, keepdim=True).sqrt()
    guesses = {
        "rms": rms * scales,
        "rms-plus-one": rms * (1 + scales),
        "layer-norm": normal * scales,
        "layer-norm-plus-one": normal * (1 + scales),
    }
    for kind, guess in guesses.items():
        if torch.allclose(result, guess, rtol=1e-3, atol=1e-3):
            return kind
    return None


def scalings(rotating: Attention) -> dict[str, Config]:
    """RoPE settings of each type, that a class may take."""
    assert rotating.queries is not None
    pairs = len(rotating.queries.inv_freq)
    factors = [1.0 + index / pairs for index in range(pairs)]
    original = {"original_max_position_embeddings": ORIGINAL}
    return {
        "default": {},
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 4.0},
        "yarn": {"factor": 4.0, "attention_factor": 1.0, **original},
        "longrope": {
            "factor": 4.0,
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            **original,
        },
        "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original},
    }


def class_default(text: Any, name: str) -> Any:
    """The default of a setting in a config class; None without one."""
    own = getattr(type(text), "attribute_map", {}).get(name, name)
    value = getattr(type(text), own, None)
    return None if isinstance(value, property) else value


def context_of(text: Any) -> int:
    """The number of positions of a text model."""
    for name in NAMES["context"]:
        value = getattr(text, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            return min(value, 1 << 20)
    return 2048


def _only(names: set[str]) -> Callable[[str, torch.Tensor], torch.Tensor | None]:
    """Numbers of ours in the outputs of some modules."""

    def override(name: str, output: torch.Tensor) -> torch.Tensor | None:
        return chosen(name, output) if name in names else None

    return override


def _changed(before: Numbers, after: Numbers) -> frozenset[int]:
    """The dimensions that differ."""
    if before.shape != after.shape:
        return frozenset()
    return frozenset(np.flatnonzero((before != after).any((0, 1))).tolist())


def _setting(name: str, value: Any) -> Callable[[Config], None]:
    """A change of one key, which nothing in the RoPE dictionary overrides."""

    def change(part: Config) -> None:
        for key in SETTINGS:
            rope = part.get(key)
            if isinstance(rope, dict):
                _plain(rope, name, value)
                if not rope or set(rope) <= {"rope_type", "type"}:
                    part.pop(key)
        part[name] = value

    return change


def _only_setting(name: str, value: Any) -> Callable[[Config], None]:
    """A change of one key, and of nothing else."""

    def change(part: Config) -> None:
        part[name] = value

    return change


def _is_alike(first: Attention | None, second: Attention | None) -> bool:
    """Whether two layers rotate alike."""
    rotations = [item.queries if item is not None else None for item in (first, second)]
    if rotations[0] is None or rotations[1] is None:
        return rotations[0] is rotations[1]
    return rotations[0].is_like(rotations[1])


def _plain(rope: Config, name: str, value: Any) -> None:
    """Take the scaling out of RoPE settings, and what would override a key."""
    for key, item in list(rope.items()):
        if isinstance(item, dict):
            _plain(item, name, value)
            continue
        is_share = key == "partial_rotary_factor" and THETA.search(name) is None
        if is_share or key in (name, "rope_theta", "type"):
            rope.pop(key)
    if not any(isinstance(item, dict) for item in rope.values()):
        rope["rope_type"] = "default"


def _without(names: Iterable[str]) -> Callable[[Config], None]:
    """A config without some keys."""

    def change(part: Config) -> None:
        for name in names:
            part.pop(name, None)

    return change


def _with_base(found: Sequence[Attention | None], base: float) -> list[bool]:
    """Which layers rotate by the plain frequencies of a base."""
    return [_base_of([item]) is not None and _near(_base_of([item]), base) for item in found]


def _near(value: float | None, other: float) -> bool:
    return value is not None and abs(value / other - 1) < 1e-3


def _base_of(found: Sequence[Attention | None] | None) -> float | None:
    """The base of the first layer that rotates, if its frequencies are the plain ones of a base."""
    for item in found or ():
        if item is None or item.queries is None or not item.queries.inv_freq:
            continue
        inv_freq = np.asarray(item.queries.inv_freq)
        inv_freq = inv_freq[inv_freq > 0]
        if len(inv_freq) < 2 or abs(inv_freq[0] - 1) > 1e-3:
            return None
        pairs = len(item.queries.inv_freq)
        base = float(inv_freq[1] ** -pairs)
        last = float(inv_freq[-1] ** (-pairs / (len(inv_freq) - 1)))
        for guess in (round(last), last, round(base), base):
            expected = guess ** (-np.arange(len(inv_freq)) / pairs) if guess > 0 else inv_freq * 0
            if np.allclose(inv_freq, expected, rtol=2e-4):
                return float(f"{guess:.6g}")
        return None
    return None


def _first_width(found: Sequence[Attention | None] | None) -> int | None:
    """How many dimensions rotate in the first layer that does."""
    for item in found or ():
        if item is not None and item.queries is not None and item.queries.inv_freq:
            return item.queries.width
    return None
