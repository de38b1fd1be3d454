"""Limits of Google's that many experiments in one project or bucket meet, each with its page.

They are defaults: a project's own are on the page Quotas of the console. Quotas that the Compute
API itself answers are read from there (`outlast.settings.allowances`).
"""

ACCOUNTS = 100
"""Service accounts of a project (page "Quotas and limits" of IAM, read in November 2026)."""
ROLES = 300
"""Custom roles of a project (same page)."""
BINDINGS = 100
"""Conditional bindings that Google advises at most in one policy (page "Best practices for IAM
Conditions", read in November 2026)."""
