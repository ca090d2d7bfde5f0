"""Runtimes that are installed on this machine, and what they compute from a config.

`find_installed` returns one, here or in the environment of another Python, and
`InstalledRuntime.ask` asks it. Answers are cached by the config and by the versions that gave them.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ...environment import without_secrets
from ...formats.jsontext import JsonObject
from ...rope.errors import RopeconvError
from ...runtimes.askable import ASKABLE, AskableRuntime
from ...runtimes.evidence import Evidence
from ...runtimes.runtime import GOOD, canonical, newest, row_of_version, runtimes
from ...runtimes.verdict import Asking, PlannedConfig, Verdict, quantised, with_option
from ..probe import ProbeCache
from ..process import ProgramProcess
from .outcome import Expected, Outcome, RuntimeAnswer, judge_answer, parse_runtime_answer

FOLDER = Path(__file__).parent / "programs"
"""The programs. It is not a package: they run in environments that do not have ropeconv."""
SHARED_MODULES = ("probe_protocol.py", "transformers_backend.py")
"""The modules beside them that they import."""
SECONDS_FOR_ANSWER = 300.0
"""The time for one answer, with the imports of the runtime; vLLM takes ten seconds of them."""


NOT_ASKED = {
    "sglang": (
        "importing its models needs sgl_kernel, which has builds for GPUs only; start it on one,"
        " and `ropeconv validate --server` compares its log-probabilities"
    ),
    "lmdeploy": (
        "its layers run on a GPU only, with kernels in Triton; start it on one, and `ropeconv"
        " validate --server` compares its log-probabilities"
    ),
    "turbomind": (
        "its model is compiled C++, whose frequencies Python cannot read; start it on a GPU, and"
        " `ropeconv validate --server` compares its log-probabilities"
    ),
    "mistralrs": (
        "its model is compiled Rust, whose frequencies Python cannot read; start its server, and"
        " `ropeconv validate --server` compares its log-probabilities"
    ),
    "llama-cpp": (
        "its model is compiled C++, whose frequencies Python cannot read; `ropeconv validate` on a"
        " GGUF file compares its logits"
    ),
}
"""Why other runtimes that can be installed are not asked, and what can be done instead."""


@dataclass(frozen=True)
class Installation:
    """Where a runtime is installed."""

    python: str
    """The interpreter of its environment."""

    versions: dict[str, str]
    """The versions of it and of what its answers depend on, by distribution."""

    place: str
    """The file of its package; empty where it is not installed."""


def find_installed(name: str, python: str = "") -> InstalledRuntime | None:
    """Return a runtime, such as vLLM, with its version and place; None where it is not installed.

    Args:
        name: The name in `--runtime`, without a version, such as "vllm".
        python: The interpreter of another environment; empty for this one.

    Raises:
        RopeconvError: ropeconv has no program that runs this runtime, or the interpreter does not
            run.
    """
    askable = find_askable(name)
    if python:
        installation = describe(askable, python)
    else:
        installation = describe_here(askable)
    if not installation.place:
        return None

    # the same runtime may come from one of several distributions
    for distribution in askable.distributions:
        if distribution in installation.versions:
            # builds have a local part: 0.33.0+cpu
            version = installation.versions[distribution].partition("+")[0]
            return InstalledRuntime(askable, installation, version)
    return None


def find_askable(name: str) -> AskableRuntime:
    """Return a runtime that can be asked. Raises RopeconvError for others."""
    wanted = canonical(name)
    for askable in ASKABLE:
        if askable.name == wanted:
            return askable
    names = ", ".join(askable.name for askable in ASKABLE)
    why = NOT_ASKED.get(wanted, "no program here can read its frequencies")
    raise RopeconvError(
        f"{name} cannot be asked: {why}; ropeconv can ask {names}, and `ropeconv list runtimes` has"
        " what is known of others"
    )


def describe_here(askable: AskableRuntime) -> Installation:
    """Return where a runtime is installed in this environment. Nothing is imported."""
    spec = importlib.util.find_spec(askable.package)
    if spec is None or not spec.origin:
        return Installation(sys.executable, {}, "")
    versions = {}
    for name in (*askable.distributions, *askable.beside):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return Installation(sys.executable, versions, spec.origin)


def describe(askable: AskableRuntime, python: str) -> Installation:
    """Return where a runtime is installed, and its version, in the environment of an interpreter.

    Args:
        askable: The runtime, with the names of its package and of its distributions.
        python: The interpreter, such as ./vllm/bin/python.

    Raises:
        RopeconvError: The interpreter does not run.
    """
    names = (*askable.distributions, *askable.beside)
    command = [python, str(FOLDER / "describe.py"), askable.package, *names]
    try:
        done = subprocess.run(
            command, env=environment(python), capture_output=True, timeout=60, check=True
        )
        answer = json.loads(done.stdout)
        return Installation(python, dict(answer["versions"]), str(answer["place"]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as problem:
        raise RopeconvError(
            f"--python {python} does not run as a Python interpreter"
            f" ({type(problem).__name__}); give the path of one, such as ./vllm/bin/python"
        ) from None


def environment(python: str) -> dict[str, str]:
    """Return the environment variables for a program: those of the caller, without secrets.

    Another interpreter has its own packages, so it does not get the caller's PYTHONPATH.
    """
    variables = {
        **without_secrets(),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
    }
    if python != sys.executable:
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            variables.pop(name, None)
    return variables


class InstalledRuntime(Asking):
    """A runtime that is installed, and the process that asks it.

    The process starts with the first question that no cached answer has, and ends with `stop`, or
    with its caller.
    """

    def __init__(
        self,
        askable: AskableRuntime,
        installation: Installation,
        version: str,
        seconds: float = SECONDS_FOR_ANSWER,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Describe an installed runtime, without starting it.

        Args:
            askable: The runtime, with the name of the program that runs it, such as ask_vllm.
            installation: The place of its package, and the Python of that environment.
            version: The version of the runtime.
            seconds: The longest time for an answer.
            tell: Called with sentences for the user, such as "Asking vLLM 0.33 what it computes."
        """
        self.askable = askable
        self.installation = installation
        self.name = askable.name
        self.version = version
        self.seconds = seconds
        self.tell = tell

        # reasons that the user has been told why the runtime gave no answer; each is told once
        self.told_reasons: set[str] = set()
        # why the runtime cannot run at all; empty while nothing is known
        self.failure = ""

        # the process in which the runtime answers questions, which starts with the first question
        python = installation.python
        command = [python, str(FOLDER / "run_probe.py"), askable.program]
        self.process = ProgramProcess(command, environment(python))
        self.cache = ProbeCache()

    @property
    def title(self) -> str:
        """The name for people, with the version: "vLLM 0.33.0"."""
        title = self.name
        for row in runtimes():
            if row.name == self.name:
                title = row.title
        return f"{title} {self.version}"

    def ask(
        self,
        config: JsonObject,
        trained: int,
        context: int,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> RuntimeAnswer:
        """Return what the runtime does with a config, which may be cached.

        Args:
            config: The whole config.json. Its weights do not count: quantisation is left out.
            trained: The trained length, in tokens.
            context: The declared length, in tokens.
            options: Those with which a server is started, such as {"model-impl": "transformers"}.
        """
        question: JsonObject = {
            "config": without_quantisation(config),
            "trained": trained,
            "context": context,
        }
        if options:
            question["options"] = dict(options)

        # an answer that "says nothing" only has the reason why the model was not run, such as too
        # little memory. It may be another one next time, so it is neither used nor kept
        key = self.key(question)
        cached_text = self.cache.load(key)
        if cached_text is not None:
            cached = parse_runtime_answer(cached_text)
            if cached is not None and not cached.says_nothing:
                return cached

        if self.failure:  # a process that failed once would fail again
            return RuntimeAnswer(unseen=self.failure)
        line = self._ask_process(question)
        answer = parse_runtime_answer(line)
        if answer is None:
            self.fail("its answer cannot be read")
            return RuntimeAnswer(unseen=self.failure)
        if not answer.says_nothing:
            self.cache.store(key, line.decode())
        return answer

    def _ask_process(self, question: JsonObject) -> bytes:
        """Send a question to the process, which is started if need be, and return its answer.

        The answer is a line of JSON. It is empty where there is none; `failure` then says why.
        """
        if not self.process.is_running:
            self.process.stop()
            self.tell(f"Asking {self.title} what it computes.")
            self.process.start()
        self.process.send(json.dumps(question).encode())
        try:
            line = self.process.receive(self.seconds)
        except TimeoutError:
            self.fail(f"it did not answer in {self.seconds:.0f} seconds")
            return b""

        if not line:  # the process has ended; the last line of its stderr says most
            code, stderr = self.process.end()
            lines = stderr.strip().splitlines()
            reason = f"it ended with code {code} and without an answer"
            if lines:
                reason += f": {lines[-1][:200]}"
            self.fail(reason)
        return line

    def fail(self, reason: str) -> None:
        """End the process for good: it would fail again, after its imports."""
        self.stop()
        self.failure = self.failure or reason

    def stop(self) -> None:
        """End the process. The next question starts another one."""
        self.process.stop()

    def key(self, question: JsonObject) -> str:
        """Return the key of an answer in the cache: a digest of everything the answer depends on.

        Args:
            question: The question to the runtime, such as a config.json and a context.

        Returns:
            The key; empty where the package of the runtime cannot be read, so that no answer is
            cached.
        """
        # the question
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode())

        # ropeconv's program that runs the runtime, such as ask_vllm.py, and its modules
        program_file = f"{self.askable.program}.py"
        for name in (*SHARED_MODULES, program_file):
            digest.update((FOLDER / name).read_bytes())

        # the runtime: the versions of its packages, and the Python of its environment
        digest.update(json.dumps(self.installation.versions, sort_keys=True).encode())
        digest.update(self.installation.python.encode())

        # the file of its package, whose size and time differ in an edited installation
        package_file = self.installation.place
        try:
            status = os.stat(package_file)
        except OSError:
            return ""
        digest.update(f"{package_file} {status.st_size} {status.st_mtime_ns}".encode())
        return digest.hexdigest()

    def outcome(
        self, planned: PlannedConfig, options: Mapping[str, object] = MappingProxyType({})
    ) -> tuple[RuntimeAnswer, Outcome]:
        """Return what the runtime does with a config that may be written.

        Args:
            planned: The config.
            options: Those with which a server is started, such as {"model-impl": "transformers"}.
        """
        schedule = planned.schedule
        answer = self.ask(planned.config, schedule.original_context, schedule.context, options)
        expected = Expected(planned.config, planned.family, schedule, planned.before)
        return answer, judge_answer(answer, expected)

    def verdict(self, planned: PlannedConfig) -> Verdict | None:
        """Return whether the installed runtime computes a config right, as a verdict.

        Args:
            planned: The config that is to be written, and the frequencies that it should give.

        Returns:
            The verdict, with a status such as "exact", "differs", "ignored" or "refused". None
            where the runtime cannot be asked here.
        """
        # the frequencies that the runtime computes, and their comparison with the wanted ones
        answer, comparison = self.outcome(planned)

        # no answer: the user is told why, once for each reason
        if answer.says_nothing:
            reason = answer.unseen
            if reason not in self.told_reasons:
                self.told_reasons.add(reason)
                self.tell(f"{self.title} was not asked ({reason}); the table is used.")
            return None

        # GOOD are the statuses "exact" and "rounded"
        verdict = self.verdict_from(planned, answer, comparison)
        if verdict.status in GOOD:
            return verdict

        # vLLM: some configs are right only with the option --model-impl transformers
        verdict_with_option = self.verdict_with_option(planned, verdict)
        return verdict if verdict_with_option is None else verdict_with_option

    def verdict_with_option(self, planned: PlannedConfig, without: Verdict) -> Verdict | None:
        """Return the verdict with the first server option that makes the runtime compute a config.

        For example, vLLM computes some configs only with `--model-impl transformers`. ropeconv's
        table of runtimes lists the options, by the newest version of the runtime.

        Args:
            planned: The config, and the schedule that it should give.
            without: The verdict on the server as it starts without an option, such as "ignored".

        Returns:
            The verdict, which names the option; None where no option helps.
        """
        if planned.config.get("quantization_config"):
            return None  # nobody has loaded quantised weights with an option
        newest_version = newest(self.name)
        for option in newest_version.options:
            _answer, outcome = self.outcome(planned, option.settings)
            computes_schedule = outcome.status == "exact"
            if computes_schedule:
                # both were run here, so how it is known is the same
                return with_option(without, option, without.evidence)
        return None

    def verdict_from(
        self, planned: PlannedConfig, answer: RuntimeAnswer, outcome: Outcome
    ) -> Verdict:
        """Return the verdict on a config, from what the installed runtime has computed.

        The runtime was given the config without its `quantization_config`. Whether it loads
        quantised weights is looked up in ropeconv's table of runtimes, in the row of its version.

        Args:
            planned: The config, and the schedule that it declares.
            answer: The frequencies and factors that the runtime has computed.
            outcome: The answer compared with the schedule.
        """
        status = outcome.status
        reason = outcome.detail
        source = f"ropeconv probe {self.name}"
        known = Evidence("run", f"{self.version}, here")
        if status == "exact":
            # no difference; there may be a remark, such as on an option for long prompts
            reason = remark(answer, planned.schedule.context)

            # the answer says nothing of quantised weights, so what the table says of them stays
            row = row_of_version(self.name, self.version)
            finding = quantised(planned.config, row, planned.family)
            if finding is not None:
                status, reason = finding
                source = row.source
                known = Evidence()  # the weights were not loaded here
        return Verdict(
            runtime=f"{self.name}@{self.version}",
            display_name=self.title,
            status=status,
            reason=reason,
            source=source,
            through=self.version,
            evidence=known,
            here=True,  # of this machine, so that no receipt has it
        )


def remark(answer: RuntimeAnswer, context: int) -> str:
    """Return a remark on a config that a runtime computes; empty without one."""
    if answer.window is not None and answer.window < context:
        return f"its default window is {answer.window:,} tokens; start it with the longer one"
    return ""


def without_quantisation(config: JsonObject) -> JsonObject:
    """Return a config without its quantisation, which says nothing about its RoPE.

    The build of vLLM for CPUs refuses fp8 and mxfp4, which its builds for GPUs load.
    """
    cut = copy.deepcopy(config)
    for part in (cut, *cut.values()):
        if isinstance(part, dict):
            part.pop("quantization_config", None)
    return cut
