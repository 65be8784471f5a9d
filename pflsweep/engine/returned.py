"""Check what a method's verbs return, so that a mistake is named where it was made and not where it shows later."""

import inspect
from pathlib import Path
from typing import Any

from torch import Tensor

from pflsweep.engine.clients import constants
from pflsweep.methods.protocol import Verbs
from pflsweep.ops.vmap import leaves
from pflsweep.util.errors import BadReturn
from pflsweep.util.source_hash import is_own_file


def require_tree(verbs: Verbs, verb: str, tree: Any) -> Any:
    """Return what a verb has returned. Raises BadReturn if it is no NamedTuple or other tree, as without `return`."""
    if not isinstance(tree, tuple | dict | Tensor):
        raise _error(verbs, verb, f"returned {_type(tree)}: it must be a NamedTuple of tensors")
    return tree


def require_rows(verbs: Verbs, verb: str, tree: Any, clients: int, did: str = "returned") -> Any:
    """Return what a verb has made. Raises BadReturn if a tensor of it does not have a row for each client."""
    for part in leaves(require_tree(verbs, verb, tree)):
        if part.shape[:1] != (clients,):
            raise _error(verbs, verb, f"{did} {list(part.shape)}: it must be [{clients}, ...], one row per client")
    return tree


def require_models(verbs: Verbs, models: Any, clients: int, size: int | None) -> Tensor:
    """Return what `personal` has returned. Raises BadReturn if it is not a model, a vector, for each client.

    size: P; None where the method's own `logits` takes vectors of another length.
    """
    if not isinstance(models, Tensor):
        raise _error(verbs, "personal", f"returned {_type(models)}: it must be a tensor of models [C, P]")
    if models.dim() != 2 or len(models) != clients or size not in (None, models.shape[1]):
        must = f"[{clients}, {'P' if size is None else size}]"
        raise _error(verbs, "personal", f"returned {list(models.shape)}: it must be {must}, one row per client")
    return models


def require_global(verbs: Verbs, model: Any, size: int) -> Tensor | None:
    """Return what `global_model` has returned. Raises BadReturn if it is neither None nor a model [P]. size: P."""
    if model is not None and (not isinstance(model, Tensor) or model.shape != (size,)):
        found = list(model.shape) if isinstance(model, Tensor) else _type(model)
        raise _error(verbs, "global_model", f"returned {found}: it must be a model [{size}], or None without one")
    return model


def require_pair(verbs: Verbs, returned: Any) -> tuple[Any, Any]:
    """Return what `finish` has returned. Raises BadReturn if it is not a pair."""
    if type(returned) is not tuple or len(returned) != 2:
        raise _error(verbs, "finish", "has to return a pair: what the clients send, and their new states")
    return returned


def require_server(verbs: Verbs, new: Any, old: Any) -> Any:
    """Return what `aggregate` has returned. Raises BadReturn if its w has another shape or type than before, or if
    something changes in it that is no tensor.
    """
    require_tree(verbs, "aggregate", new)
    w, before = getattr(new, "w", None), getattr(old, "w", None)
    if isinstance(w, Tensor) and isinstance(before, Tensor) and (w.shape, w.dtype) != (before.shape, before.dtype):
        got, was = (f"{list(each.shape)} {each.dtype}".replace("torch.", "") for each in (w, before))
        raise _error(verbs, "aggregate", f"returned w of {got}: it must be {was}, as it was")
    if constants(new) != constants(old):
        parts = zip(getattr(old, "_fields", ()), old, new, strict=False)
        fields = [name for name, was, now in parts if constants(was) != constants(now)]
        raise _error(
            verbs,
            "aggregate",
            f"returned a server state with {constants(new)} where it had {constants(old)}, in {', '.join(fields)}: "
            "what changes in it has to be a tensor, since a checkpoint keeps tensors alone",
        )
    return new


def require_shown(verbs: Verbs, shown: Any) -> dict[str, Tensor]:
    """Return what `show` has returned. Raises BadReturn if something can neither be logged nor drawn."""
    if not isinstance(shown, dict):
        raise _error(verbs, "show", f"returned {_type(shown)}: it must be a dict of tensors by name")
    for name, value in shown.items():
        if not isinstance(value, Tensor) or value.dim() not in (0, 2):
            what = list(value.shape) if isinstance(value, Tensor) else _type(value)
            must = "it must be a tensor, [] to be logged or [a, b] to be drawn"
            raise _error(verbs, "show", f"returned {what} as '{name}': {must}")
    return shown


def require_state(verbs: Verbs, misfit: str) -> None:
    """Raise BadReturn if the client states that `finish` has returned do not fit. misfit: why; "" if they do."""
    if misfit:
        raise _error(verbs, "finish", f"returned a client state {misfit}")


def _type(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _error(verbs: Verbs, verb: str, said: str) -> BadReturn:
    """Return the error about a verb, with the file and line where a user has written it."""
    if verbs.method is None:
        return BadReturn(f"`{verb}` {said}")
    code = getattr(inspect.unwrap(getattr(type(verbs.method), verb)), "__code__", None)
    place = ""
    if code is not None and is_own_file(Path(code.co_filename)):
        place = f" ({code.co_filename}, line {code.co_firstlineno})"
    return BadReturn(f"`{verb}` of {type(verbs.method).__name__} {said}{place}")
