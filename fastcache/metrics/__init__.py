"""Quality of a run against its reference: two uint8 clips in, numbers out."""
