"""The page of `ropeconv ui` as a server of commands: one command is the request that a browser sends
when its Write button is pressed, and a fault strikes the process that works on it.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from .harness import ENDED, KILLED, ROOT, Fault, Mode, Outcome, compile_shim

HOOK = """
import json, os

def arm():
    import ctypes, signal
    from ropeconv.engines.probe import Probe

    Probe.available = staticmethod(lambda: False)  # as in server.py
    try:
        run = json.load(open(os.environ["FAULT_RUN"]))
    except FileNotFoundError:
        return
    signal.alarm(120)
    report = os.open(run["report"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    shim = ctypes.CDLL(None)
    place = os.fsencode(run["folder"])
    shim.fault_arm(place, ctypes.c_long(run["at"]), run["mode"], run["error"], report)
    leave = os._exit

    def ended(code):
        shim.fault_report()
        leave(code)

    os._exit = ended

os.register_at_fork(after_in_child=arm)
"""
"""Imported by every Python at its start; the processes of requests are forked from one of them."""
PATH = re.compile(r"url=(/[\w-]{20,})/")
LOST = "ended without an answer"
CANCELLED = "nothing was kept"


class PageServer:
    """The page, with an interface like that of `Server`.

    Args:
        folder: For the shim and the log, outside of the folder that requests write to.
    """

    def __init__(self, folder: Path) -> None:
        self.run_file = folder / "run.json"
        self.report = folder / "report"
        folder.joinpath("sitecustomize.py").write_text(HOOK)
        variables = {
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "LD_PRELOAD": compile_shim(folder),
            "FAULT_RUN": str(self.run_file),
            "HF_HUB_OFFLINE": "1",
            "HOME": str(folder),
        }
        variables |= {
            f"XDG_{name}_HOME": str(folder / name) for name in ("CACHE", "STATE", "CONFIG")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ropeconv", "ui", "--no-browser"],
            stdout=subprocess.PIPE,
            stderr=folder.joinpath("log").open("w"),
            text=True,
            cwd=folder,
            env={**os.environ, **variables},
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self.origin = address.partition("/?")[0]
        self.client = httpx.Client(timeout=120, trust_env=False, headers={"Origin": self.origin})
        entered = PATH.search(self.client.get(address).text)
        assert entered, folder.joinpath("log").read_text()
        self.site = self.origin + entered[1]
        self.page = self.client.get(f"{self.site}/config").json()
        self.sessions = 0

    def run(self, folder: Path, command: Sequence[str], fault: Fault | None = None) -> Outcome:
        """Press Write. command: an action, the model, and the output, by their names."""
        _, source, out = command
        mode, at, error = fault or Fault(Mode.COUNT)
        run = {"folder": str(folder.resolve()), "at": at, "mode": mode, "error": error}
        self.report.write_text("")
        self.run_file.write_text(json.dumps(run | {"report": str(self.report)}))
        try:
            typed = {"source": str(folder / source), "out": str(folder / out), "context": "4"}
            html = self._press("write", typed)
        finally:
            self.run_file.unlink()
        report = self.report.read_text()
        text = re.sub(r"<[^>]+>", " ", html)
        if "Wrote" in text or "Unchanged:" in text:
            return Outcome(0, text, report)
        if LOST in text and mode in (Mode.KILL, Mode.KILL_HALF):
            return Outcome(KILLED, text, report)
        code = ENDED if CANCELLED in text and mode == Mode.TERM else 1
        return Outcome(code, f"ropeconv: {' '.join(text.split())}", report)

    def _press(self, button: str, typed: dict[str, str]) -> str:
        """Send the requests of a button, and return the HTML of its answer."""
        parts = {part["id"]: part["props"] for part in self.page["components"]}
        self.sessions += 1
        session = f"session{self.sessions}"
        answer = ""
        for event in self.page["dependencies"]:
            pressed = [
                parts[place].get("elem_id") for place, _ in event["targets"] if place in parts
            ]
            if pressed != [button] or not event["backend_fn"]:
                continue
            values = []
            for place in event["inputs"]:
                name = parts[place].get("elem_id")
                values.append(typed.get(name, parts[place].get("value")))
            answer = self._send(event["id"], values, session, event["queue"]) or answer
        return answer

    def _send(self, number: int, values: list[Any], session: str, queued: bool) -> str:
        """Send the request of one event, and return the last HTML of its answers."""
        about = {"data": values, "fn_index": number, "session_hash": session, "event_data": None}
        if not queued:
            self.client.post(f"{self.site}/gradio_api/run/predict", json=about).raise_for_status()
            return ""
        self.client.post(f"{self.site}/gradio_api/queue/join", json=about).raise_for_status()
        html = ""
        for message in self._messages(session):
            data = message.get("output", {}).get("data") or [""]
            if message["msg"] == "process_generating":
                html = str(data[0][0][2] if isinstance(data[0], list) else data[0])
            if message["msg"] == "process_completed":
                assert message["success"], message
                break
        return html

    def _messages(self, session: str) -> Iterator[dict[str, Any]]:
        place = f"{self.site}/gradio_api/queue/data"
        with self.client.stream("GET", place, params={"session_hash": session}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(60)
