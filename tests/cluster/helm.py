"""A replacement for the program `helm` that uses Helm's own library.

Run it as `python -m tests.cluster.helm upgrade NAME CHART ...`. It knows only the options that the guide
uses.
"""

import argparse
import os
from pathlib import Path

import helm_python
import yaml


def main() -> None:
    arguments = _parse_arguments()
    config = helm_python.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=arguments.namespace)
    wait = "legacy" if arguments.wait else "hookOnly"
    if arguments.command == "rollback":
        config.rollback(arguments.name, wait=wait, timeout=arguments.timeout)
        return
    values = yaml.safe_load(Path(arguments.values).read_text())
    act = config.install if arguments.command == "install" else config.upgrade
    act(
        arguments.chart,
        arguments.name,
        values,
        namespace=arguments.namespace,
        wait=wait,
        timeout=arguments.timeout,
    )


def _parse_arguments() -> argparse.Namespace:
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
