# SPDX-License-Identifier: MIT
"""What an experiment accepts, and how it refuses the rest."""

import math

import pytest

from labkit.errors import UsageError
from labkit.experiments import find

LocalStorage = find("local-storage").parameters


def refused(**given: object) -> str:
    with pytest.raises(UsageError) as caught:
        LocalStorage.parse(given)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("value", [0, -1, 1001, 1.5, True, "x", None])
def test_maps_out_of_range_or_of_another_type_are_refused_with_what_is_accepted(value):
    message = refused(maps=[1, value])
    assert f"{value!r} is not accepted" in message
    assert "at least 1, at most 1,000" in message


@pytest.mark.parametrize("value", [0, 4_194_305])
def test_keys_out_of_range_are_refused(value):
    assert "at most 4,194,304" in refused(keys=[value])


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "12", True])
def test_a_budget_must_be_a_positive_number(value):
    assert "budget_s" in refused(budget_s=value)


@pytest.mark.parametrize("value", [[], "[]", ()])
def test_an_empty_list_is_refused(value):
    assert "empty" in refused(maps=value)


def test_an_unknown_parameter_is_refused_with_the_nearest_name():
    assert "did you mean 'maps'?" in refused(map=[1])
    assert "known: budget_s, " in refused(zzz=1)


def test_an_unknown_variant_is_refused_with_the_known_ones():
    assert "sequential, interleaved, hashmap" in refused(variants=["random"])


def test_a_list_may_come_as_yaml_or_as_one_value():
    assert LocalStorage.parse({"maps": "[1, 16, 17]"}).maps == [1, 16, 17]
    assert LocalStorage.parse({"maps": 24}).maps == [24]
    assert LocalStorage.parse({"variants": "hashmap"}).variants == ["hashmap"]
    assert LocalStorage.parse({"maps": [17, 1, 17]}).maps == [17, 1]
    assert "neither a list nor a value" in refused(maps="[1, 2")


def test_yaml_cannot_make_objects():
    refused(maps="!!python/object/apply:os.system ['true']")


def test_defaults_are_accepted_and_hold_the_published_sizes():
    default = LocalStorage()
    assert LocalStorage.parse(default.as_dict()) == default
    assert {1, 10, 16, 17, 24, 32, 100, 1000} <= set(default.maps)
    assert default.keys == [10, 1000, 10_000, 100_000, 4_194_304]


def test_an_unknown_experiment_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'local-storage'"):
        find("local-strage")
