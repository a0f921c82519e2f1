"""What the API server refuses, and what it says: every rule with a resource that breaks it and a neighbour that does not.

All by dry run: admission is the same, and nothing is left for the operator to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specserver.api.rules import RULES
from tests.apiserver.world import World, a_server, merge
from tests.fakes.api import ApiError, Body
from tests.localcluster import ClusterError
from tests.localcluster.paths import REPOSITORY
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCALING = {"minReplicas": 1, "maxReplicas": 2, "targets": [{"metric": "Running", "value": "24"}]}


def rule(start: str) -> str:
    """The one rule's message that starts like this."""
    (message,) = {rule.message for rule in RULES if rule.message.startswith(start)}
    return message


def speculating(**different: Any) -> Body:
    return {"speculation": different}


def with_table(*rows: tuple[int, int], **different: Any) -> Body:
    return speculating(policy={"table": [{"running": running, "steps": steps} for running, steps in rows], **different})


def with_args(*args: str) -> Body:
    return {"engine": {"args": list(args)}}


def with_env(*env: Body) -> Body:
    return {"engine": {"env": list(env)}}


def with_scaling(**different: Any) -> Body:
    return {"replicas": None, "scaling": {**SCALING, **different}}


def with_targets(*targets: tuple[str, str]) -> Body:
    return with_scaling(targets=[{"metric": metric, "value": value} for metric, value in targets])


def with_prometheus(**prometheus: Any) -> Body:
    return {"metrics": {"prometheus": prometheus}}


NAMES = [
    ("a dot", "mini-1.5b", "mini-15b"),
    ("64 characters", "a" * 64, "a" * 63),
    ("a digit at the start", "1-mini", "mini-1"),
]

