"""The static files of the pages: scripts of the htmx package, and files that browsers keep."""

from hashlib import sha256
from pathlib import Path

import batchwright.api.ui as ui
from tests.fakes.api import open_api

FOLDER = Path(ui.__file__).parent


def test_the_copied_scripts_have_the_checksums_of_the_package() -> None:
    listed = dict(line.split()[::-1] for line in (FOLDER / "htmx-SHA256SUMS").read_text().splitlines()[1:])
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in (FOLDER / "static").glob("*.js")}
    assert found == listed


async def test_a_page_names_files_that_exist_and_may_be_kept_for_long() -> None:
    async with open_api(auth="none") as api:
        page = (await api.http.get("/ui/batches")).text
        paths = [
            part.partition('"')[0]
            for part in page.replace('href="', 'src="').split('src="')
            if "/static/" in part[:12]
        ]
        assert len(paths) == 4
        for path in paths:
            file = await api.http.get(path)
            assert file.status_code == 200, path
            assert "immutable" in file.headers["cache-control"]
        assert (await api.http.get("/ui/static/..%2Fmiddleware.py")).status_code == 404
