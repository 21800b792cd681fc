"""The words every other folder speaks: events, values, claims, findings, protocols.

Standard library and orjson only.
"""
