"""What is known, as data: a source and a date on every row; code only reads it."""
