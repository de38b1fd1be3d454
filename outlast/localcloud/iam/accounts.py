"""Service accounts: the API's calls for them."""

import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import etag_of, read_json, snake_to_camel
from outlast.localcloud.iam.calls import Row, check_project
from outlast.localcloud.iam.policies import Policies

ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
MAX_SERVICE_ACCOUNTS = 100


class Accounts:
    """The service accounts of the one project."""

    def __init__(self, cloud: Cloud, policies: Policies) -> None:
        self._cloud = cloud
        self._policies = policies
        self._accounts = cloud.state.table("iam/accounts")
        """Accounts by email."""

    def emails(self) -> list[str]:
        """The emails of all accounts."""
        return list(self._accounts)

    def routes(self) -> list[Row]:
        """The routes of these calls."""
        accounts = "v1/projects/{project}/serviceAccounts"
        account = accounts + "/{account}"
        return [
            ("iam", "POST", accounts, self._create_account),
            ("iam", "GET", accounts, self._list_accounts),
            ("iam", "POST", account + ":enable", self._enable_account),
            ("iam", "POST", account + ":disable", self._disable_account),
            ("iam", "GET", account, self._get_account),
            ("iam", "PATCH", account, self._patch_account),
            ("iam", "DELETE", account, self._delete_account),
        ]

    def find(self, request: Request) -> Entry:
        """The account that a call names; raises ApiError 404."""
        check_project(self._cloud, request, wildcard=True)
        asked = request.path_params["account"]
        for account in self._accounts.values():
            if asked in (account["email"], account["uniqueId"]):
                return account
        raise ApiError(404, f"Unknown service account: {asked}", "notFound")

    async def _create_account(self, request: Request) -> Response:
        check_project(self._cloud, request)
        self._cloud.authorize(request, "iam.serviceAccounts.create")
        body = await read_json(request)
        account_id = body.get("accountId") or ""
        if not ACCOUNT_ID.fullmatch(account_id):
            raise ApiError(
                400,
                f"accountId {account_id!r}: must be 6 to 30 of a-z, 0-9 and -, begin with a "
                "letter and not end with a dash",
            )
        project = self._cloud.project
        email = f"{account_id}@{project}.iam.gserviceaccount.com"
        if email in self._accounts:
            raise ApiError(
                409,
                f"Service account {account_id} already exists within project projects/{project}.",
                "alreadyExists",
            )
        if len(self._accounts) >= MAX_SERVICE_ACCOUNTS:
            raise ApiError(429, "Maximum number of service accounts on project reached.")
        unique = str(self._cloud.state.next_number()).rjust(21, "1")
        given = body.get("serviceAccount") or {}
        account = {
            "name": f"projects/{project}/serviceAccounts/{email}",
            "projectId": project,
            "uniqueId": unique,
            "email": email,
            "oauth2ClientId": unique,
            **{k: given[k] for k in ("displayName", "description") if given.get(k)},
        }
        return JSONResponse(self._keep_account(account))

    def _keep_account(self, account: Entry) -> Entry:
        fields = {k: v for k, v in account.items() if k != "etag"}
        self._accounts[account["email"]] = {**fields, "etag": etag_of(fields)}
        return self._accounts[account["email"]]

    async def _list_accounts(self, request: Request) -> Response:
        check_project(self._cloud, request)
        self._cloud.authorize(request, "iam.serviceAccounts.list")
        accounts = list(self._accounts.values())
        return JSONResponse({"accounts": accounts} if accounts else {})

    async def _get_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.get")
        return JSONResponse(self.find(request))

    async def _patch_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.update")
        account = self.find(request)
        body = await read_json(request)
        given = body.get("serviceAccount") or {}
        mask = [snake_to_camel(f) for f in (body.get("updateMask") or "").split(",") if f]
        for name in mask or ("displayName", "description"):
            if name not in ("displayName", "description"):
                raise ApiError(400, f"updateMask {name!r}: only displayName and description change")
            if name in given:
                account = {**account, name: given[name]}
        return JSONResponse(self._keep_account(account))

    async def _enable_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.enable")
        account = {k: v for k, v in self.find(request).items() if k != "disabled"}
        self._keep_account(account)
        return JSONResponse({})

    async def _disable_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.disable")
        self._keep_account({**self.find(request), "disabled": True})
        return JSONResponse({})

    async def _delete_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.delete")
        account = self.find(request)
        del self._accounts[account["email"]]
        self._policies.forget_member(account)
        return JSONResponse({})
