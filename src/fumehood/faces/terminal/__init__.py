"""The views in a terminal: what runs, what is asked, what waits, and the history, drawn by Textual."""
