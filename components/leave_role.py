"""The one thing that a VM may do to groups: leave its own."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import projects

from outlast.spec import labels, permissions


class LeaveRoleArgs(TypedDict):
    """Inputs of LeaveRole."""

    project: pulumi.Input[str]
    stack: str
    """Name of the experiment or foundation. Plain str: the role's id is derived from it."""
    week: str
    """The current week, such as `2026w49`. Plain str: part of a new role's id."""
    mark: NotRequired[str]
    """Ends the descriptions: names the stack, so that `outlast destroy` finds what a damaged state
    has lost."""


class LeaveRole(pulumi.ComponentResource):
    """The custom role that lets a VM find itself in its group and leave it.

    It applies to every group of the project, because no policy can be set on a single group; use
    a separate project to prevent that.
    """

    role: pulumi.Output[str]
    """The role's full name."""

    def __init__(
        self,
        name: str,
        args: LeaveRoleArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:LeaveRole", name, {}, opts)
        role = projects.IAMCustomRole(
            f"{name}-role",
            role_id=role_id(args["stack"], args["week"]),
            project=args["project"],
            title=f"Outlast: leave the group ({args['stack']})",
            description=labels.described("Lets a VM leave its group", args.get("mark", "")),
            permissions=list(permissions.LEAVE_GROUP),
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["roleId"]),
        )
        self.role = role.name
        self.register_outputs({"role": self.role})


def role_id(stack: str, week: str) -> str:
    """The id of a role that is created in this week; an existing role keeps its own.

    A deleted role can be restored for 7 days, which the provider does. Then its id stays taken for
    about a month and the role is lost (page "Create and manage custom roles" and method
    projects.roles.delete, read in November 2026; provider documentation of
    google_project_iam_custom_role). With the week in it, an id that is needed again was deleted
    less than 7 days ago.
    """
    return f"outlast_{stack.replace('-', '_')}_{week}"
