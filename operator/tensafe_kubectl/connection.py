"""Finds the cluster: a kubeconfig file, or the service account of the pod that the plugin runs in.

The options of the command line come in; a connected `Api` goes out. The `kubernetes` package reads the file, so exec
plugins, OIDC, client certificates and proxies work as with kubectl. The user that a kubeconfig impersonates (`as`) is
added here, because that package ignores it, and the plugin would have more rights than kubectl.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3

from tensafe_kubectl.api import Api
from tensafe_kubectl.errors import INVALID, CommandError
from tensafe_operator.runtime.proxies import proxy_of_environment

DEFAULT_KUBECONFIG = "~/.kube/config"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_HOWTO = "set KUBECONFIG, pass --kubeconfig FILE, or log in to the cluster so that ~/.kube/config exists"


@dataclass(frozen=True)
class Options:
    """The options with which every verb is called.

    Attributes:
        namespace: None: the one of the context.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None

    def repeated(self, namespace: str) -> list[str]:
        """The arguments that name the same cluster and this namespace, for a command that the user can copy."""
        pairs = (("-n", namespace), ("--context", self.context), ("--kubeconfig", self.kubeconfig))
        return [part for name, value in pairs if value for part in (name, value)]


def connect(options: Options) -> Api:
    """The API server that the options name.

    Raises:
        CommandError: no kubeconfig is usable.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise CommandError(
            "kubectl-tensafe: the package kubernetes is missing: pipx install 'tensafe[kubectl]'", INVALID
        ) from error
    settings = client.Configuration()
    settings.proxy = settings.no_proxy = None  # the library also follows ALL_PROXY, which kubectl ignores
    paths = options.kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    exists = any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)
    if not exists and paths == DEFAULT_KUBECONFIG and os.environ.get("KUBERNETES_SERVICE_HOST"):
        untyped: Any = config
        untyped.load_incluster_config(client_configuration=settings)
        own = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.is_file() else "default"
        return Api(_client(settings), options.namespace or own)
    if not exists:
        raise CommandError(f"no kubeconfig: {paths} does not exist: {_HOWTO}", INVALID)
    try:
        contexts, current = config.list_kube_config_contexts(paths)
    except config.ConfigException as error:
        contexts, current = _contexts(paths), None
        if options.context is None:
            raise CommandError(f"{paths} has no usable current context: {_fix(contexts)}", INVALID) from error
    except Exception as error:  # reading an arbitrary file can raise any error
        raise CommandError(f"{paths} is not a usable kubeconfig ({type(error).__name__}): {_HOWTO}", INVALID) from error
    chosen = next((each for each in contexts if each["name"] == options.context), current)
    if options.context is not None and (chosen is None or chosen["name"] != options.context):
        raise CommandError(f"{paths} has no context {options.context}: {_fix(contexts)}", INVALID)
    assert chosen is not None
    try:
        config.load_kube_config(paths, context=chosen["name"], client_configuration=settings)
    except Exception as error:
        raise CommandError(
            f"the context {chosen['name']} of {paths} is not usable ({_without_secrets(error)}): check its cluster "
            "and its user with `kubectl config view`",
            INVALID,
        ) from error
    context = chosen.get("context") or {}
    namespace = options.namespace or context.get("namespace") or "default"
    return Api(_client(settings), namespace, _impersonation(paths, context.get("user")))


def _client(settings: Any) -> Any:
    """The library's client, through the proxy of the settings if they have one. Errors do not quote it: it may have a
    password.
    """
    from kubernetes import client

    settings.proxy = settings.proxy or proxy_of_environment(settings.host)
    try:
        proxy = urlsplit(settings.proxy or "")
        if proxy.username is not None:
            login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            settings.proxy_headers = urllib3.make_headers(proxy_basic_auth=login)
        if proxy.scheme == "socks5":
            settings.proxy = proxy._replace(scheme="socks5h").geturl()  # as in kubectl, the proxy resolves names
        with warnings.catch_warnings(action="ignore"):  # about the package that is missing
            return client.ApiClient(settings)
    except ModuleNotFoundError as error:
        raise CommandError("the cluster's proxy is a SOCKS proxy: pipx inject tensafe PySocks", INVALID) from error
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        raise CommandError(
            "the cluster's proxy (proxy-url in the kubeconfig, or HTTPS_PROXY) is not usable: write it as "
            "http://HOST:PORT",
            INVALID,
        ) from error


def _contexts(paths: str) -> list[Mapping[str, Any]]:
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        found = KubeConfigMerger(paths).config
        return [each.value for each in found["contexts"]] if found is not None and "contexts" in found else []
    except Exception:  # the file is not a kubeconfig
        return []


def _fix(contexts: list[Mapping[str, Any]]) -> str:
    names = ", ".join(sorted(str(each["name"]) for each in contexts))
    return f"pass --context with one of {names}" if names else _HOWTO


def _impersonation(paths: str, user: str | None) -> list[tuple[str, str]]:
    """The headers for the user that a kubeconfig's user acts as.

    Raises:
        CommandError: a field is not supported. Without it, the plugin could have more rights than kubectl.
    """
    from kubernetes.config.kube_config import KubeConfigMerger

    if user is None:
        return []
    acting = KubeConfigMerger(paths).config["users"].get_with_name(user).value.get("user") or {}
    given = {str(field): value for field, value in acting.items() if value not in (None, "", [], {})}
    name, groups = given.get("as", ""), given.get("as-groups", [])
    for field in given:
        if field.startswith("as-") and field != "as-groups":
            raise _cannot_act(paths, user, field, "this plugin does not support it", "remove it, or use kubectl")
    if not isinstance(name, str):
        raise _cannot_act(paths, user, "as", "it is not a string", "quote it")
    if not isinstance(groups, list) or not all(isinstance(group, str) and group for group in groups):
        raise _cannot_act(paths, user, "as-groups", "it is not a list of strings", "quote each group")
    if groups and not name:
        raise _cannot_act(paths, user, "as-groups", "it needs the field as", "name the user in it")
    return [("Impersonate-User", name), *(("Impersonate-Group", group) for group in groups)] if name else []


def _cannot_act(paths: str, user: str, field: str, why: str, fix: str) -> CommandError:
    return CommandError(f"{paths}: the user {user} has the field {field}: {why}: {fix}", INVALID)


def _without_secrets(error: Exception) -> str:
    """A description that cannot quote a kubeconfig, which holds secrets."""
    missing = re.search(r"Expected (key|object with name) \S+", str(error))
    return missing[0] if missing else type(error).__name__
