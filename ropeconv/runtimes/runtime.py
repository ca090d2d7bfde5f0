"""The schema of `data/*.toml`: what ranges of versions of a runtime do, by family.

A file has the rows of one runtime. `Runtime` is one of these ranges, and `find` returns those that
a name means.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from ..formats.jsontext import JsonObject
from ..formats.package_data import package_data, package_errors
from ..models.family import Need
from ..rope.errors import RecipeError
from ..rope.features import load_features
from .lab_file import refused_families
from .programs import letters, program_of
from .stored import data_errors, runtime_data, runtime_files

Status = Literal[
    "exact", "rounded", "approximate", "differs", "ignored", "refused", "unsupported", "unknown"
]
"""Statuses of a verdict, best first; `runtimes.verdict.judge` explains each."""
GOOD: tuple[Status, ...] = ("exact", "rounded")
"""Statuses of runtimes that compute an output."""
RUNS: tuple[Status, ...] = (*GOOD, "approximate")
"""Statuses of runtimes that compute an output or an approximation of it."""
UNTESTED: Status = "unknown"
"""The status that --allow-untested accepts."""
SILENT: tuple[Status, ...] = ("differs", "ignored")
"""Statuses of runtimes that compute something else without an error."""
WRONG: tuple[Status, ...] = (*SILENT, "refused")
"""Statuses of runtimes that do not compute an output."""

Source = Literal["attention_factor", "mscale", "short_mscale", "formula", "1"]


class TypeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one `rope_type` is read."""

    status: Literal["", "differs", "ignored", "refused", "unsupported", "unknown"] = ""
    """An outcome that holds whatever the numbers are; empty where the other fields decide."""

    reason: str = ""
    """The reason for that outcome."""

    beyond_trained: bool = False
    """Whether that holds only where the context is longer than the trained one."""

    read_as: str = ""
    """Another rope type whose rules hold for the keys of this one."""

    required: tuple[str, ...] = ()
    """Keys of the RoPE dictionary without which it is refused."""

    forbidden: tuple[str, ...] = ()
    """Keys of the RoPE dictionary with which it is refused."""

    original: Literal["key", "max"] = "key"
    """The source of the original context.

    "key" is original_max_position_embeddings, else the declared context; "max" is the declared
    context.
    """

    times_original: int = 1
    """The factor on the original context for the ramp of yarn."""

    alpha: bool = False
    """Whether the key alpha makes dynamic a fixed base, theta alpha^(r/(r-2)) (Hunyuan)."""

    factor: Literal["key", "max/original", "1"] = "key"
    """The source of the scale factor; "1" where the key is ignored."""

    attention_factor: tuple[Source, ...] = ("1",)
    """Sources of the attention factor in order of precedence; "1" means that it is 1."""

    times_attn_factor: bool = False
    """Whether the key attn_factor multiplies the attention factor."""

    betas: bool = True
    """Whether beta_fast and beta_slow are read."""

    truncate: Literal["read", "read-flat", "ignored"] = "read"
    """Whether the key truncate is read, "read-flat" beside the layer types only."""

    partial: Literal["", "differs", "refused"] = ""
    """The status of models that do not rotate the whole head, empty where they are fine."""

    half_only: Literal["", "differs", "refused"] = ""
    """The status for interleaved pairs, empty where they are fine."""

    formula_always: bool = False
    """Whether the formula of the attention factor is evaluated even where it is not used.

    It divides by ln(original).
    """

    lists: Literal[
        "trained", "long", "short", "window", "chunked", "mixed", "untested", "refused"
    ] = "trained"
    """The list in use of two factor lists.

    - "trained": the long one in forward passes that go beyond the trained length;
    - "long" or "short": always that one;
    - "window": the long one for every position, where the window that it is started with is longer
      than the trained length, else the short one;
    - "chunked": as "trained", in a runtime that computes one prompt in several forward passes;
    - "mixed": by position inside one sequence;
    - "untested", or "refused" where the lists differ.
    """

    whole_prompt: str = ""
    """The option with which a prompt is computed in one forward pass."""

    whole_base: bool = False
    """Whether the base is cut to a whole number."""

    query_beta: bool = True
    """Whether queries are scaled by position under this type, in families that do so."""

    window: str = ""
    """A remark on the default context window where that is not the declared context."""

    source: str = ""
    """Where the rules are stated."""


class RuleSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a group of model files reads the RoPE of a config."""

    schemas: tuple[Literal["rope_scaling", "rope_parameters"], ...]
    """The dictionaries that they read; the first that is present counts."""

    theta: Literal["top", "dict", "nested", "attn_config"] | float
    """The place of the base.

    - "top": the top-level key only;
    - "dict": the dictionary, else the top level;
    - "nested": the dictionary only;
    - "attn_config": that object of DBRX;
    - a number where the base is fixed.
    """

    status: Literal["", "differs", "ignored", "refused", "unsupported"] = ""
    """An outcome that holds for every config."""

    reason: str = ""
    """The reason for that outcome."""

    required: dict[str, Literal["refused", "differs"]] = {}
    """Keys without which they fail or compute something else."""

    need: tuple[Need, ...] = ()
    """Values without which they fail."""

    types: dict[str, TypeRules] = {}
    """Rules per rope type."""

    type_key: Literal["type", "rope_type"] = "rope_type"
    """The key of the rope type that they prefer."""

    other: Literal["ignored", "refused", "unknown"] = "unknown"
    """The status for a rope type without rules."""

    other_reason: str = ""
    """The reason for that status."""

    query_beta: Literal["rope", "top", ""] = ""
    """The place of the slope of query scaling by position.

    "rope" is the RoPE dictionary, "top" `llama_4_scaling` at the top level; empty for none.
    """

    query_length: int = 0
    """The default of original_max_position_embeddings at the top level as the length of that.

    0 where the length is not read there.
    """

    softmax_scale: Literal["mscale_all_dim", "unless-one", "factor", "none"] = "mscale_all_dim"
    """The key that scales the logits of MLA.

    "unless-one" is the same as "mscale_all_dim" unless the attention_factor is 1, and "factor" any
    factor with or without that key.
    """

    yarn_table: bool = False
    """Whether its cosines of yarn end at the factor times the original context.

    It has a table with a row for each position, and none beyond, whatever context is declared.
    """

    whole_context: bool = False
    """Whether it refuses a context with a decimal point, such as 4096.0."""

    local: Literal["own", "same-theta", "same"] = "own"
    """The frequencies of window layers.

    "own" is a base of their own, "same-theta" that of the others without scaling, and "same" is
    like the others.
    """

    own_text_config: Literal["", "refused", "unknown"] = ""
    """The status of a config that has a text_config and the model type of that.

    Ministral 3 was published so.
    """

    own_text_config_reason: str = ""
    """The reason for that status."""

    source: str = ""
    """Where the rules are stated."""

    @property
    def nested(self) -> bool:
        """Whether `rope_parameters` per layer type is read."""
        return "rope_parameters" in self.schemas


class FamilyStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule set that model files of some families follow in a runtime, or why there is none."""

    names: tuple[str, ...]
    """Names of the families."""

    model_types: tuple[str, ...] = ()
    """Types of the config as a whole, if only those are meant.

    Such as a text model only, or one with a vision model.
    """

    rules: str = ""
    """The rule set."""

    unsupported: str = ""
    """Why it cannot run them at all."""

    unknown: str = ""
    """The part that is untested."""

    options: str = ""
    """The options with which it must be started for them, such as `--trust-remote-code`."""

    source: str = ""
    """Where that is stated."""


class KeyStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effect of a config key that changes the attention of a runtime."""

    names: tuple[str, ...]
    """The keys."""

    status: Literal["differs", "ignored", "refused", "unknown"]
    """The outcome where one of them is in a config."""

    reason: str
    """The reason for that outcome."""

    families: tuple[str, ...] = ()
    """Families whose model files read the keys; empty for those that the extracted keys say."""

    source: str = ""
    """Where that is stated."""


class ServerOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the command that starts a server, with which it reads configs in another way."""

    words: str
    """The options on the command line, such as `--model-impl transformers`."""

    transformers: str = ""
    """The version of transformers whose classes the server then runs; empty for its own classes."""

    rules: str = ""
    """The rule set that its own classes then follow; empty for the one of the family."""

    changes: JsonObject = {}
    """Keys of the RoPE dictionary that the options change in the config which the server reads."""

    text_only: bool = False
    """Whether the server then refuses images and other inputs beside text."""

    without: tuple[str, ...] = ()
    """Keys of a config with which the option does not help: the server then drops something."""

    source: str
    """Where that is stated."""

    @property
    def settings(self) -> JsonObject:
        """The options of `words` by name, such as {"model-impl": "transformers"}.

        The program that asks an installed runtime takes them so. A value that is JSON is decoded,
        and an option without a value is true.
        """
        settings: JsonObject = {}
        name = ""
        for word in shlex.split(self.words):
            if word.startswith("--"):
                name = word.removeprefix("--")
                settings[name] = True
            elif word.startswith("{"):
                settings[name] = msgspec.json.decode(word)
            else:
                settings[name] = word
        return settings


class VersionRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range of versions of one program that behave alike."""

    name: str
    """As `--runtime` takes it."""

    version: str
    """The first version."""

    title: str
    """The name of the program, for people."""

    source: str
    """Its code."""

    through: str = ""
    """The last version; empty where it is the same."""

    current: bool = True
    """Whether it is in common use, so that `name` without a version includes it."""

    @property
    def key(self) -> str:
        """The range as `name@version`, as `--runtime` takes it; only the name without a version."""
        if not self.version:
            return self.name
        return f"{self.name}@{self.version}"

    @property
    def last(self) -> str:
        """The last version of the range."""
        return self.through or self.version

    @property
    def display_name(self) -> str:
        """The title with the versions."""
        name = f"{self.title} {self.version}".strip()
        if self.through in ("", self.version):
            return name
        return f"{name}-{self.through}"

    def covers(self, version: str) -> bool:
        """Whether a version is in the range; more numbers than the range has do not count."""
        return within(version, self.version, self.last)


Range = TypeVar("Range", bound=VersionRange)


def choose(name: str, version: str, rows: Sequence[Range]) -> tuple[Range, ...]:
    """Return the ranges of versions of a runtime that a user means by a version.

    Without a version these are all current ranges. "0.20.1" stands for the range that covers it,
    shortened to this version. "0.20" stands for the newest range that begins with a version 0.20.x.

    Args:
        name: The name and the version as the user wrote them, for the message.
        version: The version; empty without one.
        rows: All ranges of the runtime, the newest last.

    Raises:
        RecipeError: For a version that no range covers.
    """
    if not version:
        return tuple(row for row in rows if row.current)

    # "0.20.1": a range has a first version (`version`) and a last one (`through`)
    newest_first = list(reversed(rows))
    for row in newest_first:
        if row.covers(version):
            only_this_version = msgspec.structs.replace(row, version=version, through=version)
            return (only_this_version,)

    # "0.20": `within` compares as many numbers as "0.20" has; a text without numbers would match
    # every range
    has_numbers = bool(version_key(version))
    for row in newest_first:
        begins_with_version = within(row.version, first=version, last=version)
        if has_numbers and begins_with_version:
            return (row,)

    tested = []
    for row in rows:
        tested.append(f"{row.version}-{row.through}" if row.through else row.version)
    raise RecipeError(f"--runtime {name}: this version is untested; tested: {', '.join(tested)}")


def version_key(version: str) -> tuple[int, ...]:
    """Return a dotted version as a tuple of numbers; parts that are not numbers are left out."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@lru_cache(maxsize=4096)
def within(version: str, first: str, last: str) -> bool:
    """Whether a version is from `first` to `last`; more numbers than these have do not count."""
    number = version_key(version)
    start = version_key(first)
    end = version_key(last)
    return start <= number[: len(start)] and number[: len(end)] <= end


def before(version: str) -> str:
    """Return the version before `major.minor`, for display: 5.1 for 5.2."""
    major, minor = version_key(version)[:2]
    if not minor:
        return f"before {version}"
    return f"{major}.{minor - 1}"


LLAMA_CPP = "llama-cpp"
GENERIC = "generic"


