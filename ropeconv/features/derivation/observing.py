"""Run the attention of a model, and see how its queries and keys rotate.

`AttentionObserver` runs a model without weights and keeps the queries and keys that every attention
layer multiplies. In place of the outputs of its projections it puts numbers of its own. `measure`
says how they rotate from one position to the next.
"""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import Module, ModuleList
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ropeconv.rope.errors import RopeconvError

from .weightless import NORM

TOKENS = 29
"""Tokens of a run: a prime, so that no other dimension of a model has that size."""
HEADS = 8
"""Heads whose rotation is measured; all heads of a layer rotate alike."""
MASKED = -1e4
"""Scores below this are masked."""
MOVED = 2e-5
"""The change of a number from which on it rotates, in parts of the root mean square."""
EQUAL = 2e-3
"""The error of an angle or a length, which float32 computes."""
ROTARY = re.compile(r"rotary|rope", re.IGNORECASE)
PRODUCTS = ("matmul", "__matmul__", "bmm")

Override = Callable[[str, torch.Tensor], torch.Tensor | None]
Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Seen:
    """The attention of one layer in a run."""

    queries: Numbers
    """Numbers of shape (heads, tokens, width), behind the rotation."""

    keys: Numbers
    """Likewise."""

    visible: Numbers | None = None
    """Whether each token sees each other one; None where no mask was found."""

    score: float | None = None
    """The score of the first token of the first head for itself; None where that is not seen."""

    count: int = 1
    """How many times the layer computed attention."""

    before: list[str] = field(default_factory=list)
    """Names of the modules inside the layer that ran before that, in order."""

    given: dict[str, str] = field(default_factory=dict)
    """For a module, the one whose output it was given."""