CASES: list[tuple[str, str, Body, Body]] = [
    ("replicas and scaling", rule("replicas:"), {"replicas": 1, "scaling": SCALING}, {"replicas": None, "scaling": SCALING}),
    ("no draft", rule("draftModel:"), speculating(draftModel=None), speculating(draftModel=None, mode="Never")),
    ("ladder without 0", rule("steps: must start"), speculating(steps=[1, 3]), speculating(steps=[0, 3])),
    ("ladder that falls", rule("steps: must rise"), speculating(steps=[0, 3, 1, 3]), speculating(steps=[0, 1, 3])),
    ("ladder with a double", rule("steps: must rise"), speculating(steps=[0, 3, 3]), speculating(steps=[0, 2, 3])),
    ("ladder that ends early", rule("steps: must end"), speculating(steps=[0, 2]),
     speculating(steps=[0, 2], maxSteps=2)),
    ("no hysteresis", rule("enableBelow: must"), speculating(policy={"enableBelow": 8}),
     speculating(policy={"enableBelow": 7})),
    ("a lower bound alone", rule("enableBelow: means"), speculating(policy={"disableAbove": None}),
     speculating(policy={"disableAbove": None, "enableBelow": None})),
    ("table that is not there", rule("table: needed"), speculating(policy={"strategy": "Table"}),
     with_table((0, 3), strategy="Table")),
    ("table that falls", rule("table: running must"), with_table((8, 3), (4, 0)), with_table((4, 3), (8, 0))),
    ("table with a double", rule("table: running must"), with_table((4, 3), (4, 0)), with_table((4, 3), (5, 0))),
    ("table beyond the ladder", rule("policy.table:"), with_table((0, 4)), with_table((0, 3))),
    ("table beside the ladder", rule("policy.table:"), speculating(steps=[0, 3], policy={"table": [{"running": 0, "steps": 2}]}),
     speculating(steps=[0, 3], policy={"table": [{"running": 0, "steps": 3}]})),
    ("less than a token a round", rule("minAcceptLength:"), speculating(policy={"minAcceptLength": "0.99"}),
     speculating(policy={"minAcceptLength": "1"})),
    ("longest wait below the first", rule("maxInterval:"), speculating(policy={"probe": {"maxInterval": "1s"}}),
     speculating(policy={"probe": {"maxInterval": "1s", "minInterval": "500ms"}})),
    ("owned flag", rule("args: holds a flag"), with_args("--port", "1"), with_args("--log-level", "info")),
    ("owned flag with its value", rule("args: holds a flag"), with_args("--tp-size=2"), with_args("--tp-sizes=2")),
    ("key in the arguments", rule("args: holds a flag"), with_args("--api-key=secret"), with_args("--chat-template=/api-key")),
    ("speculative flag", rule("args: holds a flag"), with_args("--speculative-num-steps", "9"),
     with_args("--schedule-policy", "lpm")),
    ("quotes that no shell removes", rule("args: an item has quotes"), with_args("'{\"1\": 2}'"), with_args('{"1": 2}')),
    ("blank at the end", rule("args: an item has quotes"), with_args("--reasoning-parser "),
     with_args("--reasoning-parser", "a b")),
    ("variable of ours", rule("env: holds a variable"), with_env({"name": "SPECSERVER_ADMIN_KEY", "value": "k"}),
     with_env({"name": "SPECSERVER_OTHER", "value": "k"})),
    ("variable twice", rule("env: a name stands twice"), with_env({"name": "A", "value": "1"}, {"name": "A", "value": "2"}),
     with_env({"name": "A", "value": "1"}, {"name": "B", "value": "2"})),
    ("variable with two values", rule("env: each variable"),
     with_env({"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
     with_env({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
    ("variable without a value", rule("env: each variable"), with_env({"name": "A"}), with_env({"name": "A", "value": ""})),
    ("deadline too short", rule("loadDeadline:"), {"engine": {"loadDeadline": "4s"}}, {"engine": {"loadDeadline": "5s"}}),
    ("deadline too long", rule("loadDeadline:"), {"engine": {"loadDeadline": "24h1s"}}, {"engine": {"loadDeadline": "24h"}}),
    ("least above most", rule("minReplicas:"), with_scaling(minReplicas=3), with_scaling(minReplicas=2)),
    ("metric twice", rule("targets: a metric"), with_targets(("Running", "2"), ("Running", "3")),
     with_targets(("Running", "2"), ("Queued", "3"))),
    ("target of 0", rule("targets: value"), with_targets(("Running", "0")), with_targets(("Running", "0.5"))),
    ("samples older than staleness", rule("staleness:"), {"metrics": {"interval": "30s", "staleness": "20s"}},
     {"metrics": {"interval": "20s", "staleness": "20s"}}),
    ("nothing to fall back from", rule("onLoss:"), {"metrics": {"onLoss": "Fallback"}},
     {"metrics": {"onLoss": "Fallback", "prometheus": {"url": "http://p"}}}),
    ("certificate without TLS", rule("tls:"), with_prometheus(url="http://p", tls={"insecureSkipVerify": True}),
     with_prometheus(url="https://p", tls={"insecureSkipVerify": True})),
    ("authority that nobody asks", rule("insecureSkipVerify:"),
     with_prometheus(url="https://p", tls={"insecureSkipVerify": True, "caSecretRef": {"name": "ca", "key": "crt"}}),
     with_prometheus(url="https://p", tls={"caSecretRef": {"name": "ca", "key": "crt"}})),
    ("interval too short", rule("staleness:"), {"metrics": {"interval": "500ms"}}, {"metrics": {"interval": "1s"}}),
    ("no pod may go and none may come", rule("maxUnavailable:"), {"rollout": {"maxUnavailable": 0}},
     {"rollout": {"maxUnavailable": 0, "maxSurge": 1}}),
    ("drain without end", rule("drainTimeout:"), {"rollout": {"drainTimeout": "61m"}}, {"rollout": {"drainTimeout": "60m"}}),
]  # fmt: skip


async def refusal(world: World, body: Body) -> str:
    with pytest.raises(ApiError) as caught:
        await world.api.create(body, dry_run=True)
    assert caught.value.status == 422 or "strict decoding" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(("message", "bad", "good"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
async def test_a_rule_refuses_and_lets_its_neighbour_pass(world: World, message: str, bad: Body, good: Body) -> None:
    said = await refusal(world, a_server(world.namespace, **bad))
    assert message in said
    await world.api.create(a_server(world.namespace, **good), dry_run=True)


@pytest.mark.parametrize(("bad", "good"), [pytest.param(*case[1:], id=case[0]) for case in NAMES])
async def test_a_name_that_no_service_can_have(world: World, bad: str, good: str) -> None:
    assert rule("metadata.name:") in await refusal(world, a_server(world.namespace, bad))
    await world.api.create(a_server(world.namespace, good), dry_run=True)


async def test_every_rule_has_a_case() -> None:
    assert {message for _, message, _, _ in CASES} | {rule("metadata.name:")} == {rule.message for rule in RULES}


SCHEMA = [
    pytest.param({"model": {"uri": "org/model"}}, "spec.model.uri", id="uri without a scheme"),
    pytest.param({"model": {"uri": "s3://bucket/model"}}, "spec.model.uri", id="uri of an unknown scheme"),
    pytest.param({"model": {"uri": None}}, "spec.model.uri", id="no uri"),
    pytest.param(
        {"model": {"tokenSecretRef": {"name": "../x", "key": "t"}}}, "spec.model.tokenSecretRef.name", id="path to a Secret",
    ),
    pytest.param(
        {"model": {"tokenSecretRef": {"name": "s", "key": "a/b"}}}, "spec.model.tokenSecretRef.key", id="path in a Secret",
    ),
    pytest.param(
        {"engine": {"resources": {"limits": {"cpu": "1ki"}}}}, "spec.engine.resources.limits.cpu", id="limit that is no quantity",
    ),
    pytest.param({"model": {"servedName": "a:b"}}, "spec.model.servedName", id="served name with a colon"),
    pytest.param({"speculation": {"mode": "Sometimes"}}, "spec.speculation.mode", id="unknown mode"),
    pytest.param({"speculation": {"maxSteps": 0}}, "spec.speculation.maxSteps", id="no steps at all"),
    pytest.param({"engine": {"image": None}}, "spec.engine.image", id="no image"),
    pytest.param({"engine": {"port": 0}}, "spec.engine.port", id="port 0"),
    pytest.param({"engine": {"sharedMemory": "much"}}, "spec.engine.sharedMemory", id="no quantity"),
    pytest.param({"engine": {"loadDeadline": "1d"}}, "spec.engine.loadDeadline", id="no duration"),
    pytest.param({"replicas": -1}, "spec.replicas", id="negative replicas"),
    pytest.param(with_scaling(maxReplicas=None), "spec.scaling.maxReplicas", id="no most"),
    pytest.param(with_scaling(minReplicas=0), "spec.scaling.minReplicas", id="least of 0"),
    pytest.param(with_scaling(targets=[]), "spec.scaling.targets", id="no targets"),
    pytest.param(with_targets(("Running", "100m")), "spec.scaling.targets[0].value", id="target as a milli-quantity"),
    pytest.param(with_targets(("TTFT", "1")), "spec.scaling.targets[0].metric", id="unknown metric"),
    pytest.param({"metrics": {"prometheus": {"url": "p:9090"}}}, "spec.metrics.prometheus.url", id="url without a scheme"),
    pytest.param({"suspended": True}, 'unknown field "spec.suspended"', id="unknown field"),
    pytest.param(speculating(policy={"disableabove": 3}), 'unknown field "spec.speculation.policy.disableabove"', id="typo"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "says"), SCHEMA)
async def test_the_schema_refuses_by_field(world: World, spec: Body, says: str) -> None:
    body = a_server(world.namespace)
    body["spec"] = merge(body["spec"], {key: value for key, value in spec.items() if key != "scaling"})
    if "scaling" in spec:
        body["spec"]["scaling"] = {key: value for key, value in spec["scaling"].items() if value is not None}
    assert says in await refusal(world, body)


async def test_defaults_are_there_to_be_read(world: World) -> None:
    minimal = {
        "apiVersion": "specserver.io/v1alpha1", "kind": "SpeculativeServer",
        "metadata": {"name": "minimal", "namespace": world.namespace},
        "spec": {
            "model": {"uri": "hf://org/model"}, "engine": {"image": "e:1"},
            "speculation": {"draftModel": {"uri": "hf://org/draft"}},
        },
    }  # fmt: skip
    spec = (await world.api.create(minimal, dry_run=True))["spec"]
    assert spec["speculation"] == {
        "mode": "Auto", "algorithm": "EAGLE3", "draftModel": {"uri": "hf://org/draft"}, "maxSteps": 3,
        "policy": {
            "strategy": "Measured", "minDwell": "250ms", "minAcceptLength": "1.1", "marginUp": "0.05", "marginDown": "0.02",
            "probe": {"maxDuty": "0.01", "rounds": 8, "minInterval": "2s", "maxInterval": "20s"},
        },
    }  # fmt: skip
    assert spec["engine"]["maxRunningRequests"] == 256
    assert (spec["engine"]["port"], spec["engine"]["loadDeadline"]) == (30000, "30m")
    assert spec["metrics"] == {"interval": "15s", "staleness": "60s", "onLoss": "Hold"}
    assert spec["rollout"] == {
        "maxSurge": 0, "maxUnavailable": 1, "drainTimeout": "60s", "progressDeadline": "1h", "protectStartup": True,
        "paused": False, "onOperatorUpgrade": "Keep",
    }  # fmt: skip
    assert "replicas" not in spec, "a default would forbid scaling"


async def test_kubectl_apply_says_the_same(world: World) -> None:
    """What somebody sees at a terminal, a typo's name included."""
    text = yaml.safe_dump(a_server(world.namespace, speculation={"policy": {"enableBelow": 9}}))
    with pytest.raises(ClusterError, match="enableBelow: must be less than disableAbove"):
        await world.kubectl("apply", "-f", "-", stdin=text)
    with pytest.raises(ClusterError, match=r'unknown field "spec\.replicsa"'):
        await world.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(a_server(world.namespace, replicsa=3)))


async def test_scale_cannot_set_both(world: World) -> None:
    await world.create(**with_scaling())
    with pytest.raises(ClusterError, match="give either replicas or scaling, not both"):
        await world.kubectl("scale", "ssv/chat", "--replicas=3")


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.stem)
async def test_examples_are_accepted(world: World, path: Path) -> None:
    await world.kubectl("apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", str(path))
    await world.kubectl("apply", "--validate=strict", "--dry-run=server", "-f", str(path))


async def test_non_ascii_text_stays_as_it_is(world: World) -> None:
    name = "通义/mini-Ünïcode"
    body = await world.create(model={"servedName": name}, engine={"args": ["--chat-template", "/模板.jinja"]})
    assert body["spec"]["model"]["servedName"] == name
    pods = await _first_pod(world)
    arguments: list[str] = pods["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--served-model-name") + 1] == name
    assert "/模板.jinja" in arguments


async def test_the_longest_name_is_served(world: World) -> None:
    name = "a" * 63
    await world.create_ready(name, replicas=1)


async def test_status_is_not_the_users_to_write(world: World) -> None:
    await world.create(replicas=0)
    before = await world.read()
    await world.api.patch("SpeculativeServer", world.namespace, "chat", {"status": {"replicas": 99}})
    assert (await world.read()).get("status", {}).get("replicas") != 99
    assert (await world.read())["metadata"]["generation"] == before["metadata"]["generation"]


async def _first_pod(world: World) -> Body:
    return (await eventually(lambda: world.pods(), "a pod"))[0]
