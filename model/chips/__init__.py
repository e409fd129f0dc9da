"""Programs of this project compiled for chips that this machine does not have."""
