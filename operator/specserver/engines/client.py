"""The control API of an engine's SpecServer plugin, by pod IP.

Nothing an engine does raises here: each call ends in a value that says what is true of that pod, so that one broken engine
never keeps the others from their policy. Read-back is part of the push: `Pushed` means that every rank has the revision.

Rejected: SGLang's own `/set_internal_state`. It takes a flat list of numbers, has no revision, and one rank's failure in
it ends the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specserver.core.observed import EngineState, EngineUnreachable, Pod, Pushed, PushRejected, PushResult
from specserver.engines.http import (
    Answer,
    PodHttp,
    PodUnreachable,
    excerpt,
)
from specserver.engines.wire import AnswerInvalid, parse_applied, parse_object, parse_refusal, parse_state

POLICY_PATH = "/specserver/v1/policy"
STATE_PATH = "/specserver/v1/state"
ANSWER_LIMIT_BYTES = 1024 * 1024

NO_PLUGIN = (
    "the SpecServer plugin is not in this image: the engine answers 404 here. Use an image built from images/sglang"
)
WRONG_KEY = (
    "the admin key is wrong: the engine was started with another one. Restart the pod to give it the Secret's present"
    " key, or put the earlier key back into the Secret"
)
UNSUPPORTED = "the plugin in the image and this operator are of different versions: use an image of the operator's release"


class EngineClient:
    """Pushes policies and reads states; one for all pods."""

    def __init__(self, http: PodHttp) -> None:
        self._http = http

    async def push_policy(
        self, pod: Pod, *, port: int, admin_key: str, document: Mapping[str, Any]
    ) -> PushResult:
        """Puts the policy in force in the pod's engine and checks that each rank took it."""
        try:
            answer = await self._ask("PUT", pod, port, POLICY_PATH, admin_key, json.dumps(document).encode())
        except PodUnreachable as error:
            return EngineUnreachable(pod.name, str(error))
        if answer.status == 200:
            return _pushed(pod, answer, document["revision"])
        if answer.status in (400, 401, 403, 404, 405, 409, 422, 503):
            return _rejected(pod, answer)
        return EngineUnreachable(pod.name, f"PUT {POLICY_PATH}: {_unexpected(answer)}")

    async def read_state(self, pod: Pod, *, port: int, admin_key: str) -> EngineState | EngineUnreachable:
        """What each rank of the pod's engine reports of itself."""
        try:
            answer = await self._ask("GET", pod, port, STATE_PATH, admin_key)
        except PodUnreachable as error:
            return EngineUnreachable(pod.name, str(error))
        if answer.status == 200:
            try:
                return parse_state(pod.name, parse_object(answer.body))
            except AnswerInvalid as error:
                return EngineUnreachable(pod.name, f"GET {STATE_PATH}: {error}; {UNSUPPORTED}")
        return EngineUnreachable(pod.name, f"GET {STATE_PATH}: {_unexpected(answer)}")

    async def _ask(
        self, method: str, pod: Pod, port: int, path: str, admin_key: str, body: bytes | None = None
    ) -> Answer:
        if not admin_key or not all("!" <= char <= "~" for char in admin_key):
            # Both the library and the engine refuse such a header; the library's error would quote it.
            raise PodUnreachable(
                f"{method} {path}: the admin key is empty or has characters other than visible ASCII (a line break at"
                " its end?): put a proper one into the Secret"
            )
        headers = {"Authorization": f"Bearer {admin_key}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        answer = await self._http.exchange(
            method, pod.ip, port, path, limit_bytes=ANSWER_LIMIT_BYTES, headers=headers, body=body
        )
        if answer.status != 200:
            # Error pages of proxies quote the request's headers; what is quoted of them later must not hold the key.
            answer = replace(answer, body=answer.body.replace(admin_key.encode(), b"<admin key>"))
        return answer


def _pushed(pod: Pod, answer: Answer, wanted: int) -> PushResult:
    try:
        revision, ranks = parse_applied(parse_object(answer.body))
    except AnswerInvalid as error:
        return EngineUnreachable(pod.name, f"PUT {POLICY_PATH}: {error}; {UNSUPPORTED}")
    behind = [f"{rank} has {at}" for rank, at in sorted(ranks.items()) if at != wanted]
    if revision != wanted or behind:
        found = ", ".join(behind) or f"the engine reports {revision}"
        return PushRejected(
            pod.name, answer.status, "ranks", f"revision {wanted} is not in force on every rank: {excerpt(found)}"
        )  # fmt: skip
    return Pushed(pod.name, revision)


def _rejected(pod: Pod, answer: Answer) -> PushRejected:
    field, said = parse_refusal(answer.body)
    if answer.status == 401:
        message = WRONG_KEY
    elif answer.status == 403:
        message = f"the engine was started without an admin key and takes no policy: {said}"
    elif answer.status in (404, 405):
        message = NO_PLUGIN
    else:
        message = said or "the engine gave no cause"
    return PushRejected(pod.name, answer.status, field, message)


def _unexpected(answer: Answer) -> str:
    if answer.status == 401:
        return WRONG_KEY
    if answer.status == 404:
        return NO_PLUGIN
    said = parse_refusal(answer.body)[1]
    if answer.status == 403:
        return f"the engine was started without an admin key and tells nothing: {said}"
    return f"the engine answered {answer.status}: {said}"

