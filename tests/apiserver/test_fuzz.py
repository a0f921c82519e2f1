"""Resources that nobody would write, by the hundred: the API server refuses one with words that help, or it is served.

Each is created on the real API server, and what is accepted is reconciled there (`Reconciler` in this process, with the rights of
the chart), twice. It must end in objects, or in a condition that names what is wrong; nothing may be raised, and no status may be
one that the API server refuses. A few hundred in CI, the same ones each time; for more, and other ones:

    SPECSERVER_FUZZ=10000 python -m pytest tests/apiserver/test_fuzz.py
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from specserver.cluster.client import KubernetesCluster
from specserver.controller.policies import PolicyPusher
from specserver.controller.queue import RequeueAfter, Retry
from specserver.controller.reconcile import Reconciler
from specserver.controller.sources import LoadSources
from specserver.engines.client import EngineClient
from specserver.engines.http import PodHttp, open_session
from tests.apiserver.operator_process import OperatorProcess
from tests.apiserver.world import KIND, merge
from tests.fakes.api import Api, ApiError, Body
from tests.localcluster import ApiServer

EXAMPLES = int(os.environ.get("SPECSERVER_FUZZ", "150"))
NAMESPACE = "fuzz"

# ---- what nobody would write ------------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "a",
            "a=b",
            "--a=b=c",
            "'q'",
            '"q"',
            "a'b\"c",
            "$(X)",
            "$$(X)",
            "ünïcode ✓",
            "通义/mini",
            "x" * 300,
            "a\nb",
            "\t",
            "../..",
            "-",
            "--",
            "{}",
            "null",
            "0",
            "1e9",
            "a:b",
            "a/b",
            "%s",
            "\u202eabc",
            "🙂",
            "a" * 63,
            "A.b",
            "a_b",
        ]
    ),
    st.text(max_size=40),
)
NUMBERS = st.one_of(st.integers(-3, 12), st.sampled_from([2**31, 2**63, -(2**40), 100_000, 65_536, 0.5, True, "7", None]))
QUANTITIES = st.one_of(
    st.sampled_from(["0", "-1", "1ki", ".", "8Gi", "1e3", "9999999999Ti", "0.5", "NaN", "100m", "1 Gi", "", 4, 1.5, "1E", "٣"]),
    TEXTS,
)
DURATIONS = st.one_of(
    st.sampled_from(["0s", "1s", "5s", "1h", "24h", "9999999h", "-5s", "1d", "", "250ms", "1.5h", "1h1m1s", "1us", "s", 5]), TEXTS
)
NAMES = st.one_of(
    st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["a" * 63, "a" * 64, "a" * 253, "a.b", "A", "1a", "a-", "a--b", "ünï", "", "kube-system", "chat-keys"]),
    TEXTS,
)
URIS = st.one_of(
    st.sampled_from(
        ["hf://org/model", "pvc://claim/a/b", "pvc://claim", "file:///m", "hf://org", "s3://b/m", "file://m", "hf://a/b c"]
    ),
    TEXTS,
)
REFERENCES = st.fixed_dictionaries({}, optional={"name": NAMES, "key": TEXTS, "namespace": NAMES})
VARIABLES = st.fixed_dictionaries(
    {"name": st.one_of(st.sampled_from(["A", "HF_TOKEN", "SPECSERVER_ADMIN_KEY", "a.b-c", "1"]), TEXTS)},
    optional={
        "value": TEXTS,
        "valueFrom": st.one_of(
            st.builds(lambda ref: {"secretKeyRef": ref}, REFERENCES),
            st.just({"fieldRef": {"fieldPath": "metadata.name"}}),
            st.just({"fieldRef": {}}),
            st.just({}),
        ),
    },
)
ARGUMENTS = st.one_of(
    st.sampled_from(
        [
            "--mem-fraction-static",
            "0.8",
            "--mem-frac=0.8",
            "--max-run",
            "--port=1",
            "--json-model-override-args",
            '{"a":"b=c"}',
            "--log",
            "--help",
            "--config",
            "--speculative-num-st",
            "--load-format",
            "dummy",
            "--api-k",
            "--",
            "-h",
        ]
    ),
    TEXTS,
)
LABELS = st.dictionaries(
    st.one_of(
        st.sampled_from(["specserver.io/server", "app.kubernetes.io/managed-by", "a/b", "a", "specserver.io/serving"]), TEXTS
    ),
    st.one_of(TEXTS, st.none(), st.integers()),
    max_size=3,
)
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        part: st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "x y", ""]), QUANTITIES, max_size=3)
        for part in ("limits", "requests")
    },
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 10), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.one_of(st.sampled_from(["engine", "sidecar"]), NAMES)},
        optional={
            "image": TEXTS,
            "command": st.lists(TEXTS, max_size=2),
            "args": st.lists(TEXTS, max_size=2),
            "env": st.lists(VARIABLES, max_size=3),
            "resources": RESOURCES,
            "$patch": st.sampled_from(["delete", "replace", "merge", "x"]),
            "ports": st.lists(st.fixed_dictionaries({}, optional={"containerPort": NUMBERS, "name": NAMES}), max_size=2),
            "volumeMounts": st.lists(st.fixed_dictionaries({}, optional={"name": NAMES, "mountPath": TEXTS}), max_size=2),
            "securityContext": st.one_of(st.just({"runAsUser": 0}), st.just({"privileged": True}), ANYTHING),
            "lifecycle": ANYTHING,
            "readinessProbe": ANYTHING,
            "nonsense": ANYTHING,
        },
    ),
    max_size=3,
)
OVERLAYS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.one_of(
            st.fixed_dictionaries({}, optional={"labels": LABELS, "annotations": LABELS, "name": NAMES}), ANYTHING
        ),
        "spec": st.one_of(
            st.fixed_dictionaries(
                {},
                optional={
                    "containers": CONTAINERS,
                    "initContainers": CONTAINERS,
                    "nodeSelector": LABELS,
                    "priorityClassName": NAMES,
                    "volumes": st.lists(
                        st.fixed_dictionaries({"name": NAMES}, optional={"emptyDir": st.just({}), "hostPath": ANYTHING}),
                        max_size=2,
                    ),
                    "tolerations": ANYTHING,
                    "affinity": ANYTHING,
                    "terminationGracePeriodSeconds": NUMBERS,
                    "securityContext": st.one_of(st.just({"runAsNonRoot": True}), ANYTHING),
                    "serviceAccountName": NAMES,
                    "hostNetwork": st.booleans(),
                    "restartPolicy": TEXTS,
                    "enableServiceLinks": st.booleans(),
                    "nonsense": ANYTHING,
                    "imagePullSecrets": st.lists(REFERENCES, max_size=2),
                    "schedulerName": NAMES,
                },
            ),
            ANYTHING,
        ),
    },
)


def part(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Some of these fields, now and then with one that is not there, or no object at all."""
    fields = st.fixed_dictionaries({}, optional=optional)
    return st.one_of(
        fields, fields, fields, fields, st.builds(lambda a, b: {**a, **b}, fields, st.just({"nonsense": 1})), ANYTHING
    )


