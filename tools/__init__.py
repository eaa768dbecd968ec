"""What a developer's machine needs around the project; nothing in switchyard/ imports this."""
