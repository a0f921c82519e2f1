"""Strategies of fixed numbers, for those who want the simple thing.

Threshold speculates below one number of running requests, decodes plainly above another, and stays put between them. Table
gives each range of running requests its step count, as SGLang's and vLLM's own tables do. They know no cost: the crossover
moves with model, draft, GPU and context length, so the numbers are the user's.
"""

from __future__ import annotations

from specserver.policy.document import Policy


def first_steps(policy: Policy, running: int) -> int:
    """Steps without a past: between the two thresholds a server speculates, as one that was quiet before."""
    return 0 if running > policy.disable_above else policy.max_steps


def next_steps(policy: Policy, steps: int, running: int) -> int:
    """Steps after `steps`, which is 0 or the largest of the ladder."""
    if running > policy.disable_above:
        return 0
    if running < policy.enable_below:
        return policy.max_steps
    return steps


def steps_by_table(policy: Policy, running: int) -> int:
    """Steps of the last row that begins at `running` or below; before the first row, the first row's."""
    steps = policy.table[0][1]
    for least, row_steps in policy.table:
        if least > running:
            break
        steps = row_steps
    return steps
