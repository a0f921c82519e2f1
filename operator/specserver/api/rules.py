"""CEL rules of the CRD: what the API server refuses, and the sentence it says.

Each message names the field and the fix, since it is all that `kubectl apply` shows. A rule stands at the deepest node that
sees all the fields it speaks of. https://kubernetes.io/docs/reference/using-api/cel/
"""

from __future__ import annotations

from dataclasses import dataclass

from specserver.api import labels
from specserver.api.v1alpha1 import OWNED_FLAGS

OWNED_ENVIRONMENT = (labels.ENV_ADMIN_KEY, labels.ENV_API_KEY, labels.ENV_POLICY_FILE)
"""Environment variables that the operator sets itself and no one else may."""


@dataclass(frozen=True)
class CelRule:
    """path: dotted schema path from the root; rule, message: as in `x-kubernetes-validations`."""

    path: str
    rule: str
    message: str


_OWNED_FLAGS_PATTERN = "^(" + "|".join([*OWNED_FLAGS, "--speculative-[-a-z]+"]) + ")(=.*)?$"
_OWNED_ENVIRONMENT_LIST = "[" + ", ".join(f"'{name}'" for name in OWNED_ENVIRONMENT) + "]"

RULES = (
    CelRule(
        "",
        "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name: must be a lower-case DNS label of at most 63 characters that starts with a letter, without dots,"
        " because a Service takes this name: rename the resource",
    ),
    CelRule(
        "spec",
        "!(has(self.replicas) && has(self.scaling))",
        "replicas: give either replicas or scaling, not both: remove one",
    ),
    CelRule(
        "spec.speculation",
        "self.mode == 'Never' || has(self.draftModel)",
        "draftModel: needed unless mode is Never: give draftModel.uri, or set mode to Never",
    ),
    CelRule(
        "spec.speculation",
        "!has(self.steps) || self.steps[0] == 0",
        "steps: must start at 0, which is plain decode: put 0 first",
    ),
    CelRule(
        "spec.speculation",
        "!has(self.steps) || (self.steps.isSorted() && self.steps.all(k, self.steps.exists_one(j, j == k)))",
        "steps: must rise, each step count once: sort the list and drop doubles",
    ),
    CelRule(
        "spec.speculation",
        "!has(self.steps) || self.steps[size(self.steps) - 1] == self.maxSteps",
        "steps: must end at maxSteps: change maxSteps or the last of steps",
    ),
    CelRule(
        "spec.speculation",
        "!has(self.policy) || !has(self.policy.table) || self.policy.table.all(r,"
        " has(self.steps) ? r.steps in self.steps : r.steps <= self.maxSteps)",
        "policy.table: holds steps that the ladder lacks: use step counts of steps, or of 0 to maxSteps",
    ),
    CelRule(
        "spec.speculation.policy",
        "!has(self.enableBelow) || has(self.disableAbove)",
        "enableBelow: means nothing without disableAbove: give disableAbove too",
    ),
    CelRule(
        "spec.speculation.policy",
        "!has(self.enableBelow) || !has(self.disableAbove) || self.enableBelow < self.disableAbove",
        "enableBelow: must be less than disableAbove, or engines would switch to and fro: lower enableBelow",
    ),
    CelRule(
        "spec.speculation.policy",
        "self.strategy != 'Table' || has(self.table)",
        "table: needed with strategy Table: give rows of running and steps, or take another strategy",
    ),
    CelRule(
        "spec.speculation.policy",
        "!has(self.table) || (self.table.map(r, r.running).isSorted()"
        " && self.table.all(r, self.table.exists_one(s, s.running == r.running)))",
        "table: running must rise from row to row: sort the rows and drop doubles",
    ),
    CelRule(
        "spec.speculation.policy",
        "double(self.minAcceptLength) >= 1.0",
        'minAcceptLength: must be 1 or more, for a round yields at least one token: write for example "1.1"',
    ),
    CelRule(
        "spec.speculation.policy.probe",
        "duration(self.minInterval) <= duration(self.maxInterval) && duration(self.maxInterval) <= duration('1h')",
        "maxInterval: must be at least minInterval and at most 1h: raise maxInterval or lower minInterval",
    ),
    CelRule(
        "spec.engine",
        f"!has(self.args) || self.args.all(a, !a.matches('{_OWNED_FLAGS_PATTERN}'))",
        "args: holds a flag that the operator passes itself (model, speculation, keys, port, parallelism, maxRunningRequests,"
        " attentionBackend, metrics): remove it and use the field of the resource",
    ),
    CelRule(
        "spec.engine",
        r"""!has(self.args) || self.args.all(a, !a.matches('^([\'"].*[\'"]|\\s.*|.*\\s)$'))""",
        "args: an item has quotes around it or blanks at an end, and no shell removes them: write each argument as one bare"
        " list item",
    ),
    CelRule(
        "spec.engine",
        f"!has(self.env) || self.env.all(e, !(e.name in {_OWNED_ENVIRONMENT_LIST}))",
        "env: holds a variable that the operator sets itself: remove it and use adminKeySecretRef or apiKeySecretRef",
    ),
    CelRule(
        "spec.engine",
        "!has(self.env) || self.env.all(e, self.env.exists_one(o, o.name == e.name))",
        "env: a name stands twice: remove one",
    ),
    CelRule(
        "spec.engine",
        "!has(self.env) || self.env.all(e, has(e.value) != has(e.valueFrom))",
        "env: each variable needs either value or valueFrom: give one of the two",
    ),
    CelRule(
        "spec.engine",
        "duration(self.loadDeadline) >= duration('5s') && duration(self.loadDeadline) <= duration('24h')",
        "loadDeadline: must lie between 5s and 24h",
    ),
    CelRule(
        "spec.scaling",
        "self.minReplicas <= self.maxReplicas",
        "minReplicas: must not exceed maxReplicas: lower minReplicas or raise maxReplicas",
    ),
    CelRule(
        "spec.scaling",
        "self.targets.all(t, self.targets.exists_one(u, u.metric == t.metric))",
        "targets: a metric stands twice: keep one target for each metric",
    ),
    CelRule(
        "spec.scaling",
        "self.targets.all(t, double(t.value) > 0.0)",
        'targets: value must be above 0: write for example "24"',
    ),
    CelRule(
        "spec.metrics",
        "duration(self.interval) >= duration('1s') && duration(self.staleness) >= duration(self.interval)",
        "staleness: must be at least interval, and interval at least 1s: raise staleness or interval",
    ),
    CelRule(
        "spec.metrics",
        "self.onLoss == 'Hold' || has(self.prometheus)",
        "onLoss: without prometheus the pods are read already: remove onLoss, or give prometheus",
    ),
    CelRule(
        "spec.metrics.prometheus",
        "self.url.startsWith('https://') || !(has(self.tls.caSecretRef) || self.tls.insecureSkipVerify)",
        "tls: means nothing with this url: remove tls, or let url begin with https://",
    ),
    CelRule(
        "spec.metrics.prometheus.tls",
        "!(has(self.caSecretRef) && self.insecureSkipVerify)",
        "insecureSkipVerify: with it caSecretRef is never looked at: remove one of the two",
    ),
    CelRule(
        "spec.rollout",
        "self.maxSurge + self.maxUnavailable > 0",
        "maxUnavailable: maxSurge and maxUnavailable can't both be 0, or no pod could ever be replaced: raise one",
    ),
    CelRule(
        "spec.rollout",
        "duration(self.drainTimeout) <= duration('1h')",
        "drainTimeout: must not exceed 1h",
    ),
)
