"""Start a program that is recorded, stop it, and keep its manifest. No torch here."""
