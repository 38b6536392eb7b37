"""What each command of the command line does, over a client of the daemon."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manifests.manifest import LoaderOptions
from manifests.options import ALIASES
from server.client import Daemon, DaemonError
from server.drawing import PLAIN, SHADED, draw
from server.tables import distance, size, table


def list_models(daemon: Daemon, _args: Namespace) -> None:
    now = datetime.now(UTC)
    rows = [
        [
            model["name"],
            model["digest"][:12],
            size(model["size"]),
            model["details"]["quantization_level"],
            distance(model["modified_at"], now),
        ]
        for model in daemon.get("/api/tags")["models"]
    ]
    print(table(["NAME", "ID", "SIZE", "QUANTIZATION", "MODIFIED"], rows))


def ps(daemon: Daemon, _args: Namespace) -> None:
    now = datetime.now(UTC)
    models = daemon.get("/api/ps")["models"]
    rows = [
        [
            model["name"],
            str(model["pid"]),
            size(model["size"]),
            model["weight_residency"],
            size(model["resident"]),
            _locked(model),
            str(model["context_length"]),
            distance(model["expires_at"], now) if model["status"] == "ready" else model["status"],
        ]
        for model in models
    ]
    print(table(["NAME", "PID", "SIZE", "MODE", "RESIDENT", "LOCKED", "CONTEXT", "UNTIL"], rows))
    for model in models:
        if model["pin_error"]:
            print(f"{model['name']}: {model['pin_error']}")


def _locked(model: Mapping[str, Any]) -> str:
    """With what should be, where a lock was refused."""
    locked = size(model["locked"])
    return f"{locked} of {size(model['to_lock'])}" if model["pin_error"] else locked


def show(daemon: Daemon, args: Namespace) -> None:
    shown = daemon.post("/api/show", {"model": args.model})
    if args.json:
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    if args.modelfile:
        print(shown["modelfile"], end="")
        return
    facts = [[key, str(value)] for key, value in shown["model_info"].items()]
    facts.append(["quantization", shown["details"]["quantization_level"]])
    print(table(["MODEL", args.model], facts))
    options = [[key, _shown(e["value"]), e["source"]] for key, e in shown["effective"].items()]
    print("\n" + table(["LOADER OPTION", "VALUE", "FROM"], options))
    for title in ("parameters", "system", "template", "license"):
        if shown[title]:
            print(f"\n{title.upper()}\n{shown[title]}")


def _shown(value: Any) -> str:
    """A list as people write it for edit."""
    return ",".join(value) if isinstance(value, list) else str(value)


def pull(daemon: Daemon, args: Namespace) -> None:
    body = {"model": args.model, "from": str(Path(args.path).expanduser().absolute())}
    _progress(daemon.lines("/api/pull", body))


def create(daemon: Daemon, args: Namespace) -> None:
    path = Path(args.file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DaemonError(f"{path}: {error}") from error
    body = {"model": args.model, "modelfile": text, "base_dir": str(path.absolute().parent)}
    _progress(daemon.lines("/api/create", body))


def edit(daemon: Daemon, args: Namespace) -> None:
    body: dict[str, Any] = {"model": args.model, "reload": args.reload}
    for change in args.changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise DaemonError(f"{change!r}: write key=value, or key= to remove the key")
        _put(body, key, text)
    applies: Mapping[str, str] = daemon.post("/api/edit", body)["applies"]
    print(table(["CHANGED", "APPLIES"], [[key, when] for key, when in applies.items()]))


def _put(body: dict[str, Any], key: str, text: str) -> None:
    """Enter one key=value into the body of /api/edit."""
    if key in ("system", "template"):
        body[key] = _content(text) or None
        return
    section, dot, option = key.rpartition(".")
    option = ALIASES.get(option, option)
    if not dot:
        section = "loader" if option in LoaderOptions.model_fields else "parameters"
    values = body.setdefault(section, {})
    values[option] = _typed(text) if text else None


def _content(text: str) -> str:
    """The text, or that of the file in @file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DaemonError(f"{text[1:]}: {error}") from error


def _typed(text: str) -> Any:
    """A number, boolean, list or quoted string as JSON writes them, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def copy(daemon: Daemon, args: Namespace) -> None:
    daemon.post("/api/copy", {"source": args.source, "destination": args.destination})


def remove(daemon: Daemon, args: Namespace) -> None:
    for model in args.models:
        daemon.delete("/api/delete", {"model": model})
        print(f"deleted {model}")


def stop(daemon: Daemon, args: Namespace) -> None:
    daemon.post("/api/generate", {"model": args.model, "keep_alive": 0, "stream": False})


def residency(daemon: Daemon, args: Namespace) -> None:
    """The ledgers of all loaded models, or of one with its map."""
    told = daemon.get(f"/api/residency/{args.model}" if args.model else "/api/residency")
    if args.json:
        print(json.dumps(told, indent=2, ensure_ascii=False))
        return
    for ledger in [told] if args.model else told["models"]:
        cells = ledger.pop("map", None)
        rows = [
            [key, size(value) if key.endswith("_bytes") else str(value)]
            for key, value in ledger.items()
            if key != "model"
        ]
        print(table([ledger["model"], ""], rows))
        if cells is not None:
            print("\n" + draw(cells, SHADED if _draws_shades() else PLAIN))


def _draws_shades() -> bool:
    return sys.stdout.isatty() and sys.stdout.encoding.lower().replace("-", "") == "utf8"


def run(daemon: Daemon, args: Namespace) -> None:
    """One answer to the prompt given; without one, a conversation over standard input."""
    options = {"keep_alive": args.keep_alive} if args.keep_alive else {}
    chats = bool(daemon.post("/api/show", {"model": args.model})["template"])
    history: list[dict[str, str]] = []
    for prompt in [" ".join(args.prompt)] if args.prompt else _asked():
        if chats:
            history.append({"role": "user", "content": prompt})
            body = {"model": args.model, "messages": history, **options}
            pieces = (row["message"]["content"] for row in daemon.lines("/api/chat", body))
        else:
            body = {"model": args.model, "prompt": prompt, **options}
            pieces = (row["response"] for row in daemon.lines("/api/generate", body))
        history.append({"role": "assistant", "content": _printed(pieces)})


def _asked() -> Iterable[str]:
    """Lines of standard input, with a prompt where somebody types them."""
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print(">>> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == "/bye":
            return
        if line.strip():
            yield line.strip()


def _printed(pieces: Iterable[str]) -> str:
    said = []
    for piece in pieces:
        print(piece, end="", flush=True)
        said.append(piece)
    print()
    return "".join(said)


def _progress(reports: Iterable[Mapping[str, Any]]) -> None:
    """One line that grows where somebody watches; one line per step elsewhere."""
    watched = sys.stderr.isatty()
    last = ""
    for report in reports:
        text = str(report["status"])
        if watched and report.get("total"):
            done, total = report["completed"], report["total"]
            text += f"  {size(done)} of {size(total)}  {done * 100 // total} %"
            print(f"\r\x1b[K{text}", end="" if done < total else "\n", file=sys.stderr, flush=True)
        elif text != last:
            print(text, file=sys.stderr)
        last = text
