"""What people read and look at, made from stored results alone."""
