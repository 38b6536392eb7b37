"""Modelfiles: what each instruction gives, and the line of every fault."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.errors import ModelfileError
from manifests.manifest import LoaderOptions, Message, Parameters
from manifests.modelfile import parse_modelfile

WHOLE = '''\
# A comment
FROM ./model.gguf

PARAMETER temperature 0.25
parameter\ttop_k\t20
PARAMETER stop "<|im_end|>"
PARAMETER stop User:
PARAMETER num_ctx 4096
PARAMETER weight_residency lazy
PARAMETER type_k q8_0
PARAMETER flash_attn on
PARAMETER seed -1
PARAMETER mirostat 2
PARAMETER mirostat_tau 4
SYSTEM """
You are # not a comment
 "terse".
"""
TEMPLATE "{{ messages[0].content }}"
MESSAGE user Hi there
MESSAGE assistant """Hello,
friend"""
LICENSE MIT
LICENSE """two
lines"""
'''


def test_every_instruction() -> None:
    modelfile = parse_modelfile(WHOLE)
    assert modelfile.from_ == "./model.gguf"
    assert modelfile.parameters == Parameters(
        temperature=0.25,
        top_k=20,
        stop=("<|im_end|>", "User:"),
        seed=-1,
        mirostat=2,
        mirostat_tau=4,
    )
    assert modelfile.loader == LoaderOptions(
        n_ctx=4096, weight_residency="lazy", type_k="q8_0", flash_attn="on"
    )
    assert modelfile.system == '\nYou are # not a comment\n "terse".\n'
    assert modelfile.template == "{{ messages[0].content }}"
    assert modelfile.messages == (
        Message(role="user", content="Hi there"),
        Message(role="assistant", content="Hello,\nfriend"),
    )
    assert modelfile.licenses == ("MIT", "two\nlines")
    assert modelfile.text == WHOLE


def test_crlf_and_byte_order_mark() -> None:
    given = "\ufeff" + WHOLE.replace("\n", "\r\n")
    modelfile = parse_modelfile(given)
    assert modelfile.text == given
    assert modelfile.system == parse_modelfile(WHOLE).system
    assert modelfile.parameters == parse_modelfile(WHOLE).parameters


@pytest.mark.parametrize(
    ("written", "option", "value"),
    [
        ("num_ctx 64", "n_ctx", 64),
        ("num_batch 64", "n_batch", 64),
        ("num_thread 4", "n_threads", 4),
        ("num_gpu 0", "n_gpu_layers", 0),
        ("num_parallel 2", "num_parallel", 2),
        ("n_ubatch +32", "n_ubatch", 32),
        ("weight_residency no_such", "weight_residency", "no_such"),
        ("WEIGHT_RESIDENCY lazy", "weight_residency", "lazy"),
        ("pin attn", "pin", ("attn",)),
        ("pin attn, norm,attn", "pin", ("attn", "norm")),
        ("pin attn\nPARAMETER pin norm", "pin", ("attn", "norm")),
    ],
)
def test_loader_options_and_ollamas_names(written: str, option: str, value: object) -> None:
    loader = parse_modelfile(f"FROM x\nPARAMETER {written}").loader
    assert loader == LoaderOptions.model_validate({option: value})


@pytest.mark.parametrize(
    ("written", "option", "value"),
    [
        ("temperature 1", "temperature", 1.0),
        ("temperature .5", "temperature", 0.5),
        ("temperature 5e-1", "temperature", 0.5),
        ('temperature "0.5"', "temperature", 0.5),
        ("presence_penalty -1.5", "presence_penalty", -1.5),
        ("num_predict -1", "num_predict", -1),
        ("stop 42", "stop", ("42",)),
        ("stop true", "stop", ("true",)),
        ('stop "  "', "stop", ("  ",)),
        ('stop say "hi"', "stop", ('say "hi"',)),
        ('stop """\n"""', "stop", ("\n",)),
    ],
)
def test_parameters_are_typed(written: str, option: str, value: object) -> None:
    parameters = parse_modelfile(f"FROM x\nPARAMETER {written}").parameters
    assert parameters == Parameters.model_validate({option: value})


def test_last_value_wins_where_one_can_be() -> None:
    modelfile = parse_modelfile(
        "PARAMETER top_k 1\nSYSTEM a\nTEMPLATE a\nFROM x\nPARAMETER top_k 2\nSYSTEM b\nTEMPLATE b"
    )
    assert modelfile.parameters == Parameters(top_k=2)
    assert (modelfile.system, modelfile.template) == ("b", "b")


def test_trailing_blanks_in_a_fence_are_kept_and_others_dropped() -> None:
    modelfile = parse_modelfile('FROM x  \nSYSTEM """a  \nb"""  \n')
    assert (modelfile.from_, modelfile.system) == ("x", "a  \nb")


def test_an_empty_system_is_a_system() -> None:
    assert parse_modelfile('FROM x\nSYSTEM ""').system == ""
    assert parse_modelfile("FROM x").system is None


FAULTS: Sequence[tuple[str, int, str]] = [
    ("", 1, "no FROM"),
    ("# only\n\n", 3, "no FROM"),
    ("FROM", 1, "FROM has no value"),
    ("FROM a\n\nFROM b", 3, "a second FROM; the first is a"),
    ("FROM a\nPARAMTER x 1", 2, "unknown instruction 'PARAMTER', did you mean PARAMETER?"),
    ("FROM a\nhello", 2, "unknown instruction 'HELLO'; known: FROM, PARAMETER"),
    ("FROM a\nPARAMETER", 2, "PARAMETER needs two words"),
    ("FROM a\nPARAMETER top_k", 2, "PARAMETER top_k has no value"),
    ("FROM a\nPARAMETER temprature 1", 2, "'temprature', did you mean temperature?"),
    ("FROM a\nPARAMETER use_mmap false", 2, "'use_mmap', did you mean weight_residency?"),
    ("FROM a\nPARAMETER top_k many", 2, "top_k should be a valid integer, not 'many'"),
    ("FROM a\nPARAMETER top_k 1.5", 2, "top_k should be a valid integer"),
    ("FROM a\nPARAMETER top_k true", 2, "top_k should be a valid integer, not True"),
    ("FROM a\nPARAMETER temperature nan", 2, "temperature should be a valid number, not 'nan'"),
    ("FROM a\nPARAMETER temperature 1e999", 2, "temperature should be a finite number"),
    ("FROM a\nPARAMETER seed " + "9" * 5000, 2, "seed should be a valid integer"),
    ("FROM a\nPARAMETER num_ctx -5", 2, "num_ctx should be greater than or equal to 0, not -5"),
    ("FROM a\nPARAMETER top_p 1.1", 2, "top_p should be less than or equal to 1, not 1.1"),
    ('FROM a\nSYSTEM "open', 2, "the quote is not closed"),
    ('FROM a\nSYSTEM "', 2, "the quote is not closed"),
    ('FROM a\n\nSYSTEM """open\nfor ever\n', 3, 'the """ is not closed'),
    ('FROM a\nSYSTEM """x\ny""" z', 3, 'text behind the closing """: \'z\''),
    ('SYSTEM """a\nb\nc"""\nFORM x', 4, "unknown instruction 'FORM', did you mean FROM?"),
    ("FROM a\r\nSYSTEM x\r\nNOPE y", 3, "unknown instruction"),
    ("FROM a\nMESSAGE user", 2, "MESSAGE user has no value"),
    ("FROM a\nMESSAGE usr hi", 2, "unknown role 'usr', did you mean user?"),
    ("FROM a\nADAPTER ./lora.gguf", 2, "ADAPTER is not supported"),
    ('FROM a\nTEMPLATE ""', 2, "TEMPLATE has no value"),
    ("FROM a\nSYSTEM x\0y", 2, "no text"),
    ("FROM a\nSYSTEM \ud800", 2, "no text"),
    ("FROM " + "a" * (5 << 20), 1, "characters, at most"),
]


@pytest.mark.parametrize(("text", "line", "why"), FAULTS, ids=range(len(FAULTS)))
def test_faults_have_their_line(text: str, line: int, why: str) -> None:
    with pytest.raises(ModelfileError) as raised:
        parse_modelfile(text)
    assert raised.value.message.startswith(f"line {line}: ")
    assert raised.value.message.startswith(f"line {line}: ")
    assert why in raised.value.message


_SYNTAX = st.sampled_from(
    ["FROM ", "PARAMETER ", "stop ", "SYSTEM ", '"', '"""', "\n", "\r\n", "#", "MESSAGE user ", "x"]
)


@given(st.lists(_SYNTAX | st.text(max_size=5)))
def test_any_text_is_parsed_or_refused(pieces: list[str]) -> None:
    text = "".join(pieces)
    try:
        assert parse_modelfile(text).text == text
    except ModelfileError as error:
        assert (
            1 <= int(error.message.removeprefix("line ").partition(":")[0]) <= text.count("\n") + 1
        )


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters='"\r\0')))
def test_what_is_fenced_comes_back_as_it_was(text: str) -> None:
    assert parse_modelfile(f'FROM x\nSYSTEM """{text}"""').system == text
