"""Measures the residency modes side by side: fresh processes and pages, cold, kept and warm."""
