"""The engine's provider protocol, over the kinds of resources.

One server serves many stacks at once. The configuration is per stack: the engine names the provider
that it configures, and so the stack and project, and every later call names both too."""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from outlast.localcloud.http.peers import far_socket
from outlast.localcloud.provider.changes import Change
from outlast.localcloud.provider.compute import (
    InstanceGroupManager,
    InstanceTemplate,
    RegionInstanceGroupManager,
)
from outlast.localcloud.provider.declared import (
    Firewall,
    HealthCheck,
    Network,
    Router,
    RouterNat,
    Subnetwork,
)
from outlast.localcloud.provider.iam import Account, IAMCustomRole, IAMMember
from outlast.localcloud.provider.kind import PROVISIONED_LABEL, Kind, Settings
from outlast.localcloud.provider.rest import Api, ProviderError
from outlast.localcloud.provider.secretmanager import SecretIamMember
from outlast.localcloud.provider.storage import Bucket, BucketIAMMember, BucketObject
from outlast.localcloud.provider.values import decode, encode, holds_unknown

HOST = "127.0.0.1"
MAX_MESSAGE_BYTES = 400 * 1024 * 1024
"""The engine's own limit."""
MAX_WORKERS = 64
ENDPOINTS = {
    # The configuration's name, and the default path below --endpoint.
    "compute": ("computeCustomEndpoint", "compute/beta/"),
    "storage": ("storageCustomEndpoint", "storage/v1/"),
    "iam": ("iamBetaCustomEndpoint", "iam/v1/"),
    "resource_manager": ("resourceManagerCustomEndpoint", "cloudresourcemanager/v1/"),
    "secret_manager": ("secretManagerCustomEndpoint", "secretmanager/v1/"),
}

KINDS: dict[str, Kind] = {
    kind.token: kind
    for kind in (
        Account(),
        Bucket(),
        BucketIAMMember(),
        BucketObject(),
        Firewall(),
        HealthCheck(),
        IAMCustomRole(),
        IAMMember(),
        InstanceGroupManager(),
        InstanceTemplate(),
        Network(),
        RegionInstanceGroupManager(),
        Router(),
        RouterNat(),
        SecretIamMember(),
        Subnetwork(),
    )
}

_DIFF_KINDS = provider_pb2.PropertyDiff.Kind
_IN_PLACE = {"add": _DIFF_KINDS.ADD, "delete": _DIFF_KINDS.DELETE, "update": _DIFF_KINDS.UPDATE}
_REPLACING = {
    "add": _DIFF_KINDS.ADD_REPLACE,
    "delete": _DIFF_KINDS.DELETE_REPLACE,
    "update": _DIFF_KINDS.UPDATE_REPLACE,
}


