"""Whether a model fits, and what its operator is told if not."""

from residency.headroom import HOST, Headroom
from residency.modes import Mode
from residency.preflight import Need, refusal

NEED = Need(weights=1000, kv=200, compute=30)


def test_what_fits_to_the_byte_is_not_refused() -> None:
    assert refusal(Mode.RESIDENT, NEED, Headroom(1230, HOST)) is None
    assert refusal(Mode.RESIDENT, NEED, Headroom(1229, HOST)) is not None


def test_a_refusal_names_need_room_and_bound_and_what_would_serve() -> None:
    text = refusal(Mode.RESIDENT, NEED, Headroom(500, "/sys/fs/cgroup/memory/x")) or ""
    for part in (
        "'resident' needs 1230 bytes",
        "weights 1000, KV cache 200, compute 30",
        "500 are available",
        "the memory limit of /sys/fs/cgroup/memory/x binds",
        "'eager' or 'lazy' would serve",
        "raise the limit",
    ):
        assert part in text
    assert "the host's memory binds" in (refusal(Mode.RESIDENT, NEED, Headroom(500, HOST)) or "")


def test_where_not_even_the_cache_fits_no_mode_is_recommended() -> None:
    text = refusal(Mode.RESIDENT, NEED, Headroom(229, HOST)) or ""
    assert "No mode would serve" in text
    assert "n_ctx" in text
    assert "'eager'" not in text
    assert "'eager'" in (refusal(Mode.RESIDENT, NEED, Headroom(230, HOST)) or "")
