"""What each operation does: one file per dialect or kind of instruction. A rule translates an operation, once, into a
step that works on all threads (translate.py)."""
