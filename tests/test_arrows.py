"""Who may import whom: the arrows of the design, read off the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("manifests", "residency", "server")
WORKER = ROOT / "server" / "worker"
NATIVE = {WORKER / "llama.py", WORKER / "gguf_header.py"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(file: Path, source: str | None = None) -> Iterator[str]:
    """Dotted names, absolute, of all that a file imports, wherever in it."""
    folder = list(file.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(source or file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from server import protocol` imports server.protocol.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def offenders(files: list[Path], package: str, allowed: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        if within(name, package) and not any(within(name, each) for each in allowed)
    ]


@pytest.mark.parametrize("package", ["manifests", "residency"])
def test_lower_packages_know_only_themselves(package: str) -> None:
    for other in set(PACKAGES) - {package}:
        assert offenders(modules(package), other) == []


@pytest.mark.parametrize("package", ["manifests", "residency"])
def test_lower_packages_do_not_know_http(package: str) -> None:
    for library in ("fastapi", "starlette", "uvicorn", "httpx"):
        assert offenders(modules(package), library) == []


def test_the_worker_knows_the_protocol_and_residency_alone() -> None:
    files = sorted(WORKER.rglob("*.py"))
    assert files
    assert offenders(files, "server", ("server.protocol", "server.worker")) == []
    assert offenders(files, "manifests") == []
    for library in ("fastapi", "starlette", "uvicorn", "httpx"):
        assert offenders(files, library) == []


def test_two_modules_know_llama_cpp() -> None:
    files = [file for package in PACKAGES for file in modules(package)]
    assert offenders([file for file in files if file not in NATIVE], "llama_cpp") == []


def test_the_daemon_does_not_reach_into_the_worker() -> None:
    files = [file for file in modules("server") if not file.is_relative_to(WORKER)]
    assert offenders(files, "server.worker") == []


def test_one_module_makes_libc_calls() -> None:
    files = [file for package in PACKAGES for file in modules(package)]
    # The reader's are of our own library.
    allowed = NATIVE | {ROOT / "residency" / f"{name}.py" for name in ("libc", "reader")}
    assert offenders([file for file in files if file not in allowed], "ctypes") == []


def test_only_the_application_knows_the_routes() -> None:
    routes = ROOT / "server" / "routes"
    files = [file for file in modules("server") if not file.is_relative_to(routes)]
    assert offenders([f for f in files if f != ROOT / "server" / "app.py"], "server.routes") == []


def with_imports(file: Path) -> set[Path]:
    """The file and all of ours that it imports, however far down."""
    found: set[Path] = set()
    left = [file]
    while left:
        file = left.pop()
        found.add(file)
        for name in imports(file):
            # `from server.calls import Call` names the module server.calls.
            for dotted in (name, name.rpartition(".")[0]):
                path = ROOT.joinpath(*dotted.split(".")).with_suffix(".py")
                if path.is_file() and path not in found:
                    left.append(path)
    return found


@pytest.mark.parametrize("name", ["catalog", "scheduler", "core", "sampling"])
def test_what_decides_does_not_know_http(name: str) -> None:
    files = sorted(with_imports(ROOT / "server" / f"{name}.py"))
    assert len(files) > 1
    for library in ("fastapi", "starlette", "uvicorn", "httpx"):
        assert offenders(files, library) == []


@pytest.mark.parametrize(
    "line", ["import server.calls", "from server import calls", "from ..calls import Request"]
)
def test_an_import_is_seen_however_it_is_written(line: str) -> None:
    assert any(within(name, "server.calls") for name in imports(WORKER / "made_up.py", line))
