"""From the samples of one scrape to one replica's load."""

from __future__ import annotations

import pytest

from specserver.api.conditions import Reason
from specserver.core.observed import Load, LoadUnknown, PodLoad
from specserver.load.exposition import parse_exposition
from specserver.load.metric_names import ENGINE_NAMES
from specserver.load.replica import Looks, Unknown, assemble_load, observe_replica, replicas_to_observe
from tests.fakes.pods import build_pod

NOW = 1_764_000_000.0


def observe(page: str, *, data_parallel: int = 1, looks: Looks | None = None, at: float = NOW) -> PodLoad | Unknown:
    samples = parse_exposition(page, ENGINE_NAMES)
    return observe_replica(build_pod(), samples, at=at, data_parallel=data_parallel, looks=looks or Looks())


def figures(seen: PodLoad | Unknown) -> tuple[float, float, float]:
    assert isinstance(seen, PodLoad), seen
    return seen.running, seen.queued, seen.token_usage


REST = 'sglang:token_usage{tp_rank="0"} 0.25\n'

KNOWN = {
    "engine": ("sglang:num_running_reqs 5\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\n", (5, 2, 0.5)),
    "through the router": ("sglang_num_running_reqs 5\nsglang_num_queue_reqs 2\nsglang_token_usage 0.5\n", (5, 2, 0.5)),
    "both spellings count once": (
        "sglang:num_running_reqs 5\nsglang_num_running_reqs 5\nsglang:num_queue_reqs 0\nsglang:token_usage 0.5\n",
        (5, 0, 0.5),
    ),
    "the plugin's live gauges win": (
        "specserver_running_requests 9\nspecserver_queued_requests 3\n"
        "sglang:num_running_reqs 5\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n",
        (9, 3, 0.5),
    ),
    "tensor-parallel ranks are copies": (
        'sglang:num_running_reqs{tp_rank="0"} 4\nsglang:num_running_reqs{tp_rank="1"} 4\n'
        'sglang:num_queue_reqs{tp_rank="0"} 1\nsglang:num_queue_reqs{tp_rank="1"} 1\n' + REST,
        (4, 1, 0.25),
    ),
    "data-parallel ranks add up, the fullest one's cache counts": (
        "".join(
            f'sglang:{name}{{dp_rank="{rank}",tp_rank="{rank}"}} {value}\n'
            for name, values in {
                "num_running_reqs": (0, 0, 2, 0), "num_queue_reqs": (0, 0, 13, 0), "token_usage": (0.1, 0.1, 0.9, 0),
            }.items()
            for rank, value in enumerate(values)
        ),
        (2, 13, 0.9),
    ),
    "the plugin's gauges are the whole replica's": (
        "specserver_running_requests 7\nspecserver_queued_requests 1\n"
        + "".join(
            f'sglang:{name}{{dp_rank="{rank}"}} 0.5\n'
            for name in ("num_running_reqs", "num_queue_reqs", "token_usage")
            for rank in range(2)
        ),
        (7, 1, 0.5),
    ),
    "priorities are parts of the total": (
        'sglang:num_running_reqs{priority=""} 5\nsglang:num_running_reqs{priority="1"} 3\n'
        'sglang:num_running_reqs{priority="2"} 2\nsglang:num_queue_reqs{priority=""} 0\nsglang:token_usage{priority=""} 0\n',
        (5, 0, 0),
    ),
    "a part that is written after its total may be of the moment before": (
        'sglang:num_running_reqs{priority=""} 2\nsglang:num_running_reqs{priority="1"} 5\n'
        'sglang:num_queue_reqs{priority=""} 0\nsglang:token_usage{priority=""} 0\n',
        (2, 0, 0),
    ),
    "up and never asked to work": ("sglang:max_total_num_tokens 8192\n", (0, 0, 0)),
    "up, with the plugin, never asked to work": (
        "specserver_armed 1\nspecserver_running_requests 0\nspecserver_queued_requests 0\n", (0, 0, 0),
    ),
    "one data-parallel rank never asked to work": (
        'sglang:max_total_num_tokens{dp_rank="0"} 9\nsglang:max_total_num_tokens{dp_rank="1"} 9\n'
        'sglang:num_running_reqs{dp_rank="1"} 3\nsglang:num_queue_reqs{dp_rank="1"} 0\nsglang:token_usage{dp_rank="1"} 0.5\n',
        (3, 0, 0.5),
    ),
    "full with rounding": ("sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:token_usage 1.0000001\n", (1, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
def test_known(case: str) -> None:
    page, expected = KNOWN[case]
    assert figures(observe(page)) == expected


def test_all_data_parallel_ranks_are_wanted_where_the_server_has_several() -> None:
    page = 'sglang:num_running_reqs{dp_rank="2"} 2\nsglang:num_queue_reqs{dp_rank="2"} 13\nsglang:token_usage{dp_rank="2"} 0\n'
    assert figures(observe(page)) == (2, 13, 0)
    seen = observe(page, data_parallel=4)
    assert isinstance(seen, Unknown)
    assert "1 of 4 data-parallel ranks" in seen.message


SKEWED = "".join(
    f'sglang:{name}{{dp_rank="{rank}",tp_rank="{rank}"}} {value}\n'
    for name, values in {"num_running_reqs": (0, 0, 2, 0), "num_queue_reqs": (0, 0, 13, 0), "token_usage": (0, 0, 1, 0)}.items()
    for rank, value in enumerate(values)
)


@pytest.mark.parametrize(
    ("page", "skewed"),
    [
        pytest.param(SKEWED, True, id="one queues, three are idle"),
        pytest.param("specserver_running_requests 2\nspecserver_queued_requests 13\n" + SKEWED, True, id="beside the plugin's"),
        pytest.param(SKEWED.replace("13", "0"), False, id="nobody queues"),
        pytest.param(SKEWED.replace("} 0", "} 1"), False, id="all are busy"),
        pytest.param("sglang:num_running_reqs 2\nsglang:num_queue_reqs 13\nsglang:token_usage 0\n", False, id="no ranks"),
        pytest.param("sglang:num_running_reqs 0\nsglang:num_queue_reqs 13\nsglang:token_usage 0\n", False, id="one rank, idle"),
    ],
)
def test_a_queue_beside_idle_ranks_is_skew(page: str, skewed: bool) -> None:
    seen = observe(page)
    assert isinstance(seen, PodLoad), seen
    assert seen.skewed is skewed


GOOD = {"num_running_reqs": "5", "num_queue_reqs": "2", "token_usage": "0.5"}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-3", "0x1p4"])
def test_a_number_that_is_no_load_makes_the_replica_unknown(name: str, value: str) -> None:
    page = "".join(f"sglang:{metric} {value if metric == name else good}\n" for metric, good in GOOD.items())
    seen = observe(page)
    assert isinstance(seen, Unknown)
    assert f"sglang:{name} is '{value}'" in seen.message


@pytest.mark.parametrize("missing", GOOD)
def test_a_renamed_metric_is_unknown_and_its_names_are_said(missing: str) -> None:
    page = "".join(f"sglang:{metric} {good}\n" for metric, good in GOOD.items() if metric != missing)
    seen = observe(page)
    assert isinstance(seen, Unknown)
    assert seen.reason is Reason.METRICS_MISSING
    assert f"sglang:{missing} or sglang_{missing}" in seen.message


@pytest.mark.parametrize("counter", ["sglang:generation_tokens_total 5", 'sglang:realtime_tokens_total{mode="decode"} 5'])
def test_an_engine_that_has_counted_tokens_and_has_no_gauges_is_not_idle(counter: str) -> None:
    seen = observe(f"sglang:max_total_num_tokens 8192\n{counter}\n")
    assert isinstance(seen, Unknown)
    assert seen.reason is Reason.METRICS_MISSING


def test_a_page_of_something_else_is_no_idle_engine() -> None:
    seen = observe("vllm:num_requests_running 5\nprocess_cpu_seconds_total 3\n")
    assert isinstance(seen, Unknown)
    assert seen.reason is Reason.METRICS_MISSING
    for name in ("sglang:num_running_reqs", "sglang_num_running_reqs", "specserver_running_requests"):
        assert name in seen.message


def test_a_percentage_is_no_fraction() -> None:
    seen = observe("sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:token_usage 45\n")
    assert isinstance(seen, Unknown)
    assert "above 1" in seen.message


# ---- tokens a second -----------------------------------------------------------------------------------------------------

IDLE = "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:token_usage 0\n"


def rates_of(counters: list[str], *, step_seconds: float = 10.0) -> list[float | None]:
    looks, seen = Looks(), []
    for index, counter in enumerate(counters):
        load = observe(IDLE + counter, looks=looks, at=NOW + index * step_seconds)
        assert isinstance(load, PodLoad)
        seen.append(load.tokens_per_second)
    return seen


def test_a_rate_needs_two_looks_and_a_reset_gives_none() -> None:
    totals = [f"sglang:generation_tokens_total {total}\n" for total in (5000, 5200, 30, 90)]
    assert rates_of(totals) == [None, 20.0, None, 6.0]


def test_tokens_of_finished_requests_add_up_over_their_labels() -> None:
    def page(streamed: int, whole: int) -> str:
        return (
            f'sglang:generation_tokens_total{{is_streaming="true"}} {streamed}\n'
            f'sglang:generation_tokens_total{{is_streaming="false"}} {whole}\n'
        )

    assert rates_of([page(0, 100), page(50, 150)]) == [None, 10.0]


def test_decode_tokens_count_once_per_tensor_parallel_group_and_prefill_not_at_all() -> None:
    def page(decoded: int) -> str:
        lines = [
            f'sglang:realtime_tokens_total{{dp_rank="{dp}",tp_rank="{tp}",mode="decode"}} {decoded}'
            for dp, tp in ((0, 0), (0, 1), (1, 2), (1, 3))
        ]
        prefill = 'sglang:realtime_tokens_total{dp_rank="0",tp_rank="0",mode="prefill_compute"} 9999'
        gauges = [
            f'sglang:{name}{{dp_rank="{dp}"}} 0'
            for name in ("num_running_reqs", "num_queue_reqs", "token_usage")
            for dp in (0, 1)
        ]
        return "\n".join([*lines, prefill, *gauges]) + "\n"

    looks = Looks()
    observe(page(100), looks=looks)
    seen = observe(page(150), looks=looks, at=NOW + 10)
    assert isinstance(seen, PodLoad)
    assert seen.tokens_per_second == 10.0


def test_the_counter_that_counts_each_step_is_preferred_and_a_change_of_counter_gives_no_rate() -> None:
    finished = "sglang:generation_tokens_total 1000\n"
    step = 'sglang:realtime_tokens_total{mode="decode"} %d\n'
    assert rates_of([finished, finished + step % 5000, finished + step % 5100]) == [None, None, 10.0]


def test_looks_close_together_share_a_rate() -> None:
    looks = Looks()
    assert looks.rate("u", "c", 100, NOW) is None
    assert looks.rate("u", "c", 200, NOW + 10) == 10.0
    assert looks.rate("u", "c", 200, NOW + 10) == 10.0
    assert looks.rate("u", "c", 900, NOW + 10.1) == 10.0
    assert looks.rate("u", "c", 300, NOW + 20) == 10.0


def test_a_clock_that_jumps_back_gives_no_rate() -> None:
    looks = Looks()
    looks.rate("u", "c", 100, NOW)
    assert looks.rate("u", "c", 200, NOW - 3600) is None
    assert looks.rate("u", "c", 300, NOW - 3590) == 10.0


def test_pods_that_are_gone_are_forgotten() -> None:
    looks = Looks()
    looks.rate("gone", "c", 100, NOW)
    looks.rate("here", "c", 100, NOW + 890)
    for at in (0, 15, 30):
        looks.stalled("gone", running=0, queued=1, tokens=5, at=NOW - 30 + at)
    looks.forget(NOW + 900)
    assert not looks.stalled("gone", running=0, queued=1, tokens=5, at=NOW + 901)
    assert looks.rate("gone", "c", 200, NOW + 901) is None
    assert looks.rate("here", "c", 210, NOW + 901) == 10.0


# ---- standstill ----------------------------------------------------------------------------------------------------------

STANDSTILLS: dict[str, tuple[list[tuple[float, float, float]], list[bool]]] = {
    "requests wait, none runs, no token": (
        [(12, 0, 1000), (12, 5, 1400), (0, 9, 1400), (0, 14, 1400), (0, 20, 1400), (0, 26, 1400)], [False] * 5 + [True]),
    "an overload": ([(12, 26, 1000 + 400 * look) for look in range(6)], [False] * 6),
    "a request that runs is not stalled, however long its prompt": ([(1, 3, 1400)] * 6, [False] * 6),
    "nobody waits": ([(0, 0, 1400)] * 6, [False] * 6),
    "a token now and then": ([(0, 9, 1400)] * 3 + [(0, 9, 1401)] * 3, [False] * 6),
    "over as soon as something moves": ([(0, 9, 1400)] * 4 + [(0, 9, 1500), (3, 6, 1600)], [False] * 3 + [True] + [False] * 2),
    "clients that give up mend nothing": ([(0, 9, 1400)] * 4 + [(0, 0, 1400), (0, 2, 1400)], [False] * 3 + [True] * 3),
    "clients that gave up in time saw no stall": ([(0, 9, 1400)] * 3 + [(0, 0, 1400)] + [(0, 9, 1400)] * 2, [False] * 6),
    "one that runs again is no stall": ([(0, 9, 1400)] * 4 + [(1, 8, 1400), (0, 8, 1400)], [False] * 3 + [True] + [False] * 2),
    "a reset is a new start": ([(0, 9, 1400)] * 3 + [(0, 9, 0)] * 3, [False] * 6),
}  # fmt: skip
"""Running, queued and tokens at looks 10 s apart; whether it is stalled at each of them."""


def stalls_of(case: str, page: str) -> list[bool]:
    looks, seen = Looks(), []
    for index, (running, queued, tokens) in enumerate(STANDSTILLS[case][0]):
        load = observe(page % (running, queued, tokens), looks=looks, at=NOW + 10 * index)
        assert isinstance(load, PodLoad)
        seen.append(load.stalled)
    return seen


@pytest.mark.parametrize("counter", ['realtime_tokens_total{mode="decode"}', 'realtime_tokens_total{mode="prefill_compute"}'])
@pytest.mark.parametrize("case", STANDSTILLS)
def test_standstill(case: str, counter: str) -> None:
    """Tokens of a prompt are work as well: a long one is read in chunks, and its request does not run yet."""
    page = f"sglang:num_running_reqs %d\nsglang:num_queue_reqs %d\nsglang:token_usage 0\nsglang:{counter} %d\n"
    assert stalls_of(case, page) == STANDSTILLS[case][1]


def test_an_engine_that_never_counted_a_token_can_be_stalled() -> None:
    page = "specserver_running_requests 0\nspecserver_queued_requests 3\n"
    looks = Looks()
    seen = [observe(page, looks=looks, at=NOW + at) for at in (0, 14.9, 29.8, 30)]
    assert [one.stalled for one in seen if isinstance(one, PodLoad)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("times", "stalled"),
    [
        pytest.param((0, 3600, 3610, 3620), [False, False, False, True], id="forward"),
        pytest.param((0, 10, -3600, -3590, -3580), [False, False, False, False, True], id="back"),
    ],
)
def test_a_clock_that_jumps_makes_no_stall(times: tuple[float, ...], stalled: list[bool]) -> None:
    looks = Looks()
    assert [looks.stalled("u", running=0, queued=1, tokens=5, at=NOW + at) for at in times] == stalled


def test_a_stall_is_the_engines_and_not_that_of_the_next_one_in_its_pod() -> None:
    looks = Looks()

    def look(at: float) -> bool:
        return looks.stalled("uid-m-0", running=0, queued=1, tokens=0, at=NOW + at)

    assert [look(at) for at in (0, 15, 30)] == [False, False, True]
    looks.note_restarts([build_pod(), build_pod("other", ready=False)])
    assert look(45)
    looks.note_restarts([build_pod(ready=False)])
    assert not look(60)


# ---- the server's load ---------------------------------------------------------------------------------------------------


def load_of(name: str, running: float) -> PodLoad:
    return PodLoad(name, running, 0, 0, None, NOW)


def test_an_unknown_replica_does_not_poison_the_others() -> None:
    broken = Unknown(Reason.SCRAPE_ERROR, "connection refused")
    load = assemble_load([(build_pod("m-0"), load_of("m-0", 7)), (build_pod("m-1"), broken)])
    assert isinstance(load, Load)
    assert load.running == 7
    assert not load.complete
    assert [(one.pod, one.message) for one in load.unknown] == [("m-1", "connection refused")]


def test_a_load_of_which_nothing_is_known_names_pods_and_the_gravest_reason() -> None:
    replicas = [
        (build_pod(f"m-{index}"), Unknown(Reason.SCRAPE_ERROR if index == 4 else Reason.METRICS_MISSING, f"cause {index}"))
        for index in range(5)
    ]
    load = assemble_load(replicas)
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.SCRAPE_ERROR
    assert load.message.startswith("pod m-0: cause 0; pod m-1: cause 1;")
    assert load.message.endswith("and 2 pods more")


def test_draining_replicas_are_observed_and_those_on_their_way_out_are_not() -> None:
    pods = [
        build_pod("serving"),
        build_pod("draining", serving=False, draining_since=NOW),
        build_pod("loading", ready=False),
        build_pod("going", terminating=True),
    ]
    assert [pod.name for pod in replicas_to_observe(pods)] == ["serving", "draining"]
