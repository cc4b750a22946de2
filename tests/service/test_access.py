from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from service import auth
from service.auth import BindError, check_bind, create_token
from service.config import Settings
from service.models import Token

TOKEN = "a-token-of-sufficient-length"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def guarded(make_service: Any, sqlite_database_url: str) -> Any:
    settings = Settings(database_url=SecretStr(sqlite_database_url), token=SecretStr(TOKEN))
    database = auth.Database(settings.url)
    assert auth.bootstrap(database, settings) is True
    with database.write() as session:
        reader = create_token(session, "reader", ("read",))
    database.dispose()
    service = make_service(sqlite_database_url)
    service.reader = reader
    return service


def test_without_any_token_the_service_is_open_to_its_own_host(sqlite_service: Any) -> None:
    assert sqlite_service.client.get("/v1/devices").status_code == 200


def test_with_a_token_strangers_are_refused(guarded: Any) -> None:
    answer = guarded.client.get("/v1/devices")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    for given in (bearer("wrong"), {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"}):
        assert guarded.client.get("/v1/devices", headers=given).status_code == 401


def test_the_bootstrap_token_may_do_everything(guarded: Any) -> None:
    assert guarded.client.get("/v1/devices", headers=bearer(TOKEN)).status_code == 200
    answer = guarded.client.post("/v1/calibrations", json={}, headers=bearer(TOKEN))
    assert answer.json()["code"] == "device_unusable"


def test_a_reader_may_read_and_fit_but_not_calibrate(guarded: Any) -> None:
    headers = bearer(guarded.reader)
    assert guarded.client.get("/v1/devices", headers=headers).status_code == 200
    row = {"backend": "cc", "measured_ms": 1, "flops": 1, "bytes": 1}
    assert guarded.client.post("/v1/fits/envelope", json={"rows": [row]}, headers=headers).status_code == 200
    answer = guarded.client.post("/v1/calibrations", json={}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_probes_and_the_api_page_need_no_token(guarded: Any) -> None:
    for path in ("/healthz", "/readyz", "/docs", "/openapi.json", "/static/docs.js"):
        assert guarded.client.get(path).status_code == 200
    for path in ("/", "/metrics", "/v1/nothing", "/docsx"):
        assert guarded.client.get(path).status_code == 401


def test_tokens_are_hashed_at_rest(guarded: Any) -> None:
    with guarded.database.read() as session:
        stored = {token.name: token.digest for token in session.query(Token)}
    # printf a-token-of-sufficient-length | sha256sum
    assert stored["bootstrap"] == "2563c8c38f763c6ae49d77409bdcb91ae4c007e54f60f0fad5f37852f6a51138"
    assert TOKEN not in str(stored)


def test_another_bootstrap_token_replaces_the_one_before(guarded: Any) -> None:
    changed = guarded.settings.model_copy(update={"token": SecretStr("another-token-of-length")})
    auth.bootstrap(guarded.database, changed)
    guarded.client.app.state.services.refresh()
    assert guarded.client.get("/v1/devices", headers=bearer(TOKEN)).status_code == 401
    assert guarded.client.get("/v1/devices", headers=bearer("another-token-of-length")).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("0.0.0.0", 401), ("127.0.0.1", 200)])
def test_a_service_that_others_reach_stays_closed_when_its_last_token_is_revoked(
    make_service: Any, sqlite_database_url: str, host: str, status: int
) -> None:
    service = make_service(sqlite_database_url, host=host)
    with service.database.write() as session:
        token = create_token(session, "only", ("read",))
    service.client.app.state.services.refresh()
    assert service.client.get("/v1/devices", headers=bearer(token)).status_code == 200
    with service.database.write() as session:
        session.query(Token).delete()
    service.client.app.state.services.refresh()
    assert service.client.get("/v1/devices").status_code == status
    assert service.client.get("/healthz").status_code == 200


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ValidationError, match="16"):
        Settings(token=SecretStr("short"))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "gpu7.lab"])
def test_names_of_this_service_are_answered(make_service: Any, sqlite_database_url: str, host: str) -> None:
    service = make_service(sqlite_database_url, allowed_hosts="gpu7.lab, gpu8.lab")
    assert service.client.get("/v1/devices", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::2]"])
def test_a_foreign_host_name_is_refused(sqlite_service: Any, host: str) -> None:
    answer = sqlite_service.client.get("/v1/devices", headers={"host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "host_not_allowed")
    assert "CALIBRATE_ALLOWED_HOSTS" in answer.json()["detail"]
    assert sqlite_service.client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://localhost:9", "http://["]
)
def test_a_page_of_another_origin_may_change_nothing(sqlite_service: Any, origin: str) -> None:
    answer = sqlite_service.client.post("/v1/calibrations", json={}, headers={"origin": origin})
    assert (answer.status_code, answer.json()["code"]) == (403, "origin_not_allowed")


def test_a_page_of_this_service_may(sqlite_service: Any) -> None:
    answer = sqlite_service.client.post("/v1/calibrations", json={}, headers={"origin": "http://localhost"})
    assert answer.json()["code"] == "device_unusable"


@pytest.mark.parametrize("path", ["/v1/calibrations", "/v1/calibrations/import", "/v1/fits/envelope"])
def test_a_body_past_the_limit_is_refused(make_service: Any, sqlite_database_url: str, path: str) -> None:
    service = make_service(sqlite_database_url, max_body_bytes=1024)
    whole = service.client.post(path, content=b" " * 1025)
    chunked = service.client.post(path, content=iter([b" " * 1000] * 2))
    for answer in (whole, chunked):
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert answer.headers["content-type"] == "application/problem+json"


def test_only_a_document_may_be_large(sqlite_service: Any) -> None:
    content = b" " * (4 * 2**20 + 1)
    answers = {
        path: sqlite_service.client.post(path, content=content).status_code
        for path in ("/v1/fits/envelope", "/v1/calibrations", "/v1/calibrations/import")
    }
    assert answers == {"/v1/fits/envelope": 413, "/v1/calibrations": 413, "/v1/calibrations/import": 422}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_token(host: str) -> None:
    check_bind(Settings(host=host), has_tokens=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu7.lab", ""])
def test_an_open_address_without_a_token_is_refused(host: str) -> None:
    with pytest.raises(BindError, match="calibrate token create"):
        check_bind(Settings(host=host), has_tokens=False)
    check_bind(Settings(host=host), has_tokens=True)


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "not a url", "sqlite://", "sqlite:///:memory:"])
def test_a_database_url_that_can_not_work_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValidationError) as error:
        Settings(database_url=SecretStr(url))
    assert "secret" not in str(error.value)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CALIBRATE_ALLOWED_HOSTS", "a.lab,B.lab")
    settings = Settings()
    assert settings.allowed_hosts == ("a.lab", "b.lab")
    assert settings.url.database == str(tmp_path / "calibrations.sqlite3")
