"""Pictures made from stored results."""
