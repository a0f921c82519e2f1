"""What the rounds of a measuring window say: rates, intervals, switches. Pure functions on the probe's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from benchmarks.gpu.rounds import Kind

Records = Any
"""A numpy array of rounds.FIELDS."""


def accept_length(survival: Sequence[float], steps: int) -> float:
    """Tokens a round of a request with so many steps gains in the mean, by the model of acceptance."""
    return 1.0 + sum(survival[:steps])


def digest_window(records: Records, start: float, end: float, concurrency: int, survival: Sequence[float]) -> dict[str, Any]:
    """A window of steady load.

    tokensPerSecond     output tokens over time from the first result in the window to the last, prefill time included
    expectedPerSecond   the same with the model's mean instead of what was drawn in each round: the luck of some hundred draws
                        is then not taken for speed
    rounds              decode rounds by step count
    requests            mean of running requests in the rounds
    intervalMs          time from launch to launch of decode rounds by step count, where both had exactly `concurrency` requests
                        and nothing ran between
    switches            changes of the step count between decode rounds
    decodeSeconds, decodeTokens       time from the result before to each decode result, and those rounds' mean tokens
    prefillSeconds, prefilledRequests  the same of prefills: with the shape of a request these give a rate that does not hang on
                        whether a window of a second or two caught one prefill more or less
    """
    inside = records[(records["time"] >= start) & (records["time"] < end)]
    decoded = inside[inside["kind"] == Kind.DECODE_RESULT]
    digest: dict[str, Any] = {"seconds": round(end - start, 3), "requests": None, "tokensPerSecond": None}
    if len(decoded) < 3:
        return digest
    first, last = decoded["time"][0], decoded["time"][-1]
    counted = inside[(inside["time"] > first) & (inside["time"] <= last)]
    prefilled = counted[counted["kind"] == Kind.PREFILL_RESULT]
    rounds = counted[counted["kind"] == Kind.DECODE_RESULT]
    lengths = {int(steps): accept_length(survival, int(steps)) for steps in numpy.unique(rounds["steps"])}
    expected = sum(float(rounds["batch"][rounds["steps"] == steps].sum()) * length for steps, length in lengths.items())
    seconds = float(last - first)
    results = numpy.isin(inside["kind"], (Kind.DECODE_RESULT, Kind.PREFILL_RESULT))
    results = inside[results & (inside["time"] >= first)]
    gaps, ended = numpy.diff(results["time"]), results["kind"][1:]
    within = results["time"][1:] <= last
    digest.update(
        decodeSeconds=round(float(gaps[within & (ended == Kind.DECODE_RESULT)].sum()), 5),
        decodeTokens=round(expected, 2),
        prefillSeconds=round(float(gaps[within & (ended == Kind.PREFILL_RESULT)].sum()), 5),
        prefilledRequests=int(prefilled["batch"].sum()),
        requests=round(float(rounds["batch"].mean()), 2),
        tokensPerSecond=round(float(counted["tokens"].sum()) / seconds, 2),
        expectedPerSecond=round((expected + float(prefilled["tokens"].sum())) / seconds, 2),
        rounds={str(steps): int((rounds["steps"] == steps).sum()) for steps in lengths},
        prefills=len(prefilled),
        switches=int(numpy.count_nonzero(numpy.diff(rounds["steps"].astype(int)))),
        intervalMs=digest_intervals(inside, concurrency),
    )
    return digest


def digest_intervals(records: Records, concurrency: int) -> dict[str, dict[str, float]]:
    """Mean and percentiles of the time between two decode launches of one step count at exactly `concurrency`, by step count."""
    launches = records[(records["kind"] == Kind.DECODE_LAUNCH) | (records["kind"] == Kind.PREFILL_LAUNCH)]
    pure = (launches["kind"] == Kind.DECODE_LAUNCH) & (launches["batch"] == concurrency)
    pairs = pure[1:] & pure[:-1] & (launches["steps"][1:] == launches["steps"][:-1])
    gaps = numpy.diff(launches["time"])[pairs] * 1e3
    steps_of_gaps = launches["steps"][1:][pairs]
    hosts = launches["host"][1:][pairs] * 1e3
    digest = {}
    for steps in numpy.unique(steps_of_gaps):
        chosen = gaps[steps_of_gaps == steps]
        digest[str(int(steps))] = {
            "count": len(chosen),
            "mean": round(float(chosen.mean()), 4),
            "p10": round(float(numpy.percentile(chosen, 10)), 4),
            "p50": round(float(numpy.percentile(chosen, 50)), 4),
            "p90": round(float(numpy.percentile(chosen, 90)), 4),
            "host": round(float(numpy.median(hosts[steps_of_gaps == steps])), 4),
        }
    return digest


def digest_phases(
    records: Records, phases: Sequence[Mapping[str, Any]], survival: Sequence[float], bin_seconds: float
) -> dict[str, Any]:
    """A wave: tokens of each phase by the model's mean, and a line of running requests and steps over time for the picture."""
    rounds = records[records["kind"] == Kind.DECODE_RESULT]
    lengths = numpy.array([accept_length(survival, max(0, steps)) for steps in range(16)])
    expected = rounds["batch"] * lengths[numpy.clip(rounds["steps"], 0, 15)]
    results = []
    for phase in phases:
        inside = (rounds["time"] >= phase["from"]) & (rounds["time"] < phase["to"])
        results.append(
            {
                "level": phase["level"],
                "seconds": round(phase["to"] - phase["from"], 3),
                "tokens": round(float(expected[inside].sum()), 1),
                "drawn": int(rounds["tokens"][inside].sum()),
                "rounds": {str(int(k)): int((rounds["steps"][inside] == k).sum()) for k in numpy.unique(rounds["steps"][inside])},
            }
        )
    begin, end = phases[0]["from"], phases[-1]["to"]
    within = rounds[(rounds["time"] >= begin) & (rounds["time"] < end)]
    bins = ((within["time"] - begin) / bin_seconds).astype(int)
    line = []
    for number in numpy.unique(bins):
        chosen = within[bins == number]
        line.append([round(float(number) * bin_seconds, 3), int(chosen["batch"].max()), round(float(chosen["steps"].mean()), 2)])
    return {
        "phases": results,
        "tokens": round(sum(each["tokens"] for each in results), 1),
        "drawn": sum(each["drawn"] for each in results),
        "seconds": round(end - begin, 3),
        "switches": int(numpy.count_nonzero(numpy.diff(within["steps"].astype(int)))),
        "line": line,
    }
