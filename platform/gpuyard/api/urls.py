"""`/api/v1/`: each app brings its own routes. No trailing slashes."""

from django.urls import URLPattern, URLResolver, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView

from billing.api import CostsCsvView, CostsView
from gpuyard.api.approval_rules import (
    ApprovalPolicyMatchView,
    ApprovalPolicyPreviewView,
    ApprovalPolicyRollbackView,
    ApprovalPolicyVersionsView,
    ApprovalPolicyVersionView,
    ApprovalPolicyView,
)
from gpuyard.api.approvers import (
    DelegationRevokeView,
    DelegationsView,
    GroupPeopleView,
    GroupsView,
    GroupView,
)
from gpuyard.api.cases import (
    CaseAmendView,
    CaseAnswerView,
    CaseDecisionsView,
    CaseDecisionView,
    CaseSendBackView,
    CasesView,
    CaseView,
    CaseWithdrawView,
)
from gpuyard.api.notifications import (
    DeliveriesView,
    DeliveryAgainView,
    NotificationSettingsView,
    NotificationsReadView,
    NotificationsView,
    WebhookEventsView,
    WebhookRotateView,
    WebhooksView,
    WebhookTestView,
    WebhookView,
)
from gpuyard.api.views import NothingView, RootView
from gpuyard.api.workloads import WorkloadsView, WorkloadView
from gpuyard.fleet.api import (
    DomainsView,
    DomainView,
    JoinTokensView,
    NodeCordonView,
    NodeDomainView,
    NodeDrainView,
    NodeLabelsView,
    NodeUncordonView,
    PoolsView,
    TierSpeedsView,
)
from scheduling.api.bands import BandGrantRevokeView, BandGrantsView
from scheduling.api.check import RequestCheckView
from scheduling.api.fleet import FreeSpaceView, NodesView, NodeView, QuotasView, TiersView
from scheduling.api.passes import PassesView, PassReplayView, PassView
from scheduling.api.policy import (
    PolicyPreviewView,
    PolicyRollbackView,
    PolicyVersionsView,
    PolicyVersionView,
    SchedulingPolicyView,
)
from scheduling.api.workloads import QueueView, WorkloadEventsView, WorkloadLogView, WorkloadStopView
from tenants.api import (
    MembersView,
    MeView,
    TeamsView,
    TeamView,
    TokensView,
    TokenView,
)
from tenants.log_api import (
    CheckpointsView,
    EventsChainView,
    EventsCsvView,
    EventsJsonLinesView,
    EventsView,
    PublicKeyView,
)
from tenants.quota_api import (
    GrantRenewView,
    GrantRevokeView,
    GrantsView,
    GrantView,
    QuotaChangesView,
    QuotaChangeView,
    QuotaVersionsView,
    QuotaVersionView,
)
from tenants.service_api import ServiceAccountsView, ServiceAccountView, ServiceTokensView

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RootView.as_view(), name="api-root"),
    path("schema", SpectacularJSONAPIView.as_view(), name="api-schema"),
    path("me", MeView.as_view(), name="api-me"),
    path("tokens", TokensView.as_view(), name="api-tokens"),
    path("tokens/<uuid:token_id>", TokenView.as_view(), name="api-token"),
    path("service-accounts", ServiceAccountsView.as_view(), name="api-service-accounts"),
    path("service-accounts/<str:public_id>", ServiceAccountView.as_view(), name="api-service-account"),
    path("service-accounts/<str:public_id>/tokens", ServiceTokensView.as_view(), name="api-service-tokens"),
    path("teams", TeamsView.as_view(), name="api-teams"),
    path("teams/<str:public_id>", TeamView.as_view(), name="api-team"),
    path("teams/<str:public_id>/members", MembersView.as_view(), name="api-team-members"),
    path("teams/<str:public_id>/quotas", QuotasView.as_view(), name="api-team-quotas"),
    path(
        "teams/<str:public_id>/quotas/versions", QuotaVersionsView.as_view(), name="api-team-quota-versions"
    ),
    path("quota-versions/<uuid:quota_id>", QuotaVersionView.as_view(), name="api-quota-version"),
    path("grants", GrantsView.as_view(), name="api-grants"),
    path("grants/<str:public_id>", GrantView.as_view(), name="api-grant"),
    path("grants/<str:public_id>/renew", GrantRenewView.as_view(), name="api-grant-renew"),
    path("grants/<str:public_id>/revoke", GrantRevokeView.as_view(), name="api-grant-revoke"),
    path("quota-changes", QuotaChangesView.as_view(), name="api-quota-changes"),
    path("quota-changes/<str:public_id>", QuotaChangeView.as_view(), name="api-quota-change"),
    path("request-check", RequestCheckView.as_view(), name="api-request-check"),
    path("workloads", WorkloadsView.as_view(), name="api-workloads"),
    path("workloads/<str:public_id>", WorkloadView.as_view(), name="api-workload"),
    path("workloads/<str:public_id>/stop", WorkloadStopView.as_view(), name="api-workload-stop"),
    path("workloads/<str:public_id>/log", WorkloadLogView.as_view(), name="api-workload-log"),
    path("workloads/<str:public_id>/events", WorkloadEventsView.as_view(), name="api-workload-events"),
    path("passes", PassesView.as_view(), name="api-passes"),
    path("scheduling-policy", SchedulingPolicyView.as_view(), name="api-scheduling-policy"),
    path("scheduling-policy/preview", PolicyPreviewView.as_view(), name="api-policy-preview"),
    path("scheduling-policy/versions", PolicyVersionsView.as_view(), name="api-policy-versions"),
    path("scheduling-policy/versions/<int:number>", PolicyVersionView.as_view(), name="api-policy-version"),
    path(
        "scheduling-policy/versions/<int:number>/rollback",
        PolicyRollbackView.as_view(),
        name="api-policy-rollback",
    ),
    path("band-grants", BandGrantsView.as_view(), name="api-band-grants"),
    path("band-grants/<uuid:grant_id>/revoke", BandGrantRevokeView.as_view(), name="api-band-grant-revoke"),
    path("passes/<int:number>", PassView.as_view(), name="api-pass"),
    path("passes/<int:number>/replay", PassReplayView.as_view(), name="api-pass-replay"),
    path("queue", QueueView.as_view(), name="api-queue"),
    path("cases", CasesView.as_view(), name="api-cases"),
    path("case-decisions", CaseDecisionsView.as_view(), name="api-case-decisions"),
    path("cases/<str:public_id>", CaseView.as_view(), name="api-case"),
    path("cases/<str:public_id>/decision", CaseDecisionView.as_view(), name="api-case-decision"),
    path("cases/<str:public_id>/send-back", CaseSendBackView.as_view(), name="api-case-send-back"),
    path("cases/<str:public_id>/answer", CaseAnswerView.as_view(), name="api-case-answer"),
    path("cases/<str:public_id>/amend", CaseAmendView.as_view(), name="api-case-amend"),
    path("cases/<str:public_id>/withdraw", CaseWithdrawView.as_view(), name="api-case-withdraw"),
    path("delegations", DelegationsView.as_view(), name="api-delegations"),
    path(
        "delegations/<uuid:delegation_id>/revoke",
        DelegationRevokeView.as_view(),
        name="api-delegation-revoke",
    ),
    path("approver-groups", GroupsView.as_view(), name="api-approver-groups"),
    path("approver-groups/<uuid:group_id>", GroupView.as_view(), name="api-approver-group"),
    path("approver-groups/<uuid:group_id>/people", GroupPeopleView.as_view(), name="api-group-people"),
    path("approval-rules/<str:public_id>", ApprovalPolicyView.as_view(), name="api-approval-rules"),
    path(
        "approval-rules/<str:public_id>/match", ApprovalPolicyMatchView.as_view(), name="api-approval-match"
    ),
    path(
        "approval-rules/<str:public_id>/preview",
        ApprovalPolicyPreviewView.as_view(),
        name="api-approval-preview",
    ),
    path(
        "approval-rules/<str:public_id>/versions",
        ApprovalPolicyVersionsView.as_view(),
        name="api-approval-versions",
    ),
    path(
        "approval-rules/<str:public_id>/versions/<int:number>",
        ApprovalPolicyVersionView.as_view(),
        name="api-approval-version",
    ),
    path(
        "approval-rules/<str:public_id>/versions/<int:number>/rollback",
        ApprovalPolicyRollbackView.as_view(),
        name="api-approval-rollback",
    ),
    path("tiers", TiersView.as_view(), name="api-tiers"),
    path("free-space", FreeSpaceView.as_view(), name="api-free-space"),
    path("tier-speeds", TierSpeedsView.as_view(), name="api-tier-speeds"),
    path("pools", PoolsView.as_view(), name="api-pools"),
    path("nodes", NodesView.as_view(), name="api-nodes"),
    path("nodes/<str:public_id>", NodeView.as_view(), name="api-node"),
    path("nodes/<str:public_id>/cordon", NodeCordonView.as_view(), name="api-node-cordon"),
    path("nodes/<str:public_id>/drain", NodeDrainView.as_view(), name="api-node-drain"),
    path("nodes/<str:public_id>/uncordon", NodeUncordonView.as_view(), name="api-node-uncordon"),
    path("nodes/<str:public_id>/labels", NodeLabelsView.as_view(), name="api-node-labels"),
    path("nodes/<str:public_id>/domain", NodeDomainView.as_view(), name="api-node-domain"),
    path("fabric-domains", DomainsView.as_view(), name="api-fabric-domains"),
    path("fabric-domains/<uuid:domain_id>", DomainView.as_view(), name="api-fabric-domain"),
    path("join-tokens", JoinTokensView.as_view(), name="api-join-tokens"),
    path("costs", CostsView.as_view(), name="api-costs"),
    path("costs.csv", CostsCsvView.as_view(), name="api-costs-csv"),
    path("events", EventsView.as_view(), name="api-events"),
    path("events.csv", EventsCsvView.as_view(), name="api-events-csv"),
    path("events.jsonl", EventsJsonLinesView.as_view(), name="api-events-jsonl"),
    path("events/checkpoints.jsonl", CheckpointsView.as_view(), name="api-events-checkpoints"),
    path("events/public-key.pem", PublicKeyView.as_view(), name="api-events-public-key"),
    path("events/chain", EventsChainView.as_view(), name="api-events-chain"),
    path("notifications", NotificationsView.as_view(), name="api-notifications"),
    path("notifications/read", NotificationsReadView.as_view(), name="api-notifications-read"),
    path("notification-settings", NotificationSettingsView.as_view(), name="api-notification-settings"),
    path("webhooks", WebhooksView.as_view(), name="api-webhooks"),
    path("webhooks/<uuid:endpoint_id>", WebhookView.as_view(), name="api-webhook"),
    path("webhooks/<uuid:endpoint_id>/events", WebhookEventsView.as_view(), name="api-webhook-events"),
    path("webhooks/<uuid:endpoint_id>/rotate", WebhookRotateView.as_view(), name="api-webhook-rotate"),
    path("webhooks/<uuid:endpoint_id>/test", WebhookTestView.as_view(), name="api-webhook-test"),
    path("deliveries", DeliveriesView.as_view(), name="api-deliveries"),
    path("deliveries/<uuid:message_id>/again", DeliveryAgainView.as_view(), name="api-delivery-again"),
    # the last one: everything that no route above takes (`.` would leave out line breaks)
    re_path(r"^", NothingView.as_view(), name="api-nothing"),
]
