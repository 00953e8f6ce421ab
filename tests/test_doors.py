"""Every public function checks what it is given: a wrong call is one line of ours, and leaves nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import layermerge as lm
from wrong_calls import CALLS, Given


@pytest.fixture(scope="module")
def given() -> Given:
    return Given()


@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls_are_refused_in_one_line(
    name: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = CALLS[name]
    with pytest.raises(lm.LayerMergeError) as caught:
        call(given)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 400
    assert re.search(words, said), said
    assert list(tmp_path.iterdir()) == []
