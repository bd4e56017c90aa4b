"""The libraries that TenSafe is compared with. No module here imports TenSafe."""
