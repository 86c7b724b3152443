"""The database of this process: PostgreSQL, through one pool."""

from batchwright.database.api_keys import ApiKeys
from batchwright.database.audits import Audits
from batchwright.database.base import DatabaseLike
from batchwright.database.batches import Batches
from batchwright.database.callbacks import Callbacks
from batchwright.database.chances import Chances
from batchwright.database.claims import Claims
from batchwright.database.connection import Connections, connections
from batchwright.database.dead_letters import DeadLetters
from batchwright.database.errors import SchemaMismatch
from batchwright.database.files import Files
from batchwright.database.fleet import Fleet
from batchwright.database.migrate import missing_names
from batchwright.database.model_changes import ModelChanges
from batchwright.database.models import Models
from batchwright.database.organizations import Organizations
from batchwright.database.progress import Progress
from batchwright.database.quotas import Quotas
from batchwright.database.rates import RateChanges
from batchwright.database.retention import Retention
from batchwright.database.tenants import Tenants
from batchwright.database.uploads import Uploads
from batchwright.database.users import Users
from batchwright.database.waiting import WaitingReasons
from batchwright.database.workers import Workers
from batchwright.settings import Settings

_PATIENCE_SECONDS = 30.0


class Database(DatabaseLike):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._files = Files(connections)
        self._dead_letters = DeadLetters(connections, self._files)
        self._batches = Batches(connections, self._files, self._dead_letters)
        self._progress = Progress(connections, self._batches)
        self._models = Models(connections)
        self._workers = Workers(connections)
        self._rates = RateChanges(connections)
        self._quotas = Quotas(connections, self._batches)
        self._model_changes = ModelChanges(connections)
        self._fleet = Fleet(connections)
        self._uploads = Uploads(connections, self._files)
        self._claims = Claims(connections, self._files, self._uploads)
        self._chances = Chances(connections, self._files)
        self._retention = Retention(connections)
        self._audits = Audits(connections)
        self._waiting = WaitingReasons(connections)
        self._callbacks = Callbacks(connections)
        self._tenants = Tenants(connections)
        self._organizations = Organizations(connections)
        self._users = Users(connections)
        self._api_keys = ApiKeys(connections)

    @property
    def files(self) -> Files:
        return self._files

    @property
    def batches(self) -> Batches:
        return self._batches

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def models(self) -> Models:
        return self._models

    @property
    def workers(self) -> Workers:
        return self._workers

    @property
    def rates(self) -> RateChanges:
        return self._rates

    @property
    def quotas(self) -> Quotas:
        return self._quotas

    @property
    def model_changes(self) -> ModelChanges:
        return self._model_changes

    @property
    def fleet(self) -> Fleet:
        return self._fleet

    @property
    def uploads(self) -> Uploads:
        return self._uploads

    @property
    def claims(self) -> Claims:
        return self._claims

    @property
    def chances(self) -> Chances:
        return self._chances

    @property
    def dead_letters(self) -> DeadLetters:
        return self._dead_letters

    @property
    def retention(self) -> Retention:
        return self._retention

    @property
    def audits(self) -> Audits:
        return self._audits

    @property
    def waiting(self) -> WaitingReasons:
        return self._waiting

    @property
    def callbacks(self) -> Callbacks:
        return self._callbacks

    @property
    def tenants(self) -> Tenants:
        return self._tenants

    @property
    def organizations(self) -> Organizations:
        return self._organizations

    @property
    def users(self) -> Users:
        return self._users

    @property
    def api_keys(self) -> ApiKeys:
        return self._api_keys

    async def check(self) -> None:
        await self._connections.fetchrow("SELECT 1")

    async def close(self) -> None:
        await self._connections.close()


async def open_database(settings: Settings, *, patience_seconds: float = _PATIENCE_SECONDS) -> Database:
    """The database, answering and with all migrations applied.

    Raises:
        DatabaseUnavailable: no answer within the patience, which is for servers that start beside us.
        SchemaMismatch: `batchwright migrate` has to be run first, or a newer version broke with ours.
    """
    pool = await connections(
        settings.database_url, size=settings.database_pool_size, patience_seconds=patience_seconds
    )
    try:
        async for attempt in pool.patient(patience_seconds):
            with attempt:
                await _refuse_missing(pool)
    except BaseException:
        await pool.close()
        raise
    return Database(pool)


async def _refuse_missing(pool: Connections) -> None:
    async with pool.session() as session:
        missing = await missing_names(session)
    if missing:
        raise SchemaMismatch(f"The database lacks {', '.join(missing)}: run `batchwright migrate` first.")
