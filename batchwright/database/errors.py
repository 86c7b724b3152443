"""Errors of the database.

DatabaseError
  DatabaseUnavailable   the database does not answer, or rolled the statement back; the caller can retry
    OutcomeUnknown      the connection was lost after the statement was sent, so it may have been executed
  SchemaMismatch        the tables do not fit this version of the code; the message says which command to run
  MigrationFailed       PostgreSQL rejected a migration and rolled it back; earlier migrations stay applied
  UnknownCursor         a page of a list should begin after an object that does not exist
  UnknownBatch          the batch to change does not exist
  FileInUse             the file is the input of a batch that has not ended or whose files are not written yet
  ResultsInUse          the batch cannot be deleted, because another batch still needs to copy the results
  ResultsGone           a new batch cannot continue an ended batch whose results are no longer kept
  UnknownUpload         the tenant has no such upload
  UploadClosed          the upload accepts no parts, because it is completed, cancelled or expired
  UploadFull            with one more part, the upload would exceed the limit of parts or bytes
  QuotaExhausted        the tenant would exceed a quota, so nothing was changed
  UnknownTenant         the tenant of a new API key, team or user does not exist
  UnknownBudgetGroup    the budget group (organization, team or user) to change does not exist
  UnknownApiKey         the new member of a team or a user is not an API key of its tenant
  InOtherOrganization   the tenant cannot join the organization, because it belongs to another one
  VersionConflict       another request changed the model after the caller had read it
"""

from batchwright.contracts.terms import Quota
from batchwright.rules.tenants.quotas import BudgetGroup


class DatabaseError(Exception):
    """Base class of all errors of the database."""


class DatabaseUnavailable(DatabaseError):
    """The database does not answer, or cannot execute the statement now.

    The caller can repeat the call later.
    """


class OutcomeUnknown(DatabaseUnavailable):
    """The response to a statement was lost. The database may or may not have executed the statement.

    So the rows that the statement inserts may exist. The caller must not delete objects in storage that
    belong to these rows.
    """


class SchemaMismatch(DatabaseError):
    """The tables are older or newer than this version of Batchwright, or were changed by hand."""


class MigrationFailed(DatabaseError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Migration {name!r} failed and was rolled back: {reason}")
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
        super().__init__(
            f"File {file_id!r} is the input of {batch_id!r}, which has not ended or whose files are pending."
        )
        self.file_id = file_id
        self.batch_id = batch_id


class ResultsInUse(DatabaseError):
    def __init__(self, batch_id: str, reader_id: str) -> None:
        super().__init__(f"The results of {batch_id!r} are still read by {reader_id!r}, which resumes it.")
        self.batch_id = batch_id
        self.reader_id = reader_id


class ResultsGone(DatabaseError):
    def __init__(self, batch_id: str) -> None:
        super().__init__(f"The results of {batch_id!r} are no longer kept, so it cannot be resumed.")
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
        super().__init__(f"Upload {upload_id!r} is full: it has too many parts or bytes.")
        self.upload_id = upload_id


class QuotaExhausted(DatabaseError):
    def __init__(self, tenant: str, quota: Quota, limit: int) -> None:
        super().__init__(f"Tenant {tenant!r} would exceed its quota {quota.value!r} of {limit}.")
        self.quota = quota
        self.limit = limit


class UnknownTenant(DatabaseError):
    def __init__(self, tenant: str) -> None:
        super().__init__(f"There is no tenant {tenant!r}: `batchwright tenants create {tenant}` creates it.")
        self.tenant = tenant


class UnknownBudgetGroup(DatabaseError):
    def __init__(self, group: BudgetGroup) -> None:
        subject = f"Tenant {group.tenant!r} has" if group.tenant else "There is"
        tenant = f" --tenant {group.tenant}" if group.tenant else ""
        remedy = f"`batchwright budget-groups create {group.kind} {group.name}{tenant}` creates it."
        super().__init__(f"{subject} no {group.kind} {group.name!r}: {remedy}")
        self.group = group


class UnknownApiKey(DatabaseError):
    def __init__(self, tenant: str, key_id: str) -> None:
        super().__init__(f"Tenant {tenant!r} has no key {key_id!r}; `batchwright keys list` lists them.")
        self.tenant = tenant
        self.key_id = key_id


class InOtherOrganization(DatabaseError):
    def __init__(self, tenant: str, organization: str) -> None:
        remedy = f"`batchwright budget-groups remove organization {organization} {tenant}` removes it."
        super().__init__(f"The tenant {tenant!r} is in the organization {organization!r}; {remedy}")
        self.tenant = tenant
        self.organization = organization


class VersionConflict(DatabaseError):
    """Another request changed the settings of the model after the caller had read them.

    The caller's change was not stored. `present` is the current version number of the model's settings; `0`
    if no change at run time is stored.
    """

    def __init__(self, model: str, present: int) -> None:
        super().__init__(f"The model {model!r} has version {present}.")
        self.present = present
