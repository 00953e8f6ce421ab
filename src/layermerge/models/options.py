"""Options after a model's name, such as `?num_classes=10&in_chans=1`.

A name may come from a stranger's recipe, and a library's constructors take options that read files, unpickle code or
import it. So only what describes an architecture passes: numbers, booleans, and words for a few options that select a layer.
"""

from __future__ import annotations

import re
from typing import TypeAlias
from urllib.parse import parse_qsl

from layermerge.errors import ModelError

Option: TypeAlias = bool | int | float | str
_WORDS = {"global_pool", "act_layer", "norm_layer", "aa_layer", "pad_type", "stem_type"}
"""Options whose value is a word; libraries look it up in a table of their own."""
_LOADS = re.compile(
    r"cfg|config|(?<!drop_)path|file|dir|url|hub|hf_|cache|checkpoint|weights|state|module|loader", re.IGNORECASE
)
_LONGEST = 200


def parse_options(text: str) -> dict[str, Option]:
    """Reads what follows the question mark of a model's name."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True) if text else []
    except ValueError:
        pairs = [("", "")]
    if len(text) > _LONGEST or not all(name.isidentifier() and value for name, value in pairs):
        raise ModelError(f"'?{text[:60]}' is not of the form ?num_classes=10&in_chans=1")
    return {name: _checked(name, _value(value)) for name, value in pairs}


def _value(text: str) -> Option:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checked(name: str, value: Option) -> Option:
    if _LOADS.search(name):
        raise ModelError(
            f"option '{name}' could load files or code, so it is refused; load weights with --weights FILE"
        )
    if isinstance(value, str) and name not in _WORDS:
        words = ", ".join(sorted(_WORDS))
        raise ModelError(f"option '{name}' is '{value[:40]}'; give a number, true or false (words for {words} only)")
    return value
