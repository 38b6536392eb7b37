"""Chat templates: what they may do, and what happens to one that takes too much."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from manifests.errors import InvalidValue
from server import templates
from server.templates import ChatContext, ChatMessage, TemplateRefused, Templates, TemplateStarved

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


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def child_of(rendering: Templates, template: str) -> Process:
    """The process of a template whose render is under way."""
    for _ in range(2000):
        child = rendering._children.get(template)
        if child is not None and child._process is not None:
            return child._process
        await asyncio.sleep(0.005)
    raise AssertionError("no process in 10 s")


async def test_endless_template_is_stopped_and_others_do_not_notice(rendering: Templates) -> None:
    await rendering.render("good", "fine", HELLO)
    slow = asyncio.create_task(rendering.render("bad", ENDLESS, HELLO))
    await child_of(rendering, ENDLESS)
    assert await rendering.render("good", "fine", HELLO) == "fine"
    assert not slow.done()
    with pytest.raises(TemplateRefused, match="of bad used more than 2 s of CPU time"):
        await slow


async def test_a_render_without_cpu_time_is_not_the_templates_fault(
    rendering: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rendering.render("m", "fine", HELLO)
    (await child_of(rendering, "fine")).send_signal(signal.SIGSTOP)
    monkeypatch.setattr(templates, "RENDER_SECONDS", 0.05)
    with pytest.raises(TemplateStarved, match=r"of m got too little CPU time .* 0\.05 s") as caught:
        await rendering.render("m", "fine", HELLO)
    assert caught.value.status == 503


async def test_a_process_that_does_not_start_is_not_the_templates_fault(
    rendering: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "START_SECONDS", 0)
    with pytest.raises(TemplateStarved, match="did not start"):
        await rendering.check("fine")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(TemplateStarved, match="No such file"):
        await rendering.render("m", "fine", HELLO)


async def test_children_are_ended_beyond_their_number_and_not_under_a_render(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(templates, "_MAX_CHILDREN", 1)
    rendering = Templates()
    texts = [f"text {index % 5}" for index in range(15)]
    rendered = await asyncio.gather(*(rendering.render("m", text, HELLO) for text in texts))
    assert rendered == texts
    assert len(rendering._children) == 1
    (child,) = rendering._children.values()
    assert child._process is not None
    await rendering.close()
    assert child._process is None


async def test_few_templates_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each /api/generate may bring its own, and each may take all its memory."""
    monkeypatch.setattr(templates, "_MAX_RUNNING", 2)
    rendering = Templates()
    running, most = 0, 0
    start = templates._Child._started

    async def counted(child: templates._Child) -> Process:
        nonlocal running, most
        running += 1
        most = max(most, running)
        process = await start(child)
        running -= 1
        return process

    monkeypatch.setattr(templates._Child, "_started", counted)
    await asyncio.gather(
        *(rendering.render("m", f"text {index}", HELLO) for index in range(4)),
        *(rendering.check(f"text {index}") for index in range(2)),
    )
    assert most == 2
    await rendering.close()


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
    with pytest.raises(InvalidValue, match="Go's template"):
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
