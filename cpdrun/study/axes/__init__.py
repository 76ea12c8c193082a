"""The axes that runs differ in: choices, formats and communication methods, and their titles for reports."""