class AttentionObserver:
    """A model that is run to see its attention.

    Args:
        model: A model of `without_weights`.
        context: The number of positions that it may have.
        idle: Names inside a layer of modules behind its attention, which are not run.

    Attributes:
        tail: For each module of a layer, whether it need not run, since it comes behind the
            attention and gives the shape that it is given.
        unknown: Names of layers with scores that do not come from a product that is known.
        lost: Names of layers that computed with numbers that are lost; None where that is not
            looked for.
    """

    def __init__(self, model: Module, context: int, idle: Iterable[str] = ()) -> None:
        self.model = model
        self.idle = set(idle)
        self.tail: dict[str, bool] = {}
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.positions = spread(context) if self.takes_positions else list(range(TOKENS))
        self.layer = ""
        self.seen: dict[str, Seen] = {}
        self.unknown: dict[str, None] = {}
        self.lost: dict[str, None] | None = None
        self._pending: tuple[Any, Any] | None = None
        self._ran: list[str] = []
        self._given: dict[str, str] = {}
        self._made: dict[int, tuple[str, Any]] = {}
        self._override: Override = _nothing
        self._watched: tuple[str, str] | None = None
        self._is_reached = False
        self._outer: list[str] = []
        self.parameters: dict[str, Module] = {}
        self._hook()

    def _hook(self) -> None:
        modules = dict(self.model.named_modules())
        for name, module in modules.items():
            parent = modules.get(name.rpartition(".")[0])
            numbered = isinstance(parent, ModuleList) and name.rpartition(".")[2].isdigit()
            layer = _outermost(name, modules)
            if numbered and layer == name:
                module.register_forward_pre_hook(self._enter(name))
                module.register_forward_hook(self._leave)
                continue
            if not layer:
                continue
            inside = name[len(layer) + 1 :]
            if inside in self.idle:
                module.forward = _return_input
            elif "." not in inside:
                module.register_forward_hook(self._note_tail(layer, inside), with_kwargs=True)
            has_own = any(True for _ in module.parameters(recurse=False))
            if has_own or NORM.search(type(module).__name__):
                module.register_forward_hook(self._after(layer, inside), with_kwargs=True)
                self.parameters.setdefault(inside, module)

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: Module, args: Any) -> None:
            self._outer.append(self.layer)
            self.layer = name
            self._pending = None
            self._ran = []
            self._given = {}
            self._made = {}

        return enter

    def _note_tail(self, layer: str, inside: str) -> Callable[..., None]:
        def note(module: Module, args: Any, given: Any, output: Any) -> None:
            if self.layer != layer:
                return
            is_tail = self._pending is None and layer in self.seen
            first = args[0] if args else next(iter(given.values()), None)
            is_alike = _is_like(first, output)
            uses_attention = any(name.startswith(f"{inside}.") for name in self.seen_before(layer))
            could = is_tail and is_alike and not uses_attention
            self.tail[inside] = self.tail.get(inside, True) and could

        return note

    def seen_before(self, layer: str) -> list[str]:
        """The modules that ran before the attention of a layer."""
        seen = self.seen.get(layer)
        return seen.before if seen is not None else []

    def _leave(self, module: Module, args: Any, output: Any) -> None:
        self.layer = self._outer.pop() if self._outer else ""

    def _after(self, layer: str, inside: str) -> Callable[..., Any]:
        def after(module: Module, args: Any, given: Any, output: Any) -> Any:
            first: Any = args[0] if args else next(iter(given.values()), None)
            if self._watched == (layer, inside) and _is_lost(first):
                self._is_reached = True
            if id(first) in self._made:
                self._given[inside] = self._made[id(first)][0]
            self._ran.append(inside)
            result = output
            if isinstance(output, torch.Tensor) and self.layer == layer:
                other = self._override(inside, output)
                if other is not None:
                    result = other
                elif self._identity and _is_norm_of(module, inside, first, output):
                    result = torch.clone(first)
                self._made[id(result)] = (inside, result)
            return result

        return after

    def run(
        self, override: Override, positions: Sequence[int] | None = None, identity: bool = False
    ) -> dict[str, Seen]:
        """Run the model once.

        Args:
            override: Gives the output of a module by its name inside a layer, None for its own.
            positions: The positions of the tokens, None for those of the observer.
            identity: Whether norms change nothing.

        Returns:
            The attention of each layer, by its name.
        """
        self.seen = {}
        self._override = override
        self._identity = identity
        given: dict[str, Any] = {"input_ids": torch.full((1, TOKENS), 5)}
        parameters = inspect.signature(self.model.forward).parameters
        if self.takes_positions:
            given["position_ids"] = torch.tensor([list(positions or self.positions)])
        if "use_cache" in parameters:
            given["use_cache"] = False
        with torch.no_grad(), _Products(self):
            self.model(**given)
        return self.seen

    def reaches(self, layer: str, source: str, target: str) -> bool:
        """Whether what a module of a layer is given is computed from what another one gives.

        Args:
            layer: The name of the layer.
            source: The module whose numbers are lost (NaN), by its name inside the layer.
            target: The other one, likewise.
        """

        def lose(name: str, output: torch.Tensor) -> torch.Tensor | None:
            is_source = name == source and self.layer == layer
            return torch.full_like(output, float("nan")) if is_source else None

        self._watched = (layer, target)
        self._is_reached = False
        try:
            self.run(lose)
        except Exception:  # a class may look at the numbers
            return False
        finally:
            self._watched = None
        return self._is_reached

    def layers_with_positions(self) -> list[str]:
        """The layers that compute with what rotary modules give.

        Those give numbers that are lost (NaN), and products with weights that are not there are
        zeros again, so that no layer passes them on.
        """

        def lose(module: Module, args: Any, output: Any) -> Any:
            return tree_map(_lost, output)

        hooks = []
        for module in self.model.modules():
            if ROTARY.search(type(module).__name__):
                hooks.append(module.register_forward_hook(lose))
        self.lost = {}
        try:
            self.run(_nothing)
        except Exception:  # a class may look at the numbers
            return []
        finally:
            found = list(self.lost)
            self.lost = None
            for hook in hooks:
                hook.remove()
        return found

    def product(self, queries: Any, keys: Any) -> None:
        """Take note of a product of queries and keys, of shape (..., tokens, width)."""
        self._pending = (queries, keys)

    def attend(self, visible: Any, scores: Any = None) -> None:
        """Take note of the softmax of the last product.

        Args:
            visible: Whether each token sees each other one; None where no mask was found.
            scores: The scores, of shape (..., tokens, keys); None for those that are not seen.
        """
        if not self.layer:
            return
        if self._pending is None:
            self.unknown[self.layer] = None
            return
        queries, keys = (_heads(item) for item in self._pending)
        earlier = self.seen.get(self.layer)
        self.seen[self.layer] = Seen(
            queries=queries,
            keys=keys,
            visible=None if visible is None else np.asarray(visible),
            score=None if scores is None else float(scores.detach().flatten()[0]),
            count=earlier.count + 1 if earlier else 1,
            before=list(self._ran),
            given=dict(self._given),
        )
        self._pending = None


