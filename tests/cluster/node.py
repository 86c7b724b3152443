"""Kubernetes with one node: etcd, the control plane, containerd and a kubelet, in its own network namespace.

All files are in one directory, and all processes end with the test. Pods are connected to a bridge. At the
bridge's address, they can reach servers that listen on the loopback address. There is no DNS, and network
policies are not enforced.
"""

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from pydantic import JsonValue

from tests.cluster.programs import output_of, patiently, running
from tests.unit.deploy.files import ROOT

PROGRAMS = Path(os.environ.get("BATCHWRIGHT_TEST_KUBERNETES", ROOT / ".venv" / ".tools" / "kubernetes"))
BRIDGE, ADDRESS = "batchwright0", "10.244.0.1"
_PODS, _SERVICES = "10.244.0.0/16", "10.96.0.0/16"
_TOKEN = "tests-only"
_PAUSE = "localhost/pause:1"


class Node:
    """A Kubernetes node. `kubeconfig` is the path of the administrator's configuration for kubectl."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kubeconfig = folder / "admin.yaml"
        self._socket = folder / "containerd.sock"

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl and return its output.

        Args:
            given: standard input of the command.

        Raises:
            AssertionError: the command failed. The message contains its output.
        """
        return output_of([str(PROGRAMS / "kubectl"), *arguments], {"KUBECONFIG": str(self.kubeconfig)}, given)

    def load(self, archive: Path) -> None:
        """Load images from an archive of `docker save`.

        Pods can use them if their imagePullPolicy permits it.
        """
        output_of(
            ["ctr", "--address", str(self._socket), "--namespace", "k8s.io", "images", "import", str(archive)]
        )

    @contextmanager
    def lent(self, port: int) -> Generator[str]:
        """Context manager that forwards a loopback port to the pods. It yields the host:port for pods."""
        listen = f"TCP-LISTEN:{port},bind={ADDRESS},fork,reuseaddr"
        with running(["socat", listen, f"TCP:127.0.0.1:{port}"], self._folder / f"lent-{port}.log"):
            yield f"{ADDRESS}:{port}"

    @contextmanager
    def started(self) -> Generator[None]:
        """Context manager that runs the node. The `with` block begins when the node is ready.

        At the end, all pods and processes are stopped.
        """
        _make_bridge()
        _hide_logs()
        self._write()
        with ExitStack() as parts:
            for name, command in self._commands().items():
                parts.enter_context(running(command, self._folder / f"{name}.log"))
                if name == "kube-apiserver":
                    patiently(lambda: self.kubectl("get", "--raw", "/readyz"))
            parts.callback(self._end_pods)
            patiently(lambda: self.kubectl("wait", "--for=condition=Ready", "node/node", "--timeout=1s"))
            yield

    def _end_pods(self) -> None:
        """Delete our namespaces with all pods.

        The kubelet must still be running, because it unmounts the pods' volumes.
        """
        namespaces = ("kube-system", "kube-public", "kube-node-lease", "default")
        names = self.kubectl("get", "namespaces", "--output=name").split()
        ours = [name for name in names if name.partition("/")[2] not in namespaces]
        if ours:
            self.kubectl("delete", "--timeout=90s", *ours)

    def _write(self) -> None:
        folder = self._folder
        subprocess.run(
            ["openssl", "genrsa", "-out", folder / "accounts.key", "2048"], check=True, capture_output=True
        )
        (folder / "tokens.csv").write_text(f"{_TOKEN},admin,admin,system:masters\n")
        self.kubeconfig.write_text(_kubeconfig())
        (folder / "cni").mkdir()
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(_network(folder)))
        (folder / "containerd.toml").write_text(_containerd(folder))
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(folder)))

    def _commands(self) -> dict[str, list[str]]:
        """Return the command of each process by name, in the order in which they must start."""
        folder = self._folder
        etcd = "http://127.0.0.1:2379"
        kubeconfig = f"--kubeconfig={self.kubeconfig}"
        commands = {
            "etcd": [
                *("etcd", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync"),
                *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
            "kube-apiserver": [
                *("kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={folder / 'certificates'}"),
                *(f"--advertise-address={ADDRESS}", f"--service-cluster-ip-range={_SERVICES}"),
                *("--service-account-issuer=https://kubernetes.default", "--authorization-mode=Node,RBAC"),
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-key-file={folder / 'accounts.key'}",
                f"--service-account-signing-key-file={folder / 'accounts.key'}",
                *(f"--token-auth-file={folder / 'tokens.csv'}", "--allow-privileged=true"),
            ],
            "kube-controller-manager": [
                *("kube-controller-manager", kubeconfig, "--leader-elect=false"),
                f"--service-account-private-key-file={folder / 'accounts.key'}",
                f"--root-ca-file={folder / 'certificates' / 'apiserver.crt'}",
            ],
            "kube-scheduler": ["kube-scheduler", kubeconfig, "--leader-elect=false"],
            "containerd": ["containerd", f"--config={folder / 'containerd.toml'}"],
            "kubelet": [
                *("kubelet", kubeconfig, f"--config={folder / 'kubelet.yaml'}", "--hostname-override=node"),
                *(f"--node-ip={ADDRESS}", f"--root-dir={folder / 'kubelet'}"),
                *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{self._socket}"),
            ],
            "kube-proxy": [
                *("kube-proxy", kubeconfig, "--hostname-override=node", "--proxy-mode=iptables"),
                *(f"--cluster-cidr={_PODS}", "--conntrack-max-per-core=0"),
                *("--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"),
            ],
        }
        return {name: [_found(command[0]), *command[1:]] for name, command in commands.items()}


def _make_bridge() -> None:
    names = [line.split(": ")[1] for line in output_of(["ip", "-oneline", "link"]).splitlines()]
    assert names == ["lo"], f"not in a network of its own, which `make test-cluster` gives: {names}"
    output_of(["ip", "link", "add", BRIDGE, "type", "bridge"])
    output_of(["ip", "address", "add", f"{ADDRESS}/16", "dev", BRIDGE])
    output_of(["ip", "link", "set", BRIDGE, "up"])
    # kube-proxy and the kubelet look for a way out; there is none.
    output_of(["ip", "route", "add", "default", "dev", BRIDGE])


def _hide_logs() -> None:
    """Mount a temporary file system for the logs of pods, because the kubelet can write them only there."""
    for path in (Path("/var/log/pods"), Path("/var/log/containers")):
        path.mkdir(exist_ok=True)
        output_of(["mount", "-t", "tmpfs", "tmpfs", str(path)])


def _found(program: str) -> str:
    ours = PROGRAMS / program
    return str(ours) if ours.exists() else program


def _kubeconfig() -> str:
    server: JsonValue = {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": True}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        }
    )


def _network(folder: Path) -> dict[str, JsonValue]:
    addresses: JsonValue = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": _PODS, "gateway": ADDRESS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge: JsonValue = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {**bridge, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _containerd(folder: Path) -> str:
    return f"""version = 2
root = "{folder / "containerd"}"
state = "{folder / "containerd-state"}"
[grpc]
address = "{folder / "containerd.sock"}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{_PAUSE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder / "cni"}"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder / "containerd-opt"}"
"""


def _kubelet(folder: Path) -> dict[str, JsonValue]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "resolvConf": "",
        "staticPodPath": "",
        "volumePluginDir": str(folder / "plugins"),
        # The disk and the memory are the machine's, which others use too.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "enforceNodeAllocatable": [],
    }
