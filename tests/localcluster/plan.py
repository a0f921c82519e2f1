"""What runs in the node and with which settings: pure, from an instance to texts and command lines.

The init of the node (`inside.py`) carries the plan out; `node.py` decides when. A plan is data, so a test can read it
and a person can look at plan.json when something doesn't start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.localcluster.components import apiserver_flags, client_flags, etcd_flags, manager_flags
from tests.localcluster.layout import API_PORT, ETCD_PEER_PORT, ETCD_PORT, NODE_NAME, Addresses, Instance

# The node has its own /run, /var/lib and /var/log, the first two empty and in memory, so that sockets, network namespaces
# and caches of container programs never touch the machine's.
EMPTIED = ("/run", "/var/lib")
COVERED = (*EMPTIED, "/var/log")

# The kubelet insists on these machine-wide settings. It is shown files of ours in their place: the machine keeps its own.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True)
class Daemon:
    """A program of the node. `after_api`: it gives up when no API server answers, so it starts once one does."""

    name: str
    argv: list[str]
    after_api: bool = False


@dataclass(frozen=True)
class Plan:
    """sysctls: path below /proc/sys -> the file shown in its place. binds: directory -> the one mounted over it."""

    api_url: str
    services: str
    pki: str
    logs: str
    ended: str
    sysctls: dict[str, str]
    binds: dict[str, str]
    daemons: list[Daemon]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def read_plan(text: str) -> Plan:
    fields = json.loads(text)
    return Plan(**fields | {"daemons": [Daemon(**daemon) for daemon in fields["daemons"]]})


def build_plan(instance: Instance, addresses: Addresses, binaries: Mapping[str, Path]) -> Plan:
    run, pki, subnet = instance.run, instance.pki, addresses.subnet

    def client(program: str, port: int) -> list[str]:
        return [str(binaries[program]), *client_flags(run / f"{program}.kubeconfig", run / "certs" / program, port=port)]

    return Plan(
        api_url=addresses.api_url,
        services=subnet.services,
        pki=str(pki.directory),
        logs=str(instance.logs),
        ended=str(instance.ended),
        sysctls={name: str(run / "sysctl" / name.replace("/", ".")) for name in KUBELET_SYSCTLS},
        binds={"/var/log": str(run / "var-log"), "/var/lib/kubelet": str(run / "kubelet")},
        daemons=[
            Daemon("etcd", [str(binaries["etcd"]), *etcd_flags(run / "etcd", port=ETCD_PORT, peer_port=ETCD_PEER_PORT)]),
            Daemon("containerd", ["containerd", "--config", str(run / "containerd.toml")]),
            Daemon("registry", ["docker-registry", "serve", str(run / "registry.yaml")]),
            Daemon("kube-apiserver", [
                str(binaries["kube-apiserver"]),
                *apiserver_flags(
                    pki, run / "certs" / "kube-apiserver", bind="0.0.0.0", advertise=subnet.node_ip, port=API_PORT,
                    etcd_port=ETCD_PORT, service_cidr=subnet.services,
                ),
                f"--kubelet-certificate-authority={pki.authority}",
                f"--kubelet-client-certificate={pki.certificate('kubelet-client')}",
                f"--kubelet-client-key={pki.key('kubelet-client')}",
                "--kubelet-preferred-address-types=InternalIP",
            ]),
            Daemon(
                "kube-controller-manager",
                [*client("kube-controller-manager", 10257), *manager_flags(pki), f"--cluster-cidr={subnet.pods}"],
                after_api=True,
            ),
            Daemon("kube-scheduler", client("kube-scheduler", 10259), after_api=True),
            Daemon("kubelet", [
                str(binaries["kubelet"]),
                f"--config={run / 'kubelet.json'}",
                f"--kubeconfig={run / 'kubelet.kubeconfig'}",
                f"--cert-dir={run / 'certs' / 'kubelet'}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={subnet.node_ip}",
                "--root-dir=/var/lib/kubelet",
                "--runtime-cgroups=/",
            ], after_api=True),
            Daemon("kube-proxy", [str(binaries["kube-proxy"]), f"--config={run / 'kube-proxy.json'}"], after_api=True),
        ],
    )  # fmt: skip


def build_files(instance: Instance, addresses: Addresses, *, sandbox_image: str, lower_oom_scores: bool) -> dict[Path, str]:
    """Configuration files by path. JSON where a program reads YAML: it is YAML, and needs no library to write."""
    run = instance.run
    files = {
        run / "containerd.toml": _containerd(instance, sandbox_image=sandbox_image, lower_oom_scores=lower_oom_scores),
        run / "certs.d" / addresses.registry / "hosts.toml": _registry_hosts(addresses.registry),
        run / "cni" / "10-bridge.conflist": json.dumps(_bridge(instance, addresses), indent=1),
        run / "kubelet.json": json.dumps(_kubelet(instance, addresses), indent=1),
        run / "kube-proxy.json": json.dumps(_kube_proxy(instance, addresses), indent=1),
        run / "registry.yaml": json.dumps(_registry(instance, addresses), indent=1),
    }
    return files | {run / "sysctl" / name.replace("/", "."): f"{value}\n" for name, value in KUBELET_SYSCTLS.items()}


def _containerd(instance: Instance, *, sandbox_image: str, lower_oom_scores: bool) -> str:
    socket, cri = instance.containerd_socket, 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{instance.store / "containerd"}"
state = "{instance.run / "containerd"}"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{instance.run / "opt"}"
[{cri}]
  sandbox_image = "{sandbox_image}"
  disable_apparmor = true
  restrict_oom_score_adj = {str(not lower_oom_scores).lower()}
[{cri}.registry]
  config_path = "{instance.run / "certs.d"}"
[{cri}.cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{instance.run / "cni"}"
[{cri}.containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def _registry_hosts(registry: str) -> str:
    return f'server = "http://{registry}"\n[host."http://{registry}"]\n  capabilities = ["pull", "resolve"]\n'


def _registry(instance: Instance, addresses: Addresses) -> dict[str, object]:
    return {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(instance.store / "registry")}, "delete": {"enabled": True}},
        "http": {"addr": addresses.registry},
    }


def _bridge(instance: Instance, addresses: Addresses) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(instance.run / "ipam"),
            "ranges": [[{"subnet": addresses.subnet.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def _kubelet(instance: Instance, addresses: Addresses) -> dict[str, object]:
    pki = instance.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.subnet.node_ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki.certificate("kubelet-server")),
        "tlsPrivateKeyFile": str(pki.key("kubelet-server")),
        "containerRuntimeEndpoint": f"unix://{instance.containerd_socket}",
        "volumePluginDir": str(instance.run / "volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{instance.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # a lower one takes a capability that not every root has
        "clusterDNS": [addresses.subnet.dns_ip],
        "clusterDomain": "cluster.local",
        "resolvConf": str(instance.run / "resolv.conf"),
        "serializeImagePulls": False,
        # The disk is the machine's, and what else fills it is not the pods' fault.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }


def _kube_proxy(instance: Instance, addresses: Addresses) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(instance.run / "kube-proxy.kubeconfig")},
        "clusterCIDR": addresses.subnet.pods,
        "hostnameOverride": NODE_NAME,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # Zero: leave them. They can be written only in the machine's own network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
    }


def build_dns(addresses: Addresses, *, image: str) -> list[dict[str, object]]:
    """CoreDNS as the cluster's DNS: its account and role, its configuration, one replica, the service `kube-dns`."""
    name = {"name": "coredns", "namespace": "kube-system"}
    labels = {"k8s-app": "kube-dns"}
    corefile = """\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa
    cache 5
}
"""
    container = {
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        # Without a request of its own it gets next to no CPU beside busy pods, and names are no longer found.
        "resources": {"requests": {"cpu": "200m", "memory": "64Mi"}},
        # Patient once it is up: a busy machine must not take away the only one that knows names.
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 30,
        },
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    reads = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "coredns"},
            "rules": reads,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "coredns"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"},
            "subjects": [{"kind": "ServiceAccount", **name}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"Corefile": corefile}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": name,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": "coredns",
                        "priorityClassName": "system-cluster-critical",
                        "containers": [container],
                        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {
                "clusterIP": addresses.subnet.dns_ip,
                "selector": labels,
                "ports": [{"name": f"dns-{kind.lower()}", "port": 53, "protocol": kind} for kind in ("UDP", "TCP")],
            },
        },
    ]
