"""What all verbs share: the application, its options, and how results and errors are printed.

Exit codes: 0 fine, 1 failed, 2 bad input. With --json, stdout carries one JSON document and nothing else.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from layermerge import __version__
from layermerge.cli.interrupts import CtrlC, how_to_go_on, ignore_further
from layermerge.errors import LayerMergeError, machine_failed
from layermerge.stages import aside, shown_stages

app = typer.Typer(
    name="layermerge",
    help="Makes trained convolutional networks shallower and faster on the machine they will be served on.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"layermerge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Makes trained convolutional networks shallower and faster on the machine they will be served on."""


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def order_verbs(names: Sequence[str]) -> None:
    """Lists the verbs in this order, each with the whole first sentence of what it does, and its example as it is typed."""
    known = {getattr(command.callback, "__name__", ""): command for command in app.registered_commands}
    for command in known.values():
        text = inspect.cleandoc(command.callback.__doc__ or "")
        sentence = text.split("\n\n")[0].replace("\n", " ")
        command.short_help = sentence
        command.help = text.replace("\n\nExample: ", "\n\n\b\nExample: ")
    app.registered_commands[:] = [known[name] for name in names]


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=1))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Our own warnings as one line on stderr; what libraries warn of is not for users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)

        def show(message: Warning | str, _category: type[Warning], filename: str, *_: Any) -> None:
            if Path(__file__).parents[1] in Path(filename).parents:
                with aside():
                    print(f"warning: {message}", file=sys.stderr)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@dataclass(frozen=True)
class _Ending:
    """How a command ended: its exit code, and what there is to say of it."""

    code: int
    line: str = ""


def run() -> None:
    """Runs a command; every error is one line on stderr, and the exit code 0, 1 or 2."""
    if sys.stdout is None:
        print("failed: stdout is closed; send it to a file or to /dev/null", file=sys.stderr)
        sys.exit(1)
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that shows only ASCII, a file name that is not UTF-8
    ctrl_c, interrupted = CtrlC(), _Ending(1, how_to_go_on())
    ending = interrupted
    with suppress(KeyboardInterrupt), ctrl_c.handled(), _plain_warnings():
        ending = _ending_of_command()
    if ctrl_c.seen or ending is interrupted:
        ending = interrupted
        ignore_further()
    if ending.line:
        print(ending.line, file=sys.stderr)
    sys.exit(ending.code)


def _ending_of_command() -> _Ending:
    try:
        with shown_stages():
            code = app(standalone_mode=False)
            sys.stdout.flush()  # here, where a full disk can still be reported
    except SystemExit as end:  # of shell completion; a model's own is an error where it was called
        return _Ending(end.code if end.code in (0, 1, 2) else 1)
    except BrokenPipeError:
        _forget_stdout()  # whoever read it, such as head, has enough
        return _Ending(1)
    except _UsageError as error:
        return _Ending(2, _usage(error))
    except LayerMergeError as error:
        machine = machine_failed(error)
        return _Ending(1 if machine else 2, f"{'failed' if machine else 'error'}: {' '.join(str(error).split())}")
    except Exception as error:
        if os.environ.get("LAYERMERGE_DEBUG"):
            raise
        _forget_stdout()
        return _Ending(1, f"failed: {_unforeseen(error)}")
    if code == _KEYBOARD_INTERRUPT:
        return _Ending(2, "error: the model's own code raised KeyboardInterrupt; let it raise another error")
    return _Ending(code or 0)


_KEYBOARD_INTERRUPT = 130
"""What typer makes of one; no command returns it."""
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer names it in no public place; it carries the context that the arguments were read in."""


def _unforeseen(error: Exception) -> str:
    if isinstance(error, OSError) and machine_failed(error):
        where = f" for '{error.filename}'" if error.filename else ""
        return f"{error.strerror}{where}; repair that, then run the same command again"
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {line} (LAYERMERGE_DEBUG=1 shows the traceback)"


def _usage(error: Any) -> str:
    """One line for wrong arguments; all of the help for none."""
    if not sys.argv[1:]:
        return str(error.ctx.get_help())
    hint = f"; see {error.ctx.command_path} --help" if error.ctx is not None else ""
    return f"error: {' '.join(error.format_message().split()).removesuffix('.')}{hint}"


def _forget_stdout() -> None:
    """What could not be written there would fail once more when the process ends, with a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