def _lost(item: Any) -> Any:
    """A tensor of the same shape whose numbers are lost."""
    if isinstance(item, torch.Tensor) and item.is_floating_point():
        return torch.full_like(item, float("nan"))
    return item


def _return_input(*args: Any, **given: Any) -> Any:
    return args[0] if args else next(iter(given.values()))


def _nothing(name: str, output: torch.Tensor) -> None:
    return None


def _is_norm_of(module: Module, name: str, given: Any, output: torch.Tensor) -> bool:
    """Whether a module is a norm, which returns the shape that it is given."""
    return bool(NORM.search(f"{name} {type(module).__name__}")) and _is_like(given, output)


def _is_like(given: Any, output: Any) -> bool:
    """Whether an output has the shape and dtype of what was given."""
    if not (isinstance(given, torch.Tensor) and isinstance(output, torch.Tensor)):
        return False
    return bool(given.shape == output.shape and given.dtype == output.dtype)


def _outermost(name: str, modules: Mapping[str, Module]) -> str:
    """The first numbered module of a list on the way to a module; empty without one."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.isdigit() and isinstance(modules.get(".".join(parts[:index])), ModuleList):
            return ".".join(parts[: index + 1])
    return ""


def _heads(tensor: Any) -> Numbers:
    """Queries or keys as numbers of shape (heads, tokens, width)."""
    flat = tensor.detach().reshape(-1, *tensor.shape[-2:])
    numbers: Numbers = flat.double().numpy()
    return numbers


class _Products(TorchFunctionMode):  # type: ignore[misc]
    """Sees the products of queries and keys, and the softmax behind them."""

    def __init__(self, observer: AttentionObserver) -> None:
        super().__init__()
        self.observer = observer

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        result = func(*args, **given)
        if not self.observer.layer:
            return result
        if self.observer.lost is not None and _is_lost(result):
            self.observer.lost[self.observer.layer] = None
        name = getattr(func, "__name__", "")
        if name in PRODUCTS and _is_scores(args[0], args[1], result):
            self.observer.product(args[0], args[1].transpose(-1, -2)[..., :TOKENS, :])
        elif name == "baddbmm" and _is_scores(args[1], args[2], result):
            self.observer.product(args[1], args[2].transpose(-1, -2))
        elif name == "einsum" and isinstance(args[0], str) and len(args) == 3:
            self._einsum(args[0], args[1], args[2], result)
        elif name == "softmax" and isinstance(result, torch.Tensor):
            scores = args[0] if args else given["input"]
            is_square = scores.dim() >= 3 and scores.shape[-2] == TOKENS
            # other keys may come behind those of the tokens: sinks, or compressed ones
            has_all = scores.shape[-1] in (TOKENS, TOKENS + 1)
            has_more = scores.dim() >= 4 and scores.shape[-1] > TOKENS
            if is_square and (has_all or has_more):
                visible = scores[..., :TOKENS].reshape(-1, TOKENS, TOKENS)[0] > MASKED
                self.observer.attend(visible, scores)
        elif name == "scaled_dot_product_attention":
            queries, keys = args[0], args[1]
            if queries.shape[-2] == TOKENS == keys.shape[-2]:
                self.observer.product(queries, keys)
                self.observer.attend(None)
        return result

    def _einsum(self, equation: str, first: Any, second: Any, result: Any) -> None:
        """See a product that is written as letters, such as bhqd,bhkd->bhqk."""
        match = re.fullmatch(r"(\w+),(\w+)->(\w+)", equation.replace(" ", ""))
        if match is None or result.shape[-2:] != (TOKENS, TOKENS):
            return
        ours, theirs, out = match.groups()
        summed = set(ours) & set(theirs) - set(out)
        if len(summed) != 1 or out[-2] not in ours or out[-1] not in theirs:
            return
        width = summed.pop()
        sides = []
        for letters, tensor, token in ((ours, first, out[-2]), (theirs, second, out[-1])):
            order = [letters.index(item) for item in letters if item not in (token, width)]
            sides.append(tensor.permute(*order, letters.index(token), letters.index(width)))
        self.observer.product(sides[0], sides[1])


def _is_lost(result: Any) -> bool:
    """Whether numbers of a result are lost."""
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return False
    if type(result) is not torch.Tensor or not result.numel():
        return False
    with torch._C.DisableTorchFunction():
        return bool(result.isnan().any())


def _is_scores(first: Any, second: Any, result: Any) -> bool:
    """Whether a product is one of queries and keys."""
    if not all(isinstance(item, torch.Tensor) and item.dim() >= 3 for item in (first, second)):
        return False
    if first.shape[-1] in (TOKENS, TOKENS + 1):
        return False
    if result.shape[-2:] == (TOKENS, TOKENS):
        return True
    has_more_keys = result.dim() >= 4 and result.shape[-1] > TOKENS
    return bool(has_more_keys and result.shape[-2] == TOKENS)


def spread(context: int) -> list[int]:
    """Positions from 0 to the last one of a context, ever further from each other."""
    last = max(context - 1, TOKENS - 1)
    positions = [0]
    for index in range(1, TOKENS):
        step = round(last ** (index / (TOKENS - 1)))
        positions.append(max(positions[-1] + 1, step))
    return positions


def chosen(name: str, output: torch.Tensor) -> torch.Tensor:
    """Random numbers in place of an output, the same for every token."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    shape = _of_one_token(output)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float32)
    return numbers.expand(output.shape).contiguous().to(output.dtype)


