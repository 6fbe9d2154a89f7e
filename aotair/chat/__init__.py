"""A conversation with an artifact of the task text-generation."""
