r"""The formulas of the methods, and MathML of formulas in LaTeX, for pages without a network.

GitHub typesets a block of code with the language `math`; on the site, scripts/gather_pages.py puts
MathML in its place, which browsers draw without a script. `mathml` knows the LaTeX that `FORMULAS`
uses: `\frac`, `\sqrt`, `\text`, indices, powers and Greek letters, with `\,` between the factors of
a product.
"""

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

FORMULAS: dict[str, str] = {
    "theta": r"\omega_i = B^{-2i/r}",
    "theta-for": (
        r"\omega_i = B^{-2i/r}, \quad"
        r" B = \lfloor \theta^{\frac{\ln(L'/(2\,\pi))}{\ln(L/(2\,\pi))}} \rfloor"
    ),
    "theta-bound": r"\sum_{i} \cos(m\,B^{-2i/r}) \ge 0 \quad \text{for all} \quad m < L'",
    "linear": r"\omega_i = \frac{\theta_i}{s}",
    "ntk": r"\omega_i = (\theta\,s^{r/(r-2)})^{-2i/r}",
    "ntk-old": r"\omega_i = (\theta\,s)^{-2i/r}",
    "ntk-fixed": r"\omega_i = \frac{(\theta\,s)^{-2i/r}}{s^{2/r}}",
    "mixed": r"\omega_i = \frac{\theta_i}{\exp(a\,(i+1)^{e})}, \quad a = \frac{\ln(s)}{(r/2)^{e}}",
    "by-parts": (
        r"\omega_i = (1-\gamma_i)\,\frac{\theta_i}{s} + \gamma_i\,\theta_i, \quad"
        r" \gamma_i = \frac{L\,\theta_i/(2\,\pi) - \alpha}{\beta - \alpha} \in [0, 1]"
    ),
    "yarn": (
        r"\omega_i = (1-\rho_i)\,\theta_i + \rho_i\,\frac{\theta_i}{s}, \quad"
        r" \rho_i = \frac{i - d(\beta_{f})}{d(\beta_{s}) - d(\beta_{f})} \in [0, 1], \quad"
        r" A = 0.1\,\ln(s) + 1"
    ),
    "llama3": (
        r"\omega_i = (1-\gamma_i)\,\frac{\theta_i}{s} + \gamma_i\,\theta_i, \quad"
        r" \gamma_i = \frac{L\,\theta_i/(2\,\pi) - l}{h - l} \in [0, 1]"
    ),
    "longrope": (
        r"\omega_i = \frac{\theta_i}{\lambda_i}, \quad A = \sqrt{1 + \frac{\ln(s)}{\ln(L)}}"
    ),
    "piecewise": (
        r"\omega_i = \frac{\theta_i}{s} \quad \text{for} \quad i \ge I, \quad"
        r" \omega_i = (\theta\,s^{r/(2\,I)})^{-2i/r} \quad \text{for} \quad i < I"
    ),
    "inv-freq": r"\omega_i = v_i",
    "dynamic": (
        r"s = \frac{n}{L}; \quad \text{ntk:} \quad"
        r" B = \theta\,(\frac{S\,n}{L} - (S-1))^{r/(r-2)}, \quad \omega_i = B^{-2i/r}"
    ),
}
r"""By method, in the words of docs/methods.md: \omega_i is inv_freq_i, \theta_i = theta^(-2i/r)."""
SYMBOLS = {
    "omega": "ω",
    "theta": "θ",
    "pi": "π",
    "alpha": "\N{GREEK SMALL LETTER ALPHA}",
    "beta": "β",
    "gamma": "\N{GREEK SMALL LETTER GAMMA}",
    "rho": "\N{GREEK SMALL LETTER RHO}",
    "lambda": "λ",
}
OPERATORS = {
    "sum": "∑",
    "ge": "≥",
    "in": "∈",
    "lfloor": "⌊",
    "rfloor": "⌋",
    ",": "\u2062",  # an invisible times
}
# otherwise a bracket is as tall as the tallest fraction beside it
BRACKETS = {bracket: f'<mo stretchy="false">{bracket}</mo>' for bracket in "()[]"}
FUNCTIONS = ("ln", "exp", "cos")
TOKEN = re.compile(r"\\[A-Za-z]+|\\,|\d+(?:\.\d+)?|[A-Za-z]'?|\S")
BLOCK = re.compile(r"^```math\n(.+?)\n```$", re.MULTILINE | re.DOTALL)
"""A formula of a page."""


