"""The error tree.

SickbayError
├── UsageError            bad input of a person: names file, field and remedy (exit 2)
├── Refused               the product will not do that now, and says why (exit 3)
├── Unreachable           something outside does not answer (exit 4)
├── UnknownNode           no such node on record
├── UnknownTicket         no such ticket
├── EvidenceMissing       no such digest, or the bytes do not match it
├── NodeUnreadable        the node's own facts cannot be read
├── CodecKeyMissing       an encrypted payload's key is not listed, or does not fit
├── Superseded            a newer attempt took over: this one's word no longer counts
├── BmcError              a management controller did not do what it was asked
│   ├── BmcUnreachable    it does not answer; it may later
│   ├── BmcCertificate    its certificate is not one we trust
│   ├── BmcPassword       it refuses our name and password
│   ├── BmcUnknownSystem  it knows no such system
│   ├── BmcGarbled        its answer makes no sense
│   └── BmcRefused        it understood, and refuses
└── SchemaTooNew          the database was written by a newer release

Leaf names are flat because Temporal matches non-retryable errors by class name.
"""


class SickbayError(Exception):
    """Base of all errors of sickbay. `code` is stable for programs, the message is for people."""

    code = "error"

    def __init__(
        self, message: str, *, field: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.remedy = remedy


class UsageError(SickbayError):
    """A person's input is wrong: `field` names what, `remedy` says what would be right."""

    code = "usage"


class Refused(SickbayError):
    """The request is understood and refused; the message says why and what would be accepted."""

    code = "refused"


class Unreachable(SickbayError):
    """Something outside does not answer."""

    code = "unreachable"


class UnknownNode(UsageError):
    """No node of this name is on record."""

    code = "unknown_node"


class UnknownTicket(UsageError):
    """No ticket of this id is on record."""

    code = "unknown_ticket"


class EvidenceMissing(SickbayError):
    """No bytes of this digest are stored, or they do not match it."""

    code = "evidence_missing"


class NodeUnreadable(SickbayError):
    """The node's boot id or parts cannot be read now."""

    code = "node_unreadable"


class SchemaTooNew(UsageError):
    """The database was written by a newer release of sickbay."""

    code = "schema_too_new"


class CodecKeyMissing(UsageError):
    """An encrypted payload cannot be read: its key is not listed here, or does not fit it."""

    code = "codec_key_missing"


class Superseded(SickbayError):
    """A newer attempt (a newer fencing epoch, a newer owner) took over; this one stops."""

    code = "superseded"


class BmcError(SickbayError):
    """A management controller did not do what it was asked. Base of the ones below."""

    code = "bmc"


class BmcUnreachable(BmcError):
    """The controller does not answer now. `sent` is False when the request never left."""

    code = "bmc_unreachable"

    def __init__(self, message: str, *, sent: bool, remedy: str | None = None) -> None:
        super().__init__(message, field="bmc.url", remedy=remedy)
        self.sent = sent


class BmcCertificate(BmcError):
    """The controller's certificate is not one we trust."""

    code = "bmc_certificate"


class BmcPassword(BmcError):
    """The controller refuses our name and password."""

    code = "bmc_password"


class BmcUnknownSystem(BmcError):
    """The controller knows no such system."""

    code = "bmc_unknown_system"


class BmcGarbled(BmcError):
    """The controller's answer makes no sense: whether it did what was asked cannot be told."""

    code = "bmc_garbled"


class BmcRefused(BmcError):
    """The controller understood and refuses; `busy` when it may do it later.

    `status` is the HTTP status it answered with, 0 when the refusal is our own reading of it.
    """

    code = "bmc_refused"

    def __init__(self, message: str, *, busy: bool = False, status: int = 0) -> None:
        super().__init__(message)
        self.busy = busy
        self.status = status
