"""What is written to disk: whole or not at all, whatever ends the process or the machine."""
