"""The words of findings that do not come from the check itself."""
