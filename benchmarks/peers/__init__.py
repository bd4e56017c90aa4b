"""What TenSafe is measured against. Nothing here imports TenSafe."""
