"""The errors a person may see. Each says what was wrong and what to do about it."""


class SwitchyardError(Exception):
    """Something failed; the message is meant for a person."""

    exit_code = 1


class InputError(SwitchyardError):
    """What was asked for cannot be done as it was asked."""

    exit_code = 2


class AccessError(SwitchyardError):
    """Kafka was reached and turned this client away; trying again helps only after a person has removed the cause."""


class FencedError(SwitchyardError):
    """A newer attempt of the same generation has taken over, or the generation is retired."""

    exit_code = 75


class LostRaceError(SwitchyardError):
    """Another writer changed what this one had read; read again and decide again."""


class UnwritableError(SwitchyardError):
    """A table refuses a commit although no other writer has changed it."""
