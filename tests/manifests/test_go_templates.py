"""Templates in Go's language are told from Jinja."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests.errors import InvalidValue
from manifests.header import read_model
from manifests.templates import refuse_go_template


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Prompt }}",
        "{{.System}}",
        "{{- if .System }}x{{ end }}",
        "a{{ range $i, $_ := .Messages }}b",
        "{{ $x }}",
        "{{ if and .A .B }}",
        "x{{- else }}y",
        "{{ end }}",
        "{{end -}}",
    ],
)
def test_go(template: str) -> None:
    with pytest.raises(InvalidValue, match="corral takes Jinja"):
        refuse_go_template(template)


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ messages[0].content }}",
        "{{- bos_token -}}",
        "{% if x %}{{ end_token }}{% endif %}",
        "{{ range(3) }}",
        "{{ 'a' if x else 'b' }}",
        "{{ ending }}",
        "{%- for m in messages %}{{ m.role }}{%- endfor %}",
        "{{ '{{ ' }}",
    ],
)
def test_jinja(template: str) -> None:
    refuse_go_template(template)


def test_a_real_models_template(smollm2: Path) -> None:
    template = read_model([smollm2]).chat_template
    assert template is not None
    refuse_go_template(template)
