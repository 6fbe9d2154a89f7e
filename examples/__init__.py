"""What a host program does with an artifact."""
