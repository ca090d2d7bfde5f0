"""lm-eval:TASK: a task of lm-evaluation-harness on the loaded and patched model.

https://github.com/EleutherAI/lm-evaluation-harness
"""

from __future__ import annotations

import io
import logging
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeconv.bake.items import LM_EVAL
from ropeconv.engines.engine import Engine, TokenLosses
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.environment import require
from ropeconv.errors import UsageError
from ropeconv.formats.files import scratch
from ropeconv.formats.jsontext import JsonObject
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.lengths import format_tokens

from ..cases import Case, EvaluationSizes, Observation
from ..texts import CheckpointTokenizer, Texts, Tokenizer
from .measure import Measure
from .ruler import LONGEST_ANSWER, RULER, RULER_LENGTHS, check_tokenizer, fresh_words

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class LmEval(Measure):
    """The numbers that a task gives for each of its documents, so that rows are paired by document.

    `EvaluationSizes.windows` is how many documents of each task are read. The model sees at most
    the longest length of a document. The tasks of RULER are run at each length.
    """

    summary = (
        "a task of lm-evaluation-harness (lm-eval:hellaswag or lm-eval:FILE.yaml), its first"
        " --windows documents"
    )
    metrics = ()
    runs_model = True
    needs_text = False  # lm_eval has the prompts of its tasks
    sizes = frozenset({"seed"})

    def __init__(self, task: str, only_known_lengths: bool = False) -> None:
        """Choose a task of lm_eval.

        Args:
            task: The name of a task or of a group of tasks, such as "hellaswag", or a YAML file
                that describes a task.
            only_known_lengths: Whether to leave out lengths for which the tasks of RULER have no
                metric, such as 5000. Otherwise `cases` refuses them.

        Raises:
            UsageError: The name is empty, or the file has no task.
        """
        if not task:
            raise UsageError(
                "--measure lm-eval needs the name of a task; write it like lm-eval:hellaswag"
            )
        require("lm_eval", f"--measure {LM_EVAL}{task}")
        self.task = task
        self.only_known_lengths = only_known_lengths
        # The tasks of RULER, such as "niah_single_1", and the group "ruler" of all these tasks make
        # prompts of each length. The prompts of other tasks have their own lengths.
        self.has_prompts_of_each_length = task in RULER or task == "ruler"

        # the folder of a YAML file, which names the task, and the checksum of it and of its data
        self.folder: Path | None = None
        self.file_checksum = 0
        if task.endswith((".yaml", ".yml")):
            self._read_file(Path(task))

        # such as "lm-eval:hellaswag"; in other measures the name is a variable of the class
        self.name = f"{LM_EVAL}{self.task}"  # type: ignore[misc]

    def _read_file(self, path: Path) -> None:
        """Take from a YAML file the name of its task, its folder, and a checksum of its text."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(
                f"--measure {LM_EVAL}{self.task}: the file cannot be read ({problem})"
            ) from None
        # not parsed as YAML, since lm_eval adds tags such as !function
        name_of_task = re.search(r"""^(?:task|group):[ ]*["']?([\w.-]+)""", text, re.MULTILINE)
        if name_of_task is None:
            raise UsageError(
                f"{self.task} has no line with `task:` or `group:` and a name; add one"
            )
        self.folder = path.parent  # where lm_eval looks for the task
        self.task = name_of_task[1]
        self.has_prompts_of_each_length = False  # a file has prompts of its own

        # `cases` adds this to a made-up token, so that the journal finds results of the same files
        # only. Tokens are int32, up to 2^31 - 1, and a CRC-32 has 32 bits: one is shifted out.
        described = [text]
        for file in _named_files(text, path.parent):
            stat = file.stat()
            described.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
        self.file_checksum = zlib.crc32("\n".join(described).encode()) >> 1

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield a case for the whole task; for RULER, a case for each length.

        lm_eval makes the prompts, so the tokens and targets of a case are placeholders. The journal
        finds the result of an earlier run by their digest. So they depend on everything that
        decides the result.

        Args:
            texts: The texts of other measures, which are not used.
            sizes: The lengths, the number of documents (`windows`), and the seed.

        Raises:
            UsageError: RULER has no metric for a length.
        """
        for length in self._lengths(sizes):
            # as many tokens as the length, all of them the seed; the first one also depends on the
            # contents of a task file (a checksum of 0 where there is no file)
            placeholder_tokens = np.full(length, sizes.seed, np.int32)
            placeholder_tokens[0] += self.file_checksum

            # as many targets as documents; targets are indices into the tokens
            document_count = min(sizes.windows, length - 1)
            placeholder_targets = np.arange(1, document_count + 1, dtype=np.int32)
            yield Case(
                measure=self.name,
                column=length,
                document=0,
                window=sizes.seed,  # `run` reads the seed here
                ids=placeholder_tokens,
                targets=placeholder_targets,
            )

    def _lengths(self, sizes: EvaluationSizes) -> list[int]:
        """Return the lengths in tokens at which the task is run.

        A task of RULER makes prompts of any length, and is run at each of --lengths. Every other
        task is run once, with the longest as the limit. RULER has scores for a few lengths only
        (`RULER_LENGTHS`). Other lengths are left out with `only_known_lengths`, else refused.

        Raises:
            UsageError: RULER has no metric for a length.
        """
        if not self.has_prompts_of_each_length:
            return [sizes.longest]
        known_lengths = [length for length in sizes.lengths if length in RULER_LENGTHS]
        if self.only_known_lengths:
            return known_lengths
        for length in sizes.lengths:
            if length not in known_lengths:
                choices = ",".join(format_tokens(choice) for choice in RULER_LENGTHS)
                raise UsageError(
                    f"{self.name} has no score at {length:,} tokens; give --lengths some of"
                    f" {choices}"
                )
        return known_lengths

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        raise NotImplementedError(self.name)

    def run(self, row: str, case: Case, engine: Engine, tokenizer: Tokenizer) -> list[Observation]:
        """Run the task on the model of a row, and return the metrics of each document.

        Args:
            row: The name of the row.
            case: A case that `cases` has made. Its column is the longest length in tokens.
            engine: The model, patched to compute the method of the row.
            tokenizer: The tokenizer of the model.

        Raises:
            RopeconvError: The model does not run in transformers, or the task has no number for
                each document.
        """
        refusal = f"{self.name} runs in transformers and not in {engine.runtime}; leave it out"
        if not isinstance(engine, TransformersEngine):
            raise RopeconvError(refusal)
        if not isinstance(tokenizer, CheckpointTokenizer):
            raise RopeconvError(refusal)

        # lm_eval returns a sample for each document: a dictionary with the metrics of the answer. A
        # group such as mmlu has many tasks, which are numbered by their sorted names.
        samples_by_task = self._run_task(engine.model, tokenizer.tokenizer, case)
        observations = list[Observation]()
        for task_number, task in enumerate(sorted(samples_by_task)):
            for sample in samples_by_task[task]:
                observations += self._metrics_of_sample(sample, case.column, task_number)
        if not observations:
            raise RopeconvError(
                f"the task {self.task} does not give a number for each document; choose another"
                " task"
            )
        return observations

    def _metrics_of_sample(
        self, sample: JsonObject, length: int, task_number: int
    ) -> Iterator[Observation]:
        """Yield an observation for each metric of a document, such as "acc" and "acc_norm".

        Args:
            sample: The document as lm_eval logs it, such as {"doc_id": 3, "filter": "none",
                "metrics": ["acc", "acc_norm"], "acc": 1.0, "acc_norm": 0.0}.
            length: The longest length in tokens that the model sees.
            task_number: The number of its task in a group; 0 for a single task.
        """
        # gsm8k has the metric "exact_match" for two filters of the answer. The tables of lm_eval
        # write "exact_match,strict-match" and "exact_match,flexible-extract".
        answer_filter = sample.get("filter", "none")
        suffix = "" if answer_filter == "none" else f",{answer_filter}"
        for name in sample.get("metrics", ()):
            value = sample.get(name)
            if not isinstance(value, (bool, int, float, np.number)):
                continue

            # RULER names its metrics by the length, as {"4096": 1.0, "8192": -1}; -1 stands for a
            # length that this prompt does not have
            metric = f"{name}{suffix}"
            if self.has_prompts_of_each_length:
                if name != str(length):
                    continue
                metric = "accuracy"

            # documents are numbered in each task, so the number of the task tells them apart
            yield Observation(
                measure=self.name,
                metric=metric,
                column=length,
                document=int(sample["doc_id"]),
                window=task_number,
                value=float(value),
            )

    def with_place(self, case: Case, observation: Observation) -> Observation:
        return observation  # its documents are those of the task

    def _run_task(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, case: Case
    ) -> dict[str, list[JsonObject]]:
        """Run the task, and return the documents of each of its tasks with their metrics.

        Args:
            model: The loaded model.
            tokenizer: Its tokenizer.
            case: As `cases` made it: its column is the longest length, its window the seed, and it
                has a target for each document that is read.

        Raises:
            RopeconvError: lm_eval does not know the task, cannot load its documents, or has no
                prompt for the tokenizer.
        """
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        try:
            with _silent(), ExitStack() as stack:
                options: dict[str, Any] = {}
                max_length = case.column
                if self.folder:
                    options["task_manager"] = TaskManager(include_path=str(self.folder))
                if self.has_prompts_of_each_length:
                    check_tokenizer(self.task, tokenizer, case.column)
                    stack.enter_context(fresh_words())
                    # HFLM cuts the beginning of a prompt that leaves no room for its answer, as
                    # those of ruler_fwe do: they have the length without the answer (fwe_utils.py)
                    max_length += LONGEST_ANSWER
                    folder = stack.enter_context(_saved(tokenizer))
                    options["metadata"] = {
                        "tokenizer": str(folder),
                        "max_seq_lengths": [case.column],
                    }
                # HFLM accepts a loaded model, so the patched RoPE is the one that is measured
                loaded = HFLM(pretrained=model, tokenizer=tokenizer, max_length=max_length)
                results = lm_eval.simple_evaluate(
                    loaded,
                    tasks=[self.task],
                    limit=len(case.targets),  # the first documents of each task
                    bootstrap_iters=0,  # statistics.py computes the errors
                    random_seed=case.window,
                    **options,
                )
        except (
            KeyError,
            ValueError,
            OSError,
            ImportError,
            AssertionError,
            ArithmeticError,
        ) as problem:
            lines = str(problem).splitlines() or [type(problem).__name__]
            raise RopeconvError(
                f"lm_eval does not run the task {self.task} ({lines[0]}); `lm_eval ls tasks` lists"
                " the tasks"
            ) from None
        samples: dict[str, list[JsonObject]] = (results or {}).get("samples") or {}
        return samples


def _named_files(text: str, folder: Path) -> list[Path]:
    """Return the files that a YAML file names: its questions, its Python functions, and others.

    Args:
        text: The YAML file, such as "data_files: questions.jsonl" and "!function scores.exact".
        folder: Its folder.
    """
    files = set[Path]()
    for word in re.findall(r"[^\s\"',:\[\]{}]+", text):
        module = word.split(".")[0]  # of !function scores.exact
        for place in (folder / word, Path(word), folder / f"{module}.py"):
            with suppress(OSError):  # a name that is too long for a file
                if place.is_file():
                    files.add(place)
        if "*" in word and not word.startswith("/"):
            with suppress(ValueError, OSError):  # a pattern such as **x
                files.update(file for file in folder.glob(word) if file.is_file())
    return sorted(files)


@contextmanager
def _saved(tokenizer: PreTrainedTokenizerBase) -> Iterator[Path]:
    """Save a tokenizer in a temporary folder, from which lm_eval loads it for its prompts.

    lm_eval loads it with trust_remote_code=True (lm_eval/tasks/ruler/common_utils.py), so the
    folder has no code of the model.

    Raises:
        RopeconvError: It is a tokenizer of Python code, which has no such file.
    """
    from transformers import PreTrainedTokenizerFast

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise RopeconvError(
            "RULER needs a tokenizer with a tokenizer.json; convert that of the model first"
        )
    with scratch() as folder:
        plain = PreTrainedTokenizerFast(tokenizer_object=backend)
        plain.save_pretrained(str(folder))
        yield folder


@contextmanager
def _silent() -> Iterator[None]:
    """Keep progress bars, lines and warnings of lm_eval from the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # vt_utils.py prints to standard output, where --json has its result
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
