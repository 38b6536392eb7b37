"""docs/settings.md and docs/modelfile.md tell of every setting, option and instruction, rightly."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCS, PAGES, ROOT, blocks, codes, named, prose, tables
from pydantic import BaseModel, ValidationError

from manifests.errors import ModelfileError
from manifests.manifest import Details, LoaderOptions, Parameters, SamplingOptions
from manifests.modelfile import parse_modelfile
from manifests.options import ALIASES
from server.catalog import loader_defaults
from server.protocol import Sampling
from server.routes.ollama_schema import Options
from server.sampling import SamplingFields
from server.settings import Settings, SettingsError

SETTINGS, MODELFILE = DOCS / "settings.md", DOCS / "modelfile.md"
VARIABLE = re.compile(r"CORRAL_[A-Z_]*[A-Z]")
RANGE = re.compile(r"(above )?(-?\d+) to (-?\d+)")
DAEMON_VARIABLES, SCRIPT_VARIABLES = tables(SETTINGS, "variable")
(LOADER,) = tables(SETTINGS, "option")
(PARAMETERS,) = tables(SETTINGS, "parameter")
(OF_REQUESTS,) = tables(SETTINGS, "in a request")


def known_variables() -> set[str]:
    """What the daemon lists when it cannot guess which one was meant."""
    _, (warning,) = Settings.from_environ({"CORRAL_" + "9" * 50: "x"})
    return set(VARIABLE.findall(warning.partition("known:")[2]))


def takes_effect(variable: str) -> bool:
    try:
        _, warnings = Settings.from_environ({variable: "1"})
    except SettingsError:
        return True
    return warnings != [f"{variable} has no effect in this version"]


def bounds(text: str) -> tuple[list[int], list[int]]:
    """Whole numbers at the edges of a range that are in it, and out of it."""
    found = RANGE.fullmatch(text)
    assert found is not None, text
    low, high = int(found[2]), int(found[3])
    return ([high], [low, high + 1]) if found[1] else ([low, high], [low - 1, high + 1])


def takes(model: type[BaseModel], field: str, value: object) -> bool:
    try:
        model.model_validate({field: value})
    except ValidationError:
        return False
    return True


# -- settings ------------------------------------------------------------------------------


def test_every_variable_is_documented_and_no_other() -> None:
    rows = named(DAEMON_VARIABLES)
    known = known_variables()
    reserved = {name for name in known if not takes_effect(name)}
    assert sorted(rows) == sorted(known - reserved)
    assert reserved <= set(codes(prose(SETTINGS)))


@pytest.mark.parametrize("row", DAEMON_VARIABLES, ids=named(DAEMON_VARIABLES))
def test_a_variables_example_default_and_range_hold(row: dict[str, str]) -> None:
    (variable,) = codes(row["variable"])
    home = {"HOME": str(Path.home())}
    (example,) = codes(row["example"])
    assert Settings.from_environ({variable: example})[1] == []
    plain, _ = Settings.from_environ(home)
    (default,) = codes(row["default"]) or [""]
    assert Settings.from_environ({**home, variable: default})[0] in (
        plain,
        # The ladder has the default of this one.
        dataclasses.replace(plain, weight_residency="eager"),
    )
    if RANGE.fullmatch(row["values"]):
        within, beyond = bounds(row["values"])
        for value in within:
            Settings.from_environ({variable: str(value)})
        for value in beyond:
            with pytest.raises(SettingsError):
                Settings.from_environ({variable: str(value)})


def sources() -> Iterator[Path]:
    yield from (ROOT / "compose.yaml", ROOT / "Dockerfile")
    yield from (path for path in (ROOT / "scripts").iterdir() if path.is_file())
    for folder in ("scripts", "server", "manifests", "residency"):
        yield from (ROOT / folder).rglob("*.py")


def test_variables_of_source_and_documentation_agree() -> None:
    used = {name for path in sources() for name in VARIABLE.findall(path.read_text())}
    written = {name for page in PAGES for name in VARIABLE.findall(page.read_text())}
    # Prefixes that the settings leave alone.
    own = {name for name in used | written if name.startswith("CORRAL_TEST")}
    assert used - own == written - own


def test_the_scripts_variables_are_those_of_the_scripts() -> None:
    assert named(SCRIPT_VARIABLES) == ["CORRAL_CACHE", "PYTHON"]
    assert "${PYTHON:-python3}" in (ROOT / "scripts" / "serve").read_text()


# -- options -------------------------------------------------------------------------------


def test_every_option_parameter_and_alias_is_documented_and_no_other() -> None:
    (aliases,) = tables(SETTINGS, "alias")
    assert named(LOADER) == list(LoaderOptions.model_fields)
    assert named(PARAMETERS) == list(Parameters.model_fields)
    assert named(OF_REQUESTS) == [
        name for name in SamplingFields.model_fields if name not in SamplingOptions.model_fields
    ]
    assert {codes(r["alias"])[0]: codes(r["option"])[0] for r in aliases} == ALIASES


@pytest.mark.parametrize("row", [*LOADER, *PARAMETERS], ids=named([*LOADER, *PARAMETERS]))
def test_an_options_bounds_hold(row: dict[str, str]) -> None:
    (name,) = named([row])
    if name in ("weight_residency", "stop"):
        return
    models: list[type[BaseModel]] = [LoaderOptions] if row in LOADER else [Parameters, Options]
    names = codes(row["values"])
    within, beyond = (names, ["f32", True]) if names else bounds(row["values"])
    for model in models:
        assert [v for v in within if not takes(model, name, v)] == []
        assert [v for v in beyond if takes(model, name, v)] == []


def test_the_options_defaults_hold() -> None:
    details = Details(
        architecture="llama",
        quantization="Q4_1",
        parameter_count=1,
        context_length=8192,
        embedding_length=1,
        block_count=1,
        weight_bytes=1,
    )
    documented = {named([row])[0]: codes(row["default"]) for row in LOADER}
    defaults = loader_defaults(details).items()
    assert documented == {k: [] if v == () else [str(v)] for k, v in defaults}
    drawn = {named([r])[0]: codes(r["default"]) for r in PARAMETERS if codes(r["default"])}
    assert drawn == {name: [str(getattr(Sampling(), name))] for name in drawn}
    assert len(drawn) == len(PARAMETERS) - len(("seed", "num_predict", "stop"))


def test_what_only_requests_carry_is_bounded_and_has_its_default() -> None:
    rows = [row for row in OF_REQUESTS if RANGE.fullmatch(row["values"])]
    assert len(rows) == len(OF_REQUESTS) - len(("bias", "breakers", "grammar"))
    for row in rows:
        (name,), (default,) = named([row]), codes(row["default"])
        within, beyond = bounds(row["values"])
        assert [v for v in within if not takes(SamplingFields, name, v)] == []
        assert [v for v in beyond if takes(SamplingFields, name, v)] == []
        assert default == str(getattr(Sampling(), name))


def test_an_options_variable_sets_it() -> None:
    for row in LOADER:
        for variable in codes(row["variable"]):
            value: str | int = "lazy" if "RESIDENCY" in variable else 2
            settings, _ = Settings.from_environ({variable: str(value)})
            assert settings.loader_environment() == {named([row])[0]: value}


def test_every_modelfile_instruction_is_documented_and_the_example_is_one() -> None:
    (rows,) = tables(MODELFILE, "instruction")
    with pytest.raises(ModelfileError) as refusal:
        parse_modelfile("ZZZZZZZZZ x")
    assert named(rows) == str(refusal.value).partition("known: ")[2].split(", ")
    example = parse_modelfile("\n".join(blocks(MODELFILE)[0].lines))
    assert example.parameters.stop == ("###", "User:")
    assert example.loader.n_ctx == 2048
