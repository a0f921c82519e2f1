"""Keys: where pods read them, which Secret holds those that the operator makes."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from specserver.build.metadata import BuildInvalid
from specserver.build.secret import (
    admin_key_ref,
    api_key_ref,
    build_keys_secret,
    needed_secret_refs,
    needs_keys_secret,
)
from specserver.build.workload import build_workload
from tests.unit.build.support import environment, make_server

ADMIN = {"engine.adminKeySecretRef": {"name": "mine", "key": "admin"}}
API = {"engine.apiKeySecretRef": {"name": "mine", "key": "api"}}


@pytest.mark.parametrize(
    ("changes", "needed"), [({}, True), (ADMIN, True), (API, True), (ADMIN | API, False)], ids=["none", "admin", "api", "both"]
)
def test_a_secret_is_made_where_a_key_is_not_named(changes: dict[str, Any], needed: bool) -> None:
    assert needs_keys_secret(make_server(changes)) is needed


def test_the_secret_holds_the_keys_as_given() -> None:
    secret = build_keys_secret(make_server(), admin_key="a:ключ", api_key="b")
    assert secret["metadata"]["name"] == "llama-keys"
    assert {entry: base64.b64decode(value).decode() for entry, value in secret["data"].items()} == {
        "admin-key": "a:ключ",
        "api-key": "b",
    }


@pytest.mark.parametrize("changes", [{}, ADMIN, API, ADMIN | API], ids=["none", "admin", "api", "both"])
def test_pods_read_keys_where_the_operator_does(changes: dict[str, Any]) -> None:
    server = make_server(changes)
    variables = {one["name"]: one for one in environment(changes)}
    for name, ref in (("SPECSERVER_ADMIN_KEY", admin_key_ref(server)), ("SPECSERVER_API_KEY", api_key_ref(server))):
        assert variables[name] == {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def test_the_users_key_goes_before_the_made_one() -> None:
    server = make_server(ADMIN)
    assert (admin_key_ref(server).name, admin_key_ref(server).key) == ("mine", "admin")
    assert (api_key_ref(server).name, api_key_ref(server).key) == ("llama-keys", "api-key")


def test_every_secret_that_pods_wait_for_is_named_by_field() -> None:
    def variable(name: str, **source: Any) -> dict[str, Any]:
        return {"name": name, "valueFrom": source}

    changes = {
        **ADMIN,
        **API,
        "model.tokenSecretRef": {"name": "hub", "key": "token"},
        "engine.env": [
            variable("A", secretKeyRef={"name": "extra", "key": "a"}),
            variable("B", secretKeyRef={"name": "extra", "key": "b", "optional": True}),
            variable("C", configMapKeyRef={"name": "extra", "key": "c"}),
            {"name": "D", "value": "d"},
        ],
    }
    assert [(one.field, one.ref.name, one.ref.key) for one in needed_secret_refs(make_server(changes))] == [
        ("spec.engine.adminKeySecretRef", "mine", "admin"),
        ("spec.engine.apiKeySecretRef", "mine", "api"),
        ("spec.model.tokenSecretRef", "hub", "token"),
        ("spec.engine.env[A]", "extra", "a"),
    ]


def test_without_references_nothing_is_waited_for() -> None:
    assert needed_secret_refs(make_server()) == ()


NO_REFERENCES: list[Any] = [
    {"name": "../x", "key": "k"}, {"name": 5, "key": "k"}, {"name": "s"}, {"key": "k"}, {"name": "s", "key": "a/b"}, {}, "s",
]  # fmt: skip


@pytest.mark.parametrize("source", NO_REFERENCES)
def test_a_variable_whose_reference_is_none_is_said_by_name(source: Any) -> None:
    server = make_server({"engine.env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": source}}]})
    assert needed_secret_refs(server) == ()
    with pytest.raises(BuildInvalid, match=r"spec\.engine\.env\[TOKEN\].*the name and the key of a Secret"):
        build_workload(server)
