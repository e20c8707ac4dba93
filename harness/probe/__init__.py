"""What is measured while a system is driven: leaves, storages, writes, poison. Nothing here judges."""
