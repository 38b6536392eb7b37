"""The key of a build changes with whatever goes into it, and with nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from provision import toolchain
from provision.failure import Failure
from provision.inputs import Inputs, Pin, gather, local_version, read_pin
from provision.paths import LOCKS, NATIVE, cache_dir

BASE = Inputs(
    recipe="1",
    source_sha256="aa",
    native={"patches/0001.patch": "bb"},
    build_lock="cc",
    compilers=["gcc 12", "g++ 12"],
    python="3.11",
    machine="Linux x86_64 glibc 2.36",
    cpu="flags: avx2",
    cmake=["-DA=1"],
    compile_flags=["-march=native"],
    user={},
)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "2"},
        {"source_sha256": "ab"},
        {"native": {"patches/0001.patch": "bc"}},
        {"native": {"patches/0002.patch": "bb"}},
        {"build_lock": "cd"},
        {"compilers": ["gcc 12", "g++ 13"]},
        {"python": "3.12"},
        {"machine": "Linux aarch64 glibc 2.36"},
        {"cpu": "flags: avx2 avx512f"},
        {"cmake": ["-DA=2"]},
        {"compile_flags": []},
        {"user": {"CMAKE_ARGS": "-DGGML_CUDA=ON"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_input_changes_the_key(change: dict[str, object]) -> None:
    assert replace(BASE, **change).key() != BASE.key()  # type: ignore[arg-type]


@pytest.fixture
def native(tmp_path: Path) -> Path:
    return Path(shutil.copytree(NATIVE, tmp_path / "native"))


def key(native: Path, *, portable: bool = False, **environ: str) -> str:
    return gather(native, LOCKS / "build.txt", portable=portable, environ=environ).key()


def test_the_same_checkout_has_the_same_key(native: Path) -> None:
    assert key(native) == key(native)


def test_a_changed_added_or_renamed_file_under_native_changes_the_key(native: Path) -> None:
    keys = {key(native)}
    patch = next((native / "patches").glob("*.patch"))
    patch.write_text(patch.read_text() + "\n")
    keys.add(key(native))
    patch = patch.rename(patch.with_name("9999-renamed.patch"))
    keys.add(key(native))
    (native / "extra.cpp").write_text("int x;\n")
    keys.add(key(native))
    assert len(keys) == 4


def test_a_note_under_native_does_not(native: Path) -> None:
    before = key(native)
    (native / "README.md").write_text("Words.\n")
    assert key(native) == before


def test_the_callers_cmake_arguments_and_the_portable_kind_have_keys_of_their_own(
    native: Path,
) -> None:
    cuda = key(native, CMAKE_ARGS="-DGGML_CUDA=ON")
    assert len({key(native), cuda, key(native, portable=True)}) == 3


def test_variables_that_do_not_steer_the_build_are_left_out(native: Path) -> None:
    assert key(native, HOME="/somewhere") == key(native)


def test_a_portable_build_does_not_depend_on_this_cpu(native: Path) -> None:
    inputs = gather(native, LOCKS / "build.txt", portable=True, environ={})
    assert (inputs.cpu, inputs.compile_flags) == ("", [])


def test_a_missing_compiler_is_named_with_the_remedy(native: Path) -> None:
    with pytest.raises(Failure, match=r"no-such-c\+\+ is not on the PATH.*set CXX"):
        key(native, CXX="no-such-c++")


def test_cpu_identity_is_the_first_cpus_model_and_flags() -> None:
    first = "processor : 0\nmodel\t: 143\nflags\t: sse avx\ncpu MHz : 2000\n"
    text = first + "\nprocessor : 1\nmodel : 9\n"
    assert toolchain.cpu(text) == "flags: avx sse\nmodel: 143"
    assert toolchain.cpu(text.replace("2000", "3000").replace("sse avx", "avx sse")) == (
        toolchain.cpu(text)
    )


def test_the_version_carries_the_key_and_is_not_read_as_a_number() -> None:
    version = local_version(Pin("", "0.3.36", ""), "012345678901ffff")
    assert version == "0.3.36+corral.h012345678901"


def test_the_pin_names_one_version_by_one_hash(tmp_path: Path) -> None:
    pin = read_pin(NATIVE / "llama-cpp-python.lock")
    assert len(pin.sha256) == 64
    loose = tmp_path / "loose.lock"
    loose.write_text("llama-cpp-python>=0.3\n")
    with pytest.raises(Failure, match=r"loose\.lock: wants one"):
        read_pin(loose)


def test_the_cache_is_outside_the_checkout_and_can_be_moved() -> None:
    home = Path.home()
    assert cache_dir({}) == home / ".cache" / "corral"
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/corral")
    assert cache_dir({"XDG_CACHE_HOME": "/x", "CORRAL_CACHE": "/y"}) == Path("/y")
