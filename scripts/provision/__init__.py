"""What the commands in scripts/ do, with nothing but Python's standard library."""
