"""What can go wrong with the database.

DatabaseError
  DatabaseUnavailable   no answer, or not now; retried by whoever owns the retry (Temporal)
    OutcomeUnknown      lost after it was asked: what was asked for may have happened
  SchemaMismatch        the tables are not those this version needs; the message says what to run
  MigrationFailed       one migration could not be applied; those before it were
  UnknownCursor         `after` of a list names nothing
  UnknownBatch          a move of a batch that has no row
  FileInUse             a live batch reads the file
  UnknownUpload         the tenant has no such upload
  UploadClosed          the upload takes nothing any more: completed, cancelled or expired
  UploadFull            its parts would be too many, or too many bytes
  UnknownTenant         a key, or a user, of a tenant that nobody made
  UnknownUser           a key for a user that the tenant has not got
"""


class DatabaseError(Exception):
    """Something about the database."""


class DatabaseUnavailable(DatabaseError):
    """The database does not answer, or cannot do it now."""


class OutcomeUnknown(DatabaseUnavailable):
    """The answer is lost. Whoever undoes something else must take it that the rows are there."""


class SchemaMismatch(DatabaseError):
    """The tables are older or newer than this version of Batchwright, or were changed by hand."""


class MigrationFailed(DatabaseError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Migration {name!r} cannot be applied, and nothing of it was: {reason}")
        self.name = name


class UnknownCursor(DatabaseError):
    def __init__(self, id: str) -> None:
        super().__init__(f"No object found with id {id!r} to continue the list after.")
        self.id = id


class UnknownBatch(DatabaseError):
    def __init__(self, batch_id: str) -> None:
        super().__init__(f"Batch {batch_id!r} has no row; upsert its order first.")
        self.batch_id = batch_id


class FileInUse(DatabaseError):
    def __init__(self, file_id: str, batch_id: str) -> None:
        super().__init__(f"File {file_id!r} is the input of {batch_id!r}, which has not ended yet.")
        self.file_id = file_id
        self.batch_id = batch_id


class UnknownUpload(DatabaseError):
    def __init__(self, upload_id: str) -> None:
        super().__init__(f"Upload {upload_id!r} has no row.")
        self.upload_id = upload_id


class UploadClosed(DatabaseError):
    def __init__(self, upload_id: str, status: str) -> None:
        super().__init__(f"Upload {upload_id!r} is {status}.")
        self.upload_id = upload_id
        self.status = status


class UploadFull(DatabaseError):
    def __init__(self, upload_id: str) -> None:
        super().__init__(f"Upload {upload_id!r} takes no more parts: there are too many, or too many bytes.")
        self.upload_id = upload_id


class UnknownTenant(DatabaseError):
    def __init__(self, tenant: str) -> None:
        super().__init__(f"There is no tenant {tenant!r}: `batchwright tenants create {tenant}` makes it.")
        self.tenant = tenant


class UnknownUser(DatabaseError):
    def __init__(self, tenant: str, name: str) -> None:
        remedy = f"`batchwright users create {tenant} {name}` makes it."
        super().__init__(f"Tenant {tenant!r} has no user {name!r}: {remedy}")
        self.tenant = tenant
        self.name = name
