# SPDX-License-Identifier: MIT
"""The loop, on calls whose times are known exactly."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit.measuring import loop
from labkit.measuring.loop import Call, Case
from labkit.measuring.statistics import MINIMUM_REPETITIONS


@pytest.fixture
def worker():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def case(worker, timed_ns, control_ns=1.0, fixed_ns=0, log=None, **more):
    """Return a case whose call takes exactly so long for each operation, and a fixed time once."""

    def caller(kind, per_operation_ns):
        def call(operations):
            if log is not None:
                log.append((timed_ns, kind))
            return Call(operations, round(fixed_ns + per_operation_ns * operations))

        return call

    return Case(
        {"cost": timed_ns},
        timed=caller("timed", timed_ns),
        control=caller("control", control_ns),
        operations=more.pop("operations", range(100, 7001, 100)),
        worker=worker,
        **more,
    )


def lines(cases, **more):
    settings = {"cpu": 0, "budget_s": 60.0, "precision_percent": 1.0, "seed": 1} | more
    return list(loop.measure(cases, **settings))


def of_kind(kind, found):
    return [line for line in found if line["kind"] == kind]


def test_a_call_stays_below_half_a_millisecond_and_a_window_is_about_ten(worker):
    found = of_kind("case", lines([case(worker, 20.0), case(worker, 4000.0)]))
    for line, cost_ns in zip(found, (20.0, 4000.0), strict=True):
        timed = line["timed"]
        assert timed["operations_per_call"] * cost_ns <= loop.CALL_NS
        window_ns = timed["operations_per_call"] * timed["calls_per_window"] * cost_ns
        assert window_ns == pytest.approx(loop.WINDOW_NS, rel=0.05)


def test_a_window_makes_whole_cycles_as_nearly_as_calls_allow(worker):
    (line,) = of_kind("case", lines([case(worker, 3500.0, cycle=1334)]))
    operations = line["timed"]["operations_per_call"] * line["timed"]["calls_per_window"]
    assert min(operations % 1334, -operations % 1334) <= 50


def test_proportional_time_is_two_and_brings_no_warning(worker):
    found = lines([case(worker, 20.0)])
    assert of_kind("case", found)[0]["timed"]["proportionality"] == pytest.approx(2.0, abs=1e-3)
    assert not of_kind("warning", found)


def test_a_fixed_cost_of_each_call_is_noticed(worker):
    # N = 3500, 2 N = 7000 operations of 20 ns after 30 us: 2 (170 / 7000) / (100 / 3500) = 1.7
    found = lines([case(worker, 20.0, fixed_ns=30_000)])
    assert {one["message"] for one in of_kind("warning", found)} == {loop.DISPROPORTIONATE}
    assert {one["case"] for one in of_kind("warning", found)} == {0}
    assert of_kind("case", found)[0]["timed"]["proportionality"] < 1.9


def test_a_round_has_each_case_once_and_its_control_beside_it_in_changing_order(worker):
    found = of_kind("sample", lines([case(worker, float(cost)) for cost in (10, 20, 30, 40)]))
    rounds = {}
    for line in found:
        rounds.setdefault(line["round"], []).append((line["case"], line["control"]))
    assert len(rounds) == MINIMUM_REPETITIONS
    for windows in rounds.values():
        assert sorted(windows) == [(i, c) for i in range(4) for c in (False, True)]
        assert all(a[0] == b[0] for a, b in zip(windows[::2], windows[1::2], strict=True))
    assert len({tuple(windows) for windows in rounds.values()}) > 1


def test_the_order_follows_the_seed(worker):
    def order(seed):
        cases = [case(worker, float(cost)) for cost in (10, 20, 30, 40)]
        found = of_kind("sample", lines(cases, seed=seed))
        return [(line["case"], line["control"]) for line in found]

    assert order(7) == order(7)
    assert order(7) != order(8)


def test_an_untimed_call_comes_before_each_window(worker):
    log = []
    found = lines([case(worker, 4000.0, operations=range(100, 201, 100), log=log)])
    (line,) = of_kind("case", found)
    samples = [one for one in of_kind("sample", found) if not one["control"]]
    calls = line["timed"]["calls_per_window"]
    assert all(one["operations"] == 100 * calls for one in samples)
    measured = [kind for _, kind in log][-len(samples) * (calls + 1) :]
    assert measured.count("timed") >= calls + 1


def test_what_a_window_touches_is_warm(worker):
    log = []
    found = lines([case(worker, 4000.0, operations=range(100, 201, 100), warm_up=1000, log=log)])
    assert [kind for _, kind in log[:10]] == ["timed"] * 10
    (line,) = of_kind("case", found)
    windows = len(of_kind("sample", found)) // 2
    made = [kind for _, kind in log].count("timed")
    assert made >= windows * (line["timed"]["calls_per_window"] + 10)


def test_it_stops_when_every_interval_is_narrow_and_says_so(worker):
    found = lines([case(worker, 20.0)])
    assert found[-1] == {
        "kind": "stop",
        "why": "every interval within 1 %",
        "rounds": MINIMUM_REPETITIONS,
    }


def test_it_stops_when_the_budget_is_used_and_says_so(worker):
    values = iter(range(1, 10**9))
    noisy = Case(
        {},
        timed=lambda n: Call(n, n * (20 + next(values) % 1000)),
        control=lambda n: Call(n, n),
        operations=range(100, 201, 100),
        worker=worker,
    )
    found = lines([noisy], budget_s=0.001, precision_percent=0.001)
    assert found[-1]["why"] == "time budget of 0.001 s used"
    assert len(of_kind("sample", found)) == 2 * found[-1]["rounds"]


def test_counts_are_added_over_the_window(worker):
    counting = Case(
        {},
        timed=lambda n: Call(n, 5000 * n, {"important": n // 4}),
        control=lambda n: Call(n, n),
        operations=range(100, 201, 100),
        worker=worker,
    )
    sample = next(one for one in of_kind("sample", lines([counting])) if not one["control"])
    assert sample["counts"]["important"] * 4 == sample["operations"]
