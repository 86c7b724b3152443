"""What Batchwright's parts say to each other: messages, declared activities, names."""
