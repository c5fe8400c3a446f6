"""Mutation check of the core: change one thing at a time and see whether a test notices.

    python tests/mutation.py [PART]     # all mutants, or those whose name has PART in it

Each mutant is one small change of the source (another comparison, a number more by one, a statement left
out) and runs in a process of its own, forked so that nothing is loaded twice; the files stay as they are. The
judges are the unit tests of the core and the loop's contract tests over the memory store. What survives is
printed, and is an error unless `EXPLAINED` says why no test can or should tell it apart
(docs/reliability.md, "Mutation check").
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
CORE = ROOT / "src" / "boxmaker_core"
LOOP = "tests/contract/test_loop.py"
UNIT = [
    f"tests/unit/test_{name}.py"
    for name in ("turn", "session", "tools", "text_rules", "accounts", "slot_book", "errors", "wording")
]
FIRST = {
    "session": "session", "tools": "tools", "turn": "turn", "errors": "errors", "messages": "wording",
    "limits": "text_rules", "cache": "text_rules", "baseline": "text_rules",
    "accounts": "accounts", "slots": "slot_book",
}  # fmt: skip
"""Who most likely notices a change of a module, and so is asked alone before all others."""
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-k", "not jsonl"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is loaded before the fork
SECONDS = 20
"""Of processor time for a mutant; one that loops for ever is noticed by that."""
NO_BEHAVIOUR = {"__init__.py", "ports.py", "events.py"}

EXPLAINED: dict[str, str] = {
    "loop.Loop: False -> True": "a field could be given to the constructor as well; nobody does",
    "loop.Loop: False -> True #2": "the same of another field",
    "loop.Loop: False -> True #3": "the same of a third",
    "loop._Turn: False -> True #2": "the same of a turn's memo",
    "loop._Turn._result: 1 -> 2": "how much more than the cap is looked at before it is cut to the cap",
    "messages.Ending: 'finished' -> 'finisheXX'": "the value of an ending is shown to nobody",
    "messages.Ending: 'cut' -> 'cuXX'": "the same of the other ending",
}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def variants(node: ast.AST) -> Iterator[ast.AST | None]:
    """What may stand in a node's place; None for nothing."""
    match node:
        case ast.Compare(ops=[operator, *_]):
            changed = copy.deepcopy(node)
            changed.ops[0] = COMPARISONS[type(operator)]()
            yield changed
        case ast.BoolOp(op=operator):
            changed = copy.deepcopy(node)
            changed.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp(op=operator) if type(operator) in SUMS:
            changed = copy.deepcopy(node)
            changed.op = SUMS[type(operator)]()
            yield changed
        case ast.AugAssign(op=operator) if type(operator) in SUMS:
            changed = copy.deepcopy(node)
            changed.op = SUMS[type(operator)]()
            yield changed
            yield None
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str(value)):
            yield ast.Constant("XX" if not value else value[:-1] + "XX")
        case ast.If() | ast.While() | ast.IfExp():
            changed = copy.deepcopy(node)
            changed.test = ast.UnaryOp(ast.Not(), changed.test)
            yield changed
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.Assign():
            yield None
        case _:
            pass


class Change(ast.NodeTransformer):
    """Puts a variant in the place of one node, the `index`-th of those that have any."""

    def __init__(self, index: int, which: int) -> None:
        self.left = index
        self.which = which

    def visit(self, node: ast.AST) -> ast.AST | None:
        if is_fixed(node):
            return node
        if isinstance(node, ast.FunctionDef):
            node.body = [self.visit(part) or ast.Pass() for part in node.body]
            node.args.defaults = [self.visit(part) or part for part in node.args.defaults]
            node.args.kw_defaults = [part and (self.visit(part) or part) for part in node.args.kw_defaults]
            return node
        if isinstance(node, ast.ClassDef):
            node.body = [self.visit(part) or ast.Pass() for part in node.body]
            return node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                node.value = self.visit(node.value)
            return node
        found = list(variants(node))
        if found:
            self.left -= 1
            if self.left == -1:
                changed = found[self.which]
                return ast.Pass() if changed is None else changed
        return self.generic_visit(node)


