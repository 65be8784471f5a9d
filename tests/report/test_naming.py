"""Settings have readable names, and no two have the same."""

from typing import Any

from pflsweep.report.naming import differing_keys, names

OWN = ("digits", "dirichlet", "mlp")


def config(**changes: Any) -> dict[str, Any]:
    flat = {"dataset": "digits", "partition": "dirichlet", "model": "mlp", "partition.alpha": 0.3, "train.lr": 0.05}
    return {**flat, "data_checksum": "aaaa", **{key.replace("__", "."): value for key, value in changes.items()}}


def test_one_setting_needs_no_keys() -> None:
    assert names([OWN], [config()]) == ["digits, dirichlet, mlp"]


def test_a_key_of_an_option_tells_apart_only_settings_with_this_option() -> None:
    shards = {**config(partition="shards", partition__per_client=2, data_checksum="bbbb")}
    del shards["partition.alpha"]
    both = [config(), shards]
    assert differing_keys(both) == ["partition"]
    assert names([OWN, ("digits", "shards", "mlp")], both) == ["digits, dirichlet, mlp", "digits, shards, mlp"]


def test_keys_stand_beside_their_option_and_null_is_not_said() -> None:
    found = [config(data__limit=None), config(data__limit=500), config(partition__alpha=0.1, train__lr=0.1)]
    assert differing_keys(found) == ["partition.alpha", "data.limit", "train.lr"]
    assert names([OWN] * 3, found) == [
        "digits, dirichlet(alpha=0.3), mlp, lr=0.05",
        "digits, dirichlet(alpha=0.3), mlp, lr=0.05, limit=500",
        "digits, dirichlet(alpha=0.1), mlp, lr=0.1",
    ]


def test_as_many_keys_are_said_as_tell_settings_apart_and_no_more_than_three_else() -> None:
    shared = {f"train__{key}": value for key, value in {"a": 1, "b": 1, "c": 1, "d": 1}.items()}
    other = dict.fromkeys(shared, 2)
    assert names([OWN] * 2, [config(**shared), config(**other)])[0] == "digits, dirichlet, mlp, a=1, b=1, c=1"
    third = {**other, "train__d": 3}
    assert names([OWN] * 3, [config(**each) for each in (shared, other, third)])[2] == (
        "digits, dirichlet, mlp, a=2, b=2, c=2, d=3"
    )


def test_a_key_that_is_null_in_some_settings_comes_last() -> None:
    """With full participation `train.first_round` is null: it follows from the participation, which is said."""
    options = [("digits", "iid", "mlp")] * 2
    configs = [
        {"train.first_round": "cohort", "train.lr": 0.1, "train.participation": 0.5, "train.rounds": 3},
        {"train.first_round": None, "train.lr": 0.2, "train.participation": 1.0, "train.rounds": 4},
    ]
    assert names(options, configs)[0] == "digits, iid, mlp, lr=0.1, participation=0.5, rounds=3"


def test_what_is_set_in_the_place_of_a_key_is_said() -> None:
    """With `train.steps` the key `train.epochs` has no effect and is null."""
    found = [
        config(train__a=1, train__b=1, train__epochs=1, train__steps=None),
        config(train__a=2, train__b=2, train__epochs=None, train__steps=3),
    ]
    assert names([OWN] * 2, found) == [
        "digits, dirichlet, mlp, a=1, b=1, epochs=1",
        "digits, dirichlet, mlp, a=2, b=2, steps=3",
    ]


def test_two_keys_of_one_last_name_are_said_in_full() -> None:
    found = [config(data__seed=1, train__seed=1), config(data__seed=2, train__seed=2)]
    assert names([OWN] * 2, found)[0] == "digits, dirichlet, mlp, data.seed=1, train.seed=1"


def test_what_differs_in_hashes_alone_is_numbered() -> None:
    found = [config(), config(data_checksum="bbbb"), config(data__prescribed="cccc"), config(train__lr=0.1)]
    assert differing_keys(found) == ["train.lr"]
    assert names([OWN] * 4, found) == [
        "digits, dirichlet, mlp, lr=0.05, data 1",
        "digits, dirichlet, mlp, lr=0.05, data 2",
        "digits, dirichlet, mlp, lr=0.05, data 3",
        "digits, dirichlet, mlp, lr=0.1",
    ]