PARTS: dict[str, st.SearchStrategy[Any]] = {
    "model": part(uri=URIS, revision=TEXTS, servedName=TEXTS, tokenSecretRef=REFERENCES, trustRemoteCode=st.booleans()),
    "speculation": part(
        mode=st.sampled_from(["Auto", "Always", "Never", "Observe", "auto", ""]),
        algorithm=st.sampled_from(["EAGLE", "EAGLE3", "x"]),
        draftModel=part(uri=URIS, revision=TEXTS),
        maxSteps=NUMBERS,
        steps=st.lists(NUMBERS, max_size=5),
        policy=part(disableAbove=NUMBERS, enableBelow=NUMBERS, minDwell=DURATIONS, strategy=TEXTS, minAcceptLength=QUANTITIES),
    ),
    "engine": part(
        image=st.one_of(st.sampled_from(["sglang:v0.5.23", "a@sha256:" + "1" * 64, "r:5000/a:v0.5.17-x", "a:b:c"]), TEXTS),
        args=st.lists(ARGUMENTS, max_size=5),
        env=st.lists(VARIABLES, max_size=4),
        port=NUMBERS,
        maxRunningRequests=NUMBERS,
        parallelism=part(tensor=NUMBERS, pipeline=NUMBERS, data=NUMBERS),
        attentionBackend=TEXTS,
        sharedMemory=QUANTITIES,
        resources=RESOURCES,
        loadDeadline=DURATIONS,
        adminKeySecretRef=REFERENCES,
        apiKeySecretRef=REFERENCES,
        sglangRelease=st.one_of(st.sampled_from(["0.5.23", "9.9.9"]), TEXTS),
        imagePullPolicy=TEXTS,
    ),
    "template": OVERLAYS,
    "scaling": part(
        minReplicas=st.integers(-1, 2),
        maxReplicas=NUMBERS,
        paused=st.booleans(),
        targets=st.lists(
            st.fixed_dictionaries({}, optional={"metric": st.sampled_from(["Running", "Queued", "x"]), "value": QUANTITIES}),
            max_size=3,
        ),
        behavior=ANYTHING,
    ),
    "replicas": st.sampled_from([0, 0, 0, 1, -1, "1", 1.5, None]),
    "metrics": part(
        interval=DURATIONS,
        staleness=DURATIONS,
        prometheus=part(
            url=st.sampled_from(["http://127.0.0.1:1", "https://x", "x", "http://u:p@h"]),
            authSecretRef=REFERENCES,
            tls=part(caSecretRef=REFERENCES, insecureSkipVerify=st.booleans()),
            labels=LABELS,
        ),
        onLoss=st.sampled_from(["Hold", "Fallback", "Guess"]),
    ),
    "rollout": part(maxSurge=NUMBERS, maxUnavailable=NUMBERS, drainTimeout=DURATIONS, progressDeadline=DURATIONS),
    "nonsense": ANYTHING,
}
GOOD: Body = {
    "model": {"uri": "hf://org/model"},
    "speculation": {"draftModel": {"uri": "hf://org/draft"}},
    "engine": {"image": "sglang:v0.5.23"},
    "replicas": 0,
}


