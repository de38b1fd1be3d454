"""Access tokens of service accounts, as the IAM Service Account Credentials API issues them."""

import re
import secrets
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.access import Caller
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import read_json
from outlast.localcloud.iam.accounts import Accounts
from outlast.localcloud.iam.calls import Row, check_project

LIFETIME = re.compile(r"([0-9]+)s")
LIFETIME_MAX_SEC = 3600


class Impersonation:
    """Issues tokens and knows whose they are."""

    def __init__(self, cloud: Cloud, accounts: Accounts) -> None:
        self._cloud = cloud
        self._accounts = accounts
        self._tokens = cloud.state.table("iam/tokens")
        """Email and time of expiry by token."""

    def routes(self) -> list[Row]:
        """The route of the one call."""
        path = "v1/projects/{project}/serviceAccounts/{account}:generateAccessToken"
        return [("iamcredentials", "POST", path, self._generate)]

    def caller(self, token: str) -> Caller | None:
        """The service account that has this token; None for any other token. Raises ApiError 401
        if it has expired."""
        issued = self._tokens.get(token)
        if issued is None:
            return None
        if datetime.fromisoformat(issued["expires"]) < datetime.now(UTC):
            raise ApiError(401, "Invalid Credentials")
        return Caller(email=issued["email"])

    async def _generate(self, request: Request) -> Response:
        check_project(self._cloud, request, wildcard=True)
        account = self._accounts.find(request)
        self._cloud.authorize(request, "iam.serviceAccounts.getAccessToken")
        body = await read_json(request)
        if not body.get("scope"):
            raise ApiError(400, "scope: must name at least one scope")
        given = LIFETIME.fullmatch(body.get("lifetime") or f"{LIFETIME_MAX_SEC}s")
        if not given or not 0 < int(given[1]) <= LIFETIME_MAX_SEC:
            raise ApiError(400, f"lifetime: must be from 1s to {LIFETIME_MAX_SEC}s")
        expires = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=int(given[1]))
        token = f"account-token-{secrets.token_hex(16)}"
        self._tokens[token] = {"email": account["email"], "expires": expires.isoformat()}
        return JSONResponse(
            {"accessToken": token, "expireTime": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}
        )
