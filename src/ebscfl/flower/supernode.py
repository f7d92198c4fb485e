"""Flower's SuperNode as a process that ends when its work has: ``python -m ebscfl.flower.supernode ARGUMENTS``.

Flower 1.41 ends a SuperNode's main thread on the first TLS record that does not decrypt, which anybody on the line can
cause with one bit, but leaves the process alive: its local server thread is no daemon. Such a client never trains again
and no service manager sees a reason to start it anew. Here the process ends with its main thread.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def play(work: Callable[[], object]) -> NoReturn:
    """Run ``work`` and end the process with it, whatever threads are left: 0, its exit code, or 1 for an error."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> NoReturn:
    """``flower-supernode`` with the arguments of this process."""
    from flwr.supernode.cli import flower_supernode

    sys.argv[0] = "flower-supernode"
    play(flower_supernode)


if __name__ == "__main__":
    main()
