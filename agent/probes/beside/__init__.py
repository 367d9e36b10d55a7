"""What belongs to a family and is no declaration: its targets, its maps, its kept records."""
