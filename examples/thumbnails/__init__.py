"""Pictures to thumbnails in an object store, each task's by one attempt."""
