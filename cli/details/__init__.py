"""Texts and files of single commands, apart from their command lines."""
