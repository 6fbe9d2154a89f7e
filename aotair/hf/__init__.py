"""What talks to Hugging Face's libraries: it stands beside the line, and nothing on the line imports it."""
