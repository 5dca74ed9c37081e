"""Where a program may look for it; nothing of it is used."""
