"""GGUF: patching against `cp` and `gguf-new-metadata`, exporting against llama.cpp's convert_hf_to_gguf.py.

Exports and the way back run by one thread too. None waits for the disk to have what was written. Each command several
times, the first left out where there are more; prints medians and the largest process of each.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_checkpoints import CONFIGS, checkpoint

ALONE = "import os; os.sched_getaffinity = lambda process: {0}; from ropeconv.cli import main; main()"
"""ropeconv, which takes the machine for one with a single core."""


def timed(command: list[str], env: dict[str, str] | None = None) -> tuple[float, float, float]:
    """Seconds of wall time and of processor time, and the megabytes of the process without those that it starts."""
    begin, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=words, env={**os.environ, **(env or {})})
        status = Path(f"/proc/{process.pid}/status")
        done, code, usage = os.wait4(process.pid, os.WNOHANG)
        while not done:
            peak = max(peak, *map(int, re.findall(r"VmHWM:\s+(\d+)", status.read_text())), 0)
            time.sleep(0.02)
            done, code, usage = os.wait4(process.pid, os.WNOHANG)
        if code:
            words.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{words.read().decode()[-2000:]}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, peak / 1000


def forget(folder: Path) -> None:
    """Takes the files of a folder out of the page cache, so that they are read from the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(
    title: str,
    runs: dict[str, list[str]],
    out: Path,
    rounds: int,
    base: str,
    *,
    env: dict[str, str] | None = None,
    in_turns: bool = False,
    cold: Path | None = None,
) -> None:
    """One table. in_turns: as in scripts/bench.py, for its reason. cold: a folder that is to be read from the disk."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}
    peaks: dict[str, float] = dict.fromkeys(runs, 0.0)
    count = rounds + (rounds > 1)
    for name in list(runs) * count if in_turns else [name for name in runs for _ in range(count)]:
        os.sync()  # what was written before is not part of it
        if cold is not None:
            forget(cold)
        took, worked, peak = timed(runs[name], env)
        seconds[name].append(took)
        busy[name].append(worked)
        peaks[name] = max(peaks[name], peak)
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
    found = {
        name: (*(statistics.median(one[name][1:] or one[name]) for one in (seconds, busy)), peaks[name])
        for name in runs
    }
    print(title)
    for name, (middle, worked, megabytes) in found.items():
        ratio, work = middle / found[base][0], worked / max(found[base][1], 0.01)
        print(f"  {name:24} {middle:7.2f} s   {ratio:6.2f} x {base}   {megabytes:6.0f} MB", end="")
        print(f"   processor {worked:7.2f} s   {work:6.2f} x", flush=True)


def main() -> None:
    """Exports, then patches what was exported (a Llama)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=7)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--converter", type=Path, help="llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("--model-type", choices=CONFIGS, default="llama")
    parser.add_argument("--outtypes", nargs="+", default=["bf16", "f16", "q8_0"])
    parser.add_argument("--cold", action="store_true", help="exports read their source from the disk")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        return checkpoint(given.make, given.gigabytes, given.model_type)
    work = (given.dir / "bench-work").resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source, out, model = work / "model", work / "out.gguf", work / "model.gguf"
    # in a process of its own: a child's peak memory counts from what its parent held when it was started
    make = ["--make", source, "--gigabytes", str(given.gigabytes), "--model-type", given.model_type]
    subprocess.run([sys.executable, __file__, *make], check=True)
    python = sys.executable
    tool, alone = [python, "-m", "ropeconv", "apply"], [python, "-c", ALONE, "apply"]
    env = {"PYTHONPATH": str(given.converter.parent / "gguf-py")} if given.converter else {}
    here = Path(__file__)
    for outtype in given.outtypes:
        ours = [str(source), "--as-is", "--to", "gguf", "--outtype", outtype, "--no-fsync", "-q", "-o", str(out)]
        runs = {"apply --to gguf": [*tool, *ours], "... by one thread": [*alone, *ours]}
        if given.converter:
            theirs = [python, str(here.with_name("bench_converter.py")), str(given.converter), str(source)]
            runs["convert_hf_to_gguf.py"] = [*theirs, "--outtype", outtype, "--outfile", str(out)]
        title, cold = f"export of {given.model_type}, {outtype}", source if given.cold else None
        measure(title, runs, out, given.rounds, "apply --to gguf", env=env, in_turns=True, cold=cold)
    if given.model_type != "llama":
        return shutil.rmtree(work)
    timed([*tool, str(source), "--as-is", "--to", "gguf", "-q", "-o", str(model)])
    folder = work / "out"
    back = [str(model), "--as-is", "--to", "safetensors", "--no-fsync", "-q", "-o", str(folder)]
    runs = {"apply --to safetensors": [*tool, *back], "... by one thread": [*alone, *back]}
    measure("the way back", runs, folder, given.rounds, "apply --to safetensors", in_turns=True)
    new = [str(Path(python).with_name("gguf-new-metadata")), "--force", "--general-name", "x", str(model), str(out)]
    runs = {
        "cp": ["cp", str(model), str(out)],
        "apply": [*tool, str(model), "--yarn", "4", "--no-fsync", "-q", "-o", str(out)],
        "gguf-new-metadata": new,
        "apply --in-place": [*tool, str(model), "--yarn", "4", "--replace", "--in-place", "-q"],
    }
    measure(f"patch, {model.stat().st_size / 1e9:.1f} GB", runs, out, max(3, given.rounds), "cp")
    shutil.rmtree(work)


main()
