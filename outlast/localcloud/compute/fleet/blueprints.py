"""Instance templates and health checks, which groups are based on."""

from typing import Any

from outlast.localcloud.compute.fleet.inventory import Inventory
from outlast.localcloud.compute.fleet.model import (
    Exists,
    HealthCheck,
    InUse,
    NotFound,
    Template,
    place_key,
    placed_path,
    template_path,
)


class Blueprints:
    """The templates and health checks of the project."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def add_template(
        self, name: str, properties: dict[str, Any], description: str, region: str = ""
    ) -> Template:
        """Adds a template; raises Exists if the name is taken."""
        key = place_key(region, name)
        if key in self._inventory.templates:
            raise Exists(template_path(key))
        template = Template(
            name,
            self._inventory.new_id(),
            self._inventory.clock.now(),
            description,
            properties,
            region=region,
        )
        self._inventory.templates[key] = template
        self._inventory.keep("templates", key)
        return template

    def template(self, name_or_id: str, region: str = "") -> Template:
        """The template of this name or numeric id; raises NotFound."""
        found = self._inventory.templates.get(place_key(region, name_or_id))
        if found is None and name_or_id.isdigit():
            found = next(
                (
                    t
                    for t in self._inventory.templates.values()
                    if (t.id, t.region) == (name_or_id, region)
                ),
                None,
            )
        if found is None:
            raise NotFound(template_path(place_key(region, name_or_id)))
        return found

    def delete_template(self, name_or_id: str, region: str = "") -> Template:
        """Deletes and returns a template. Raises InUse, with the group's path, if a group's
        versions name it or, with `vms_hold_template`, if a group's VM was created from it."""
        template = self.template(name_or_id, region)
        for group in self._inventory.groups.values():
            ids = {version["template_id"] for version in group.versions}
            if self._inventory.switches.vms_hold_template:
                ids |= {member.template_id for member in group.members.values()}
            if template.id in ids:
                raise InUse("instance_template", template.path, group.path)
        del self._inventory.templates[template.key]
        self._inventory.keep("templates", template.key)
        return template

    def add_health_check(self, name: str, body: dict[str, Any], region: str = "") -> HealthCheck:
        """Adds a health check; raises Exists if the name is taken."""
        check = HealthCheck(
            name, self._inventory.new_id(), self._inventory.clock.now(), body, region=region
        )
        if check.key in self._inventory.health_checks:
            raise Exists(check.path)
        self._inventory.health_checks[check.key] = check
        self._inventory.keep("health_checks", check.key)
        return check

    def health_check(self, name: str, region: str = "") -> HealthCheck:
        """The health check of this name; raises NotFound."""
        found = self._inventory.health_checks.get(place_key(region, name))
        if found is None:
            raise NotFound(placed_path(HealthCheck.collection, place_key(region, name)))
        return found

    def change_health_check(self, check: HealthCheck, body: dict[str, Any]) -> None:
        """Changes its rules, from the next probe on."""
        check.body = body
        self._inventory.keep("health_checks", check.key)

    def delete_health_check(self, check: HealthCheck) -> None:
        """Deletes a health check. Raises InUse, with the group's path, if a group uses it."""
        for group in self._inventory.groups.values():
            if group.health_check == check.key:
                raise InUse("health_check", check.path, group.path)
        del self._inventory.health_checks[check.key]
        self._inventory.keep("health_checks", check.key)
