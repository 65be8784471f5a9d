"""Configs as flat dicts of full keys, such as train.lr."""

from typing import Any, TypeGuard

PLUGS = ("ala", "privacy", "attack")  # groups of plug-ins, in the order in which they are applied to the method


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one dict, full key -> value. An empty dict is a value.

    A node's `_option_` becomes the value of the node's own key: {"model": "mlp", "model.hidden": [200]}.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {}
        full = prefix.removesuffix(".") if key == "_option_" else f"{prefix}{key}"
        found.update(nested or {full: value})
    return found


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a full key in nested dicts."""
    *path, last = key.split(".")
    for name in path:
        values = values[name]
    values[last] = value


def as_override(value: Any) -> str:
    """Return a value for display, as an override would have it: null, true, [1,2].

    Text is not quoted; `overrides.as_text` gives text that Hydra can parse.
    """
    if isinstance(value, list):
        return f"[{','.join(map(as_override, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value of a config is a number, which has a place on an axis; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def key_of(override: str) -> str:
    """Return the key that an override sets: train.lr for +train.lr=0.1."""
    return override.lstrip("+~").partition("=")[0]


def under(key: str, heads: tuple[str, ...]) -> bool:
    """Return whether a key is one of the heads or below one: train.lr is below train."""
    return any(key == head or key.startswith(f"{head}.") for head in heads)
