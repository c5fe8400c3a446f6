"""The probe over chat templates of each family, rendered by a real server: each verdict, by name."""

from __future__ import annotations

import pytest

import templates
from boxmaker_adapters.llama_server.settling import Finding
from boxmaker_core.baseline import Form

FIELDS, VERBATIM = Form.FIELDS, Form.VERBATIM


@pytest.mark.parametrize(
    ("name", "form", "reasoning", "move", "users", "dated", "parallel", "sent"),
    [
        ("chatml-tools", VERBATIM, "kept", False, "taken", False, True, []),
        ("gemma-like", VERBATIM, "none", False, "bridged", False, True, []),
        ("glm-like", FIELDS, "kept", False, "taken", False, True, ["preserve_reasoning"]),
        ("harmony-like", FIELDS, "dropped", False, "taken", True, True, []),
        ("hermes-like", VERBATIM, "none", False, "taken", False, True, []),
        ("llama3-like", VERBATIM, "none", False, "taken", True, False, ["date_string"]),
        ("mistral-like", FIELDS, "none", True, "bridged", False, True, []),
        ("qwen-coder-like", FIELDS, "none", False, "taken", False, True, []),
        ("qwen3-like", VERBATIM, "dropped", False, "taken", False, True, []),
        ("r1-like", FIELDS, "never", False, "taken", False, True, []),
    ],
)
def test_each_family_gets_its_verdict(
    name: str,
    form: Form,
    reasoning: str,
    move: bool,
    users: str,
    dated: bool,
    parallel: bool,
    sent: list[str],
) -> None:
    file = next(file for file in templates.FILES if file.stem == name)
    found = templates.find(file)
    assert isinstance(found, Finding), found
    verdict = found.verdict
    assert (found.form, verdict.reasoning, verdict.tools_move) == (form, reasoning, move)
    assert (verdict.two_users, verdict.today is not None, verdict.parallel) == (users, dated, parallel)
    assert list(found.kwargs) == sent
    assert verdict.again <= found.bare.again
    if found.other is not None:
        assert verdict.again <= found.other.again


def test_every_template_at_hand_has_its_verdict_pinned() -> None:
    pinned = test_each_family_gets_its_verdict.pytestmark[0].args[1]
    assert {row[0] for row in pinned} == {file.stem for file in templates.FILES}


def test_the_projects_own_template_costs_nothing_in_the_form_it_is_served_in() -> None:
    found = templates.find(templates.OWN_TEMPLATE)
    assert isinstance(found, Finding), found
    assert found.verdict.again == 0
    assert found.bare.again > 0
