"""`python -m tests.replay.fingerprint`: lists the commands that workflows issue, in the source's order.

The replay of a history detects a changed order only on the paths that the history took. This list covers all
paths.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).parent / "fingerprint.txt"

# What becomes an event of the history when it is called. `wait_condition` does with a timeout only.
_COMMANDS = {
    "cancel",
    "continue_as_new",
    "deprecate_patch",
    "execute_activity",
    "execute_activity_method",
    "execute_child_workflow",
    "execute_local_activity",
    "patched",
    "signal",
    "sleep",
    "start_activity",
    "start_activity_method",
    "start_child_workflow",
    "start_local_activity",
    "upsert_memo",
    "upsert_search_attributes",
    "wait_condition",
}


def fingerprint(root: Path = ROOT) -> str:
    lines = [line for path in sorted((root / "workflows").glob("*.py")) for line in _of_file(path)]
    return "\n".join(lines) + "\n"


def _of_file(path: Path) -> Iterator[str]:
    for name, function in _functions(ast.parse(path.read_text()), path.stem):
        for call in _calls(function):
            yield f"{name}: {call}"


def _functions(tree: ast.AST, name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{name}.{node.name}")


def _calls(function: ast.AST) -> Iterator[str]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        if isinstance(call.func, ast.Attribute) and _is_command(call.func.attr, call):
            first = f"({ast.unparse(call.args[0])})" if call.args else "()"
            yield call.func.attr + (first if call.func.attr.endswith(("method", "workflow")) else "")


def _is_command(name: str, call: ast.Call) -> bool:
    if name == "wait_condition":
        return any(keyword.arg == "timeout" for keyword in call.keywords)
    return name in _COMMANDS


if __name__ == "__main__":
    print(fingerprint(), end="")
