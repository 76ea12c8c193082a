"""Define the style of all pictures and their conversion to SVG, independently of what is drawn."""
