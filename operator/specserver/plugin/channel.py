"""Messages between the HTTP process and the scheduler ranks, and among the ranks.

SGLang has one control message that carries a JSON object there and JSON objects back: the one of its debugging dumper.
Ours travel in it under method names of our own. The other candidate, SetInternalStateReq, takes numbers only and
answers with one boolean, so a policy would go as invented numbers and a refusal could not say why.

SGLang broadcasts every control message to all tensor-parallel ranks, which handle it in the same turn; only the first
one's answer reaches the HTTP process. So each rank's answer is gathered first: what is read back is what every rank
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from specserver.plugin import support, versions
from specserver.plugin.force import ForceInvalid, parse_force
from specserver.plugin.state import Order, Rank
from specserver.policy.document import PolicyInvalid, parse_policy

PREFIX = "specserver."
STATE = f"{PREFIX}state"
POLICY = f"{PREFIX}policy"
POLICY_IN_FORCE = f"{PREFIX}policy_in_force"
FORCE = f"{PREFIX}force"
UNFORCE = f"{PREFIX}unforce"
PROFILE = f"{PREFIX}profile"
ORDER = f"{PREFIX}order"

Answer = dict[str, Any]
"""One rank's answer. Of STATE: `Rank.report()`. Of the others: `rank` and what was asked for, or `rank`, `status` and the
refusal's body."""


def answer(rank: Rank, method: str, body: Mapping[str, Any]) -> Answer:
    """What a rank says to a message. Never raises: the other ranks wait for this one's answer."""
    try:
        if method == POLICY:
            return take_policy(rank, body)
        if method == POLICY_IN_FORCE:
            return {"rank": rank.name, **rank.report_policy()}
        if method == FORCE:
            return take_force(rank, body)
        if method == UNFORCE:
            rank.clear_force()
            return {"rank": rank.name}
        if method == PROFILE:
            return {"rank": rank.name, "profile": rank.export_profile()}
        return rank.report()
    except Exception as error:  # noqa: BLE001 — one rank that raises instead of answering would hang them all
        rank.note_error(method.removeprefix(PREFIX), error)
        return _refusal(rank, HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}", "")


def take_policy(rank: Rank, document: Mapping[str, Any]) -> Answer:
    """Puts a policy in force on this rank, or says why not. Depends on nothing in which ranks differ."""
    if not rank.armed:
        return _refusal(rank, HTTPStatus.SERVICE_UNAVAILABLE, f"not armed: {rank.reason}", "armed")
    try:
        policy = parse_policy(document)
    except PolicyInvalid as error:
        return _refusal(rank, HTTPStatus.UNPROCESSABLE_ENTITY, error.message, error.field)
    problem = rank.find_policy_problem(policy)
    if problem is not None:
        return _refusal(rank, HTTPStatus.UNPROCESSABLE_ENTITY, problem[1], problem[0])
    current = rank.policy.revision if rank.policy else 0
    if policy.revision < current:
        message = f"revision {policy.revision} is older than {current}, which is in force"
        return {**_refusal(rank, HTTPStatus.CONFLICT, message, "revision"), "current": current}
    rank.set_policy(policy)
    return {"rank": rank.name, "revision": policy.revision}


def take_force(rank: Rank, document: Mapping[str, Any]) -> Answer:
    """Forces a step count on this rank, or says why not. Depends on nothing in which ranks differ."""
    if not rank.armed:
        return _refusal(rank, HTTPStatus.SERVICE_UNAVAILABLE, f"not armed: {rank.reason}", "armed")
    try:
        force = parse_force(document)
    except ForceInvalid as error:
        return _refusal(rank, HTTPStatus.UNPROCESSABLE_ENTITY, error.message, error.field)
    problem = rank.find_steps_problem([force.steps])
    if problem is not None:
        return _refusal(rank, HTTPStatus.UNPROCESSABLE_ENTITY, problem[1], problem[0])
    if rank.policy is None:
        return _refusal(rank, HTTPStatus.CONFLICT, "no policy is in force to return to: put one first", "policy")
    rank.force(force.steps, force.ttl_seconds, cost_only=force.cost_only)
    return {"rank": rank.name, **force.to_document()}


def _refusal(rank: Rank, status: HTTPStatus, message: str, field: str) -> Answer:
    return {"rank": rank.name, "status": status.value, "error": message, "field": field}


# ---- the scheduler's side, on SGLang's types ----------------------------------------------------------------------------


def handle_request(scheduler: Any, rank: Rank, request: Any) -> bool:
    """Handles one of our messages in the scheduler; False for one that is the dumper's."""
    if not request.method.startswith(PREFIX):
        return False
    if request.method == ORDER:
        rank.follow(request.body)
        return True
    answers = _gather(scheduler, answer(rank, request.method, request.body))

    from sglang.srt.managers.io_struct import DumperControlReqOutput

    output = DumperControlReqOutput(success=True, response=answers)
    scheduler.ipc_channels.send_to_tokenizer.send_output(output, request)
    return True


def make_order_request(order: Order) -> Any:
    from sglang.srt.managers.io_struct import DumperControlReqInput

    return DumperControlReqInput(method=ORDER, body=order)


def _gather(scheduler: Any, own: Answer) -> list[Answer]:
    """The answers of all tensor-parallel ranks, in rank order, on every rank."""
    parallel = versions.read_parallel(scheduler, support.engine_version())
    # With data-parallel attention each group receives control messages on its own; its ranks are unarmed anyway.
    if parallel.tensor_ranks == 1 or parallel.attention_data_parallel:
        return [own]

    from sglang.srt.runtime_context import get_parallel
    from torch import distributed

    answers: list[Answer] = [{}] * parallel.tensor_ranks
    distributed.all_gather_object(answers, own, group=get_parallel().tp_group.cpu_group)
    return answers
