"""Signing in, under our own addresses. The names are those that allauth looks its pages up by."""

from __future__ import annotations

from allauth.account.views import LoginView, PasswordChangeView, ReauthenticateView
from allauth.mfa.base.views import AuthenticateView
from allauth.mfa.base.views import ReauthenticateView as CodeAgainView
from allauth.mfa.recovery_codes.views import GenerateRecoveryCodesView, ViewRecoveryCodesView
from allauth.mfa.totp.views import ActivateTOTPView, DeactivateTOTPView
from django.contrib.auth.views import LogoutView
from django.urls import path
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.generic import RedirectView, TemplateView

FORM = "identity/form.html"

urlpatterns = [
    path("sign-in", LoginView.as_view(template_name="sign_in.html"), name="account_login"),
    path("sign-out", LogoutView.as_view(), name="account_logout"),
    path(
        "sign-in/closed",
        TemplateView.as_view(
            template_name="identity/told.html",
            extra_context={
                "title": _("This account is closed"),
                "text": _("Ask a platform admin if you think that it should not be."),
            },
        ),
        name="account_inactive",
    ),
    path(
        "sign-in/code",
        AuthenticateView.as_view(
            template_name=FORM,
            extra_context={
                "title": _("Your code"),
                "text": _("The six digits that your authenticator shows, or a recovery code."),
                "button": _("Sign in"),
                "is_door": True,
            },
        ),
        name="mfa_authenticate",
    ),
    path(
        "account/confirm",
        ReauthenticateView.as_view(
            template_name=FORM,
            extra_context={
                "title": _("Is it you?"),
                "text": _("This needs your password once more."),
                "button": _("Go on"),
            },
        ),
        name="account_reauthenticate",
    ),
    path(
        "account/confirm/code",
        CodeAgainView.as_view(
            template_name=FORM,
            extra_context={
                "title": _("Is it you?"),
                "text": _("This needs a code of your authenticator."),
                "button": _("Go on"),
            },
        ),
        name="mfa_reauthenticate",
    ),
    path(
        "account/password",
        PasswordChangeView.as_view(
            template_name=FORM,
            extra_context={
                "title": _("Change your password"),
                "text": _("All your other sign-ins end."),
                "button": _("Change it"),
            },
        ),
        name="account_change_password",
    ),
    # A person of a provider has no password here, and gets none.
    path(
        "account/no-password", RedirectView.as_view(pattern_name="web:account"), name="account_set_password"
    ),
    path("account/codes", RedirectView.as_view(pattern_name="web:account"), name="mfa_index"),
    path(
        "account/codes/on",
        never_cache(ActivateTOTPView.as_view(template_name="identity/codes_on.html")),
        name="mfa_activate_totp",
    ),
    path(
        "account/codes/off",
        DeactivateTOTPView.as_view(
            template_name=FORM,
            extra_context={
                "title": _("Sign in without codes"),
                "text": _("Your password alone will do. Your recovery codes end too."),
                "button": _("Turn codes off"),
            },
        ),
        name="mfa_deactivate_totp",
    ),
    path(
        "account/codes/recovery",
        never_cache(ViewRecoveryCodesView.as_view(template_name="identity/recovery.html")),
        name="mfa_view_recovery_codes",
    ),
    path(
        "account/codes/recovery/new",
        GenerateRecoveryCodesView.as_view(
            template_name=FORM,
            extra_context={
                "title": _("New recovery codes"),
                "text": _("The old ones work no more."),
                "button": _("Make new ones"),
            },
        ),
        name="mfa_generate_recovery_codes",
    ),
]
