"""GGUF files in llama.cpp, which runs in processes of its own.

`LlamaCppEngine` runs a file, also with a schedule as overrides of metadata keys. The overrides
follow from the schedule and not from an encoding, so that the reference shares no code with the
output.

llama.cpp aborts its process on some errors. So `LlamaCppProcess` starts `llamacpp_program` in
another process, and `LlamaCppProcess.ask` calls a method of the `LlamaModel` there: it sends the
name and the arguments as a line of JSON, and waits for the line with the result.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..environment import require, without_secrets
from ..formats.disk import cores, human
from ..formats.files import scratch
from ..rope.errors import RopeconvError
from ..rope.forms import InterpolatedForm, Plain, Yarn
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.archs import Arch, find_arch
from ..runtimes.llamacpp.scaling import YARN_SLOPE
from .engine import Engine, Progress, TokenLosses
from .llamacpp_program import Load, LoadedModel, Message, Override
from .process import ProgramProcess

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
MOST_SECONDS_WITHOUT_PROGRESS = 3600.0
"""Seconds without an answer and without another batch read after which llama.cpp is given up."""
COMMAND = [sys.executable, "-P", "-m", "ropeconv.engines.llamacpp_program"]
"""Starts the program; -P keeps modules of the current folder out."""


class LlamaCppError(RopeconvError):
    """llama.cpp cannot run a file."""

    words: str
    """Why, as llama.cpp says it; empty where it did not answer in time."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words