def is_fixed(node: ast.AST) -> bool:
    """What is no behaviour: documentation, imports, names for types."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()) | ast.Assert():
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.BitOr()) | ast.Subscript()):
            return name[0].isupper()
        case ast.Call(func=ast.Name(id="NewType")) | ast.Expr(ast.Call(func=ast.Name(id="assert_never"))):
            return True
    return False


def mutants(path: Path) -> Iterator[tuple[str, ast.Module]]:
    """Each change of a file, with a name that outlives other changes of it."""
    source = path.read_text()
    names: dict[str, int] = {}
    index = 0
    while True:
        tree = ast.parse(source)
        places = [node for node in walk(tree) if list(variants(node))]
        if index >= len(places):
            return
        place = places[index]
        for which, changed in enumerate(variants(place)):
            mutant = ast.fix_missing_locations(Change(index, which).visit(ast.parse(source)))
            assert isinstance(mutant, ast.Module)
            was = ast.unparse(place).splitlines()[0]
            now = (
                "nothing"
                if changed is None
                else ast.unparse(ast.fix_missing_locations(copy.deepcopy(changed))).splitlines()[0]
            )
            name = f"{path.stem}.{home(tree, place)}: {was[:90]} -> {now[:90]}"
            names[name] = names.get(name, 0) + 1
            yield name + (f" #{names[name]}" if names[name] > 1 else ""), mutant
        index += 1


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in the order of `Change`, without what it leaves alone."""
    if is_fixed(node):
        return
    if isinstance(node, ast.FunctionDef):
        parts: Sequence[ast.AST | None] = [*node.body, *node.args.defaults, *node.args.kw_defaults]
    elif isinstance(node, ast.ClassDef):
        parts = [*node.body]
    elif isinstance(node, ast.AnnAssign):
        parts = [node.value]
    else:
        yield node
        parts = list(ast.iter_child_nodes(node))
    for part in parts:
        if part is not None:
            yield from walk(part)


def home(tree: ast.Module, place: ast.AST) -> str:
    """The classes and functions that `place` stands in, dotted."""
    return (
        ".".join(
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and any(part is place for part in ast.walk(node))
        )
        or "top"
    )


class Loader(importlib.abc.Loader, importlib.abc.MetaPathFinder):
    """Imports one module from a changed tree."""

    def __init__(self, module: str, path: Path, tree: ast.Module) -> None:
        self.module, self.path, self.tree = module, path, tree

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        return importlib.util.spec_from_loader(name, self) if name == self.module else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def survives(path: Path, tree: ast.Module | None) -> bool:
    """Whether the judges pass with `tree` in the place of the file; in a process of its own."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
        if tree is not None:
            sys.meta_path.insert(0, Loader(f"boxmaker_core.{path.stem}", path, tree))
        import pytest

        first = f"tests/unit/test_{FIRST[path.stem]}.py" if path.stem in FIRST else LOOP
        others = [judge for judge in (*UNIT, LOOP) if judge != first]
        os._exit(int(pytest.main([*OPTIONS, first])) or int(pytest.main([*OPTIONS, *others])))
    return wait(child) == 0


def wait(child: int) -> int:
    """The exit status; a mutant that waits for ever is ended."""
    end = time.monotonic() + 6 * SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def main(part: str, say: Callable[[str], None]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.chdir(ROOT)
    os.environ["BOXMAKER_PROFILE"] = "mutants"
    if not survives(CORE, None):
        say("the judges fail on the core as it is: mend that first")
        return 2
    count, unexplained, explained = 0, [], set()
    for path in sorted(CORE.glob("*.py")):
        for name, tree in mutants(path) if path.name not in NO_BEHAVIOUR else ():
            if part not in name:
                continue
            count += 1
            if survives(path, tree):
                (explained.add if name in EXPLAINED else unexplained.append)(name)
                say(f"survives{', as explained' if name in EXPLAINED else ''}: {name}")
    say(
        f"{count} mutants: {count - len(unexplained) - len(explained)} noticed, {len(explained)} explained,"
        f" {len(unexplained)} to look at"
    )
    for name in sorted(set(EXPLAINED) - explained if not part else ()):
        say(f"explained, but noticed or gone: {name}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    for name in ("attrs", "cattrs", "hypothesis", "pytest"):  # loaded once, before all the forks
        importlib.import_module(name)
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "", lambda text: print(text, flush=True)))  # noqa: T201 - a program
