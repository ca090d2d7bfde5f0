"""The scaling keys of a GGUF header: type, factor, ramp, and the attention factor that follows.

Source: src/llama-model.cpp:1400-1470 (keys), src/llama-context.cpp:178-214 (attention factor).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import BadSource
from ...rope.errors import shown
from ...rope.forms import LARGEST_FLOAT32, Form, InterpolatedForm, Plain, Yarn
from ...rope.ramps import RampApproximation, approximate_ramp
from ...rope.schedule import Schedule
from .archs import Arch, HeaderKeys


class ArchKeys:
    """Typed access to the keys of one architecture, by their names without `ARCH.`."""

    def __init__(self, keys: HeaderKeys, arch: Arch) -> None:
        self.keys = keys
        self.arch = arch
        self.prefix = arch.name + "."

    def get(self, key: str) -> Any:
        """Return the value of a key, decoded; None where it is absent."""
        return self.keys.get(self.prefix + key)

    def whole(self, key: str, default: int | None = None) -> int:
        """Return the value of a key that is a whole number of at least 0.

        Args:
            key: Its name.
            default: For an absent key, None where llama.cpp requires the key.

        Raises:
            BadSource: For another value.
        """
        value = self.get(key)
        if value is None and default is None:
            raise BadSource(
                f"the header has no {self.prefix}{key}, which llama.cpp requires; fetch the file"
                " again"
            )
        if value is None:
            value = default

        is_bool = isinstance(value, bool)  # which is an int in Python
        if is_bool or not isinstance(value, int) or value < 0:
            raise BadSource(
                f"the header has {self.prefix}{key} = {shown(value)}; it must be a whole number of"
                " at least 0"
            )
        return value

    def number(self, key: str, default: float, prefix: str | None = None) -> float:
        """Return the value of a key that is a finite f32.

        Args:
            key: Its name.
            default: For an absent key.
            prefix: The prefix of the name, by default `ARCH.`.

        Raises:
            BadSource: For another value.
        """
        if prefix is None:
            prefix = self.prefix
        name = f"{prefix}{key}"
        value = self.keys.get(name, default)
        is_finite = isinstance(value, float) and abs(value) <= LARGEST_FLOAT32  # not NaN either
        if not is_finite:
            raise BadSource(f"the header has {name} = {shown(value)}; it must be a finite f32")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """Return the value of a key as a string; `default` where it is absent."""
        value = self.get(key)
        if value is None:
            return default
        return str(value)


BETA_FAST = 32.0
"""The fast beta of architectures that read no key for it."""
BETA_SLOW = 1.0
"""The slow beta of architectures that read no key for it."""
YARN_SLOPE = 0.1
"""The slope of YaRN's attention factor 0.1 ln s + 1 (ggml_rope_yarn)."""
TYPES = ("none", "linear", "yarn", "longrope")
"""The values of rope.scaling.type that llama.cpp knows."""
HARMLESS = {
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
}


@dataclass(frozen=True)
class ScalingKeys:
    """The scaling that the keys of a header ask for."""

    kind: str
    """rope.scaling.type, or "linear"."""

    theta: float
    """The base."""

    factor: float
    """The scale factor; 1 under "none"."""

    yarn: bool
    """Whether frequencies are ramped and the attention factor is that of yarn."""

    original: int
    """Tokens for which the ramp is computed."""

    context: int
    """Declared tokens."""

    def form(self, file: ArchKeys) -> Form:
        """Return the form of the frequencies without rope tensors, with the ramp of `file`."""
        arch = file.arch
        fast = file.number("rope.scaling.yarn_beta_fast", arch.beta_fast)
        slow = file.number("rope.scaling.yarn_beta_slow", 1.0)
        if self.factor == 1 or arch.fixed:
            return Plain(self.theta)
        if self.yarn:
            betas = (fast, slow) if arch.betas else (BETA_FAST, BETA_SLOW)
            return Yarn(self.theta, self.factor, self.original, *betas)
        return InterpolatedForm(self.theta, self.factor)


