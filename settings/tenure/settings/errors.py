"""What can be wrong with settings.

TenureError
└── SettingsInvalid     settings_invalid: one is missing, unknown, wrong, or contradicts another
    └── SettingsMissing the same code: nothing is wrong but that something is missing
"""

from tenure.contract.errors import TenureError


class SettingsInvalid(TenureError):
    """The process cannot start with these settings; names them, and never shows a secret."""

    code = "settings_invalid"


class SettingsMissing(SettingsInvalid):
    """Required settings are missing, and nothing else is wrong."""
