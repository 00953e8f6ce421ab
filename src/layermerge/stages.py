"""Stages: what a command is doing, and what it has done, as numbered lines on stderr.

In: the stages that are to come (`expect`), and each while it runs (`stage`). Out: on a terminal a line that says at once what
is being done, and then, in its place, that it is done and how long it took, or that its result was there already; elsewhere
plain lines, once the command has taken a while. Guarantees: nothing outside `shown_stages`, which the command line enters;
nothing on stdout; a stage within a stage is a part of it; what fails leaves no line behind.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from time import monotonic

HELD_FOR = 15.0
"""Seconds that plain lines are held back: a command that is refused by then has one line to say."""
ONE_LINE_UP_TO = 2.0
"""Seconds; in a log, a stage that takes longer also says what it does, before it is done."""
_NAMES = 13
"""Columns for the longest name of a stage."""
_CLEAR = "\r\x1b[2K"


@dataclass
class Stage:
    """A stage that runs; `reused` is for it to say that there was nothing to do."""

    reused: bool = False


class _Silence:
    """For a command that is not to be heard."""

    titled = False

    def begin(self, line: str) -> None: ...

    def end(self, line: str) -> None: ...

    def fail(self) -> None: ...

    def pause(self, opens: bool) -> None: ...

    def resume(self) -> None: ...

    def close(self, done: bool) -> None: ...


class _Screen(_Silence):
    """For a terminal: the stage that runs is its last line."""

    def __init__(self) -> None:
        self._running = ""

    def begin(self, line: str) -> None:
        self._running = line
        self.resume()

    def end(self, line: str) -> None:
        self._running = ""
        _write(f"{_CLEAR}{line}\n")

    def fail(self) -> None:
        self._running = ""
        _write(_CLEAR)

    def pause(self, opens: bool) -> None:  # noqa: ARG002
        if self._running:
            _write(_CLEAR)

    def resume(self) -> None:
        if self._running:
            _write(_CLEAR + self._running[: max(_columns() - 1, 1)])


class _Log(_Silence):
    """For logs: nothing of a command that is quick, unless it does all of a method's work, and one line of a quick stage."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._running, self._open, self._began = "", False, monotonic()
        self._timer: Timer | None = None
        self._lock = Lock()

    def begin(self, line: str) -> None:
        self._running = line
        wait = max(ONE_LINE_UP_TO, self._began + HELD_FOR - monotonic())
        self._timer = Timer(wait, self._say)
        self._timer.daemon = True
        self._timer.start()

    def end(self, line: str) -> None:
        self.fail()
        self._held.append(line)
        if self._open:
            self._release()

    def fail(self) -> None:
        if self._timer:
            self._timer.cancel()
        with self._lock:
            self._running = ""

    def pause(self, opens: bool) -> None:
        if opens or self._open:
            self._say()

    def close(self, done: bool) -> None:
        self.fail()
        if done and self.titled:
            self._release()

    def _say(self) -> None:
        """The stage that runs is a long one."""
        with self._lock:
            if self._running:
                self._held.append(self._running)
                self._running = ""
        self._release()

    def _release(self) -> None:
        with self._lock:
            self._open = True
            lines, self._held = self._held, []
        if lines:
            _write("".join(f"{line}\n" for line in lines))


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or os.get_terminal_size(2).columns
    except (OSError, ValueError):
        try:
            return os.get_terminal_size(2).columns
        except OSError:
            return 80


class _Shown:
    """What is expected, and how far it is."""

    def __init__(self, style: _Silence) -> None:
        self.style, self.running = style, False
        self._names: tuple[str, ...] = ()
        self._at = -1

    def expect(self, names: Sequence[str], title: str) -> None:
        self._names, self._at = tuple(names), -1
        if title:
            self.style.titled = True
            self.style.end(title)

    def enter(self, name: str) -> str | None:
        """How the lines of a stage begin; None for one that is not expected, or a part of another."""
        place = next((at for at in range(self._at + 1, len(self._names)) if self._names[at] == name), None)
        if place is None or self.running:
            return None
        self._at = place
        number = f"{place + 1}/{len(self._names)} " if len(self._names) > 1 else ""
        return f"{number}{name:{_NAMES}}"

    def comes_next(self, name: str) -> bool:
        return self._names[self._at + 1 : self._at + 2] == (name,)


_SHOWN: ContextVar[_Shown | None] = ContextVar("shown", default=None)


@contextmanager
def shown_stages() -> Iterator[None]:
    """Shows the stages of what is done inside; under torchrun, in the first process only."""
    leads = os.environ.get("RANK", "0") == "0"
    terminal = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    shown = _Shown(_Silence() if not leads else _Screen() if terminal else _Log())
    token = _SHOWN.set(shown)
    done = False
    try:
        yield
        done = True
    finally:
        _SHOWN.reset(token)
        shown.style.close(done)


def stages_shown() -> bool:
    return _SHOWN.get() is not None


def expect(names: Sequence[str], title: str = "") -> None:
    """Says which stages come next, so that they can be numbered; a title stands above them."""
    if shown := _SHOWN.get():
        shown.expect(names, title)


@contextmanager
def stage(name: str, doing: str, *files: Path) -> Iterator[Stage]:
    """One stage; its result was there already where it says so, or where `files` are there and stay as they were."""
    own, shown = Stage(), _SHOWN.get()
    begins = shown.enter(name) if shown else None
    if shown is None or begins is None:
        yield own
        return
    began, before = monotonic(), _contents(files)
    shown.style.begin(f"{begins} {doing} ...")
    shown.running = True
    try:
        yield own
    except BaseException:
        shown.style.fail()
        raise
    finally:
        shown.running = False
    reused = own.reused or (None not in before and bool(files) and before == _contents(files))
    shown.style.end(f"{begins} {_tick()} {'reused' if reused else _taken(monotonic() - began)}")


def skip(name: str, why: str) -> None:
    """Says that the next stage has nothing to do, where it is the one of this name."""
    shown = _SHOWN.get()
    if shown and shown.comes_next(name) and (begins := shown.enter(name)):
        shown.style.end(f"{begins} {_tick()} {why}")


def note(line: str) -> None:
    """A line among the stages."""
    if shown := _SHOWN.get():
        shown.style.end(line)


@contextmanager
def aside(*, opens: bool = False) -> Iterator[None]:
    """Makes room for a line, or a bar; one that makes no sense without the stage that it belongs to `opens` a log."""
    shown = _SHOWN.get()
    if shown:
        shown.style.pause(opens)
    try:
        yield
    finally:
        if shown:
            shown.style.resume()


def _taken(seconds: float) -> str:
    return in_words(seconds) if seconds >= 0.5 else "<1 s"


def _contents(files: Sequence[Path]) -> list[bytes | None]:
    return [hashlib.sha256(file.read_bytes()).digest() if file.is_file() else None for file in files]


def _tick() -> str:
    try:
        "\u2713".encode(sys.stderr.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ok"
    return "\u2713"


def in_words(seconds: float) -> str:
    """A time as people say it, to two units.

    >>> in_words(8.4), in_words(80), in_words(7265), in_words(200_000)
    ('8 s', '1 min 20 s', '2 h 1 min', '2 d 7 h')
    """
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
