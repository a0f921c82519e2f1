"""Every label, annotation, port, object name and field-manager name in one place: a cluster remembers them for years."""

from __future__ import annotations

GROUP = "specserver.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "SpeculativeServer"
PLURAL = "speculativeservers"

# Labels (https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/).
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE = "specserver"
APP_NAME = "app.kubernetes.io/name"
APP_NAME_VALUE = "sglang"
APP_INSTANCE = "app.kubernetes.io/instance"
SERVER = f"{GROUP}/server"
"""Name of the SpeculativeServer that owns the object: the selector of its pods."""
SERVING = f"{GROUP}/serving"
"""`"true"` on a pod that takes traffic. In the Service's selector and in no other: removing it drains the pod at once."""
SERVING_VALUE = "true"

# Annotations.
DRAINING_SINCE = f"{GROUP}/draining-since"
"""RFC 3339 time at which the pod was taken out of the Service. All that a restarted operator needs to go on."""
DRAINED_IDLE_SINCE = f"{GROUP}/drained-idle-since"
"""RFC 3339 time of the first of two successive looks that found the draining pod idle."""
POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
DRAINING_FOR = f"{GROUP}/draining-for"
"""What the drain is for, on the pod: `rollout`, where a scale-down has no such annotation."""
DRAINING_FOR_ROLLOUT = "rollout"
TEMPLATE_DIGEST = f"{GROUP}/template-digest"
"""On the Deployment: of the pod template as the operator built it. The Deployment's controller copies it to the ReplicaSet."""
TEMPLATE_INTENT = f"{GROUP}/template-intent"
"""On the Deployment: digest of the resource's fields that the template was built from."""
RESCALE = f"{GROUP}/rescale"
"""On the Deployment: the last change of `replicas` and why, in JSON, written together with it."""

# Field managers of server-side apply, one a concern.
MANAGER_OBJECTS = "specserver"
MANAGER_REPLICAS = "specserver-replicas"
MANAGER_DRAIN = "specserver-drain"
MANAGER_STATUS = "specserver-status"
MANAGERS = (MANAGER_OBJECTS, MANAGER_REPLICAS, MANAGER_DRAIN, MANAGER_STATUS)

# In the pod.
ENGINE_CONTAINER = "engine"
PORT_NAME = "http"
POLICY_VOLUME = "specserver-policy"
POLICY_DIRECTORY = "/etc/specserver"
POLICY_FILE = "policy.json"
SHARED_MEMORY_VOLUME = "specserver-shm"
MODEL_VOLUME = "specserver-model"
DRAFT_VOLUME = "specserver-draft"

# Environment of the engine, read by the launcher and by the plugin.
ENV_ADMIN_KEY = "SPECSERVER_ADMIN_KEY"
ENV_API_KEY = "SPECSERVER_API_KEY"
ENV_POLICY_FILE = "SPECSERVER_POLICY_FILE"

# The generated Secret's entries.
ADMIN_KEY_ENTRY = "admin-key"
API_KEY_ENTRY = "api-key"


def policy_config_map_name(server: str) -> str:
    """Name of the ConfigMap that holds the policy an engine starts with."""
    return f"{server}-policy"


def keys_secret_name(server: str) -> str:
    """Name of the Secret with the keys that the operator made, where the resource names none."""
    return f"{server}-keys"


def ladder_file_name(ladder: tuple[int, ...]) -> str:
    """Name of the file with SGLang's adaptive candidates, inside the policy ConfigMap.

    The ladder stands in the name, so that another ladder, which needs other CUDA graphs, is another command line and hence
    other pods, while every other change of the ConfigMap is not.
    """
    return f"ladder-{'-'.join(str(steps) for steps in ladder)}.json"
