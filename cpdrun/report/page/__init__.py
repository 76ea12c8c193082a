"""Pictures and pages: how every one looks, and the report as one file of HTML."""
