"""The rules of the settings, by subject; each refuses with a SettingsError."""
