"""From shapes that users sent to the buckets that waste least on padding."""
