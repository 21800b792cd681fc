"""The types that every other folder uses: events, values, claims, findings, protocols.

Standard library, orjson and msgspec only.
"""
