"""Temporary files and folders: those of living processes are left alone, those of killed ones are removed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firth import samples
from firth.files import check_can_be_made
from firth.temporary import remove_abandoned, temporary_file, temporary_folder

WRITER = """
import sys, time
from pathlib import Path
from firth.files import atomic_file, atomic_folder

out = Path(sys.argv[1])
with atomic_folder(out) as folder, atomic_file(out) as file:
    (folder / "half").write_bytes(b"half")
    file.write(b"half")
    print("ready", flush=True)
    time.sleep(600)
"""
WAIT_SECONDS = 120


@contextmanager
def writer(out: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that is writing a folder and a file at this path."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, out], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def hidden(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


def test_what_a_living_process_writes_is_left_alone_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out[1]"  # the brackets are no pattern
    others = [tmp_path / ".out[1].settings", tmp_path / ".out[1].firth-x", tmp_path / ".out1.firth-abcdefgh"]
    for path in others:
        path.write_text("somebody's")
    with writer(out) as process:
        written = [path for path in hidden(tmp_path) if path not in others]
        assert sorted(path.is_dir() for path in written) == [False, True]
        check_can_be_made(out)
        assert all(path.exists() for path in written)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert all(path.exists() for path in written)
    check_can_be_made(out)
    assert hidden(tmp_path) == sorted(others)


def test_what_another_machine_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    """Its lock may be unknown here."""
    out = tmp_path / "out"
    folder = tmp_path / ".out.firth-0123abcd-abcdefgh"
    folder.mkdir()
    file = tmp_path / ".out.firth-abcdefgh"  # an older firth made it
    long_ago = time.time() - 2 * 3600
    for inside in (folder / "half", folder / "rest", file):
        inside.write_text("half")
    for path in (folder, folder / "half"):
        os.utime(path, (long_ago, long_ago))
    remove_abandoned(out)
    assert hidden(tmp_path) == [folder, file]
    for path in (folder / "rest", file):
        os.utime(path, (long_ago, long_ago))
    remove_abandoned(out)
    assert not hidden(tmp_path)


def test_this_process_keeps_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with temporary_folder(out) as folder, temporary_file(out) as file:
        remove_abandoned(out)
        assert folder.is_dir()
        assert file.is_file()
    assert not hidden(tmp_path)
    remove_abandoned(tmp_path / "none" / "out")  # has nothing to remove


def test_preparation_that_was_killed_leaves_nothing_once_it_is_run_again(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    text = tmp_path / "text.txt"
    lines = samples.prose("en").read_text("utf-8").splitlines()
    text.write_text("".join(f"{number}. {line}\n" for number in range(20) for line in lines if line), "utf-8")
    arguments = ("prepare", text, "--out", tmp_path / "data", "--vocab-size", 500, "--processes", 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "firth", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + WAIT_SECONDS
    while not hidden(tmp_path) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    process.kill()
    process.wait()
    [left] = hidden(tmp_path)
    assert not (tmp_path / "data").exists()
    again = command(*arguments)
    assert again.code == 0, again.err
    assert f"{left} was left by a command that was killed, and is removed." in again.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "text.txt"]
