"""How much code each step enters: the distinct files and functions of firth that run.

    python bench/entered.py

A reader who follows a step through the code meets at most these. Steps run on tiny inputs in this process, after one
run that is not counted, so that importing modules does not count.
"""

import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import firth
from firth import samples

PACKAGE = str(Path(firth.__file__).parent) + os.sep
TINY = (
    "encoder.bert.width=32",
    "encoder.bert.num_layers=2",
    "encoder.bert.num_heads=2",
    "encoder.bert.ffn_width=64",
    "batches.max_length=64",
    "batches.tokens=512",
    "batches.held_out_rate=0.1",
)


class Recorder:
    """Notes the functions of the package that any thread enters while `on` is set."""

    def __init__(self) -> None:
        self.on = False
        self.codes: set[CodeType] = set()
        # For threads that begin later, such as those of the server, and for this one.
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # Comprehensions, class bodies and module bodies are no functions that a reader opens.
        is_function = event == "call" and not code.co_name.startswith("<")
        if self.on and is_function and code.co_filename.startswith(PACKAGE):
            self.codes.add(code)

    def count(self, step: Callable[[], object]) -> tuple[int, int]:
        """The number of files and of functions that a step enters."""
        self.codes.clear()
        self.on = True
        step()
        self.on = False
        return len({code.co_filename for code in self.codes}), len(self.codes)


def steps(folder: Path, text: Path, rows: Path) -> dict[str, Callable[[], object]]:
    """The steps of the walk, each with what the ones before it made."""
    return {
        "prepare": lambda: firth.prepare([text], out=folder / "data", vocab_size=300, processes=0),
        "pretrain": lambda: firth.pretrain(folder / "data", out=folder / "run", size="tiny", steps=2, changes=TINY),
        "finetune": lambda: firth.finetune(
            folder / "run", task="classify", train=rows, out=folder / "tuned", changes=["epochs=1"]
        ),
        "predict": lambda: firth.load(folder / "tuned").predict(["A text.", "Another one."]),
    }


def ask(port: int) -> None:
    body = json.dumps({"text": "The [MASK] is open."}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/fill", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def wait_for(port: int) -> None:
    """Returns when the server answers."""
    for _ in range(300):
        try:
            return ask(port)
        except OSError:
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def show(step: str, counts: tuple[int, int]) -> None:
    num_files, num_functions = counts
    print(f"{step:10} {num_files:4} files {num_functions:4} functions", flush=True)


def main() -> None:
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        rows = folder / "rows.tsv"
        text.write_text("\n\n".join(samples.documents("en")), encoding="utf-8")
        rows.write_text("text\tlabel\n" + "good day\tyes\nbad day\tno\n" * 20, encoding="utf-8")
        for run in steps(folder / "first", text, rows).values():
            run()
        for step, run in steps(folder / "second", text, rows).items():
            show(step, recorder.count(run))

        port = free_port()
        stop = threading.Event()
        server = threading.Thread(target=lambda: firth.serve(folder / "first" / "run", port=port, stop=stop))
        server.start()
        wait_for(port)
        show("request", recorder.count(lambda: ask(port)))
        stop.set()
        server.join()


if __name__ == "__main__":
    main()
