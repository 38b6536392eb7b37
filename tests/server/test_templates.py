"""Chat templates: what they may do, and what happens to one that takes too much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server import templates
from server.templates import ChatContext, ChatMessage, TemplateRefused, Templates

HELLO = ChatContext([ChatMessage("user", "Hi <b> & é")], bos_token="<s>", eos_token="</s>")


@pytest.fixture
async def rendering() -> AsyncIterator[Templates]:
    keeper = Templates()
    yield keeper
    await keeper.close()


async def test_renders_what_hugging_face_templates_use(rendering: Templates) -> None:
    template = (
        "{{ bos_token }}\n"
        "{% for m in messages %}\n"
        "    {% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "[{{ m['role'] }}] {{ m.content | tojson }}{{ eos_token }}\n"
        "{% endfor %}\n"
        "{% generation %}{% if add_generation_prompt %}>{% endif %}{% endgeneration %}"
        "{{ strftime_now('%Y') | length }}{% if tools is none %}!{% endif %}"
    )
    text = await rendering.render("m", template, HELLO)
    assert text == '<s>\n[user] "Hi <b> & é"</s>\n>4!'


async def test_raise_exception_is_the_clients_fault(rendering: Templates) -> None:
    with pytest.raises(TemplateRefused, match="of m refused the messages: roles must alternate"):
        await rendering.render("m", "{{ raise_exception('roles must alternate') }}", HELLO)


async def test_failure_names_the_model(rendering: Templates) -> None:
    with pytest.raises(TemplateRefused, match="chat template of m failed"):
        await rendering.render("m", "{{ messages[0].content + 1 }}", HELLO)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{% set _ = messages.append(1) %}",
        "{{ (1,).__class__.__base__ }}{{ raise_exception.__globals__ }}",
    ],
)
async def test_sandbox_refuses(rendering: Templates, attack: str) -> None:
    with pytest.raises(TemplateRefused, match="unsafe"):
        await rendering.render("m", attack, HELLO)


@pytest.mark.parametrize(
    "bomb",
    [
        "{{ 'x' * 2000000000 }}",
        "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{{ '%2000000000d' % 1 }}",
    ],
)
async def test_output_and_memory_are_bounded(rendering: Templates, bomb: str) -> None:
    with pytest.raises(TemplateRefused, match="chat template of m"):
        await rendering.render("m", bomb, HELLO)
    assert await rendering.render("other", "fine", HELLO) == "fine"


async def test_memory_that_is_not_output_is_bounded_too(rendering: Templates) -> None:
    hoard = "{% set a = messages[0].content * 100000000 %}fine"
    with pytest.raises(TemplateRefused, match="chat template of m failed: MemoryError"):
        await rendering.render("m", hoard, HELLO)


async def test_a_models_own_broken_template_is_named_with_its_line(rendering: Templates) -> None:
    with pytest.raises(TemplateRefused, match="the chat template of m, line 2: "):
        await rendering.render("m", "fine\n{% if %}", HELLO)


async def test_endless_template_is_stopped_and_others_do_not_notice(
    rendering: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "RENDER_SECONDS", 0.7)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    await rendering.render("good", "fine", HELLO)
    slow = asyncio.create_task(rendering.render("bad", endless, HELLO))
    await asyncio.sleep(0.3)
    started = time.monotonic()
    assert await rendering.render("good", "fine", HELLO) == "fine"
    assert time.monotonic() - started < 0.5
    with pytest.raises(TemplateRefused, match=r"of bad took longer than 0\.7 s"):
        await slow
    with pytest.raises(TemplateRefused, match="of bad took longer"):
        await rendering.render("bad", endless, HELLO)


async def test_cancelled_render_does_not_answer_the_next(rendering: Templates) -> None:
    template = "{{ messages[0].content }}{% for a in range(30000) %}{% endfor %}"
    first = asyncio.create_task(
        rendering.render("m", template, ChatContext([ChatMessage("user", "first")]))
    )
    await asyncio.sleep(0.01)
    first.cancel()
    second = await rendering.render("m", template, ChatContext([ChatMessage("user", "second")]))
    assert second == "second"


async def test_check_names_the_line(rendering: Templates) -> None:
    with pytest.raises(TemplateRefused, match="line 2: "):
        await rendering.check("fine\n{% if %}")
    with pytest.raises(TemplateRefused, match="Go template"):
        await rendering.check("{{ .Prompt }}")
    await rendering.check("{{ messages }}")


async def test_a_template_is_bounded_in_size(rendering: Templates) -> None:
    with pytest.raises(TemplateRefused, match="1048577 characters"):
        await rendering.check("x" * 1048577)


async def test_environment_is_not_handed_down(
    rendering: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever escaped from the sandbox would find no keys."""
    monkeypatch.setenv("CORRAL_API_KEYS", "secret")
    await rendering.render("m", "x", HELLO)
    (child,) = rendering._children.values()
    assert child._process is not None
    environ = Path(f"/proc/{child._process.pid}/environ")
    assert b"secret" not in await asyncio.to_thread(environ.read_bytes)
