"""The embedded broker and what one machine needs to run it. Nothing here is used in production."""
