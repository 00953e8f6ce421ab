"""What all verbs share: the application, its options, and how results and errors are printed.

Exit codes: 0 fine, 1 failed, 2 bad input. With --json, stdout carries one JSON document and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from layermerge import __version__
from layermerge.cli.interrupts import how_to_go_on, ignore_further, orderly_interrupts
from layermerge.errors import LayerMergeError, machine_failed

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


def report(as_json: bool, facts: dict[str, Any]) -> None:
    if as_json:
        print_json(facts)
    else:
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))


def console() -> Console:
    """Wide enough for whole reasons when the output is piped; a terminal decides for itself."""
    return Console() if sys.stdout.isatty() else Console(width=140)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=1))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Our own warnings as one line on stderr; what libraries warn of is not the user's business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)

        def show(message: Warning | str, _category: type[Warning], filename: str, *_: Any) -> None:
            if Path(__file__).parents[1] in Path(filename).parents:
                print(f"warning: {message}", file=sys.stderr)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def run() -> None:
    """Runs a command; every error is one line on stderr."""
    try:
        with orderly_interrupts(), _plain_warnings():
            code = app(standalone_mode=False)
            sys.stdout.flush()  # here, where a full disk can still be reported
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code or 0)
    except KeyboardInterrupt:
        ignore_further()
        print(how_to_go_on(), file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        _forget_stdout()  # whoever read it, such as head, has enough
        sys.exit(1)
    except _UsageError as error:
        _explain_usage(error)
        sys.exit(2)
    except LayerMergeError as error:
        machine = machine_failed(error)
        print(f"{'failed' if machine else 'error'}: {_one_line(error)}", file=sys.stderr)
        sys.exit(1 if machine else 2)
    except Exception as error:
        if os.environ.get("LAYERMERGE_DEBUG"):
            raise
        _forget_stdout()
        if isinstance(error, OSError) and machine_failed(error):
            where = f" for '{error.filename}'" if error.filename else ""
            print(f"failed: {error.strerror}{where}; repair that, then run the same command again", file=sys.stderr)
            sys.exit(1)
        line = (str(error).splitlines() or [""])[0]
        print(f"failed: {type(error).__name__}: {line} (LAYERMERGE_DEBUG=1 shows the traceback)", file=sys.stderr)
        sys.exit(1)


_INTERRUPTED = 130
"""What typer makes of a KeyboardInterrupt; no command returns it."""
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer names it in no public place; it carries the context that the arguments were read in."""


def _one_line(error: BaseException) -> str:
    """Also where a user's own code or a library put several lines into the reason."""
    return " ".join(str(error).split())


def _explain_usage(error: Any) -> None:
    """One line for wrong arguments; all of the help for none."""
    context = error.ctx
    if not sys.argv[1:]:
        error.show()
        return
    hint = f"; see {context.command_path} --help" if context is not None else ""
    message = " ".join(error.format_message().split()).removesuffix(".")
    print(f"error: {message}{hint}", file=sys.stderr)


def _forget_stdout() -> None:
    """What could not be written there would fail once more when the process ends, with a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
