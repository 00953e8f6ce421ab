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
from layermerge.errors import LayerMergeError

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


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="timm:NAME, torchvision:NAME, diffusers:CONFIG_OR_DIR or python:module:callable"
    ),
]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="CxHxW", help="Input shape without the batch, such as 3x224x224.")
]
WeightsOption = Annotated[Path | None, typer.Option(help="A .safetensors file, or a .pth of tensors; loaded strictly.")]
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
        with _plain_warnings():
            app()
    except LayerMergeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if os.environ.get("LAYERMERGE_DEBUG"):
            raise
        line = (str(error).splitlines() or [""])[0]
        print(f"failed: {type(error).__name__}: {line} (LAYERMERGE_DEBUG=1 shows the traceback)", file=sys.stderr)
        sys.exit(1)
