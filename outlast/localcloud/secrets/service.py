"""Secret Manager: secrets, their versions and their policies."""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

import google_crc32c
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from outlast.localcloud.base.access import Target
from outlast.localcloud.base.clock import now_text
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud, Service
from outlast.localcloud.http import discovery
from outlast.localcloud.http.bodies import etag_of, read_json, snake_to_camel, without_nulls

API = "secretmanager.v1"
BASE = "/secretmanager/"
SECRET_ID = re.compile(r"[a-zA-Z0-9_-]{1,255}")
MAX_PAYLOAD_BYTES = 65536
CHANGEABLE = (
    *("labels", "annotations", "topics", "rotation", "expireTime", "ttl", "versionAliases"),
    "versionDestroyTtl",
)


class SecretManager(Service):
    """The secrets of the one project."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._secrets = cloud.state.table("secrets/secrets")
        """Secrets by id."""
        self._versions = cloud.state.table("secrets/versions")
        """Versions by `SECRET/NUMBER`, each with its payload until it is destroyed."""

    def audit(self) -> Entry:
        return {"secrets": list(self._secrets)}

    def routes(self) -> list[BaseRoute]:
        """The routes /secretmanager/v1."""
        secrets = "v1/projects/{project}/secrets"
        secret = secrets + "/{secret}"
        versions = secret + "/versions"
        version = versions + "/{version}"
        table: list[tuple[str, str, Callable[[Request, Entry], Any], str]] = [
            ("POST", secrets, self._create, "secrets.create"),
            ("GET", secrets, self._list, "secrets.list"),
            ("POST", secret + ":addVersion", self._add_version, "versions.add"),
            ("GET", secret + ":getIamPolicy", self._get_policy, "secrets.getIamPolicy"),
            ("POST", secret + ":setIamPolicy", self._set_policy, "secrets.setIamPolicy"),
            ("GET", versions, self._list_versions, "versions.list"),
            ("GET", version + ":access", self._access, "versions.access"),
            ("POST", version + ":enable", self._switch("ENABLED"), "versions.enable"),
            ("POST", version + ":disable", self._switch("DISABLED"), "versions.disable"),
            ("POST", version + ":destroy", self._destroy, "versions.destroy"),
            ("GET", version, self._get_version, "versions.get"),
            ("GET", secret, self._get, "secrets.get"),
            ("PATCH", secret, self._patch, "secrets.update"),
            ("DELETE", secret, self._delete, "secrets.delete"),
        ]
        return [
            Route(
                BASE + path,
                self._endpoint(discovery.method(API, method, path), handler, permission),
                methods=[method],
            )
            for method, path, handler, permission in table
        ]

    def _endpoint(
        self,
        method: discovery.Method,
        handler: Callable[[Request, Entry], Any],
        permission: str,
    ) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            method.check_query(request.query_params)
            body = await read_json(request)
            method.check_body(body)
            self._authorize(request, permission)
            return JSONResponse(handler(request, body))

        return answer

    def _authorize(self, request: Request, permission: str) -> None:
        project = request.path_params["project"]
        if project not in (self._cloud.project, self._cloud.project_number):
            raise ApiError(403, f"Permission denied on project {project!r} (or it may not exist).")
        if not permission:
            return
        secret = request.path_params.get("secret")
        name = f"projects/{self._cloud.project}" + (f"/secrets/{secret}" if secret else "")
        permission = f"secretmanager.{permission}"
        caller = self._cloud.caller(request)
        policies = [f"secrets/{secret}"] if secret else []
        if not self._cloud.policies.permits(caller, permission, Target(name), *policies):
            raise ApiError(
                403,
                f"Permission '{permission}' denied for resource '{name}' (or it may not exist).",
            )

    # Secrets

    def _name(self, *path: str) -> str:
        return "/".join((f"projects/{self._cloud.project_number}/secrets", *path))

    def _secret(self, request: Request) -> Entry:
        asked = request.path_params["secret"]
        if asked not in self._secrets:
            raise ApiError(404, f"Secret [{self._name(asked)}] not found.")
        return self._secrets[asked]

    def _keep(self, secret: Entry) -> Entry:
        fields = {key: value for key, value in secret.items() if key != "etag"}
        stamp = self._cloud.state.next_number()
        kept = {**fields, "etag": f'"{etag_of((stamp, fields))}"'}
        self._secrets[fields["name"].rpartition("/")[2]] = kept
        return kept

    def _create(self, request: Request, body: Entry) -> Entry:
        secret_id = request.query_params.get("secretId", "")
        if not SECRET_ID.fullmatch(secret_id):
            raise ApiError(
                400, f"The provided Secret ID [{secret_id}] does not match the expected format "
                f"[{SECRET_ID.pattern}]",
            )  # fmt: skip
        if secret_id in self._secrets:
            raise ApiError(409, f"Secret [{self._name(secret_id)}] already exists.")
        body = without_nulls(body)
        if not body.get("replication"):
            raise ApiError(400, "Secret.replication is required.")
        fields = {key: value for key, value in body.items() if value != {}}
        return self._keep({**fields, "name": self._name(secret_id), "createTime": now_text()})

    def _list(self, request: Request, body: Entry) -> Entry:
        secrets = [self._secrets[key] for key in self._secrets]
        return {"secrets": secrets, "totalSize": len(secrets)} if secrets else {"totalSize": 0}

    def _get(self, request: Request, body: Entry) -> Entry:
        return self._secret(request)

    def _patch(self, request: Request, body: Entry) -> Entry:
        secret = dict(self._secret(request))
        self._check_etag(secret, body.get("etag"))
        mask = [
            snake_to_camel(name) for name in request.query_params.get("updateMask", "").split(",")
        ]
        if mask == [""]:
            raise ApiError(400, "update_mask is required.")
        for name in (name.partition(".")[0] for name in mask):
            if name not in CHANGEABLE:
                raise ApiError(400, f"The field [{name}] is immutable or cannot be updated.")
            secret.pop(name, None)
            if body.get(name):
                secret[name] = body[name]
        return self._keep(secret)

    def _delete(self, request: Request, body: Entry) -> Entry:
        secret = self._secret(request)
        self._check_etag(secret, request.query_params.get("etag"))
        asked = request.path_params["secret"]
        for key in self._keys(asked):
            del self._versions[key]
        del self._secrets[asked]
        self._cloud.policies.drop(f"secrets/{asked}")
        return {}

    def _check_etag(self, secret: Entry, asked: str | None) -> None:
        if asked and asked != secret["etag"]:
            raise ApiError(
                400,
                f"The etag [{asked}] provided does not match the current etag of the resource.",
                "failedPrecondition",
                status_name="FAILED_PRECONDITION",
            )

    # Versions

    def _keys(self, secret: str) -> list[str]:
        keys = [key for key in self._versions if key.rpartition("/")[0] == secret]
        return sorted(keys, key=lambda key: int(key.rpartition("/")[2]))

    def _version_key(self, request: Request) -> str:
        self._secret(request)
        secret, asked = request.path_params["secret"], request.path_params["version"]
        keys = self._keys(secret)
        key = f"{secret}/{asked}" if asked != "latest" else next(reversed(keys), "")
        if key not in self._versions:
            name = self._name(secret, "versions", asked)
            raise ApiError(404, f"Secret Version [{name}] not found.")
        return key

    def _shown(self, key: str) -> Entry:
        return {name: value for name, value in self._versions[key].items() if name != "payload"}

    def _add_version(self, request: Request, body: Entry) -> Entry:
        self._secret(request)
        secret = request.path_params["secret"]
        payload = body.get("payload") or {}
        try:
            data = base64.b64decode(payload.get("data") or "", validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(400, "Invalid value at 'payload.data' (TYPE_BYTES)") from None
        if not data:
            raise ApiError(400, "SecretVersion.payload is required.")
        if len(data) > MAX_PAYLOAD_BYTES:
            raise ApiError(
                400, f"The payload is {len(data)} bytes; at most {MAX_PAYLOAD_BYTES} are allowed."
            )
        checksum = str(google_crc32c.value(data))
        given = payload.get("dataCrc32c")
        if given is not None and str(given) != checksum:
            raise ApiError(400, "The checksum of the payload does not match its data.")
        keys = self._keys(secret)
        number = int(keys[-1].rpartition("/")[2]) + 1 if keys else 1
        self._keep_version(
            f"{secret}/{number}",
            {
                "name": self._name(secret, "versions", str(number)),
                "createTime": now_text(),
                "state": "ENABLED",
                "replicationStatus": {"automatic": {}},
                "clientSpecifiedPayloadChecksum": given is not None,
                "payload": {"data": payload["data"], "dataCrc32c": checksum},
            },
        )
        return self._shown(f"{secret}/{number}")

    def _keep_version(self, key: str, version: Entry) -> None:
        stamp = self._cloud.state.next_number()
        self._versions[key] = {**version, "etag": f'"{etag_of((stamp, version["state"]))}"'}

    def _list_versions(self, request: Request, body: Entry) -> Entry:
        self._secret(request)
        keys = self._keys(request.path_params["secret"])
        shown = [self._shown(key) for key in reversed(keys)]
        return {"versions": shown, "totalSize": len(shown)} if shown else {"totalSize": 0}

    def _get_version(self, request: Request, body: Entry) -> Entry:
        return self._shown(self._version_key(request))

    def _access(self, request: Request, body: Entry) -> Entry:
        version = self._versions[self._version_key(request)]
        if version["state"] != "ENABLED":
            raise self._in_state(version)
        return {"name": version["name"], "payload": version["payload"]}

    def _in_state(self, version: Entry) -> ApiError:
        return ApiError(
            400,
            f"Secret Version [{version['name']}] is in {version['state']} state.",
            "failedPrecondition",
            status_name="FAILED_PRECONDITION",
        )

    def _switch(self, state: str) -> Callable[[Request, Entry], Entry]:
        def switch(request: Request, body: Entry) -> Entry:
            key = self._version_key(request)
            version = self._versions[key]
            if version["state"] == "DESTROYED":
                raise self._in_state(version)
            self._keep_version(key, {**version, "state": state})
            return self._shown(key)

        return switch

    def _destroy(self, request: Request, body: Entry) -> Entry:
        key = self._version_key(request)
        version = {k: v for k, v in self._versions[key].items() if k != "payload"}
        if version["state"] != "DESTROYED":
            destroyed = {"state": "DESTROYED", "destroyTime": now_text()}
            self._keep_version(key, {**version, **destroyed})
        return self._shown(key)

    # Policies

    def _policy_of(self, request: Request) -> str:
        self._secret(request)
        return f"secrets/{request.path_params['secret']}"

    def _get_policy(self, request: Request, body: Entry) -> Entry:
        version = int(request.query_params.get("options.requestedPolicyVersion", 1))
        return self._cloud.policies.read(self._policy_of(request), version)

    def _set_policy(self, request: Request, body: Entry) -> Entry:
        resource = self._policy_of(request)
        self._cloud.policies.write(resource, body.get("policy") or {})
        return self._cloud.policies.read(resource, 3)
