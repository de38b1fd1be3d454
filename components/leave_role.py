"""The one thing that a VM may do to groups: leave its own."""

from typing import TypedDict

import pulumi
from pulumi_gcp import projects

from outlast.spec import permissions


class LeaveRoleArgs(TypedDict):
    """Inputs of LeaveRole."""

    project: pulumi.Input[str]
    stack: str
    """Name of the experiment or foundation. Plain str: the role's id is derived from it."""


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
            role_id=role_id(args["stack"]),
            project=args["project"],
            title=f"Outlast: leave the group ({args['stack']})",
            description="Lets a VM find itself in its managed instance group and leave it.",
            permissions=list(permissions.LEAVE_GROUP),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.role = role.name
        self.register_outputs({"role": self.role})


def role_id(stack: str) -> str:
    """The custom role's id, always the same: the id of a deleted role stays taken for weeks, and
    the provider restores that role.
    """
    return f"outlast_{stack.replace('-', '_')}"
