"""Arguments: what users pass, checked once, at the door, against what the signature says it takes.

In: a public function or dataclass. Out: the same, which refuses in one line of ours what its annotations do not allow, before
it does anything; iterators are read into tuples, and nothing else is converted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints

from layermerge.errors import LayerMergeError

Checked = TypeVar("Checked", bound=Callable[..., Any])


@dataclass(frozen=True)
class Must:
    """A condition beyond the type, for `Annotated`: when it holds, and what to give where it does not."""

    holds: Callable[[Any], bool]
    words: str


READ_INSIDE = object()
"""For `Annotated`: what takes the value reads it, and says better than a type could what it may be."""

MAY_BE_NAN = object()
"""For `Annotated`: a figure that was computed, which of a network that has diverged is NaN."""

Count = Annotated[int, Must(lambda value: value >= 1, "a whole number of at least 1")]
"""A whole number of at least 1."""
FilePath = Annotated[str | Path, Must(lambda value: "\0" not in str(value), "a path, as text or as a Path")]
"""A path, as text or as a Path."""

_NUMBERS = {int: Integral, float: Real}
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    NoneType: "None",
    "Candidate": "candidates of layermerge.plan(trace)",
    "LatencyTable": "what layermerge.measure_latency(plan, trace=trace) returns",
    "Module": "a torch.nn.Module",
    "Plan": "what layermerge.plan(trace) returns",
    "Preparation": "a layermerge.tasks.Preparation",
    "Recipe": "a recipe, such as layermerge.Recipe(epochs=10)",
    "RewrittenModule": "what layermerge.rewrite(trace, candidates) returns",
    "Rules": "rules, such as layermerge.Rules(max_kernel=7)",
    "Settings": "settings, such as layermerge.Settings(threads=2)",
    "Table": "what layermerge.measure_importance(trace, plan, task) returns",
    "Task": "a task, such as layermerge.tasks.Classification(train, test)",
    "Trace": "what layermerge.trace(model, example_inputs) returns",
}
"""What to give, by type: for those of this package, where users get one."""


@dataclass(frozen=True)
class _Problem:
    """A value that is not what its place takes."""

    place: str
    value: object
    wanted: str

    def __str__(self) -> str:
        return f"{self.place} is {_shown(self.value)}; give {self.wanted}"


def checked(error: type[LayerMergeError]) -> Callable[[Checked], Checked]:
    """Makes a function, or the constructor of a dataclass, refuse what its annotations do not allow, by this error."""

    def decorate(thing: Checked) -> Checked:
        if inspect.isclass(thing):
            thing.__init__ = _guarded(thing.__init__, thing.__name__, error)  # type: ignore[method-assign]
            return thing
        return _guarded(thing, thing.__qualname__.removesuffix(".__init__").replace(".__getitem__", "[...]"), error)

    return decorate


def _guarded(function: Checked, title: str, error: type[LayerMergeError]) -> Checked:
    contract = cache(lambda: _contract(function))  # not before all names that annotations use are defined

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        signature, hints = contract()
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as wrong:
            takes = ", ".join(name for name in signature.parameters if name != "self")
            raise error(f"{title}: {wrong}; it takes {takes}") from None
        read = False
        for name, value in given.arguments.items():
            hint = hints.get(name, Any)
            if isinstance(value, Iterator) and _taken_apart(hint)[0] is Iterable:
                given.arguments[name] = value = tuple(value)  # which could not be looked at without using it up
                read = True
            if problem := _problem(value, hint, name):
                raise error(f"{title}: {problem}")
        return function(*given.args, **given.kwargs) if read else function(*args, **kwargs)

    return cast(Checked, call)


def _contract(function: Any) -> tuple[inspect.Signature, dict[str, Any]]:
    """What a function takes, `**keywords: Unpack[...]` spelled out, and the type of each."""
    hints = get_type_hints(function, include_extras=True)
    signature, parameters = inspect.signature(function), list[inspect.Parameter]()
    for name, parameter in signature.parameters.items():
        if get_origin(hints.get(name)) is not Unpack:
            parameters.append(parameter)
            continue
        keywords = get_type_hints(get_args(hints.pop(name))[0], include_extras=True)
        parameters += [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=None) for each in keywords]
        hints |= keywords
    return signature.replace(parameters=parameters), hints


def _problem(value: object, hint: Any, place: str) -> _Problem | None:
    """What is wrong with a value; in a container, with the first element that is."""
    if type(hint) is type and hint not in _NUMBERS and isinstance(value, hint):
        return None  # most are
    origin, parts = _taken_apart(hint)
    if isinstance(hint, TypeVar):
        return _problem(value, hint.__bound__ or Any, place)
    if origin is Annotated:
        kind, *notes = parts
        if READ_INSIDE in notes or (MAY_BE_NAN in notes and value != value):
            return None
        wrong = _problem(value, kind, place)
        broken = wrong or any(isinstance(note, Must) and not note.holds(value) for note in notes)
        return _Problem(place, value, _wanted(hint)) if broken else None
    if origin in (Union, UnionType):
        problems = [_problem(value, part, place) for part in parts]
        if None in problems:
            return None
        nearest = max((problem for problem in problems if problem), key=lambda problem: len(problem.place))
        return nearest if nearest.place != place else _Problem(place, value, _wanted(hint))
    if not _is_a(value, hint, origin):
        return _Problem(place, value, _wanted(hint))
    found = (_problem(element, kind, within) for within, element, kind in _elements(value, origin, parts, place))
    return next(filter(None, found), None)


@cache
def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _is_a(value: object, hint: Any, origin: Any) -> bool:
    """Whether a value is of a type, whatever is in it. True is no number, a text is no list, NaN is nothing."""
    if hint is Any:
        return True
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool) and value == value
    if origin is Literal:
        return any(type(value) is type(known) and value == known for known in get_args(hint))
    if origin is Callable:
        return callable(value)
    if origin is tuple and get_args(hint)[-1] is not ...:
        return isinstance(value, tuple) and len(value) == len(get_args(hint))
    if origin in (Iterable, Sequence) and isinstance(value, (str, bytes, Mapping)):
        return False
    return isinstance(value, origin or hint)


def _elements(value: Any, origin: Any, parts: tuple[Any, ...], place: str) -> Iterator[tuple[str, object, Any]]:
    """The place, value and type of each element of a container; nothing of what is none."""
    if origin is tuple:
        kinds = parts[:1] * len(value) if parts[-1] is ... else parts
        yield from ((f"{place}[{index}]", each, kinds[index]) for index, each in enumerate(value))
    elif origin in (Iterable, Sequence):
        yield from ((f"{place}[{index}]", each, parts[0]) for index, each in enumerate(value))
    elif origin is Mapping:
        yield from ((f"a key of {place}", key, parts[0]) for key in value)
        yield from ((f"{place}[{key!r}]", each, parts[1]) for key, each in value.items())


def _wanted(hint: Any) -> str:
    """What to give, in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, TypeVar):
        return _wanted(hint.__bound__)
    if origin is Annotated:
        return next((note.words for note in parts[1:] if isinstance(note, Must)), _wanted(parts[0]))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_wanted, parts)))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is Callable:
        return "a function"
    if origin is Mapping:
        return f"a dict of {_wanted(parts[1])} by key"
    if origin in (Iterable, Sequence):
        return f"a list of {_wanted(parts[0])}"
    if origin is tuple:
        return f"a tuple of {_wanted(parts[0])} each"
    return _WORDS.get(hint) or _WORDS.get(hint.__name__) or f"a {hint.__name__}"


def _shown(value: object) -> str:
    """What a message quotes of a value: plain ones as they are, cut to a few words, of others the type."""
    if isinstance(value, (str, Path)):
        return repr(str(value))[:60]
    if value is None or isinstance(value, Real):
        return str(value)[:60]
    return f"the type {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
