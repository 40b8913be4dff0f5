"""What platform admins say of tiers."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core.errors import Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_check, text_for_lookup
from gpuyard.fleet.models import Tier

SLOWEST, FASTEST = 0.001, 1000  # passes count in thousandths
KINDS = ("training", "inference", "development")


@transaction.atomic
def tier_speeds_set(*, actor: User, tier: str, speeds: Mapping[str, float], reason: str = "") -> Tier:
    """How fast each kind of work runs there, compared with the slowest tier (1). What is left out is not known.

    From the next pass on it decides which tier gives the best result per cost.
    """
    if not actor.is_platform_admin:
        raise Forbidden("admin_needed", _("Only a platform admin may do this."))
    found = Tier.objects.select_for_update(no_key=True).filter(name=text_for_lookup(tier)).first()
    if found is None:
        raise NotFound("tier_unknown", _("There is no such tier."))
    for kind, speed in speeds.items():
        if kind not in KINDS or not SLOWEST <= speed <= FASTEST:
            raise Invalid(
                "speed_invalid",
                _("This is no speed."),
                field=f"speeds.{kind[:40]}",
                remedy=_("Give a number from %(least)s to %(most)s, for %(kinds)s.")
                % {"least": SLOWEST, "most": FASTEST, "kinds": ", ".join(KINDS)},
            )
    old, found.relative_speed = found.relative_speed, dict(sorted(speeds.items()))
    found.save(update_fields=["relative_speed"])
    event_record(
        company_id=None,
        actor=actor,
        action="tier.speeds",
        subject=found,
        old={"speeds": old},
        new={"speeds": found.relative_speed},
        reason=text_check(reason, field="reason", longest=200, is_optional=True),
    )
    return found
