"""`outlast costs --refresh-prices`, against recorded answers of the catalog on loopback."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from outlast.base.retry import Limits, Patience
from outlast.cli import price_refresh
from outlast.cli.app import cli
from outlast.cli.errors import OperateError
from outlast.cloud import credentials
from outlast.costs import catalog, pricing
from tests.costs.test_catalog import machine, vm

PAGES: list[dict[str, Any]] = [
    {"skus": machine("N2", 0.01, 0.002, "us-central1"), "nextPageToken": "p+/1"},
    {"skus": machine("E2", 0.02, 0.003, "us-central1", "us-east1"), "nextPageToken": ""},
]


class Catalog(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        server.asked.append((url.path, query, self.headers.get("Authorization")))
        page = 1 if query.get("pageToken") == "p+/1" else 0
        status, body = server.answers.get(page, (200, server.pages[page]))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
    found.pages, found.answers, found.asked = PAGES, {}, []
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    address = f"http://127.0.0.1:{found.server_address[1]}/"
    monkeypatch.setenv(price_refresh.ENDPOINT_VARIABLE, address)
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(credentials.TOKEN_VARIABLE, "a-token")
    monkeypatch.setattr(price_refresh, "BRIEF", Patience(limits=Limits(silent_sec=0.0)))
    pricing.prices.cache_clear()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()
    monkeypatch.undo()
    pricing.prices.cache_clear()


def test_every_page_is_read_and_kept_for_later_commands(server: Any, tmp_path: Path) -> None:
    answer = CliRunner().invoke(cli, ["costs", "--refresh-prices"])
    assert answer.exit_code == 0, answer.output
    path = f"/v1/services/{catalog.COMPUTE}/skus"
    first = {"currencyCode": "USD", "pageSize": "5000"}
    assert server.asked == [
        (path, first, "Bearer a-token"),
        (path, {**first, "pageToken": "p+/1"}, "Bearer a-token"),
    ]
    file = tmp_path / "cache" / "prices.json"
    assert answer.stdout.startswith("6 prices of 20")
    assert f"in 2 regions are in {file};" in answer.stdout
    # 2 x 0.02 + 8 x 0.003 = 0.064
    assert vm("e2-standard-2", "us-east1-b", spot=False).hour == pytest.approx(0.064)
    document = json.loads(CliRunner().invoke(cli, ["costs", "--refresh-prices", "--json"]).stdout)
    assert (document["prices"], document["regions"], document["ambiguous"]) == (6, 2, 0)


@pytest.mark.parametrize(
    ("page", "status", "body", "said"),
    [
        (
            0,
            403,
            {"error": {"message": "Cloud Billing API has not been used in project 1"}},
            "403 Cloud Billing API has not been used in project 1; the list of 2026-11-28 stays in"
            " use; enable the API with: gcloud services enable cloudbilling.googleapis.com",
        ),
        (0, 401, {}, "401 {}; the list of 2026-11-28 stays in use; log in again"),
        (1, 500, {}, "500 {}; the list of 2026-11-28 stays in use; try again later"),
        (0, 200, [], "not a JSON object; the list of 2026-11-28 stays in use"),
        (0, 200, {"skus": 3}, "has no list of SKUs; the list of 2026-11-28 stays in use"),
        (0, 200, {"skus": []}, "have no price that Outlast understands; the list of 2026-11-28"),
        (0, 200, {"skus": [], "nextPageToken": "x"}, "more than 200 pages; the list"),
    ],
)
def test_a_refusal_is_a_sentence_and_the_list_stays(
    server: Any, page: int, status: int, body: Any, said: str
) -> None:
    server.answers[page] = (status, body)
    with pytest.raises(OperateError) as caught:
        price_refresh.refresh()
    assert str(caught.value).startswith("prices: ") and said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not pricing.kept_file().exists() and pricing.prices() == pricing.built_in()


def test_without_credentials_it_says_how_to_get_them(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.auth.exceptions import DefaultCredentialsError

    def none() -> str:
        raise DefaultCredentialsError("no credentials were found\nmore")

    monkeypatch.setattr(credentials, "token", none)
    with pytest.raises(OperateError, match="prices: no credentials were found; the list of 2026"):
        price_refresh.refresh()
