"""The version of traincheck. Imports nothing, so that training processes can import it."""

VERSION = "0.1.0"
