"""Companies and teams, roles, quotas, tokens, approval policies and cases."""

from tenants.models.approval import (
    CASE_EDGES,
    STEP_EDGES,
    ApprovalPolicy,
    Case,
    CaseState,
    CaseStep,
    StepState,
)
from tenants.models.identity import ApiToken
from tenants.models.quotas import Quota
from tenants.models.teams import Membership, PoolDedication, Role, Team

__all__ = [
    "CASE_EDGES",
    "STEP_EDGES",
    "ApiToken",
    "ApprovalPolicy",
    "Case",
    "CaseState",
    "CaseStep",
    "Membership",
    "PoolDedication",
    "Quota",
    "Role",
    "StepState",
    "Team",
]
