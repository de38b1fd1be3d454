"""Instance templates and health checks, global or of a region: the API's calls for them."""

from outlast.localcloud.compute import rules
from outlast.localcloud.compute.calls import (
    Call,
    Row,
    aggregated,
    listed,
)
from outlast.localcloud.compute.catalogue import ZONES
from outlast.localcloud.compute.fleet.model import HealthCheck, Template
from outlast.localcloud.compute.links import Json
from outlast.localcloud.compute.platform import Platform


class Templates:
    """Answers the API's calls for templates and health checks."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._fleet = platform.fleet
        self._answers = platform.answers
        self._operations = platform.operations

    def routes(self) -> list[Row]:
        """The routes of these calls."""
        table: list[Row] = [
            (
                *("GET", "aggregated/instanceTemplates", self._aggregate_templates),
                "instanceTemplates.list",
            ),
            (
                *("GET", "aggregated/healthChecks", self._aggregate_health_checks),
                "healthChecks.list",
            ),
        ]
        for place in ("global", "regions/{region}"):
            table += self._routes_of(place)
        return table

    def _routes_of(self, place: str) -> list[Row]:
        template = place + "/instanceTemplates"
        check = place + "/healthChecks"
        named = check + "/{name}"
        return [
            ("POST", template, self._insert_template, "instanceTemplates.create"),
            ("GET", template, self._list_templates, "instanceTemplates.list"),
            ("GET", template + "/{name}", self._get_template, "instanceTemplates.get"),
            ("DELETE", template + "/{name}", self._delete_template, "instanceTemplates.delete"),
            ("POST", check, self._insert_health_check, "healthChecks.create"),
            ("GET", check, self._list_health_checks, "healthChecks.list"),
            ("GET", named, self._get_health_check, "healthChecks.get"),
            ("PUT", named, self._replace_health_check, "healthChecks.update"),
            ("DELETE", named, self._delete_health_check, "healthChecks.delete"),
        ]

    # Templates

    async def _insert_template(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        properties = call.body.get("properties")
        if not properties:
            raise rules.invalid("resource.properties", "", "Properties are required.")
        checked = rules.checked_properties(properties)
        region = call.params.get("region", "")
        template = self._fleet.blueprints.add_template(
            name, checked, call.body.get("description", ""), region
        )
        self._platform.changed()
        return self._operations.record("insert", template.path, template.id)

    async def _get_template(self, call: Call) -> Json:
        return self._answers.template(self._template(call))

    def _template(self, call: Call) -> Template:
        return self._fleet.blueprints.template(call["name"], call.params.get("region", ""))

    async def _list_templates(self, call: Call) -> Json:
        region = call.params.get("region", "")
        templates = [t for t in self._fleet.templates.values() if t.region == region]
        return listed("instanceTemplateList", map(self._answers.template, templates))

    async def _aggregate_templates(self, call: Call) -> Json:
        templates = list(self._fleet.templates.values())
        scopes = {"global": [t for t in templates if not t.region]}
        scopes |= {f"regions/{name}": [t for t in templates if t.region == name] for name in ZONES}
        return aggregated("instanceTemplate", "instanceTemplates", scopes, self._answers.template)

    async def _delete_template(self, call: Call) -> Json:
        region = call.params.get("region", "")
        template = self._fleet.blueprints.delete_template(call["name"], region)
        self._platform.changed()
        return self._operations.record("delete", template.path, template.id)

    # Health checks

    def _health_check(self, call: Call) -> HealthCheck:
        return self._fleet.blueprints.health_check(call["name"], call.params.get("region", ""))

    def _health_check_operation(self, kind: str, check: HealthCheck) -> Json:
        self._platform.changed()
        return self._operations.record(kind, check.path, check.id)

    async def _insert_health_check(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        body = rules.checked_health_check(call.body)
        check = self._fleet.blueprints.add_health_check(name, body, call.params.get("region", ""))
        return self._health_check_operation("insert", check)

    async def _get_health_check(self, call: Call) -> Json:
        return self._answers.health_check(self._health_check(call))

    async def _list_health_checks(self, call: Call) -> Json:
        region = call.params.get("region", "")
        checks = [c for c in self._fleet.health_checks.values() if c.region == region]
        return listed("healthCheckList", map(self._answers.health_check, checks))

    async def _aggregate_health_checks(self, call: Call) -> Json:
        checks = list(self._fleet.health_checks.values())
        scopes = {"global": [c for c in checks if not c.region]}
        scopes |= {f"regions/{name}": [c for c in checks if c.region == name] for name in ZONES}
        shown = self._answers.health_check
        return aggregated("healthChecks", "healthChecks", scopes, shown)

    async def _replace_health_check(self, call: Call) -> Json:
        check = self._health_check(call)
        self._fleet.blueprints.change_health_check(check, rules.checked_health_check(call.body))
        return self._health_check_operation("update", check)

    async def _delete_health_check(self, call: Call) -> Json:
        check = self._health_check(call)
        self._fleet.blueprints.delete_health_check(check)
        return self._health_check_operation("delete", check)