@st.composite
def servers(draw: st.DrawFn) -> Body:
    """A good server with one to three parts changed, mostly in one field, so that a fair share of all gets past admission."""
    parts = draw(st.lists(st.sampled_from([*PARTS, "template", "engine", "engine"]), min_size=1, max_size=3, unique=True))
    spec = GOOD
    for name in parts:
        value = draw(PARTS[name])
        if isinstance(value, dict) and value and draw(st.integers(0, 3)):
            chosen = draw(st.sampled_from(sorted(value)))
            value = {chosen: value[chosen]}
        spec = merge(spec, {name: value})
    if "scaling" in spec and draw(st.booleans()):
        spec.pop("replicas", None)
    name = draw(st.one_of(st.just("chat"), st.just("chat"), NAMES))
    metadata: Body = {"name": name, "namespace": NAMESPACE}
    if draw(st.integers(0, 5)) == 0:
        metadata["labels"], metadata["annotations"] = draw(LABELS), draw(LABELS)
    return {"apiVersion": "specserver.io/v1alpha1", "kind": KIND, "metadata": metadata, "spec": spec}


# ---- what must come of them --------------------------------------------------------------------------------------------------

USEFUL = re.compile(
    r"(spec|metadata)[.:\[]|unknown field|metadata\.|cannot unmarshal|resource name may not be empty|name is required"
)
TROUBLE = {"InvalidSpec", "ObjectRefused", "EngineArgumentsRefused", "SecretMissing"}


