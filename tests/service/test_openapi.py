"""The OpenAPI document, and the service tried against it by Schemathesis."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from service import auth
from service.config import Settings

TOKEN = "a-token-of-sufficient-length"


def test_the_document_reads_strictly_and_errors_are_problems(sqlite_service: Any) -> None:
    document = sqlite_service.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answer = operation["responses"]["422"]["content"]
            assert list(answer) == ["application/problem+json"], (method, path)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_every_number_has_its_unit_in_its_name_or_description(sqlite_service: Any) -> None:
    units = ("_ms", "_s", "_bytes", "_ops", "_threads", "_bytes_per_s", "_ops_per_s")
    without = []
    for name, schema in sqlite_service.client.get("/openapi.json").json()["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            kinds = {described.get("type"), *(option.get("type") for option in described.get("anyOf", []))}
            if kinds & {"number", "integer"} and not field.endswith(units) and "description" not in described:
                without.append(f"{name}.{field}")
    assert without == []


def test_every_path_of_the_design_is_there(sqlite_service: Any) -> None:
    paths = sqlite_service.client.get("/openapi.json").json()["paths"]
    assert {(method, path) for path, operations in paths.items() for method in operations} >= {
        ("get", "/v1/devices"),
        ("get", "/v1/devices/{device}"),
        ("get", "/v1/devices/{device}/constants"),
        ("get", "/v1/devices/{device}/constants/history"),
        ("put", "/v1/devices/{device}/constants/active"),
        ("get", "/v1/devices/{device}/rows.tsv"),
        ("post", "/v1/calibrations"),
        ("get", "/v1/calibrations"),
        ("get", "/v1/calibrations/{calibration_id}"),
        ("delete", "/v1/calibrations/{calibration_id}"),
        ("get", "/v1/calibrations/{calibration_id}/events"),
        ("get", "/v1/calibrations/{calibration_id}/rows"),
        ("get", "/v1/calibrations/{calibration_id}/points/{sweep}"),
        ("get", "/v1/calibrations/{calibration_id}/fits"),
        ("get", "/v1/calibrations/{calibration_id}/export"),
        ("post", "/v1/calibrations/import"),
        ("post", "/v1/fits/envelope"),
        ("post", "/v1/fits/capacity"),
        ("post", "/v1/fits/issue_rate"),
        ("post", "/v1/fits/fill"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/metrics"),
    }


@pytest.fixture
def guarded_schema(make_service: Any, sqlite_database_url: str) -> Any:
    settings = Settings(database_url=SecretStr(sqlite_database_url), token=SecretStr(TOKEN))
    database = auth.Database(settings.url)
    auth.bootstrap(database, settings)
    database.dispose()
    service = make_service(sqlite_database_url, allowed_hosts="testserver")
    service.add_device()
    return schemathesis.openapi.from_asgi("/openapi.json", service.client.app)


def test_the_service_keeps_to_its_document(guarded_schema: Any) -> None:
    @guarded_schema.auth()
    class BearerToken:
        def get(self, case: schemathesis.Case, context: schemathesis.AuthContext) -> str:
            return TOKEN

        def set(self, case: schemathesis.Case, data: str, context: schemathesis.AuthContext) -> None:
            case.headers["Authorization"] = f"Bearer {data}"

    operations = [result.ok() for result in guarded_schema.get_all_operations()]
    assert len(operations) == 23
    for operation in operations:
        if operation.path.endswith("/events"):  # never ends while its job is open
            continue
        _try(operation, GenerationMode.POSITIVE)
        if operation.path_parameters or operation.query or operation.body:
            _try(operation, GenerationMode.NEGATIVE)


def _try(operation: Any, mode: GenerationMode) -> None:
    @settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case: schemathesis.Case) -> None:
        # a rule past what a schema can say (a cursor is one we gave out, extents tile) may refuse data it allows
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    holds()
