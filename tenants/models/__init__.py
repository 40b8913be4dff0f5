"""Companies and teams, roles, quotas, tokens, approval policies and cases."""

from tenants.models.approval import ApprovalPolicy, Case, CaseMessage, CaseState, CaseStep, StepState
from tenants.models.approvers import ApproverGroup, Delegation
from tenants.models.identity import ApiToken, Guessing, ServiceAccount, SignIn
from tenants.models.quotas import ASK_EDGES, AskState, Grant, Quota, QuotaAsk, QuotaChange
from tenants.models.teams import Membership, PoolDedication, Role, Team

__all__ = [
    "ASK_EDGES",
    "ApiToken",
    "ApprovalPolicy",
    "ApproverGroup",
    "AskState",
    "Case",
    "CaseMessage",
    "CaseState",
    "CaseStep",
    "Delegation",
    "Grant",
    "Guessing",
    "Membership",
    "PoolDedication",
    "Quota",
    "QuotaAsk",
    "QuotaChange",
    "Role",
    "ServiceAccount",
    "SignIn",
    "StepState",
    "Team",
]