@dataclass
class Bench:
    """The API server, and one operator's reconciler without a process."""

    runner: asyncio.Runner
    api: Api
    reconciler: Reconciler
    ends: Counter[str] = field(default_factory=Counter)

    async def _create(self, body: Body) -> tuple[Body, ApiError | None]:
        try:
            return await self.api.create(body), None
        except ApiError as error:
            return {}, error

    async def judge(self, body: Body) -> None:
        created, refusal = await self._create(body)
        if refusal is not None:
            assert refusal.status in (400, 404, 405, 422), f"{refusal}"
            assert USEFUL.search(refusal.message) or not re.fullmatch("[-a-z0-9.]+", body["metadata"]["name"]), f"{refusal}"
            self.ends[f"refused {refusal.status}"] += 1
            return
        name = created["metadata"]["name"]
        try:
            for _ in range(2):
                outcome = await self.reconciler.reconcile((NAMESPACE, name))
                assert isinstance(outcome, RequeueAfter), f"{outcome}"
            status = (await self.api.get(KIND, NAMESPACE, name))["status"]
            ready = next(one for one in status["conditions"] if one["type"] == "Ready")
            deployment = await self.api.find("Deployment", NAMESPACE, name)
            if ready["reason"] in TROUBLE:
                assert re.search(r"\w+\.\w+|Deployment|Service|Secret|ConfigMap", ready["message"]), ready
                self.ends[ready["reason"]] += 1
            else:
                assert deployment is not None, ready
                self.ends["served"] += 1
        finally:
            await self.api.delete(KIND, NAMESPACE, name)
            await self.api.delete("Deployment", NAMESPACE, name)
            for kind, made in (
                ("Service", name),
                ("PodDisruptionBudget", name),
                ("ConfigMap", f"{name}-policy"),
                ("Secret", f"{name}-keys"),
            ):
                await self.api.delete(kind, NAMESPACE, made)
            assert not isinstance(await self.reconciler.reconcile((NAMESPACE, name)), Retry)


@pytest_asyncio.fixture(loop_scope="session")
async def alone(shared_operator: OperatorProcess) -> AsyncIterator[None]:
    """Without the operator that other files share."""
    if shared_operator.running:
        await shared_operator.stop()
    yield


@pytest.fixture
def bench(alone: None, control_plane: ApiServer, operator_kubeconfig: Path) -> Iterator[Bench]:
    async def open_all() -> tuple[Api, KubernetesCluster, Any]:
        configuration = Configuration()
        await config.load_kube_config(config_file=str(operator_kubeconfig), client_configuration=configuration)
        api = await Api(control_plane.kubeconfig).__aenter__()
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        return api, KubernetesCluster(ApiClient(configuration=configuration)), open_session()

    with asyncio.Runner() as runner:
        api, cluster, session = runner.run(open_all())
        sources = LoadSources(cluster, session)
        reconciler = Reconciler(cluster, PolicyPusher(EngineClient(PodHttp(session))), sources, version="fuzz")
        yield Bench(runner, api, reconciler)
        runner.run(api.delete("Namespace", "", NAMESPACE))
        sources.close()
        for closing in (api.__aexit__(None, None, None), cluster.close(), session.close()):
            runner.run(closing)


@pytest.mark.timeout(600 + EXAMPLES)
def test_a_resource_is_refused_with_words_or_served(bench: Bench) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="SPECSERVER_FUZZ" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(servers())
    def judge(body: Body) -> None:
        bench.runner.run(bench.judge(body))

    judge()
    print(dict(bench.ends))
    refused = sum(count for end, count in bench.ends.items() if end.startswith("refused"))
    # Each end was met; how often depends on what is drawn, which any change of the strategies changes.
    assert min(refused, bench.ends["served"], sum(bench.ends[reason] for reason in TROUBLE)) > 0, bench.ends
