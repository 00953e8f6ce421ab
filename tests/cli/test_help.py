"""Help and completion: every verb says what it does and shows a call that can be parsed."""

from __future__ import annotations

import re
import shlex
from importlib import import_module

import pytest

from command_line import SCRIPT, Run, program
from layermerge.cli.app import app


def known(verb: str) -> object:
    return import_module(f"layermerge.cli.{verb}").__dict__[verb]


VERBS = sorted(command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_description_and_an_example(run: Run, verb: str) -> None:
    result = run(verb, "--help")
    assert (result.code, result.err) == (0, "")
    words = " ".join(result.out.split())
    described, found, rest = words.partition("Example: ")
    assert found
    assert len(described.partition("] ")[2].split()) > 5  # more than the usage line
    assert rest.startswith(f"layermerge {verb}")


@pytest.mark.parametrize("verb", VERBS)
def test_examples_use_options_that_exist(run: Run, verb: str) -> None:
    words = " ".join(run(verb, "--help").out.split())
    example = shlex.split(words.partition("Example: ")[2].partition(" Arguments:")[0].partition(" Options:")[0])
    for option in (word for word in example if word.startswith("-")):
        assert option.split("=")[0] in words.partition("Options:")[2].replace(",", " ").replace("/", " ").split()


@pytest.mark.parametrize("verb", VERBS)
def test_results_are_printed_as_json_when_asked(run: Run, verb: str) -> None:
    assert "--json" in run(verb, "--help").out


def test_verbs_are_listed_in_the_order_of_use_with_whole_sentences(run: Run) -> None:
    listed = run("--help").out.partition("Commands:")[2]
    shown = [line.split()[0] for line in listed.splitlines() if re.match(r"  \w", line)]
    assert shown[:3] == ["demo", "compress", "plan"]
    assert sorted(shown) == VERBS
    assert shown.index("latency") < shown.index("importance") < shown.index("solve") < shown.index("finetune")
    assert "..." not in listed
    said = re.split(r"\n  (?=\w)", listed.rstrip())
    assert all(each.endswith(".") for each in said[1:]), said


@pytest.mark.parametrize("verb", VERBS)
def test_an_example_is_one_line_that_can_be_copied(run: Run, verb: str) -> None:
    (line,) = [line for line in run(verb, "--help").out.splitlines() if "Example: " in line]
    assert "Example: " + " ".join(line.split()[1:]) in (known(verb).__doc__ or "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str) -> None:
    """The script that `--show-completion` shows, asked for by the variable: the flag itself looks for the shell it runs in."""
    done = program("sh", "-c", f"_LAYERMERGE_COMPLETE=source_{shell} {SCRIPT}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "layermerge" in done.stdout


def test_verbs_are_completed() -> None:
    words = "COMP_WORDS='layermerge comp' COMP_CWORD=1 _LAYERMERGE_COMPLETE=complete_bash"
    done = program("sh", "-c", f"{words} {SCRIPT}")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["compare", "compress"]
