"""What stands between the commands and a user's terminal."""
