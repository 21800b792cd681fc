"""Training programs for the parity table. They need torch alone, and know no tool by name.

python -m benchmarks.torch_audit_cases CASE              run a program as it is
python -m benchmarks.torch_audit_cases --audited CASE..  run programs under the other tool
"""
