"""Strategy Threshold: speculate below one number of running requests, decode plainly above another, and stay put between them.

For those who want the simple thing. It knows no cost: the crossover moves with model, draft, GPU and context length, so the two
numbers are the user's.
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
