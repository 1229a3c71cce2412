"""Serves a model that generates over HTTP, in the form that OpenAI's clients use (docs/serving.md)."""