class LlamaCppProcess(ProgramProcess):
    """llama.cpp with one model in another process, which runs while this is entered.

    Entering loads the model, and raises LlamaCppError where llama.cpp cannot load the file.
    """

    loaded: LoadedModel
    """The properties of the model."""

    def __init__(self, load: Load, patience: float = MOST_SECONDS_WITHOUT_PROGRESS) -> None:
        """Name the model, and the seconds after which an answer is given up."""
        # without the variable, ggml starts a debugger when it aborts
        super().__init__(COMMAND, {**without_secrets(), "GGML_NO_BACKTRACE": "1"})
        self.load = load
        self.name = Path(load.path).name
        self.patience = patience

    def start(self) -> None:
        """Start llama.cpp and load the model."""
        require("llama_cpp", "running a GGUF file")
        super().start()
        self.loaded = self._call(LoadedModel, self.load)

    def ask(
        self, kind: type[T], method: str, *arguments: object, progress: Progress | None = None
    ) -> T:
        """Call a method of the `LlamaModel` in the other process, and return its result.

        `ask(list[int], "encode", "text")` returns `LlamaModel.encode("text")`.

        Args:
            kind: The type of the result, by which its JSON is decoded.
            method: The name of the method.
            *arguments: The arguments of the method, as values that JSON can express.
            progress: Called with the number of tokens that llama.cpp has read since the last call.

        Raises:
            LlamaCppError: llama.cpp fails or does not answer in time; the process ends then.
        """
        if self.process.returncode is not None:
            raise RopeconvError(
                f"llama.cpp has ended after a failure with {self.name}; load it again"
            )
        progress = progress or Progress()
        return self._call(kind, [method, *arguments], progress.advance)

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens before every text."""
        return self.loaded.prefix

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without the prefix."""
        return self.ask(list[int], "encode", text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        return self.ask(str, "decode", list(ids))

    def _call(
        self, kind: type[T], request: object, advance: Callable[[int], None] = lambda count: None
    ) -> T:
        """Send a request to the program and return the answer; a failure ends the program.

        The program answers in lines too: some that say how many tokens were read, and then one with
        the result.

        Args:
            kind: The type of the answer.
            request: A model to load, or the name of a method and its arguments.
            advance: Called with the tokens of each line before the answer.
        """
        # patience is for each line: a long sequence reports every batch that it has read
        try:
            self.send(msgspec.json.encode(request))
            while True:
                line = self.receive(self.patience)
                if not line:  # the program has ended
                    code, stderr = self.end()
                    words = last_words(stderr, code)
                    raise LlamaCppError(f"llama.cpp cannot run {self.name}: {words}", words)
                # the answer is JSON inside of the message, decoded by the type of the caller
                message = msgspec.json.decode(line, type=Message)
                if message.answer:
                    return msgspec.json.decode(message.answer, type=kind)
                advance(message.read)
        except TimeoutError:
            self.stop()
            raise LlamaCppError(
                f"llama.cpp did not read a batch of {self.name} within {self.patience:,.0f}"
                " seconds; give shorter sequences, or use a faster machine"
            ) from None
        except BaseException:
            self.stop()
            raise


FOLDERS = re.compile(r"^/\S*/(?=\S+:\d+: )")
"""The folder in which llama.cpp was compiled, before the name of a source file."""
FAILURE_WORDS = (
    "ASSERT",
    "error loading model",
    "missing",
    "wrong",
    "invalid",
    "unknown",
    "RuntimeError",
    "error",
)
"""Words in the lines that name a failure, the surest first; others have some of them too."""
NO_TOKEN = re.compile(r"error loading model vocabulary: .*::at")
"""The C++ exception of llama.cpp for a token that the vocabulary does not have."""
PHI3 = (
    " (the vocabulary lacks a token: llama.cpp needs <unk>, <s>, </s> and <|endoftext|> where"
    " general.name has phi3)"
)


def last_words(stderr: str, code: int) -> str:
    """Return the line of stderr that names a failure, with the signal that ended the process.

    Args:
        stderr: The output of llama.cpp.
        code: The return code of the process, negative for a signal.
    """
    line = FOLDERS.sub("", _telling_line(stderr))[:300]
    if NO_TOKEN.search(line):
        line += PHI3
    if code < 0:
        line += f" (ended by signal {-code})"
    return line


def _telling_line(stderr: str) -> str:
    """Return the line of llama.cpp's output that names a failure.

    It is the first line with the surest of `FAILURE_WORDS`, or the first line where none has any.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines:
        return "it said nothing"
    for word in FAILURE_WORDS:
        for line in lines:
            if word in line:
                return line
    return lines[0]


class LlamaCppEngine(Engine):
    """A GGUF file as llama.cpp runs it.

    It runs in a new process for every call, or in one process while it is `opened`.
    """

    def __init__(
        self,
        path: Path,
        overrides: Mapping[str, Override] | None = None,
        patience: float = MOST_SECONDS_WITHOUT_PROGRESS,
        **options: Any,
    ) -> None:
        """Name the file; nothing runs yet.

        Args:
            path: The file, or the first of several shards.
            overrides: Types and values of metadata keys that replace those of the file.
            patience: Seconds without an answer after which llama.cpp is given up.
            **options: Other fields of `Load`. By default it computes on the CPU, as exactly as
                llama.cpp can.
        """
        self.path = path
        self.overrides = dict(overrides or {})
        self.patience = patience
        self.options = options
        self.process: LlamaCppProcess | None = None
        self.runtime = runtime()

    @property
    def load(self) -> Load:
        """The model and how it runs: the first line for the program."""
        options = {"threads": threads(), **self.options}
        return Load(path=str(self.path), overrides=self.overrides, **options)

    @contextmanager
    def opened(self) -> Iterator[LlamaCppEngine]:
        """Run all calls inside the block in one process.

        Raises:
            RopeconvError: llama.cpp cannot load the file.
        """
        with LlamaCppProcess(self.load, self.patience) as self.process:
            try:
                yield self
            finally:
                self.process = None

    def logits(
        self,
        ids: Sequence[int],
        kept: Sequence[int],
        progress: Progress | None = None,
        positions: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the logits after some tokens, float32 [len(kept), vocabulary].

        Args:
            ids: All tokens.
            kept: Rising indices into `ids`.
            progress: Callbacks, which are called while tokens are read.
            positions: The positions of all tokens, rising, in blocks without gaps; by default from
                0 on.
        """
        import torch

        return torch.from_numpy(self.logits_array(ids, kept, progress, positions))

    def logits_array(
        self,
        ids: Sequence[int],
        kept: Sequence[int],
        progress: Progress | None = None,
        positions: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Return the logits after some tokens as an array of numpy, for machines without torch.

        Args:
            ids: All tokens.
            kept: Rising indices into `ids`.
            progress: Callbacks, which are called while tokens are read.
            positions: The positions of all tokens, rising, in blocks without gaps; by default from
                0 on.

        Returns:
            float32 [len(kept), vocabulary].
        """
        # logits of long texts are gigabytes, so they come by a file and not by the pipe of answers
        with scratch() as folder:
            out = str(folder / "logits.npy")
            tokens = list(ids)
            wanted = list(kept)
            if positions is None:
                self._call_model(NoneType, "logits", tokens, wanted, out, progress=progress)
            else:  # positions with gaps, which llama.cpp does not read in one sequence
                places = list(positions)
                self._call_model(
                    NoneType, "spread_logits", tokens, places, wanted, out, progress=progress
                )
            array: NDArray[np.float32] = np.load(out)
            return array

    def states_array(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the last hidden states of tokens, float32 [len(ids), width], without a pooling.

        Args:
            ids: All tokens, at most as many as a batch has.
        """
        with scratch() as folder:
            out = str(folder / "states.npy")
            self._call_model(NoneType, "states", list(ids), out)
            array: NDArray[np.float32] = np.load(out)
            return array

    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        loss, right = self._call_model(
            tuple[bytes, bytes], "losses", list(ids), list(targets), progress=progress
        )
        return TokenLosses(np.frombuffer(loss), np.frombuffer(right, bool))

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        return self._call_model(list[int], "generate", list(ids), count)

    def _call_model(
        self, kind: type[T], method: str, *arguments: object, progress: Progress | None = None
    ) -> T:
        """Call a method of `LlamaModel`, in the open process or a new one."""
        if self.process is not None:
            return self.process.ask(kind, method, *arguments, progress=progress)
        with LlamaCppProcess(self.load, self.patience) as process:
            return process.ask(kind, method, *arguments, progress=progress)


def threads() -> int:
    """Return the threads of the CPU to use.

    OMP_NUM_THREADS counts where it is set, otherwise one for each core of this process.
    """
    number = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if number.isdecimal() and int(number) > 0:
        return int(number)
    return cores()


def runtime() -> str:
    """Return name and version of llama.cpp; without the version where it is not installed."""
    try:
        return f"llama.cpp (llama-cpp-python {version('llama-cpp-python')})"
    except PackageNotFoundError:
        return "llama.cpp"


LONGEST = 300.0
"""Seconds without an answer until a file is given up.

100 GB load in some seconds, from a network disk in tens.
"""
DECODED = 5
"""Tokens that `why_not_run` decodes."""


def available() -> bool:
    """Return whether llama.cpp is installed."""
    return find_spec("llama_cpp") is not None


class DecodeTest(NamedTuple):
    """Whether llama.cpp decodes tokens with a file. Both fields are empty where it does."""

    failure: str = ""
    """Why it cannot, such as "error loading model: missing tensor 'output.weight'"."""

    untested: str = ""
    """Why that is not known."""


def why_not_run(path: Path) -> DecodeTest:
    """Return whether llama.cpp decodes five tokens with a GGUF file: a failure, or nothing wrong.

    It decodes a batch of four tokens and one more, since llama.cpp may compute a batch by other
    kernels than a single token. Two cases are not tested: a file that is larger than the memory,
    which is only loaded, and a file that is loaded but does not answer for `LONGEST` seconds.

    Args:
        path: The file, or the first of several shards.

    Returns:
        `failure`, the reason why llama.cpp cannot run the file, or `untested`; both may be empty.
    """
    size = path.stat().st_size
    load = Load(path=str(path), threads=threads(), batch=4, cache="f16", plain=False, repack=False)
    process = LlamaCppProcess(load, LONGEST)
    try:
        with process:
            if size > _memory():
                larger = f"the file ({human(size)}) is larger than the memory"
                return DecodeTest(untested=f"{larger}, so llama.cpp only loaded it")

            # any tokens will do, such as 1 to 6. For the losses of those with the indices 4 and 5,
            # llama.cpp reads the five tokens before: a batch of four, and one more
            tokens = [token % process.loaded.vocabulary for token in range(1, 7)]
            losses, _ = process.ask(tuple[bytes, bytes], "losses", tokens, [4, 5])
    except LlamaCppError as problem:
        if problem.words:  # llama.cpp has refused the file
            return DecodeTest(failure=problem.words)

        # It did not answer in time. A large model may only be slow, once it is loaded: the process
        # has the attribute `loaded` from then on (`start` sets it).
        was_loaded = "loaded" in vars(process)
        if was_loaded:
            slow = f"decoded no five tokens within {LONGEST:g} seconds"
            return DecodeTest(untested=f"llama.cpp loaded the file and {slow}")
        return DecodeTest(failure=f"it did not load within {LONGEST:g} seconds")

    if np.isnan(np.frombuffer(losses)).any():
        return DecodeTest(
            failure="it computes NaN, as it does from weights that are too large for f16"
        )
    return DecodeTest()


def _memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


SMALLEST_MSCALE = 1e-6
"""Below it a multiplier is written as 0."""
BETAS_OF_LLAMACPP = (32.0, 1.0)
"""beta_fast and beta_slow of the ramp that llama.cpp computes where it reads no keys for them."""
ORIGINAL_KEY = "rope.scaling.original_context_length"


def overrides(schedule: Schedule, arch: str, spec: RopeSpec) -> dict[str, Override] | None:
    """Return metadata keys that make llama.cpp compute a schedule, in place of the keys in a file.

    They are given to llama.cpp when it loads the file. A key cannot be removed from the file then,
    so every key that the architecture reads and the file may have is set, also to its default.

    Args:
        schedule: The frequencies and factors to compute, and the context.
        arch: The GGUF architecture, such as "llama", with which the keys begin.
        spec: The RoPE of the source, whose layers with a window may have a base of their own.

    Returns:
        The type and the value of each key, such as {"llama.rope.freq_base": ("float", 1e6),
        "llama.rope.scaling.type": ("str", "yarn"), "llama.rope.scaling.factor": ("float", 4.0)}.
        None where keys cannot express the schedule.
    """
    # llama.cpp has keys for a base, for linear scaling, and for YaRN with its own ramp
    arch_entry = find_arch(arch, assumed=True)  # the rules of llama.cpp for the architecture
    schedule = schedule.simplify_crossed()
    form = schedule.form
    if not isinstance(form, (Plain, InterpolatedForm, Yarn)):
        return None
    if isinstance(form, Yarn) and not _computes_ramp(form, schedule, arch_entry):
        return None

    # the base and the scaling
    values: dict[str, Override] = {
        arch_entry.theta_key: ("float", form.theta),
        "context_length": ("int", schedule.context),
    }
    window_theta = _window_theta(form.theta, arch_entry, spec)
    if window_theta is not None:
        values["rope.freq_base_swa"] = ("float", window_theta)
    if arch_entry.alpha:
        # Hunyuan: the base of the schedule has the factor alpha already, and 0 is no factor
        # (src/models/hunyuan-vl.cpp)
        values["rope.scaling.alpha"] = ("float", 0.0)
    if isinstance(form, Plain):
        scaling_factor = 1.0
        # under "none", layers with a window still divide by the factor of the file in seven
        # architectures, such as llama4 (rope_freq_scale_train_swa, src/llama-model.cpp:2333)
        values["rope.scaling.type"] = ("str", "none")
        values["rope.scaling.factor"] = ("float", 1.0)
    else:
        scaling_factor = form.factor
        values["rope.scaling.type"] = ("str", form.kind)
        values["rope.scaling.factor"] = ("float", form.factor)
    is_yarn = isinstance(form, Yarn)
    if isinstance(form, Yarn):
        values[ORIGINAL_KEY] = ("int", form.original_context)
        if arch_entry.betas:
            values["rope.scaling.yarn_beta_fast"] = ("float", form.beta_fast)
            values["rope.scaling.yarn_beta_slow"] = ("float", form.beta_slow)
    if arch_entry.query_length and schedule.query_scaling is not None:
        # the unit of the query scaling; Ministral 3 without the key would take the new context
        values[arch_entry.query_length] = ("int", schedule.query_scaling.length)
    if arch_entry.ext_factor:
        # Grok: these keys count before rope.scaling.type, and beside attn_factor
        # (src/models/grok.cpp)
        values["rope.scaling.yarn_ext_factor"] = ("float", 1.0 if is_yarn else 0.0)
        values["rope.scaling.yarn_attn_factor"] = ("float", 1.0)

    # DeepSeek: the softmax scale of latent attention (MLA) follows from the setting mscale_all_dim.
    # A value of 0 is written too, in place of the value in the file.
    slope = YARN_SLOPE * math.log(max(scaling_factor, 1.0))  # 0.1 ln(scaling factor)
    mscale_all_dim = _mscale_all_dim(schedule, arch_entry, slope)
    if arch_entry.log_multiplier:
        # llama.cpp multiplies the value by 10 in architectures whose logits it scales
        log_multiplier = mscale_all_dim
        if arch_entry.softmax:
            log_multiplier = YARN_SLOPE * mscale_all_dim
        values["rope.scaling.yarn_log_multiplier"] = ("float", log_multiplier)

    # the attention factor; under YaRN, llama.cpp multiplies the value by further factors
    attn_factor = schedule.attention_factor
    if is_yarn:
        attn_factor = _attn_factor_of_yarn(attn_factor, arch_entry, slope, mscale_all_dim)
    values["rope.scaling.attn_factor"] = ("float", attn_factor)
    return {f"{arch}.{key}": value for key, value in values.items()}


def _computes_ramp(form: Yarn, schedule: Schedule, arch: Arch) -> bool:
    """Return whether llama.cpp computes the ramp of a YaRN from metadata keys.

    Args:
        form: The YaRN of the schedule.
        schedule: The frequencies, and the query scaling of the model.
        arch: The rules of llama.cpp for the architecture.
    """
    # it always rounds the ends of a ramp, and computes a step where the ramp ends before it begins
    low, high = form.ends(2 * len(schedule.inv_freq))
    if not form.truncate or low > high:
        return False
    has_betas = arch.betas or (form.beta_fast, form.beta_slow) == BETAS_OF_LLAMACPP
    if not has_betas:
        return False

    # Ministral 3: one key is both the original context of YaRN and the unit of its query scaling
    query_scaling = schedule.query_scaling
    if arch.query_length == ORIGINAL_KEY and query_scaling is not None:
        return query_scaling.length == form.original_context
    return True


def _window_theta(theta: float, arch: Arch, spec: RopeSpec) -> float | None:
    """Return the base for the key of layers with a sliding window; None where the key must stay.

    Args:
        theta: The base of the schedule.
        arch: The rules of llama.cpp for the architecture.
        spec: The RoPE of the source.
    """
    window = arch.window
    if window is None or not window.own_theta:
        return None

    # Gemma 3: these layers keep the base of the source
    if "local" in spec.layers:
        if isinstance(spec.local_form, Plain):
            return spec.local_form.theta
        return None

    # Gemma 2 and Muse Glimmer: they have the base of the others, or they alone rotate
    follows_others = window.scaling == "same" or window.rotates == "window"
    return theta if follows_others else None


def _attn_factor_of_yarn(
    attention_factor: float, arch: Arch, slope: float, mscale_all_dim: float
) -> float:
    """Return the key attn_factor with which llama.cpp computes an attention factor under YaRN.

    With m(k) = 1 + 0.1 k ln s, llama.cpp computes attn_factor * m(mscale) / m(mscale_all_dim)
    (src/llama-context.cpp:187-214 and ggml_rope_yarn), which is solved for attn_factor. For s = 4
    and no mscale_all_dim, YaRN's usual 1.139 = m(1) gives the key 1.

    Args:
        attention_factor: The factor that llama.cpp is to compute.
        arch: The architecture.
        slope: 0.1 ln s, for the scaling factor s.
        mscale_all_dim: As in the key; 0 for a model without it.
    """
    # llama.cpp has no key for mscale: it is 1, but in some architectures equal to mscale_all_dim
    mscale = 1.0
    if arch.same_mscale and mscale_all_dim:
        mscale = mscale_all_dim
    return attention_factor * ((1 + slope * mscale_all_dim) / (1 + slope * mscale))


def _mscale_all_dim(schedule: Schedule, arch: Arch, slope: float) -> float:
    """Return DeepSeek's setting mscale_all_dim for the softmax scale of a schedule.

    The softmax scale is a factor on all logits of latent attention (MLA). llama.cpp computes it
    from the setting (src/models/deepseek2.cpp):

        sqrt(softmax scale) = factor (1 + slope * mscale_all_dim)

    where `factor` is the attention factor, times 1 + slope without YaRN. The equation is solved for
    mscale_all_dim. DeepSeek V3 has the scaling factor 40, the attention factor 1, the softmax scale
    1.874, and so mscale_all_dim = 1.

    Args:
        schedule: The attention factor and the softmax scale.
        arch: The rules of llama.cpp for the architecture.
        slope: 0.1 ln(scaling factor); 0 for a schedule without scaling.

    Returns:
        The setting; 0 for an architecture or a schedule without a softmax scale.
    """
    # `softmax`: the logits are scaled; `log_multiplier`: a metadata key has mscale_all_dim
    scales_logits = arch.softmax and arch.log_multiplier
    if not scales_logits or slope == 0:
        return 0.0

    factor = schedule.attention_factor
    if not isinstance(schedule.form, Yarn):
        factor *= 1 + slope
    root_of_scale = math.sqrt(schedule.softmax_scale)
    mscale_all_dim = (root_of_scale / factor - 1) / slope
    if abs(mscale_all_dim) < SMALLEST_MSCALE:  # 0 with a rounding error
        return 0.0
    return mscale_all_dim