def read_scaling(file: ArchKeys, head_dim: int) -> ScalingKeys:
    """Return the scaling of a header, as llama.cpp reads its keys (src/llama-model.cpp).

    Args:
        file: Its keys.
        head_dim: Width of a head, for rope.scaling.alpha.

    Raises:
        BadSource: Where llama.cpp would abort or numbers are impossible.
    """
    arch = file.arch
    kind = file.text("rope.scaling.type", "linear")
    if kind not in TYPES:
        raise BadSource(
            f"rope.scaling.type is {shown(kind)}, on which llama.cpp aborts; set one of"
            f" {', '.join(TYPES)}"
        )

    context = file.whole("context_length")
    original = file.whole("rope.scaling.original_context_length", context)
    theta = file.number(arch.theta_key, 10000.0)
    factor = stored_factor(file)
    if context < 1 or original < 1:
        raise BadSource(
            f"the header declares {context} tokens, trained for {original}; download it again"
        )

    # the base of NTK at every length, as Hunyuan has it: theta * alpha^(d / (d - 2))
    alpha = file.number("rope.scaling.alpha", 0.0) if arch.alpha else 0.0
    if alpha > 0 and head_dim > 2:
        theta *= alpha ** (head_dim / (head_dim - 2))
    if arch.fixed:  # the code of some architectures has constants in place of the keys
        theta = 10000.0
    if kind == "none":
        factor = 1.0
    if theta <= 1 or factor <= 0:
        raise BadSource(
            f"the header has {arch.theta_key} {theta:g} and factor {factor:g}; download it again"
        )
    return ScalingKeys(
        kind=kind,
        theta=theta,
        factor=factor,
        yarn=_has_ramp(file, kind),
        original=original,
        context=context,
    )


def stored_factor(file: ArchKeys) -> float:
    """Return the factor that a header has, whatever its scaling type is; 1 where it has none."""
    # rope.scale_linear is the older key, and a factor of 0 means 1
    older_factor = file.number("rope.scale_linear", 1.0)
    return file.number("rope.scaling.factor", older_factor) or 1.0


def _has_ramp(file: ArchKeys, kind: str) -> bool:
    """Whether yarn_ext_factor, or the type where it is absent or negative, asks for yarn's ramp."""
    share = -1.0
    if file.arch.ext_factor:
        share = file.number("rope.scaling.yarn_ext_factor", -1.0)
    if share > 0 and share != 1:
        raise BadSource(
            f"the header has rope.scaling.yarn_ext_factor {share:g}; only 0 and 1 can be read: set"
            " 1"
        )
    if share < 0:
        return kind == "yarn"
    return share == 1


class AttentionFactors(NamedTuple):
    """The factors of logits that llama.cpp computes from the keys of a header."""

    extended: float
    """Multiplies cos and sin in the layers that an extension changes."""

    window: float
    """Multiplies cos and sin in layers with a window that is not extended."""

    softmax_scale: float
    """Multiplies all logits of MLA, with the attention factor; 1 for other models."""