def numbered(output: torch.Tensor) -> torch.Tensor:
    """The number of each row, from 1, in place of an output."""
    rows = torch.arange(1.0, output.shape[-1] + 1)
    return rows.expand(output.shape).contiguous().to(output.dtype)


def _of_one_token(output: torch.Tensor) -> list[int]:
    """The shape of an output whose tokens are all the same."""
    shape = list(output.shape)
    for index, size in enumerate(shape[:-1]):
        if size == TOKENS:
            shape[index] = 1
    return shape


@dataclass(frozen=True)
class Rotation:
    """How the numbers of a head rotate."""

    start: int
    """The first dimension that rotates."""

    pairs: Literal["half", "interleaved"]
    """Which dimensions are a pair, behind the rotation."""

    inv_freq: tuple[float, ...]
    """Radians per position for each pair; 0 for pairs that stand still between others."""

    grows: tuple[float, ...]
    """The length at each position, in parts of that at the first."""

    @property
    def width(self) -> int:
        """How many dimensions rotate."""
        return 2 * len(self.inv_freq)

    def pair(self, index: int) -> tuple[int, int]:
        """The two dimensions of a pair."""
        return _pairs(self.pairs, self.start, len(self.inv_freq))[index]

    def is_like(self, other: Rotation, tolerance: float = 1e-4) -> bool:
        """Whether both rotate the same dimensions by the same angles."""
        if (self.start, self.pairs, self.width) != (other.start, other.pairs, other.width):
            return False
        return bool(np.allclose(self.inv_freq, other.inv_freq, rtol=tolerance, atol=1e-9))


class NotARotation(RopeconvError):
    """Numbers change with the position, and not by a rotation of pairs."""


