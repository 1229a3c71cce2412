"""What `mlirc --watch` adds to the program: when it starts anew, how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.watch.session import Watch, Wish

# Set for a process that `restart` made: a model that does not open is then one in the middle of an edit.
_AGAIN = "MLIRC_WATCH_AGAIN"


def say(line: str) -> None:
    """Prints a line for the user, at once."""
    print(line, file=sys.stderr, flush=True)


def watch(wish: Wish, new: Callable[[], Compilation], done: Callable[[Compilation], None]) -> int:
    """Compiles, and then watches until it is interrupted, which is the ordinary end: status 0.

    Raises MlircError, before it watches anything, for a file that is missing and a model that cannot be opened.
    """
    command = (sys.executable, list(sys.orig_argv), dict(os.environ), os.getcwd())
    again = os.environ.pop(_AGAIN, "")
    for path in wish.files:
        if not os.path.isfile(path):
            raise MlircError(f"--schedule {path}: no such file")

    def restart(changed: Sequence[str]) -> None:
        say(f"{', '.join(sorted({os.path.basename(p) for p in changed}))} changed: starting over")
        _start_over(*command)

    session = Watch(wish, new, say=say, done=done, restart=restart)
    try:
        session.open()
    except MlircError as e:
        if not again:
            raise
        say(f"error: {' '.join(str(e).split())}")
        say("watching goes on")
    else:
        session.round()
    shown = [os.path.basename(p) for p in wish.files]
    say(f"watching {', '.join([*shown, 'the model, and the scripts of mlirc'])}; Ctrl-C ends")
    try:
        session.loop()
    except KeyboardInterrupt:
        return 0


def _start_over(program: str, words: list[str], environment: dict[str, str], folder: str) -> None:
    """Puts a fresh process in the place of this one, by the same command."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(folder)
    os.execve(program, [program, *words[1:]], {**environment, _AGAIN: "1"})
