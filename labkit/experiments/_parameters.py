# SPDX-License-Identifier: MIT
"""Parameters of an experiment: a dataclass whose fields say what they accept.

The dataclass is the truth: the command line, the notebook's parameters cell and the privileged
child all go through `Parameters.parse`.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

from labkit.errors import UsageError


def parameter(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """Return a dataclass field with a default, a sentence of help and what values are accepted.

    Bounds and choices hold for each element where the parameter is a list; a list is never empty.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "choices": choices,
    }
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What every experiment has; experiments add their own fields."""

    budget_s: float = parameter(
        12.0, "seconds of timed rounds in each process", above=0, maximum=86_400
    )
    precision_percent: float = parameter(
        0.5,
        "stop early when every interval's half width is at most this part of its median",
        above=0,
        maximum=100,
    )
    cpu: int = parameter(
        -1, "the CPU to measure on; -1 takes the last one allowed", minimum=-1, maximum=65_535
    )
    seed: int = parameter(
        0, "of the rounds' random order; 0 draws one", minimum=0, maximum=2**32 - 1
    )

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Check names and values and return the parameters.

        A string is read as YAML where the field is a list, as ``papermill -p`` would leave it.

        Raises
        ------
        UsageError
            For an unknown name (with the nearest known one) or a value that is not accepted
            (with the accepted ones).
        """
        hints = get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in given:
            if name not in fields:
                raise UsageError(_unknown("parameter", name, fields))
        return cls(
            **{
                name: _checked(name, hints[name], fields[name].metadata, value)
                for name, value in given.items()
            }
        )

    @classmethod
    def describe(cls) -> str:
        """Return a line or two on each parameter: name, default, meaning, accepted values."""
        hints = get_type_hints(cls)
        lines = []
        for field in dataclasses.fields(cls):
            default = getattr(cls(), field.name)
            accepted = _accepted(hints[field.name], field.metadata)
            lines.append(f"    -p {field.name} {_quoted(default)}")
            lines.append(f"        {field.metadata['help']}; {accepted}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return dataclasses.asdict(self)


def _unknown(kind: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"unknown {kind} {name!r}; {hint}known: {', '.join(known)}"


def nearest_name(kind: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> UsageError:
    """Return the error for an unknown `name` of some `kind`, with the nearest known one."""
    return UsageError(_unknown(kind, name, known))


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, list) else str(value).lower()


def _checked(name: str, hint: Any, accepts: Mapping[str, Any], value: Any) -> Any:
    if not _is_list(hint):
        return _scalar(name, hint, hint, accepts, value)
    if isinstance(value, str):
        value = _yaml(name, value)
    if not isinstance(value, list | tuple):
        value = [value]
    if not value:
        raise UsageError(f"{name}: the list is empty; {_accepted(hint, accepts)}")
    (kind,) = hint.__args__
    elements = [_scalar(name, hint, kind, accepts, element) for element in value]
    return list(dict.fromkeys(elements))


def _is_list(hint: Any) -> bool:
    return getattr(hint, "__origin__", None) is list


def _yaml(name: str, text: str) -> Any:
    import yaml  # only a caller's side gets lists as text; the measuring child never does

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"{name}: {text!r} is neither a list nor a value") from None


_CONVERSIONS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: (
        "a number",
        lambda value: (
            isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        ),
    ),
    str: ("text", lambda value: isinstance(value, str)),
}


def _scalar(name: str, hint: Any, kind: type, accepts: Mapping[str, Any], value: Any) -> Any:
    _, is_kind = _CONVERSIONS[kind]
    minimum, maximum, above = accepts["minimum"], accepts["maximum"], accepts["above"]
    choices = accepts["choices"]
    if (
        not is_kind(value)
        or (choices is not None and value not in choices)
        or (minimum is not None and value < minimum)
        or (maximum is not None and value > maximum)
        or (above is not None and value <= above)
    ):
        raise UsageError(f"{name}: {value!r} is not accepted; {_accepted(hint, accepts)}")
    return kind(value)


def _accepted(hint: Any, accepts: Mapping[str, Any]) -> str:
    kind = hint.__args__[0] if _is_list(hint) else hint
    if accepts["choices"] is not None:
        described = "one of " + ", ".join(accepts["choices"])
    else:
        described = _CONVERSIONS[kind][0]
        if accepts["above"] is not None:
            described += f" above {accepts['above']:,}"
        if accepts["minimum"] is not None:
            described += f", at least {accepts['minimum']:,}"
        if accepts["maximum"] is not None:
            described += f", at most {accepts['maximum']:,}"
    if _is_list(hint):
        example = [*(accepts["choices"] or (accepts["minimum"], accepts["maximum"]))][:2]
        return f"it takes a list like {str(example)!r}, each {described}"
    return f"it takes {described}"
