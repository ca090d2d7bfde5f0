"""What people are shown of plans, inspections and results: the same tables and sentences wherever they are shown."""