def with_mathml(text: str) -> str:
    """Put MathML in the place of the formulas of a page in Markdown."""
    return BLOCK.sub(lambda match: f'<div class="formula">{mathml(match[1])}</div>', text)


def mathml(latex: str) -> str:
    """Return a formula as a <math> element.

    Args:
        latex: LaTeX with the commands that `FORMULAS` uses.

    Raises:
        ValueError: It has a command that is not known.
    """
    words = re.findall(r"\\text\{([^}]*)\}", latex)
    plain = re.sub(r"\\text\{[^}]*\}", r"\\text", latex)
    tokens = iter(TOKEN.findall(plain))
    row = _row(tokens, iter(words), "")
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">{row}</math>'


def _row(tokens: Iterator[str], words: Iterator[str], end: str) -> str:
    """Return the elements up to a token in one <mrow>, and take their tokens from the iterator.

    Args:
        tokens: The tokens of the formula that are left, such as "\\\\frac", "{" and "x".
        words: The words of the \\\\text{...} that are left.
        end: The token at which it ends, "}"; empty for the end of the formula.
    """
    parts: list[str] = []
    for token in tokens:
        if token == end:
            break
        if token not in "^_":
            parts.append(_element(token, tokens, words))
            continue
        # an index or exponent belongs to the element before it, or to what is in brackets there
        base = parts.pop()
        part = _element(next(tokens), tokens, words)
        if token == "_":
            parts.append(f"<msub>{base}{part}</msub>")
        elif base == BRACKETS[")"]:
            parts.append(f"<msup>{_bracket(parts)}{part}</msup>")
        else:
            parts.append(f"<msup>{base}{part}</msup>")
    return f"<mrow>{''.join(parts)}</mrow>"


def _bracket(parts: list[str]) -> str:
    """Take the elements of a bracket that has just been closed, and return them as one."""
    inside = [BRACKETS[")"]]
    depth = 1
    while depth:
        part = parts.pop()
        depth += (part == BRACKETS[")"]) - (part == BRACKETS["("])
        inside.insert(0, part)
    return f"<mrow>{''.join(inside)}</mrow>"


def _element(token: str, tokens: Iterator[str], words: Iterator[str]) -> str:
    """Return the MathML element that begins with a token; its other tokens are taken from the rest.

    Args:
        token: Such as "\\\\frac", "{", "x" or "+".
        tokens: The tokens behind it.
        words: The words of the \\\\text{...} that are left.
    """
    if token == "{":
        return _row(tokens, words, "}")
    if token == "\\frac":
        above = _element(next(tokens), tokens, words)
        below = _element(next(tokens), tokens, words)
        return f"<mfrac>{above}{below}</mfrac>"
    if token == "\\sqrt":
        return f"<msqrt>{_element(next(tokens), tokens, words)}</msqrt>"
    if token == "\\text":
        return f"<mtext>{escape(next(words))}</mtext>"
    if token == "\\quad":
        return '<mspace width="1em"/>'

    # a command or a sign, a number, and a letter
    name = token.removeprefix("\\")
    if name in OPERATORS and token != ",":
        return f"<mo>{OPERATORS[name]}</mo>"
    if token.startswith("\\"):
        if name in FUNCTIONS:
            return f"<mi>{name}</mi>"
        if name not in SYMBOLS:
            raise ValueError(f"{token} is not known; add it to scripts/formulas.py")
        return f"<mi>{SYMBOLS[name]}</mi>"
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token[0].isalpha():
        letter = token.replace("'", "\N{PRIME}")
        return f"<mi>{letter}</mi>"
    if token in BRACKETS:
        return BRACKETS[token]
    sign = token.replace("-", "\N{MINUS SIGN}")
    return f"<mo>{escape(sign)}</mo>"
