"""Services for files: uploads in one request or in parts, and downloads."""
