"""Measures OpenAI-style servers side by side: paired rounds, fresh processes, fresh pages."""
