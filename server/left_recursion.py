"""Refuses the grammars whose left corners llama.cpp would follow without end, or nearly so."""

from __future__ import annotations

from collections import deque

from server.gbnf import TERMINAL, Rule, read

# Ways to begin a rule, each a stack that llama.cpp compares with all others. As many
# alternatives as the longest grammar can spell out.
MAX_BEGINNINGS = 20_000
# Elements that llama.cpp's own check visits, some nanoseconds each: it remembers nothing.
MAX_VISITS = 50_000_000


def check_left_recursion(text: str) -> None:
    """Raises ValueError that names the rule, or the place where the text is no grammar."""
    rules = read(text)
    corners = _corners(rules, _nullable(rules))
    beginnings = [0] * len(rules)
    visits = [0] * len(rules)
    for index in _innermost_first(rules, corners):
        rule = rules[index]
        begun = corners[index]
        beginnings[index] = len(rule.alternatives) + sum(beginnings[corner] for corner in begun)
        visits[index] = 1 + sum(len(sequence) + 1 for sequence in rule.alternatives)
        visits[index] += sum(visits[corner] for corner in begun)
        if beginnings[index] > MAX_BEGINNINGS:
            raise ValueError(
                f"rule {rule.name[:64]!r} can begin in more than {MAX_BEGINNINGS} ways: "
                "let its alternatives share fewer rules at their left"
            )
    if sum(visits) > MAX_VISITS:
        raise ValueError("has rules that begin with one another too deeply to be checked")


def _nullable(rules: list[Rule]) -> list[bool]:
    """Of each rule, whether it can be empty. Each symbol is looked at twice."""
    nullable = [False] * len(rules)
    users: list[list[int]] = [[] for _ in rules]
    owners: list[int] = []
    missing: list[int] = []
    found: deque[int] = deque()
    for index, rule in enumerate(rules):
        for sequence in rule.alternatives:
            if TERMINAL in sequence:
                continue
            for symbol in sequence:
                users[symbol].append(len(owners))
            if not sequence:
                found.append(index)
            owners.append(index)
            missing.append(len(sequence))
    while found:
        index = found.popleft()
        if nullable[index]:
            continue
        nullable[index] = True
        for user in users[index]:
            missing[user] -= 1
            if not missing[user]:
                found.append(owners[user])
    return nullable


def _corners(rules: list[Rule], nullable: list[bool]) -> list[list[int]]:
    """Of each rule, the rules that can begin it, as often as they can."""
    return [
        [
            corner
            for sequence in rule.alternatives
            for corner in _beginning(sequence, nullable)
            # The tail of a repetition leaves nothing on the stack, so it ends by itself.
            if not (rule.repeats and corner == index)
        ]
        for index, rule in enumerate(rules)
    ]


def _beginning(sequence: list[int], nullable: list[bool]) -> list[int]:
    corners = []
    for symbol in sequence:
        if symbol == TERMINAL:
            break
        corners.append(symbol)
        if not nullable[symbol]:
            break
    return corners


def _innermost_first(rules: list[Rule], corners: list[list[int]]) -> list[int]:
    """Each rule behind those that begin it. Raises ValueError if one begins itself."""
    done: list[int] = []
    waiting = [iter(begun) for begun in corners]
    unseen = [True] * len(rules)
    active = [False] * len(rules)
    for start in range(len(rules)):
        path = [start] if unseen[start] else []
        unseen[start] = False
        while path:
            index = path[-1]
            active[index] = True
            corner = next(waiting[index], None)
            if corner is None:
                active[index] = False
                done.append(path.pop())
            elif active[corner]:
                raise ValueError(f"rule {rules[corner].name[:64]!r} can begin with itself")
            elif unseen[corner]:
                unseen[corner] = False
                path.append(corner)
    return done
