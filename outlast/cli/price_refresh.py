"""Refreshes the price list from the Cloud Billing Catalog."""

import os
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outlast.base.http_client import RequestFailed, ask
from outlast.base.retry import BRIEF
from outlast.cli.errors import OperateError
from outlast.cloud import credentials
from outlast.costs import catalog, pricing

ENDPOINT = "https://cloudbilling.googleapis.com/"
ENDPOINT_VARIABLE = "OUTLAST_BILLING_ENDPOINT"
PAGE_SIZE = 5000
PAGES_MAX = 200
"""The catalog has some ten pages; an answer that never ends is an error."""


@dataclass(frozen=True)
class Refresh:
    """What a refresh found."""

    file: Path
    date: str
    prices: int
    regions: int
    ambiguous: int

    def as_json(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "date": self.date,
            "prices": self.prices,
            "regions": self.regions,
            "ambiguous": self.ambiguous,
        }


def refresh() -> Refresh:
    """Reads the catalog and keeps its prices in the user's cache folder. Raises OperateError, whose
    sentence says that the list stays as it is.
    """
    from google.auth.exceptions import GoogleAuthError

    stays = f"the list of {pricing.date()} stays in use"
    try:
        skus = list(_skus(credentials.token()))
    except (GoogleAuthError, OSError) as error:
        raise OperateError(
            f"prices: {credentials.first_line(error)}; {stays}; log in with: gcloud auth"
            " application-default login"
        ) from None
    except RequestFailed as error:
        raise OperateError(f"prices: {error}; {stays}; {_remedy(error.status)}") from None
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    found = catalog.refreshed(skus, pricing.built_in(), day)
    if not found.prices:
        raise OperateError(
            f"prices: the catalog's {len(skus)} SKUs have no price that Outlast understands;"
            f" {stays}; install a newer Outlast"
        )
    try:
        file = pricing.keep(found.table)
    except OSError as error:
        raise OperateError(
            f"prices: {pricing.kept_file()}: {error.strerror}; {stays}; name another folder in"
            " OUTLAST_CACHE"
        ) from None
    return Refresh(file, day, found.prices, found.regions, found.ambiguous)


def _skus(token: str) -> Iterator[dict[str, Any]]:
    """Every SKU of Compute Engine, page by page. Raises RequestFailed."""
    base = os.environ.get(ENDPOINT_VARIABLE, ENDPOINT).rstrip("/")
    query = {"currencyCode": "USD", "pageSize": str(PAGE_SIZE)}
    for _ in range(PAGES_MAX):
        url = f"{base}/v1/services/{catalog.COMPUTE}/skus?{urllib.parse.urlencode(query)}"
        headers = {"Authorization": f"Bearer {token}"}
        answer = BRIEF(
            lambda url=url, headers=headers: ask(
                url, what="Cloud Billing Catalog", headers=headers
            ).object()
        )
        found = answer.get("skus", [])
        if not isinstance(found, list):
            raise RequestFailed(0, "Cloud Billing Catalog: the answer has no list of SKUs")
        yield from (one for one in found if isinstance(one, dict))
        if not answer.get("nextPageToken"):
            return
        query["pageToken"] = str(answer["nextPageToken"])
    raise RequestFailed(0, f"Cloud Billing Catalog: more than {PAGES_MAX} pages")


def _remedy(status: int) -> str:
    if status == 403:
        return "enable the API with: gcloud services enable cloudbilling.googleapis.com"
    return "log in again" if status == 401 else "try again later"