class Runtime(VersionRange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of the table of runtimes: a range of versions that behave alike."""

    rules: dict[str, RuleSet]
    """Rule sets by name; `generic` is the reader that most model files share."""

    families: tuple[FamilyStatement, ...] = ()
    """Statements on families, of which the last on a family counts."""

    keys: tuple[KeyStatement, ...] = ()
    """Statements on config keys that its attention reads beside those of the rules."""

    quantization: dict[str, str] | None = None
    """The quantisation methods (`quant_method`) that it loads, with what that depends on.

    None where that is untested.
    """

    loads: dict[str, tuple[str, ...]] = {}
    """Families whose weights it was seen to load, by a method that depends on the family."""

    wrappers: str = ""
    """Where its source shows that every model around a text model builds that from its text_config.

    Empty where each of these models must be executed.
    """

    one_type: str = ""
    """Where its source shows that it fails on two rope types, in the keys rope_type and type.

    Empty where it takes one of them.
    """

    options: tuple[ServerOption, ...] = ()
    """Options with which it computes models that it computes otherwise without them."""

    custom_code: Literal["exact", "refused", "unknown"] = "unknown"
    """The status of checkpoints with a modelling file; "exact" where that is run."""

    custom_code_reason: str = ""
    """The reason for that status."""

    def statement(self, family: str, model_type: str = "") -> FamilyStatement | None:
        """Return the statement about a family; None if it is untested.

        Without the `model_type` of the config as a whole, statements on some model types do not
        count.
        """
        for statement in reversed(self.families):
            if family not in statement.names:
                continue
            if not statement.model_types or model_type in statement.model_types:
                return statement
        return None

    def rule_set(self, family: str, model_type: str = "") -> RuleSet:
        """The rules that a family is read by: those of its statement, else the generic reader."""
        statement = self.statement(family, model_type)
        if statement is None:
            return self.rules[GENERIC]
        return self.rules[statement.rules or GENERIC]


class RowFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file with the ranges of versions of one program."""

    name: str
    """As `--runtime` takes it."""

    title: str
    """The name of the program, for people."""

    rows: tuple[JsonObject, ...]
    """The content of each range."""

    def contents(self) -> dict[str, JsonObject]:
        """Return the content of each row with the fields of the file, by its first version.

        Raises:
            ValueError: For two rows of one version.
        """
        by_version: dict[str, JsonObject] = {}
        for row in self.rows:
            version = row["version"]
            if version in by_version:
                raise ValueError(f"two rows have the version {version}")
            by_version[version] = {"name": self.name, "title": self.title, **row}
        return by_version


@cache
def runtimes() -> tuple[Runtime, ...]:
    """Return all runtimes of the package and of features, by name and version."""
    rows: dict[str, Runtime] = {}
    for place in runtime_files("data", ".toml"):
        file = runtime_data(place, RowFile)
        with data_errors(place):
            rows |= rows_of(file, refused_families(file.name))
    for feature in load_features().values():
        if feature.runtimes is not None:
            rows |= read_rows(feature.runtimes)
    return in_order(rows.values())


def read_rows(folder: Path) -> dict[str, Runtime]:
    """Read the rows of the files of a folder, by their keys such as `vllm@0.33`.

    Raises:
        DamagedPackage: For a file without rows.
    """
    rows: dict[str, Runtime] = {}
    for path in sorted(folder.glob("*.toml")):
        file = package_data(path, RowFile)
        with package_errors(path):
            rows |= rows_of(file)
    return rows


def rows_of(
    file: RowFile, refused: Mapping[str, Mapping[str, bool]] | None = None
) -> dict[str, Runtime]:
    """Return the rows of a file such as vllm.toml by their keys, such as "vllm@0.20".

    A row says how a range of versions of a runtime reads configs. A row with `inherits` names the
    version of another row, and has only the differences from it.

    Args:
        file: The file.
        refused: For each version whether it refused every model of a family in the laboratory, e.g.
            {"0.33.0": {"llama": False, "hrm": True}}. A family that was refused is unsupported in
            the row, if the file says nothing about the family.

    Raises:
        ValueError: For data of another form.
        KeyError: For an unknown set of rules, or an unknown version in `inherits`.
    """
    # add the refusals to the rows for a moment, so that they are inherited too
    contents = file.contents()
    for content in contents.values():
        content["refused"] = _refused_in(content, refused or {})

    rows: dict[str, Runtime] = {}
    for version in contents:
        content = _inherit(version, contents)
        is_refused = content.pop("refused")  # by family, e.g. {"llama": False, "hrm": True}
        refused_names = sorted(name for name in is_refused if is_refused[name])
        if refused_names:
            # The last statement on a family counts. This statement comes first, so that it counts
            # only for families of which the file says nothing.
            statement = {"names": refused_names, "unsupported": NOT_THERE}
            content["families"] = [statement, *content.get("families", [])]
        row = row_from(content)
        rows[row.key] = row
    return rows


NOT_THERE = "it does not support this model"
"""The reason for a family that the lab saw refused, where the file says nothing of it."""


def _refused_in(content: JsonObject, refused: Mapping[str, Mapping[str, bool]]) -> dict[str, bool]:
    """Return whether a row refused each family that its versions ran; the newest version counts."""
    first = content["version"]
    last = content.get("through") or first
    newest: dict[str, bool] = {}
    for version, families in refused.items():
        if within(version, first, last):
            newest = {**families, **newest}
    return newest


def in_order(rows: Iterable[Runtime]) -> tuple[Runtime, ...]:
    """Return rows by name, transformers first, each runtime's from the oldest to the newest."""

    def place(row: Runtime) -> tuple[bool, str, tuple[int, ...]]:
        return row.name != "transformers", row.name, version_key(row.version)

    return tuple(sorted(rows, key=place))


def row_from(data: JsonObject) -> Runtime:
    """Return a row from the content of its file.

    Args:
        data: The content. Its "rules" are rule sets by name, of which one may start from another:
            {"generic": {...}, "phi3": {"inherits": "generic", ...}}.

    Raises:
        ValueError: For data of another form.
        KeyError: For an unknown set.
    """
    rule_sets = {name: _rules(name, data["rules"]) for name in data["rules"]}
    row = msgspec.convert({**data, "rules": rule_sets}, Runtime)

    # a statement on families says one of three things: the name of the rule set by which they are
    # read, why the runtime cannot run them, or what is not known
    for statement in row.families:
        outcomes = (statement.rules, statement.unsupported, statement.unknown)
        stated_outcomes = [outcome for outcome in outcomes if outcome]
        if len(stated_outcomes) != 1:
            raise ValueError(
                f"{row.key}: a statement on families has one of rules, unsupported and unknown"
            )

    # every rule set that is named must be there
    names_of_sets = [statement.rules for statement in row.families]
    names_of_sets += [option.rules for option in row.options]
    for name in names_of_sets:
        if name and name not in row.rules:
            raise KeyError(name)
    return row


def _rules(name: str, rules: JsonObject) -> JsonObject:
    """Return a rule set with the values of the one that it starts from."""
    values = dict(rules[name])
    parent = values.pop("inherits", None)
    if parent is None:
        return values
    return _merge_rule_sets(_rules(parent, rules), values)


def _merge_rule_sets(base: JsonObject, changes: JsonObject) -> JsonObject:
    """A rule set over another one: its rope types and its keys replace those of the same name."""
    types = {**base.get("types", {}), **changes.get("types", {})}
    return {**base, **changes, "types": types}


def _inherit(version: str, contents: dict[str, JsonObject]) -> JsonObject:
    """Return the content of a row of the table of runtimes, with all that it inherits.

    A version of vLLM differs from the version before in a few rules, and only these are in its row.
    `inherits` names the version of the parent row.

    Args:
        version: The first version of the row.
        contents: The content of all rows of the runtime, by their first versions.
    """
    row = dict(contents[version])
    parent_version = row.pop("inherits", None)
    if parent_version is None:
        return row

    # three keys are only about the versions of the parent: the last version ("through"), the
    # options with which they were run, and the quantised weights that they loaded ("loads")
    inherited = _inherit(parent_version, contents)
    for key in ("through", "options", "loads"):
        inherited.pop(key, None)

    # Rule sets are merged by their names. Of two with one name, the rope types and keys of the row
    # replace those of the parent.
    rule_sets = dict(inherited["rules"])
    for set_name, rule_set in row.pop("rules", {}).items():
        if set_name in rule_sets:
            rule_set = _merge_rule_sets(rule_sets[set_name], rule_set)
        rule_sets[set_name] = rule_set
    # statements on families follow those of the parent, since the last on a family counts
    families = [*inherited.get("families", []), *row.pop("families", [])]
    # whether each family was refused in the laboratory
    refused = {**inherited["refused"], **row["refused"]}

    # all other keys of the row replace those of the parent
    return {**inherited, **row, "rules": rule_sets, "families": families, "refused": refused}


ALL = "all"
ALIASES = {
    "llama.cpp": LLAMA_CPP,
    "gguf": LLAMA_CPP,
    "ggml": LLAMA_CPP,
    "mlx": "mlx-lm",
    "exllama": "exllamav3",
    "exl2": "exllamav2",
    "exl3": "exllamav3",
    "hf": "transformers",
    "huggingface": "transformers",
    "mlc": "mlc-llm",
    "webllm": "mlc-llm",
    "trtllm": "tensorrt-llm",
    "tensorrt": "tensorrt-llm",
    "text-generation-inference": "tgi",
    "onnxruntime": "onnx",
    "ort-genai": "onnxruntime-genai",
    "mistral.rs": "mistralrs",
    "kobold": "koboldcpp",
    "ik-llama": "ik-llama-cpp",
}
"""Other names of runtimes. Case, blanks, dashes, dots and underscores do not count in any name."""


def newest(name: str) -> Runtime:
    """Return the newest row of a runtime."""
    return [row for row in runtimes() if row.name == name][-1]


def row_of_version(name: str, version: str) -> Runtime:
    """Return the rules of one version of a runtime, as a row for that version only.

    A version that no row covers has the rules of the newest row.

    Args:
        name: The runtime, as the table has it.
        version: The version.
    """
    rows = [row for row in runtimes() if row.name == name]
    covering = [row for row in rows if row.covers(version)]
    row = covering[-1] if covering else rows[-1]
    return msgspec.structs.replace(row, version=version, through=version)


@cache
def _spellings() -> dict[str, str]:
    """Return the names of runtimes and of readers of GGUF, by their letters."""
    names = set()
    for folder in ("data", "readers"):
        for place in runtime_files(folder, ".toml"):
            names.add(runtime_data(place, RowFile).name)
    known = {letters(name): name for name in sorted(names)}
    return {letters(alias): name for alias, name in ALIASES.items()} | known


def canonical(text: str) -> str:
    """`name` or `name@version` as the tables have it.

    `llama.cpp` and `GGUF` are llama-cpp, `LM Studio` is lm-studio. A program that runs GGUF in one
    of these runtimes is that runtime.
    """
    name, at, version = (part.strip() for part in text.partition("@"))
    known = _spellings().get(letters(name))
    program = program_of(name)
    if known is None and program is not None:
        known = program.runs
    return (known or name.lower()) + at + version


def _unknown_runtime(runtime: str, name: str, also: Iterable[str]) -> RecipeError:
    """Return the error for a runtime that has no rows, with what the user may have meant.

    Args:
        runtime: As `--runtime` has it.
        name: The same without a version.
        also: Other names that the caller knows.
    """
    known = [row.name for row in runtimes()]
    names = list(dict.fromkeys((*known, *also)))  # each once

    # `--runtime vllm,sglang`
    words = runtime.replace(",", " ").split()
    are_all_known = set(map(canonical, words)) <= set(names)
    if len(words) > 1 and are_all_known:
        options = " ".join(f"--runtime {word}" for word in words)
        return RecipeError(f"--runtime {runtime}: name each on its own, as in {options}")

    near = get_close_matches(name, names, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return RecipeError(f"--runtime {runtime}: unknown runtime{hint}; supported: {', '.join(names)}")


def find(runtime: str, also: Iterable[str] = ()) -> tuple[Runtime, ...]:
    """Return the rows of the table of runtimes that a user means by `--runtime`.

    A row describes a range of versions, such as vLLM 0.20 to 0.23. "vllm" stands for all current
    rows of vLLM, the newest last; "vllm@0.20.1" for one version; and "all" for all current rows.

    Args:
        runtime: The value of `--runtime`.
        also: Names that the message about an unknown name lists beside the runtimes.

    Raises:
        RecipeError: For an unknown name, and for a version that no row covers.
    """
    # "llama.cpp@b7000" is "llama-cpp@b7000"; "LM Studio", which runs llama.cpp, is "llama-cpp"
    name, _, version = canonical(runtime).partition("@")
    if name == ALL and not version:
        return tuple(row for row in runtimes() if row.current)

    # a name without rows; for some programs ropeconv knows which runtime to name instead
    rows = [row for row in runtimes() if row.name == name]
    program = program_of(runtime)
    if not rows:
        if program is not None and program.answer:
            raise RecipeError(f"--runtime {runtime}: {program.answer}")
        raise _unknown_runtime(runtime, name, also)

    # a version of a program that runs llama.cpp, such as "LM Studio@0.3", says nothing about the
    # version of llama.cpp
    if version and program is not None:
        runs_this_runtime = program.runs == name
        if runs_this_runtime:
            newest_row = rows[-1]
            raise RecipeError(
                f"--runtime {runtime}: versions of {program.title} are not known; leave @{version}"
                f" out, or name the build of llama.cpp that it ships, such as {newest_row.key}"
            )
    return choose(runtime, version, rows)
