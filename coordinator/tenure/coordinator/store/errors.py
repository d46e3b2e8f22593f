"""What can be wrong with the database's schema and roles.

TenureError
└── SchemaError                      the database cannot be used as it is
    ├── ServerTooOld                 server_too_old: PostgreSQL before 17
    ├── DatabaseUnreachable          unavailable: no connection; may pass
    ├── DatabaseRefused              database_refused: login, database name or rights are wrong
    ├── DatabaseUntrusted            certificate_untrusted: not the server it should be, or no TLS
    ├── NotMigrated                  not_migrated: older than this program
    ├── SchemaTooNew                 schema_too_new: newer than this program
    ├── MigrationEdited              migration_edited: an applied file has other content now
    ├── MigrationBusy                migration_busy: another migration holds the lock
    ├── MigrationThroughPooler       pooler_in_transaction_mode: no place for a migration
    ├── MigrationFailed              migration_failed: a file was refused by the server
    └── RolesNeeded                  roles_needed: an administrator must make or mend the roles
"""

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError


class SchemaError(TenureError):
    """The database cannot be used as it is."""


class ServerTooOld(SchemaError):
    """The server lacks ``transaction_timeout``, which bounds how long a stopped service blocks."""

    code = "server_too_old"


class DatabaseUnreachable(SchemaError):
    """No connection to the server; the same call may succeed later."""

    code = Code.UNAVAILABLE


class DatabaseRefused(SchemaError):
    """The server refuses the login, does not have the database, or gives too few rights."""

    code = "database_refused"


class DatabaseUntrusted(SchemaError):
    """The server's certificate is not accepted, or it does not speak TLS."""

    code = "certificate_untrusted"


class NotMigrated(SchemaError):
    """Migrations of this program are missing in the database."""

    code = Code.NOT_MIGRATED


class SchemaTooNew(SchemaError):
    """The database has migrations that this program does not know."""

    code = Code.SCHEMA_TOO_NEW


class MigrationEdited(SchemaError):
    """A migration was applied with other content than this program carries."""

    code = "migration_edited"


class MigrationBusy(SchemaError):
    """Another process migrates this database, or uses it too much to be migrated."""

    code = "migration_busy"


class MigrationThroughPooler(SchemaError):
    """A migration needs a session of its own."""

    code = "pooler_in_transaction_mode"


class MigrationFailed(SchemaError):
    """The server refused a statement of a migration; that file changed nothing."""

    code = "migration_failed"


class RolesNeeded(SchemaError):
    """The services' roles are missing or lack their limits, and this login may not change them."""

    code = "roles_needed"
