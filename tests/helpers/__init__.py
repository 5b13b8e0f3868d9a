"""What several test modules use."""
