"""Who may import whom, and what the core may touch: read off the source, so nothing slips in unseen."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
CORE_LIBRARY = {
    "__future__", "attrs", "collections", "collections.abc", "contextlib", "datetime", "enum", "hashlib",
    "json", "math", "re", "threading", "typing",
}  # fmt: skip
CORE_BUILTINS_REFUSED = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
SHARED = {"codec", "frames", "channel_protocol", "json_bounds"}
PACKAGES: dict[str, set[str]] = {
    "boxmaker_core": set(),
    "boxmaker_adapters": {"boxmaker_core"},
    "boxmaker_cli": {"boxmaker_core", "boxmaker_adapters"},
}


def imports(path: Path) -> set[str]:
    """Full names of all modules that the file imports, relative ones resolved."""
    package = ".".join(path.relative_to(SRC).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            )
            module = ".".join(part for part in (base, node.module) if part)
            found.add(module)
            found |= {
                f"{module}.{alias.name}" for alias in node.names if (SRC / module.replace(".", "/")).is_dir()
            }
    return found


def files(package: str) -> list[Path]:
    found = sorted((SRC / package).rglob("*.py"))
    assert found
    return found


def calls_and_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(f"{ast.unparse(node.value)}.{node.attr}")
    return names


@pytest.mark.parametrize("path", files("boxmaker_core"), ids=lambda path: path.name)
def test_the_core_uses_only_attrs_and_the_quiet_standard_library(path: Path) -> None:
    outside = {name for name in imports(path) if not name.startswith("boxmaker_core")}
    assert outside <= CORE_LIBRARY
    assert not calls_and_names(path) & (
        CORE_BUILTINS_REFUSED | {"datetime.now", "datetime.utcnow", "datetime.today"}
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_point_inwards_only(package: str) -> None:
    for path in files(package):
        for name in imports(path):
            root = name.split(".")[0]
            if root in PACKAGES and root != package:
                assert root in PACKAGES[package], f"{path.name} imports {name}"


def driver_of(name: str) -> str | None:
    """The driver that a module belongs to; a package of modules is one driver."""
    parts = name.split(".")
    if parts[0] != "boxmaker_adapters" or len(parts) < 2 or parts[1] in SHARED:
        return None
    return parts[1]


def test_no_driver_imports_another_driver() -> None:
    for path in files("boxmaker_adapters"):
        own = driver_of(".".join(path.relative_to(SRC).with_suffix("").parts))
        for name in imports(path):
            other = driver_of(name)
            assert other is None or other == own, f"{path} imports {name}"


def test_only_the_codec_uses_cattrs() -> None:
    users = {
        str(path.relative_to(SRC))
        for package in PACKAGES
        for path in files(package)
        if any(name.split(".")[0] == "cattrs" for name in imports(path))
    }
    assert users <= {"boxmaker_adapters/codec/converter.py"}


def loaded_by(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(run.stdout.split())


def test_importing_the_core_loads_neither_requests_nor_cattrs_nor_sockets() -> None:
    loaded = loaded_by("import boxmaker_core")
    assert "boxmaker_core.loop" in loaded
    assert not loaded & {
        "requests",
        "urllib3",
        "cattrs",
        "socket",
        "_socket",
        "ssl",
        "asyncio",
        "subprocess",
        "logging",
    }


def test_every_module_says_what_it_is_for() -> None:
    for package in PACKAGES:
        for path in files(package):
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
