"""The documentation tells of every metric, route and command, and of nothing else.

Settings and options: test_docs_settings.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

import pytest
from documents import (
    DOCS,
    PAGES,
    Command,
    anchors,
    blocks,
    codes,
    commands,
    curl,
    links,
    named,
    prose,
    tables,
)
from fastapi.routing import iter_route_contexts

from manifests.store import Store
from residency.ledger import Ledger
from server.app import build_app
from server.catalog import Catalog
from server.cli import parser
from server.core import ServingCore
from server.errors import BadRequest
from server.ledgers import Ledgers
from server.metrics import Metrics
from server.routes.openai_schema import ChatRequest
from server.scheduler import Scheduler
from server.services import Services
from server.settings import Settings
from server.templates import Templates

METRICS, HTTP, CLI = DOCS / "metrics.md", DOCS / "http-api.md", DOCS / "cli.md"
METRIC_ROWS = [row for rows in tables(METRICS, "metric") for row in rows]


# -- metrics -------------------------------------------------------------------------------


def test_every_metric_is_documented_with_its_type_and_no_other() -> None:
    metrics = Metrics(Ledgers())
    kinds = {family.name: family.type for family in metrics.registry.collect()}
    documented = {named([row])[0]: row["type"] for row in METRIC_ROWS}
    assert sorted(documented) == metrics.names()
    assert documented == {name: kinds[name.removesuffix("_total")] for name in documented}


def test_no_page_names_a_metric_that_there_is_not() -> None:
    names = set(Metrics(Ledgers()).names())
    for page in PAGES:
        for name in re.findall(r"\bcorral_[a-z_]*[a-z]\b", page.read_text()):
            assert re.sub("_(bucket|sum|count)$", "", name) in names, f"{page.name}: {name}"


# -- routes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Such as "GET /v1/models/{name}"."""
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    store = Store(settings.home)
    metrics = Metrics(Ledgers())
    core = ServingCore(Scheduler(max_queue=1, max_loaded=1), metrics)
    services = Services(settings, store, Catalog(store, settings), core, Templates(), metrics)
    return {
        f"{method} {(route.path or '').replace(':path', '')}"
        for route in iter_route_contexts(build_app(services).routes)
        for method in route.methods or ()
    }


def test_every_route_is_documented_and_no_other(routes: set[str]) -> None:
    written = {c for c in codes(prose(HTTP)) if re.match(r"(GET|POST|PUT|PATCH|DELETE) /", c)}
    # HEAD on / is for Ollama's clients, and what every server does.
    expected = {route for route in routes if not route.startswith("HEAD ")}
    assert {re.sub(r"\{\w+\}", "{}", c) for c in written} == {
        re.sub(r"\{\w+\}", "{}", route) for route in expected
    }


CURLS = [command for page in PAGES for command in commands(page, "curl")]


@pytest.mark.parametrize("command", CURLS, ids=[c.where for c in CURLS])
def test_a_curl_command_asks_a_route_that_there_is(command: Command, routes: set[str]) -> None:
    asked = curl(command)
    patterns = [re.sub(r"\{\w+\}", ".+", route) for route in routes]
    assert any(re.fullmatch(pattern, f"{asked.method} {asked.path}") for pattern in patterns)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_json_blocks_are_json(page: Path) -> None:
    for block in blocks(page):
        if block.language == "json":
            json.loads("\n".join(block.lines))


def test_the_ledgers_fields_are_documented() -> None:
    ledger, _ = tables(HTTP, "field")
    own = ["model", "weight_residency"]
    assert named(ledger) == [*own, *(field.name for field in dataclasses.fields(Ledger))]


def test_the_refused_fields_are_refused() -> None:
    _, rows = tables(HTTP, "field")
    (refused,) = (row for row in rows if row[""].startswith("refused"))
    for name in named([refused]):
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], name: ["made up"]}
        with pytest.raises(BadRequest, match=name):
            ChatRequest.model_validate(body)


# -- commands and links --------------------------------------------------------------------


def subcommands() -> dict[str, argparse.ArgumentParser]:
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the parser has no commands")


def test_every_command_and_option_is_documented_and_no_other_command() -> None:
    (rows,) = tables(CLI, "command")
    assert sorted(named(rows)) == sorted(subcommands())
    text = CLI.read_text()
    for name, command in subcommands().items():
        for option in command._option_string_actions.keys() - {"-h", "--help"}:
            assert re.search(rf"(?<![\w-]){option}\b", text), f"{name} {option}"


CORRALS = [command for page in PAGES for command in commands(page, "corral")]


@pytest.mark.parametrize("command", CORRALS, ids=[c.where for c in CORRALS])
def test_a_corral_command_is_one(command: Command) -> None:
    words = command.words()
    if command.whole:
        parser().parse_args(words)
    elif words[0] not in ("--version", "COMMAND"):
        assert words[0] in subcommands()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
