"""Parses the Dockerfile and docker-compose.yml of the repository."""

import re
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

ROOT = Path(__file__).parents[3]


class Instruction(BaseModel):
    """An instruction of the Dockerfile, without comments and with continued lines joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Words of the instruction without options such as `--from`."""
        return [word for word in self.text.split() if not word.startswith("--")]


def dockerfile() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    parts = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [Instruction(name=name, text=rest.strip()) for name, _, rest in parts]


def stage(last: bool) -> list[Instruction]:
    """Return the instructions of the Dockerfile's last stage, or of all other stages if `last` is False."""
    all_of_it = dockerfile()
    start = max(place for place, each in enumerate(all_of_it) if each.name == "FROM")
    return all_of_it[start:] if last else all_of_it[:start]


def image_environment() -> dict[str, str]:
    """Return the environment variables that the image sets."""
    variables = " ".join(each.text for each in stage(last=True) if each.name == "ENV")
    return dict(pair.split("=", 1) for pair in variables.split())


class Healthcheck(BaseModel):
    test: list[str]


class DependsOn(BaseModel):
    condition: str


class Deploy(BaseModel):
    replicas: int = 1


class Volume(BaseModel):
    type: str
    target: str


class Service(BaseModel):
    """A service of docker-compose.yml with the fields that tests check."""

    model_config = ConfigDict(extra="allow")
    image: str
    build: str | None = None
    command: list[str] = []
    environment: dict[str, str] = {}
    ports: list[str] = []
    volumes: list[str | Volume] = []
    healthcheck: Healthcheck | None = None
    depends_on: dict[str, DependsOn] = {}
    deploy: Deploy = Deploy()
    restart: str = "no"
    user: str = ""
    read_only: bool = False
    cap_drop: list[str] = []
    security_opt: list[str] = []
    extra_hosts: list[str] = []
    stop_grace_period: str = "10s"

    @property
    def ours(self) -> bool:
        return self.build is not None

    @property
    def files(self) -> list[Path]:
        """Paths in the repository that the service mounts."""
        mounts = [volume for volume in self.volumes if isinstance(volume, str)]
        return [ROOT / mount.split(":")[0] for mount in mounts if mount.startswith("./")]


class Compose(BaseModel):
    services: dict[str, Service]
    named_volumes: dict[str, None] = Field(alias="volumes")


def compose() -> Compose:
    return Compose.model_validate(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))
