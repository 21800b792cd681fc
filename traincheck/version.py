"""The version of traincheck. Below all else, so that what loads into training may name it."""

VERSION = "0.1.0"