def attention_factors(file: ArchKeys, scaling: ScalingKeys) -> AttentionFactors:
    """Return the attention factors of extended layers and of window layers, and the softmax scale.

    Let m(k) = 1 + 0.1 k ln s, with s the factor of the scaling. llama.cpp computes in three steps:

    1. llama-context.cpp:178-214 hands a factor to ggml. It is attn_factor. For YaRN with DeepSeek's
       mscale and mscale_all_dim, it is attn_factor * m(mscale) / m(mscale_all_dim) / m(1).
    2. ggml multiplies it by m(1) in layers with YaRN, and leaves it in layers with a window.
    3. The softmax scale, which only MLA has, is the square of the factor of step 1 times m(1) times
       m(mscale_all_dim) (deepseek2.cpp:433-443).

    For YaRN with s = 4 and no other keys the results are 1 + 0.1 ln 4 = 1.139, 1, and 1.

    Args:
        file: The keys of the header. `file.arch` says what llama.cpp reads for the architecture.
        scaling: The scaling keys.
    """
    # attn_factor; Grok has a second key for it (grok.cpp:25), which llama.cpp overwrites for YaRN
    arch = file.arch
    handed_to_ggml = file.number("rope.scaling.attn_factor", 1.0)
    reads_second_key = arch.ext_factor
    if reads_second_key and not scaling.yarn:
        handed_to_ggml *= file.number("rope.scaling.yarn_attn_factor", 1.0)

    # mscale_all_dim, 0 in architectures that do not read its key; architectures with MLA have a
    # tenth of it in the key
    mscale_all_dim = 0.0
    reads_mscale_all_dim = arch.log_multiplier
    if reads_mscale_all_dim:
        mscale_all_dim = file.number("rope.scaling.yarn_log_multiplier", 0.0)
    if arch.softmax:
        mscale_all_dim /= YARN_SLOPE

    # 0.1 ln s, m(1), which is YaRN's own attention factor, and m(mscale_all_dim)
    slope = 0.0
    if scaling.factor > 1:
        slope = YARN_SLOPE * math.log(scaling.factor)
    m_1 = 1 + slope
    m_all_dim = 1 + slope * mscale_all_dim

    # step 1; no key has mscale: it is mscale_all_dim in some architectures, and 1 in others
    mscale_is_all_dim = arch.same_mscale
    if scaling.yarn and mscale_all_dim:
        m_mscale = m_all_dim if mscale_is_all_dim else m_1
        handed_to_ggml *= m_mscale / m_all_dim / m_1

    # step 2, for extended layers; window layers have what was handed to ggml
    extended = handed_to_ggml
    if scaling.yarn:
        extended = handed_to_ggml * m_1

    # step 3, for architectures with MLA
    has_softmax_scale = arch.softmax
    softmax_scale = 1.0
    if has_softmax_scale:
        softmax_scale = (handed_to_ggml * m_1 * m_all_dim) ** 2

    # some architectures rotate without any attention factor
    if arch.no_attention_factor or arch.fixed:
        return AttentionFactors(1.0, 1.0, softmax_scale)
    return AttentionFactors(extended, handed_to_ggml, softmax_scale)


def dead_keys(file: ArchKeys, scaling: ScalingKeys) -> tuple[str, ...]:
    """Return the scaling keys of a file that llama.cpp ignores, such as ("yarn_beta_fast",).

    It reads each of these keys for other architectures, or with another rope.scaling.type.

    Args:
        file: The keys of the header. `file.arch` says which keys llama.cpp reads for the
            architecture, e.g. `betas` is True if it reads yarn_beta_fast and yarn_beta_slow.
        scaling: The scaling keys.
    """
    arch = file.arch
    ignored = []

    # keys of YaRN that the code of the architecture does not read
    if not arch.ext_factor:
        ignored += ["yarn_ext_factor", "yarn_attn_factor"]
    if not arch.betas:
        ignored += ["yarn_beta_fast", "yarn_beta_slow"]
    if not arch.log_multiplier:
        ignored.append("yarn_log_multiplier")

    # Some architectures always rotate with the base 10000, without any scaling. With MLA, the
    # factor still sets the softmax scale.
    ignores_scaling = arch.fixed and not arch.softmax
    if ignores_scaling or scaling.kind == "none":
        ignored.append("factor")
    if ignores_scaling or arch.no_attention_factor:
        ignored.append("attn_factor")

    # the ignored keys that the file has; a default of llama.cpp (HARMLESS) changes nothing
    dead = []
    for key in ignored:
        value = file.get(f"rope.scaling.{key}")
        is_default = value == HARMLESS.get(key)
        if value is not None and not is_default:
            dead.append(key)
    return tuple(dead)


def llamacpp_ramp(schedule: Schedule, arch: Arch) -> RampApproximation | None:
    """The ramp that llama.cpp computes in place of that of a schedule; None where it is the same.

    It rounds the ends of every ramp (ggml_rope_yarn_corr_dims in ggml/src/ggml.c).
    """
    form = schedule.form
    if not isinstance(form, Yarn):
        return None
    betas = (form.beta_fast, form.beta_slow) if arch.betas else (BETA_FAST, BETA_SLOW)
    return approximate_ramp(schedule, *betas)


def why_other_ramp(form: Yarn, arch: Arch) -> str:
    """Return the reason for `llamacpp_ramp`, as words that follow "llama.cpp"."""
    reasons = []
    if not form.truncate:
        reasons.append("always rounds the ends of the ramp")
    if not arch.betas and (form.beta_fast, form.beta_slow) != (BETA_FAST, BETA_SLOW):
        reasons.append(f"computes the betas 32 and 1 for {arch.name}")
    return " and ".join(reasons)
