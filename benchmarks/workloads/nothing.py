"""Imports torch and ends: what is left is the cost of starting."""

import torch

print(torch.__version__)
