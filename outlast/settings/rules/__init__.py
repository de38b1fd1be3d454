"""The rules for settings, by subject; each raises SettingsError."""
