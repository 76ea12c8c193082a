"""Write the files of a report: tables, pictures, and the page as one HTML file."""