def _sentences(method: Callable[..., Any]) -> Callable[..., Any]:
    """Passes expected errors to the engine as one sentence."""

    @functools.wraps(method)
    def call(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except (ProviderError, ValueError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))

    return call


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """The gcp provider of the local cloud at `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._lock = threading.Lock()
        self._settings: dict[tuple[str, str], Settings] = {}

    # ------------------------------------------------------------------ the provider itself

    def Handshake(self, request, context):
        return provider_pb2.ProviderHandshakeResponse(
            accept_secrets=False, accept_resources=False, accept_outputs=False
        )

    def Attach(self, request, context):
        return empty_pb2.Empty()

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo(version="10.2.0")

    def CheckConfig(self, request, context):
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request, context):
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    @_sentences
    def Configure(self, request, context):
        config = {key: value for key, value in decode(request.args).items()}
        with self._lock:
            self._settings[_stack_of(request.urn)] = self._settings_of(config)
        return provider_pb2.ConfigureResponse(
            acceptSecrets=False, supportsPreview=True, acceptResources=False, acceptOutputs=False
        )

    def Cancel(self, request, context):
        return empty_pb2.Empty()

    def Invoke(self, request, context):
        _refuse(context, request.tok)

    def Call(self, request, context):
        _refuse(context, request.tok)

    # ------------------------------------------------------------------ resources

    @_sentences
    def Check(self, request, context):
        kind, cloud = self._kind(request.urn), self._cloud(request.urn)
        inputs, failures = kind.check(
            cloud,
            request.urn.rpartition("::")[2],
            request.randomSeed,
            decode(request.olds),
            decode(request.news),
        )
        return provider_pb2.CheckResponse(
            inputs=encode(inputs),
            failures=[
                provider_pb2.CheckFailure(property=each.property, reason=each.reason)
                for each in failures
            ],
        )

    @_sentences
    def Diff(self, request, context):
        kind = self._kind(request.urn)
        old = decode(request.old_inputs) or decode(request.olds)
        difference = kind.diff(old, decode(request.news))
        tops = sorted({_top(path) for path in difference.changes})
        some, none = provider_pb2.DiffResponse.DIFF_SOME, provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(
            changes=some if difference.changes else none,
            diffs=tops,
            replaces=difference.replaces,
            deleteBeforeReplace=difference.delete_first,
            detailedDiff={
                path: _property_diff(path, change, difference.replaces)
                for path, change in difference.changes.items()
            },
            hasDetailedDiff=True,
        )

    @_sentences
    def Create(self, request, context):
        kind, cloud = self._kind(request.urn), self._cloud(request.urn)
        inputs = decode(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(properties=encode(kind.preview_create(inputs)))
        _need_known(kind, inputs)
        id, body = kind.create(cloud, inputs)
        return provider_pb2.CreateResponse(
            id=id, properties=encode(kind.state(cloud, id, inputs, body))
        )

    @_sentences
    def Read(self, request, context):
        kind, cloud = self._kind(request.urn), self._cloud(request.urn)
        id, inputs, state = request.id, decode(request.inputs), decode(request.properties)
        if not inputs and not state:
            id, state = kind.imported(cloud, id)
        body = kind.read(cloud, id, {**inputs, **state})
        if body is None:
            return provider_pb2.ReadResponse()
        inputs = kind.refreshed(cloud, id, inputs, body)
        return provider_pb2.ReadResponse(
            id=id,
            inputs=encode(inputs),
            properties=encode(kind.state(cloud, id, inputs, body)),
        )

    @_sentences
    def Update(self, request, context):
        kind, cloud = self._kind(request.urn), self._cloud(request.urn)
        state, new = decode(request.olds), decode(request.news)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=encode(kind.preview_update(state, new)))
        _need_known(kind, new)
        kind.update(cloud, request.id, decode(request.old_inputs) or state, new)
        body = kind.read(cloud, request.id, {**state, **new})
        if body is None:
            raise ProviderError(f"{request.id}: is gone; run `pulumi refresh`.")
        return provider_pb2.UpdateResponse(
            properties=encode(kind.state(cloud, request.id, new, body))
        )

    @_sentences
    def Delete(self, request, context):
        kind, cloud = self._kind(request.urn), self._cloud(request.urn)
        kind.delete(cloud, request.id, decode(request.properties))
        return empty_pb2.Empty()

    # ------------------------------------------------------------------ help

    def _kind(self, urn: str) -> Kind:
        token = urn.split("::")[2].rpartition("$")[2]
        kind = KINDS.get(token)
        if kind is None:
            raise ProviderError(
                f"{token}: no type of resource that the local cloud's provider knows; "
                f"it knows {', '.join(sorted(KINDS))}."
            )
        return kind

    def _cloud(self, urn: str) -> Settings:
        stack = _stack_of(urn)
        with self._lock:
            settings = self._settings.get(stack)
        if settings is None:
            raise ProviderError(f"stack {stack[0]} of {stack[1]}: its provider is not configured.")
        return settings

    def _settings_of(self, config: dict[str, Any]) -> Settings:
        token = config.get("accessToken")
        if account := config.get("impersonateServiceAccount"):
            token = _impersonated(f"{self._endpoint}/iamcredentials/v1/", token, account)
        apis = {
            name: Api(config.get(key) or f"{self._endpoint}/{path}", token)
            for name, (key, path) in ENDPOINTS.items()
        }
        for name in ("iam", "resource_manager"):
            # Their clients move the version from the address to the front of each path.
            apis[name] = Api(apis[name].base.rstrip("/").rpartition("/")[0], token)
        attributed = str(config.get("addPulumiAttributionLabel", True)).lower() != "false"
        return Settings(
            **apis,
            project=config.get("project") or os.environ.get("GOOGLE_PROJECT"),
            region=config.get("region") or os.environ.get("GOOGLE_REGION"),
            zone=config.get("zone") or os.environ.get("GOOGLE_ZONE"),
            labels=PROVISIONED_LABEL if attributed else {},
        )


def _impersonated(base: str, token: str | None, account: str) -> str:
    """A token of the service account. Raises ProviderError."""
    path = f"projects/-/serviceAccounts/{account}:generateAccessToken"
    body = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
    return str(Api(base, token).call("POST", path, body)["accessToken"])


def _stack_of(urn: str) -> tuple[str, str]:
    """The (stack, project) of a URN."""
    stack, project = urn.removeprefix("urn:pulumi:").split("::")[:2]
    return stack, project


def _refuse(context: grpc.ServicerContext, token: str) -> NoReturn:
    context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{token}: the local cloud's provider answers no look-ups; give the value in the program.",
    )


def _need_known(kind: Kind, inputs: dict[str, Any]) -> None:
    unknown = [key for key, value in inputs.items() if holds_unknown(value)]
    if unknown:
        raise ProviderError(f"{', '.join(unknown)}: {kind.token} needs it known by now.")


def _top(path: str) -> str:
    for index, letter in enumerate(path):
        if letter in ".[":
            return path[:index]
    return path


def _property_diff(path: str, change: Change, replaces: list[str]) -> provider_pb2.PropertyDiff:
    kinds = _REPLACING if _top(path) in replaces else _IN_PLACE
    return provider_pb2.PropertyDiff(kind=kinds[change], inputDiff=True)


class _OwnerOnly(grpc.ServerInterceptor):
    """Refuses every call that does not come from a process of this user.

    The engine connects to a port and has no token to send, so the kernel identifies it, for each
    call: gRPC does not report when a connection ends and another one gets its port."""

    def __init__(self) -> None:
        self.port = 0

    def intercept_service(self, continuation, handler_call_details):
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        inner: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary
        made = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )

        def call(request, context):
            self._check(context)
            return inner(request, context)

        return made(call, handler.request_deserializer, handler.response_serializer)

    def _check(self, context: grpc.ServicerContext) -> None:
        uid = self._user_of(context)
        if uid != os.geteuid():
            sender = "a process that has gone" if uid is None else f"user {uid}"
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"The local cloud's provider serves user {os.geteuid()} alone; "
                f"the call is of {sender}.",
            )

    def _user_of(self, context: grpc.ServicerContext) -> int | None:
        """The user at the other end; None if the connection is closed or the user is unknown."""
        family, _, address = context.peer().partition(":")
        host, _, port = address.rpartition(":")
        if family != "ipv4" or host != HOST:
            return None
        found = far_socket((host, int(port)), (HOST, self.port))
        return found.uid if found and context.is_active() else None


def start(endpoint: str) -> tuple[grpc.Server, int]:
    """Serves the provider on loopback to this user's processes; returns the server and its port."""
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    owner_only = _OwnerOnly()
    server = grpc.server(
        ThreadPoolExecutor(MAX_WORKERS), interceptors=[owner_only], options=options
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Provider(endpoint), server)
    owner_only.port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    return server, owner_only.port
