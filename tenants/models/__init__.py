"""Companies and teams, roles, quotas, tokens, approval policies and cases."""

from tenants.models.approval import ApprovalPolicy, Case, CaseMessage, CaseState, CaseStep, StepState
from tenants.models.approvers import ApproverGroup, Delegation
from tenants.models.identity import ApiToken, Guessing, ServiceAccount, SignIn
from tenants.models.quotas import Quota
from tenants.models.teams import Membership, PoolDedication, Role, Team

__all__ = [
    "ApiToken",
    "ApprovalPolicy",
    "ApproverGroup",
    "Case",
    "CaseMessage",
    "CaseState",
    "CaseStep",
    "Delegation",
    "Guessing",
    "Membership",
    "PoolDedication",
    "Quota",
    "Role",
    "ServiceAccount",
    "SignIn",
    "StepState",
    "Team",
]
