"""The `corral` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from manifests.errors import ManifestError
from server import commands
from server.client import Daemon, DaemonError
from server.settings import Settings, SettingsError
from server.version import VERSION, LibraryError

Command = Callable[[Daemon, argparse.Namespace], None]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 1 with one line on stderr when it did not work, 2 for a wrong usage."""
    args = parser().parse_args(argv)
    try:
        _dispatch(args)
    except (DaemonError, SettingsError, LibraryError, ManifestError) as error:
        print(f"corral: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


def _dispatch(args: argparse.Namespace) -> None:
    if args.command == "serve":
        # Imports all of the daemon, which the other commands have no use for.
        from server.serve import serve  # noqa: PLC0415

        flags = {"CORRAL_HOST": args.host, "CORRAL_PORT": args.port}
        serve({name: text for name, text in flags.items() if text is not None})
        return
    settings, _ = Settings.from_environ(os.environ)
    daemon = Daemon(settings)
    try:
        args.run(daemon, args)
    finally:
        daemon.close()


class _Mixed(argparse.ArgumentParser):
    """Takes words before and after options, as in `run model --keepalive 10m some words`: of
    itself argparse does so at the top only, and asks a subcommand for parse_known_args."""

    _splitting = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if self._splitting:
            return super().parse_known_args(args, namespace)
        self._splitting = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._splitting = False


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="corral", description="Serve GGUF models.")
    top.add_argument("--version", action="version", version=f"corral {VERSION}")
    sub = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Mixed)
    _add_serve(sub.add_parser("serve", help="run the daemon"))

    def add(name: str, help: str, run: Command, *positional: str) -> argparse.ArgumentParser:
        command = sub.add_parser(name, help=help, description=help)
        command.set_defaults(run=run)
        for argument in positional:
            command.add_argument(argument)
        return command

    add("list", "the stored models", commands.list_models)
    add("ps", "the loaded models, and what of them is in RAM", commands.ps)
    shown = add("show", "what a model is and how it runs", commands.show, "model")
    shown.add_argument("--json", action="store_true", help="all that /api/show tells")
    shown.add_argument("--modelfile", action="store_true", help="its Modelfile")
    add("pull", "store a GGUF file under a name", commands.pull, "model", "path")
    created = add("create", "make a model from a Modelfile", commands.create, "model")
    created.add_argument("-f", "--file", default="Modelfile", help="default: %(default)s")
    edited = add("edit", "change a stored model", commands.edit, "model")
    edited.add_argument(
        "changes",
        nargs="+",
        metavar="key=value",
        help="such as weight_residency=lazy, temperature=0.2, system=@file; key= removes it",
    )
    edited.add_argument("--reload", action="store_true", help="unload it, to load anew")
    add("cp", "copy a model", commands.copy, "source", "destination")
    add("rm", "delete models", commands.remove).add_argument("models", nargs="+")
    asked = add("run", "ask a model, or converse with it", commands.run, "model")
    asked.add_argument("prompt", nargs="*")
    asked.add_argument("--keepalive", dest="keep_alive", help="such as 10m; -1 is for ever")
    add("stop", "unload a model", commands.stop, "model")
    ledger = add("residency", "what is in RAM, by layer for one model", commands.residency)
    ledger.add_argument("model", nargs="?")
    ledger.add_argument("--json", action="store_true", help="all that /api/residency tells")
    return top


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", help="default: CORRAL_HOST, or 127.0.0.1")
    command.add_argument("--port", help="default: CORRAL_PORT, or 8080")


if __name__ == "__main__":
    sys.exit(main())
