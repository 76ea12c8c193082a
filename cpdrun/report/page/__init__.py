"""Write the files of a report: the tables, the pictures, and the HTML page."""
