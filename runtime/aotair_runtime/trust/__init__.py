"""Who signed an artifact, and is it whom the loader trusts? Nothing of a file is parsed before that is known."""
