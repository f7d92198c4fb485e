"""A process ends with its main thread, whatever else still runs in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading, time
from ebscfl.flower.supernode import play
threading.Thread(target=time.sleep, args=(600,)).start()  # no daemon: an ordinary process would wait for it
atexit.register(print, "cleaned up")
def work():
    print("worked")
    {end}
play(work)
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("return", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why"),
        ("sys.exit()", 0, ""),
        ("raise OSError('bad record')", 1, "OSError: bad record"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
    ],
)
def test_the_process_ends_with_its_work(end: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code
    assert done.stdout == "worked\ncleaned up\n"
    assert said in done.stderr
