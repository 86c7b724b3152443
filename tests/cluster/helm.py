"""`helm` as the guide calls it, on Helm's own library: `python -m tests.cluster.helm upgrade NAME CHART ...`.

Of Helm's options there are those that the guide uses; any other ends with usage.
"""

import argparse
import os
from pathlib import Path

import helm_python
import yaml


def main() -> None:
    told = _told()
    config = helm_python.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=told.namespace)
    wait = "legacy" if told.wait else "hookOnly"
    if told.command == "rollback":
        config.rollback(told.name, wait=wait, timeout=told.timeout)
        return
    values = yaml.safe_load(Path(told.values).read_text())
    act = config.install if told.command == "install" else config.upgrade
    act(told.chart, told.name, values, namespace=told.namespace, wait=wait, timeout=told.timeout)


def _told() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="helm")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("install", "upgrade", "rollback"):
        one = commands.add_parser(command)
        one.add_argument("name")
        one.add_argument("--namespace", required=True)
        one.add_argument("--wait", action="store_true")
        one.add_argument("--timeout", type=int, default=300)
        if command != "rollback":
            one.add_argument("chart")
            one.add_argument("--values", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