def measure(numbers: Numbers, positions: Sequence[int]) -> Rotation | None:
    """How queries or keys rotate; None where they are the same at every position.

    Args:
        numbers: Queries or keys, of shape (heads, tokens, width); they differ only by the position
            of the token.
        positions: The positions of the tokens, the first of them 0.

    Raises:
        NotARotation: They change in another way.
    """
    numbers = numbers[:HEADS]
    first = numbers[:, 0]
    size = float(np.sqrt((first**2).mean())) or 1.0
    lengths = np.sqrt((numbers**2).sum((0, 2)))
    grows = lengths / (lengths[0] or 1.0)
    numbers = numbers / np.where(grows > 0, grows, 1.0)[None, :, None]

    moved = np.abs(numbers - first[:, None]).max((0, 1)) > MOVED * size
    dims = np.flatnonzero(moved)
    if not len(dims):
        if np.abs(grows - 1).max() > EQUAL:
            return Rotation(0, "half", (), tuple(grows.tolist()))
        return None

    runs = np.split(dims, np.flatnonzero(np.diff(dims) > 1) + 1)
    low = int(dims[0])
    span = int(dims[-1]) + 1 - low
    guesses: list[tuple[Literal["half", "interleaved"], int]] = []
    if len(runs) == 2 and len(runs[0]) == len(runs[1]):
        guesses.append(("half", int(runs[1][0]) - low))
    if span % 2 == 0:
        guesses += [("half", span // 2), ("interleaved", span // 2)]
    for pairs, count in guesses:
        if low + 2 * count > numbers.shape[-1]:
            continue
        angles = _angles(numbers, _pairs(pairs, low, count), size)
        if angles is None:
            continue
        inv_freq = _frequencies(angles, positions)
        at = np.asarray(positions, float)[:, None] * inv_freq
        error = np.abs(np.angle(np.exp(1j * (at - angles))))
        if (error > 0.01 + 3e-7 * np.abs(at)).any():
            raise NotARotation("its angles are not proportional to the position")
        if inv_freq.max() <= 0:  # NanoChat turns queries and keys the other way
            inv_freq = -inv_freq
        if inv_freq.min() < 0:
            raise NotARotation("some of its pairs rotate backwards")
        return Rotation(low, pairs, tuple(inv_freq.tolist()), tuple(grows.tolist()))
    raise NotARotation("its queries or keys change with the position, and not in pairs")


def _pairs(pairs: str, start: int, count: int) -> list[tuple[int, int]]:
    """The dimensions of each pair."""
    if pairs == "half":
        return [(start + index, start + count + index) for index in range(count)]
    return [(start + 2 * index, start + 2 * index + 1) for index in range(count)]


def _angles(numbers: Numbers, pairs: Sequence[tuple[int, int]], size: float) -> Numbers | None:
    """The angle of each token and pair; None where some pair does not keep its length."""
    real = numbers[:, :, [first for first, _ in pairs]]
    imaginary = numbers[:, :, [second for _, second in pairs]]
    points = real + 1j * imaginary
    lengths = np.abs(points)
    if np.abs(lengths - lengths[:, :1]).max() > EQUAL * size:
        return None
    turned = (points * np.conj(points[:, :1])).sum(0)
    whole = (lengths[:, :1] ** 2).sum(0)
    # all heads rotate by the same angle
    if np.abs(np.abs(turned) - whole).max() > EQUAL * whole.max():
        return None
    angles: Numbers = np.angle(turned)
    return angles


def _frequencies(angles: Numbers, positions: Sequence[int]) -> Numbers:
    """Radians per position of each pair, from angles at positions that are ever further apart."""
    found = angles[1] / positions[1]
    for row, position in zip(angles[2:], positions[2:], strict=True):
        turns = np.rint((found * position - row) / (2 * np.pi))
        refined = (row + 2 * np.pi * turns) / position
        # beyond that, float32 does not have the digits
        found = np.where(np.abs(found) * position > 2000, found, refined)
    moves = np.abs(found) * positions[-1] > MOVED
    frequencies: Numbers = np.where(moves, found, 0.0)
    return frequencies
