"""Multipart uploads that nobody finished: S3 keeps and bills their parts until somebody ends them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from botocore.exceptions import ClientError

from batchwright.storage.retries import Operation
from batchwright.storage.s3.bucket import S3Bucket
from batchwright.storage.s3.errors import NO_UPLOAD, code_of


async def sweep(bucket: S3Bucket, older_than: timedelta) -> int:
    """Ends those below the bucket's prefix that began that long ago; how many. Raises StorageUnavailable."""
    count, horizon = 0, datetime.now(UTC) - older_than
    async for key, upload_id, begun in _uploads(bucket):
        if begun < horizon:
            await abort_upload(bucket, key, upload_id)
            count += 1
    return count


async def abort_upload(bucket: S3Bucket, key: str, upload_id: str) -> None:
    """Ends the upload and deletes its parts; one that has ended already is fine."""

    async def attempt() -> None:
        try:
            await bucket.client.abort_multipart_upload(
                Bucket=bucket.name, Key=bucket.at(key), UploadId=upload_id
            )
        except ClientError as error:
            if code_of(error) != NO_UPLOAD:
                raise

    await bucket.call(Operation.DELETE, "end the upload of", key, attempt)


async def _uploads(bucket: S3Bucket) -> AsyncIterator[tuple[str, str, datetime]]:
    key_marker, id_marker = "", ""
    while True:
        page = await bucket.call(
            Operation.LIST,
            "list the uploads below",
            "",
            lambda key_marker=key_marker, id_marker=id_marker: bucket.client.list_multipart_uploads(
                Bucket=bucket.name,
                Prefix=bucket.place.prefix,
                KeyMarker=key_marker,
                UploadIdMarker=id_marker,
            ),
        )
        for upload in page.get("Uploads", []):
            key = upload.get("Key", "").removeprefix(bucket.place.prefix)
            if "UploadId" in upload and "Initiated" in upload:
                yield key, upload["UploadId"], upload["Initiated"]
        if not page.get("IsTruncated"):
            return
        key_marker, id_marker = page["NextKeyMarker"], page["NextUploadIdMarker"]
