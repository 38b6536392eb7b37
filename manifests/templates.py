"""Tells a template written for Go, as Ollama's are, from Jinja."""

from __future__ import annotations

import re

from manifests.errors import InvalidValue

# `{{ .Prompt }}`, `{{- if .System }}`, `{{ range $i, $_ := .Messages }}`, `{{ end }}`.
_GO = re.compile(r"\{\{-?\s*(?:[.$]|(?:if|range|with)\s+[^\s(|}]|(?:else|end)\b[^(|}]*\}\})")


def refuse_go_template(template: str) -> None:
    """Raises InvalidValue for a template in Go's language. Whether Jinja is sound Jinja is for
    the one who renders it."""
    found = _GO.search(template)
    if found:
        raise InvalidValue(
            "template",
            f"{found[0]!r} is Go's template language; corral takes Jinja, as in the GGUF's "
            "tokenizer.chat_template: leave TEMPLATE out to use that one",
        )
