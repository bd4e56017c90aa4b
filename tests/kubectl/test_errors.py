"""A refusal of RBAC becomes a sentence that names the right, and the role that has it where one does."""

import pytest

from tensafe_kubectl.errors import FORBIDDEN, Refused, Request, missing_right
from tensafe_operator.runtime.objects import Resource


@pytest.mark.parametrize(
    ("group", "plural", "fix"),
    [
        ("", "pods", 'a RoleBinding to the ClusterRole view, or for the verb "get" on pods'),
        (
            "tensafe.io",
            "tensafetrainingjobs",
            'a RoleBinding to the ClusterRole view, or for the verb "get" on tensafetrainingjobs.tensafe.io',
        ),
        ("ray.io", "rayjobs", 'the verb "get" on rayjobs.ray.io'),
    ],
)
def test_missing_right_names_the_role_that_has_it(group: str, plural: str, fix: str) -> None:
    request = Request("get", Resource(group, "v1", plural), "clinic", "triage")
    message = f'{plural} is forbidden: User "jane" cannot get resource "{plural}" in API group "{group}"'
    sentence = missing_right(Refused(request, FORBIDDEN, message))
    assert sentence.endswith(f"in the namespace clinic: ask an administrator for {fix}")
