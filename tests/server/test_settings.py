"""Settings from the environment: what each variable takes, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.durations import parse_keep_alive
from server.settings import Settings, SettingsError


def read(**variables: str) -> tuple[Settings, list[str]]:
    return Settings.from_environ({"HOME": "/root", **variables})


def test_defaults() -> None:
    settings, warnings = read()
    assert settings == Settings(home=Path("/root/.corral"))
    assert warnings == []
    assert settings.loader_environment() == {}


def test_every_variable() -> None:
    settings, warnings = read(
        CORRAL_HOST="0.0.0.0",
        CORRAL_PORT="0",
        CORRAL_HOME="/models",
        CORRAL_WEIGHT_RESIDENCY="lazy",
        CORRAL_KEEP_ALIVE="-1",
        CORRAL_MAX_LOADED_MODELS="2",
        CORRAL_MAX_QUEUE="9",
        CORRAL_REQUEST_TIMEOUT="30",
        CORRAL_DECODE_TIMEOUT="60",
        CORRAL_NUM_PARALLEL="4",
        CORRAL_CONTEXT_LENGTH="2048",
        CORRAL_API_KEYS="a, b,",
        CORRAL_CORS_ORIGINS="http://x:3000/, *",
        CORRAL_LOG_LEVEL="DEBUG",
    )
    assert warnings == []
    assert settings == Settings(
        "0.0.0.0",
        0,
        Path("/models"),
        "lazy",
        2048,
        4,
        -1,
        2,
        9,
        30,
        60,
        ("a", "b"),
        ("http://x:3000", "*"),
        "debug",
    )
    assert settings.loader_environment() == {
        "weight_residency": "lazy",
        "n_ctx": 2048,
        "num_parallel": 4,
    }


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("CORRAL_HOST", "http://127.0.0.1", "CORRAL_PORT"),
        ("CORRAL_HOST", "127.0.0.1:11434", "CORRAL_PORT"),
        ("CORRAL_HOST", "[::1]", '"::1"'),
        ("CORRAL_HOST", "a..b", "a name"),
        ("CORRAL_HOST", "a" * 64, "a name"),
        ("CORRAL_HOST", ".".join(["a"] * 200), "a name"),
        ("CORRAL_PORT", "65536", "0 to 65535"),
        ("CORRAL_PORT", "-1", "whole number"),
        ("CORRAL_PORT", "8_0", "whole number"),
        ("CORRAL_PORT", "9" * 5000, "whole number"),
        ("CORRAL_MAX_QUEUE", "0", "1 to"),
        ("CORRAL_NUM_PARALLEL", "257", "1 to 256"),
        ("CORRAL_CONTEXT_LENGTH", "4k", "whole number"),
        ("CORRAL_CONTEXT_LENGTH", "16777217", "0 to 16777216"),
        ("CORRAL_KEEP_ALIVE", "soon", "duration"),
        ("CORRAL_LOG_LEVEL", "loud", "debug, info, warning, error"),
        ("CORRAL_CORS_ORIGINS", "example.com", "http://"),
        ("CORRAL_CORS_ORIGINS", "http://x/path", "http://"),
        ("CORRAL_CORS_ORIGINS", "http://x?query", "http://"),
        ("CORRAL_CORS_ORIGINS", "http://[", "http://"),
        ("CORRAL_CORS_ORIGINS", "http://x:99999", "http://"),
        ("CORRAL_CORS_ORIGINS", "http://x,http://", "http://"),
    ],
)
def test_a_bad_value_names_variable_value_and_what_is_allowed(
    variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(**{variable: value})
    for part in (variable, value, allowed):
        assert part in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "fe80::1%lo", "corral.local", "my_box"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert read(CORRAL_HOST=host)[0].host == host


def test_a_bad_key_is_not_shown() -> None:
    with pytest.raises(SettingsError, match="CORRAL_API_KEYS") as caught:
        read(CORRAL_API_KEYS="with space")
    assert "with space" not in str(caught.value)


def test_a_misspelt_variable_is_named_with_the_nearest() -> None:
    _, warnings = read(CORRAL_PROT="1", CORRAL_ZZZZZZ="1", OTHER="1")
    assert warnings == [
        "CORRAL_PROT is not a setting and is ignored; did you mean CORRAL_PORT?",
        next(w for w in warnings if w.startswith("CORRAL_ZZZZZZ") and "known: CORRAL_HOST" in w),
    ]


def test_what_others_read_is_no_misspelling() -> None:
    assert read(CORRAL_CACHE="/c", CORRAL_TEST_SMOLLM2="/m")[1] == []
    assert len(read(CORRAL_BUILD_JOBS="2")[1]) == 1, "nothing reads it"


def test_a_budget_has_no_effect_and_a_warning_says_so() -> None:
    _, warnings = read(CORRAL_RAM_BUDGET="1", CORRAL_MEMORY_BUDGET="1")
    assert len(warnings) == 2
    assert all("no effect in this version" in warning for warning in warnings)


def test_a_mode_that_no_model_can_get_is_told_at_start() -> None:
    settings, (warning,) = read(CORRAL_WEIGHT_RESIDENCY="lazzy")
    assert settings.weight_residency == "lazzy"
    for part in ("CORRAL_WEIGHT_RESIDENCY", "'lazzy'", "eager, lazy, pinned", "get 'eager'"):
        assert part in warning


def test_an_empty_variable_is_unset() -> None:
    assert read(CORRAL_PORT="", CORRAL_API_KEYS=" ")[0] == Settings(home=Path("/root/.corral"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (5, 5),
        (-1, -1),
        (0, 0),
        (1.5, 1.5),
        ("300", 300),
        ("-1", -1),
        ("5m", 300),
        ("1h30m", 5400),
        ("-1m", -60),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0", 0),
        ("9" * 300, -1),
        ("1000000h", -1),
    ],
)
def test_keep_alive_as_ollama_writes_it(text: str | float, seconds: float) -> None:
    assert parse_keep_alive(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "m", "5 m", "5x", "--5m", "1h-5m", "nan", float("inf"), 10**400]
)
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(ValueError, match="allowed: seconds"):
        parse_keep_alive(text)
